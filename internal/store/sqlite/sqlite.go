// Package sqlite keeps clawjail's database in one file: the store of a single machine, which needs no server.
//
// The file is clawjail.db in a folder of its own, both readable by their owner alone. It is in WAL mode, and every
// change is on the disk before a method returns (synchronous=FULL). A Store has one connection that writes and a few
// that read; several processes may have the file open at the same time, and take turns at writing.
//
// Keep the file on a local disk: the locks and the shared memory of WAL mode do not work over a network.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	driver "modernc.org/sqlite"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

const (
	// FileName is the database in its folder. SQLite adds -wal and -shm for the files beside it.
	FileName = "clawjail.db"
	// readers is how many connections read at the same time. More only wait for the same disk.
	readers = 4
	// listers is how many connections list records of the audit log at the same time.
	listers = 4
	// turn is how long a writer waits for one of another process.
	turn = 10 * time.Second
	// autoCheckpoint is after how many pages the WAL is moved into the file: fewer than one piece of the file of shared memory
	// has room for, which would otherwise grow, too.
	autoCheckpoint = 4000
)

// DB is a store.Store, which says what its methods promise.
type DB struct {
	sqldb.Tables
	path        string
	write, read *sql.DB
	// walk is for readers that take their time: each has a connection of its own, so that they cannot keep the
	// others from reading. listings of the audit log can take theirs, and share a few.
	walk, listings *sql.DB
	// Frequent statements are prepared once for a connection: those that change on the one that writes, and others by query.
	insertAudit    [3]*sql.Stmt // by auditGroups
	growAudit      *sql.Stmt
	changes, reads prepared
}

var _ store.Store = (*DB)(nil)

