package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/clawjail/clawjail/internal/store"
)

// The files of a schema that was released do not change: what comes later is a new file, in both dialects.
//
//go:embed migrations/*.sql
var migrations embed.FS

// schemaLock is the advisory lock that a node holds while it looks at the schema and brings it up to date.
const schemaLock = 0x636c61776a61696c // "clawjail"

// migrate brings the schema up to date.
func migrate(ctx context.Context, pool *pgxpool.Pool, db *sql.DB) (err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return failure(ctx, "open the database", err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(schemaLock)); err != nil {
		return failure(ctx, "wait for another node that opens the database", err)
	}
	defer func() {
		// Also when the context is over. A connection that breaks has given up its lock.
		after := context.WithoutCancel(ctx)
		if _, undo := conn.Exec(after, `SELECT pg_advisory_unlock($1)`, int64(schemaLock)); undo != nil {
			err = errors.Join(err, conn.Conn().Close(after))
		}
	}()

	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	found, last, err := provider.GetVersions(ctx)
	if err != nil {
		return failure(ctx, "read the version of the database", err)
	}
	if err := store.CheckSchema(found, provider.ListSources()[0].Version, last); err != nil || found == last {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return failure(ctx, "bring the database up to date", err)
	}
	return nil
}
