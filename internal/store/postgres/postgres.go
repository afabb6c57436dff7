// Package postgres keeps clawjail's database on a PostgreSQL server, where several nodes share it.
//
// PostgreSQL 13 or newer is needed. The user of the URL must be able to create tables in the first schema of its
// search path; clawjail makes them when it starts, and brings them up to date. Nodes may start at the same time.
//
// The address is checked before anything is sent: over a network the connection must be encrypted, and a password
// that anybody would try is refused. See CheckURL.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

// minConns is what a pool needs at least: the schema is locked on one connection and changed on another.
const minConns = 4

// DB is a store.Store, which says what its methods promise.
type DB struct {
	sqldb.Tables
	pool  *pgxpool.Pool
	plain *sql.DB // the same pool
}

var _ store.Store = (*DB)(nil)

// Open connects to the server of a postgres:// URL, and brings an older or missing schema up to date. A schema that
// is newer than this program is refused, and left as it is.
func Open(ctx context.Context, databaseURL string) (*DB, error) {
	config, err := parse(databaseURL)
	if err != nil {
		return nil, err
	}
	settings := config.ConnConfig.RuntimeParams
	if settings["application_name"] == "" {
		settings["application_name"] = "clawjail"
	}
	settings["timezone"] = "UTC"
	// The promises of package store hold at this level; a stricter one would only make transactions fail that must be retried.
	settings["default_transaction_isolation"] = "read committed"
	config.MaxConns = max(config.MaxConns, minConns)
	config.AfterConnect = keepCommits
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, failure(ctx, "open the database", err)
	}
	db, arrays := &DB{pool: pool, plain: stdlib.OpenDBFromPool(pool)}, &arrays{types: pgtype.NewMap()}
	db.Tables = sqldb.New(sqldb.Dialect{
		Read: db.plain, Listings: db.plain,
		// Each statement is a transaction of its own: one of them changes rows at most.
		Change: func(ctx context.Context, what string, f func(context.Context, sqldb.Querier) error) error {
			return failure(ctx, what, f(ctx, db.plain))
		},
		Failure: failure, Stamp: func(t time.Time) any { return stamp(t) },
		Ago: func(microseconds string) string {
			return "(statement_timestamp() - CAST(" + microseconds + " AS bigint) * interval '1 microsecond')"
		},
		Hasty: "set_config('synchronous_commit', 'off', true) = 'off'", // until the end of the transaction
		List:  func(list []string) any { return filled(list) }, ScanList: func(to *[]string) sql.Scanner { return listing{arrays, to} },
	})
	if err := migrate(ctx, pool, db.plain); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// keepCommits makes sure that a commit is on the disk when it is confirmed, also where the server or the database is
// set to confirm earlier. Stricter settings stay.
func keepCommits(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, silence) // connections that are made in the background have no caller whose context ends them
	defer cancel()
	_, err := conn.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`)
	return err
}

// Close waits for the methods that are running.
func (db *DB) Close() error {
	db.pool.Close()
	return db.plain.Close()
}

// Ping writes, so that it fails when the disk is full, and on a server that is read-only.
func (db *DB) Ping(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, `UPDATE heartbeat SET beats = beats + 1`)
	return failure(ctx, "write to the database", err)
}

// change runs f in a transaction, and commits it unless f returns an error.
func (db *DB) change(ctx context.Context, what string, f func(tx pgx.Tx) error) error {
	return failure(ctx, what, pgx.BeginFunc(ctx, db.pool, f))
}
