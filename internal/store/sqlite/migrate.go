package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	codes "modernc.org/sqlite/lib"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// The files of a schema that was released do not change: what comes later is a new file, in both dialects.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migrate brings the schema up to date. The caller has the lock on it.
func migrate(ctx context.Context, db *sql.DB) error {
	provider, err := versions(db)
	if err != nil {
		return err
	}
	found, last, err := version(ctx, provider)
	if err != nil || found == last {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return failure(ctx, "bring the database up to date", err)
	}
	return nil
}

func versions(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return provider, nil
}

// version is that of the schema, and the last one that this program knows. One that it does not know is an error.
func version(ctx context.Context, known *goose.Provider) (found, last int64, err error) {
	if found, last, err = known.GetVersions(ctx); err != nil {
		return 0, 0, unreadable(failure(ctx, "read the version of the database", err))
	}
	return found, last, store.CheckSchema(found, known.ListSources()[0].Version, last)
}

// unreadable says so when the file is no database, or a damaged one.
func unreadable(err error) error {
	if primary := code(err) & 0xff; primary == codes.SQLITE_NOTADB || primary == codes.SQLITE_CORRUPT {
		return problem.Wrap(err, problem.BadConfig, "restore it from a backup, or move it away to begin with an empty one",
			"the file %s is damaged, or is not a database of clawjail", FileName)
	}
	return err
}