// Open opens the database in a folder, makes both when they are missing, and brings an older schema up to date. A
// schema that is newer than this program is refused, and left as it is. Two processes may do so at the same time.
func Open(ctx context.Context, dir string) (_ *DB, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("find the folder of the database: %w", err)
	}
	path := filepath.Join(dir, FileName)
	release, err := prepare(ctx, dir, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()

	db := &DB{path: path, changes: prepared{}, reads: prepared{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if db.write, err = pool(path, false); err != nil {
		return nil, err
	}
	db.write.SetMaxOpenConns(1)
	if err := migrate(ctx, db.write); err != nil {
		return nil, err
	}
	for n, size := range auditGroups() {
		if db.insertAudit[n], err = db.write.PrepareContext(ctx, insertAudit(size)); err != nil {
			return nil, failure(ctx, "open the database", err)
		}
	}
	changes, reads := sqldb.Frequent()
	if err := db.changes.add(ctx, db.write, changes); err != nil {
		return nil, err
	}
	if db.growAudit, err = db.write.PrepareContext(ctx, growAudit); err != nil {
		return nil, failure(ctx, "open the database", err)
	}
	if db.read, err = pool(path, true); err != nil {
		return nil, err
	}
	db.read.SetMaxOpenConns(readers)
	db.read.SetMaxIdleConns(readers)
	if err := db.reads.add(ctx, db.read, reads); err != nil {
		return nil, err
	}
	if db.walk, err = pool(path, true); err != nil {
		return nil, err
	}
	db.walk.SetMaxIdleConns(-1)
	if db.listings, err = pool(path, true); err != nil {
		return nil, err
	}
	db.listings.SetMaxOpenConns(listers)
	db.listings.SetMaxIdleConns(listers)
	db.Tables = sqldb.New(sqldb.Dialect{
		Read: reader{db.read, db.reads}, Listings: db.listings, ByIntents: " INDEXED BY audit_intents",
		Change: func(ctx context.Context, what string, f func(context.Context, sqldb.Querier) error) error {
			return db.change(ctx, what, func(ctx context.Context, tx *sql.Tx) error { return f(ctx, querier{tx, db.changes}) })
		},
		Failure: failure, Stamp: stamp, Ago: ago, Hasty: "1 = 1", List: texts, ScanList: func(to *[]string) sql.Scanner { return listing{to} },
	})
	return db, nil
}

// pool opens no connection yet.
func pool(path string, readOnly bool) (*sql.DB, error) {
	settings := url.Values{
		"_txlock":       {"immediate"},
		"_busy_timeout": {fmt.Sprint(turn.Milliseconds())},
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"},
		"_foreign_keys": {"1"},
		// The schema cannot be written to, nor can the journal be turned off, by any statement.
		"_defensive": {"1"},
		// "name" is a column, and never a text.
		"_dqs": {"0"},
		// Temporary tables are no files; the functions of a schema that somebody else wrote are not run. The WAL is
		// moved into the file every 16 MB instead of 4: the pages of the indexes are written often, and moved once.
		"_pragma": {"temp_store(MEMORY)", "trusted_schema(0)", fmt.Sprintf("wal_autocheckpoint(%d)", autoCheckpoint)},
		// The error is of what failed, and not of an earlier failure.
		"_error_rc": {"1"},
	}
	if readOnly {
		settings.Del("_journal_mode")
		settings.Set("_txlock", "deferred")
		settings.Set("_query_only", "1")
	}
	// A URI, because the query of a plain path is cut off before SQLite sees it.
	name := url.URL{Scheme: "file", Path: path, RawQuery: settings.Encode()}
	connector, err := driver.NewConnector(name.String())
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", path, err)
	}
	return sql.OpenDB(connector), nil
}

// Close waits for the methods that are running.
func (db *DB) Close() error {
	var errs []error
	for _, statement := range slices.AppendSeq(slices.AppendSeq(append(db.insertAudit[:], db.growAudit), maps.Values(db.changes)), maps.Values(db.reads)) {
		if statement != nil {
			errs = append(errs, statement.Close())
		}
	}
	// The writer is the last: closing the last connection moves the WAL into the file.
	for _, pool := range []*sql.DB{db.walk, db.listings, db.read, db.write} {
		if pool != nil {
			errs = append(errs, pool.Close())
		}
	}
	return errors.Join(errs...)
}

// Ping writes, so that it fails when the disk is full.
func (db *DB) Ping(ctx context.Context) error {
	return db.add(ctx, "write to the database", `UPDATE heartbeat SET beats = beats + 1`)
}

// change runs f in a transaction that has the right to write from the start, and commits it unless f returns an
// error. A commit has reached the disk when it returns.
//
// The context ends the wait for that right, and the transaction. f has one without an end for its statements: they are
// short, and for a context that may end the driver starts a goroutine for every single one.
func (db *DB) change(ctx context.Context, what string, f func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return failure(ctx, what, err)
	}
	if err := f(context.WithoutCancel(ctx), tx); err != nil {
		if undo := tx.Rollback(); undo != nil && !errors.Is(undo, sql.ErrTxDone) {
			err = errors.Join(err, undo)
		}
		return db.fullOr(ctx, failure(ctx, what, err))
	}
	return db.fullOr(ctx, failure(ctx, what, tx.Commit()))
}

// fullOr moves the WAL into the file when the disk is full: the next change begins it anew, in the room that it has.
func (db *DB) fullOr(ctx context.Context, err error) error {
	if problem.CodeOf(err) == problem.DiskFull {
		_, _ = db.write.ExecContext(context.WithoutCancel(ctx), moveWAL) // the error that is returned is the first one
	}
	return err
}

// add runs a statement that may change any number of rows.
func (db *DB) add(ctx context.Context, what, query string, args ...any) error {
	return db.change(ctx, what, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

// querier is a transaction with the statements that are prepared.
type querier struct {
	*sql.Tx
	prepared prepared
}

func (q querier) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if statement := q.prepared[query]; statement != nil {
		return q.StmtContext(ctx, statement).QueryRowContext(ctx, args...)
	}
	return q.Tx.QueryRowContext(ctx, query, args...)
}

// reader is the pool that reads with the statements that are prepared.
type reader struct {
	*sql.DB
	prepared prepared
}

func (r reader) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if statement := r.prepared[query]; statement != nil {
		return statement.QueryRowContext(ctx, args...)
	}
	return r.DB.QueryRowContext(ctx, query, args...)
}

// prepared are statements by their query.
type prepared map[string]*sql.Stmt

func (p prepared) add(ctx context.Context, pool *sql.DB, queries []string) error {
	for _, query := range queries {
		statement, err := pool.PrepareContext(ctx, query)
		if err != nil {
			return failure(ctx, "open the database", err)
		}
		p[query] = statement
	}
	return nil
}
