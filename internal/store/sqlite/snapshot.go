package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/clawjail/clawjail/internal/problem"
)

// Snapshot copies the database in a folder into a new file, as it is at one moment. Others may write to the database meanwhile,
// and do not wait. The copy has the schema that the database has, and is on the disk when Snapshot returns.
func Snapshot(ctx context.Context, dir, to string) (err error) {
	path := filepath.Join(dir, FileName)
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("look for the database: %w", err)
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // VACUUM INTO takes an empty file, and its mode
	if err != nil {
		return fmt.Errorf("make the copy of the database: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := pool(path, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	one, err := db.Conn(ctx)
	if err != nil {
		return failure(ctx, "copy the database", err)
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	// VACUUM INTO needs query_only off. This connection runs nothing else.
	if _, err := one.ExecContext(ctx, `PRAGMA query_only = 0`); err != nil {
		return failure(ctx, "copy the database", err)
	}
	if _, err := one.ExecContext(ctx, `VACUUM INTO ?`, to); err != nil {
		return failure(ctx, "copy the database", err)
	}
	if f, err = os.OpenFile(to, os.O_RDWR, 0); err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Inspect checks every page of the database in a folder, and returns the version of its schema. The error of a damaged one
// has the code bad_config; that of a schema which this program does not know, database_too_new or database_too_old.
func Inspect(ctx context.Context, dir string) (schema int64, err error) {
	db, err := pool(filepath.Join(dir, FileName), true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var found string
	if err := db.QueryRowContext(ctx, `PRAGMA integrity_check(1)`).Scan(&found); err != nil {
		return 0, unreadable(failure(ctx, "check the database", err))
	}
	if found != "ok" {
		return 0, problem.New(problem.BadConfig, "use another backup", "the database is damaged: %s", found)
	}
	provider, err := versions(db)
	if err != nil {
		return 0, err
	}
	schema, _, err = version(ctx, provider)
	return schema, err
}
