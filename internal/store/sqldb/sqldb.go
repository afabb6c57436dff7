// Package sqldb has the tables that are the same in every SQL database. Packages store/sqlite and store/postgres open theirs, and say
// in a Dialect what differs.
//
// Statements are such as both databases understand: parameters are $1, and a CASE stands for the greater of two values. Each
// method changes rows by one statement at most, so that the database decides between several that do so at the same time.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// Dialect is what a database does in its own way.
type Dialect struct {
	// Read is where rows are read that are not about to be changed.
	Read Reader
	// Listings is where records of the audit log are listed: long ones keep no other call from reading.
	Listings *sql.DB
	// ByIntents follows the name of the audit log where only its intents are asked for.
	ByIntents string
	// Change runs f, of whose statements one at most changes rows. That change is on the disk when Change returns nil; when f returns
	// an error after it, it may have been made. Errors have the meaning that package store gives them.
	Change func(ctx context.Context, what string, f func(ctx context.Context, q Querier) error) error
	// Failure gives an error its meaning for callers.
	Failure func(ctx context.Context, what string, err error) error
	// Stamp is a time as a column has it; NULL for none.
	Stamp func(time.Time) any
	// Ago is the database's time as many microseconds ago as a parameter says, or a number.
	Ago func(microseconds string) string
	// Hasty is a condition that holds. A change with it does not wait for the disk, and may be lost when the server crashes.
	Hasty string
	// List is a list as a column has it, and ScanList scans it; an empty one is nil.
	List     func([]string) any
	ScanList func(to *[]string) sql.Scanner
}

// Querier is a database or a transaction.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Reader is a pool of connections that read.
type Reader interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tables are the parts of a store.Store that databases have in common.
type Tables struct{ dialect Dialect }

// New has the tables of a database.
func New(d Dialect) Tables { return Tables{d} }

// errOccupied is what it means that the row that was to be replaced is not there as it was read.
var errOccupied = fmt.Errorf("another one has taken its place: %w", store.ErrExists)

// Closed says whether an error is of a pool or a connection that was closed. Package database/sql has no name for the first.
func Closed(err error) bool {
	return errors.Is(err, sql.ErrConnDone) || err.Error() == "sql: database is closed"
}

// Frequent are the queries of one row that an opening session, and every request of an agent or to a model, wait for: it is worth
// while to prepare them. Changes are run by Dialect.Change, and reads by Dialect.Read.
func Frequent() (changes, reads []string) {
	return []string{useGrant, chargeUsage}, []string{readGrant, tokenByHash}
}

// changeOne runs a statement that changes the row that was meant: ErrNotFound when there is none.
func (db *Tables) changeOne(ctx context.Context, what, query string, args ...any) error {
	return db.changeOr(ctx, store.ErrNotFound, what, query, args...)
}

// changeOr runs a statement, and returns none when it changed no row.
func (db *Tables) changeOr(ctx context.Context, none error, what, query string, args ...any) error {
	return db.dialect.Change(ctx, what, func(ctx context.Context, q Querier) error {
		result, err := q.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return none
	})
}

// add runs an INSERT.
func (db *Tables) add(ctx context.Context, what, query string, args ...any) error {
	return db.changeOr(ctx, nil, what, query, args...)
}

// remove runs a DELETE of any number of rows, and says how many they were.
func (db *Tables) remove(ctx context.Context, what, query string, args ...any) (removed int, err error) {
	err = db.dialect.Change(ctx, what, func(ctx context.Context, q Querier) error {
		result, err := q.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		removed = int(n)
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// statement is a query with its parameters.
type statement struct {
	query string
	args  []any
}

// decide runs a statement that changes one row and returns it, or changes none because of what the row says: then the row is looked
// at, and changed is false.
func (db *Tables) decide(ctx context.Context, what string, scan func(Scanner) error, change, look statement) (changed bool, err error) {
	err = db.dialect.Change(ctx, what, func(ctx context.Context, q Querier) error {
		err := scan(q.QueryRowContext(ctx, change.query, change.args...))
		if changed = err == nil; changed || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return scan(q.QueryRowContext(ctx, look.query, look.args...))
	})
	return changed && err == nil, err
}

// Scanner is a row.
type Scanner interface{ Scan(dest ...any) error }

// one reads one row.
func one[T any](ctx context.Context, db *Tables, what string, scan func(Scanner) (T, error), query string, args ...any) (T, error) {
	v, err := scan(db.dialect.Read.QueryRowContext(ctx, query, args...))
	if err != nil {
		var zero T
		return zero, db.dialect.Failure(ctx, what, err)
	}
	return v, nil
}

// list reads all rows; nil when there are none.
func list[T any](ctx context.Context, db *Tables, what string, scan func(Scanner) (T, error), query string, args ...any) ([]T, error) {
	return listFrom(ctx, db, db.dialect.Read, what, scan, query, args...)
}

func listFrom[T any](ctx context.Context, db *Tables, from Reader, what string, scan func(Scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, db.dialect.Failure(ctx, what, err)
	}
	defer rows.Close() // a second time where Next has done it; Err has its error
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, db.dialect.Failure(ctx, what, err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, db.dialect.Failure(ctx, what, err)
	}
	return out, nil
}
