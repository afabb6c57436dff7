// Package firefox reads the cookie database of a Firefox profile.
//
// Firefox may be running. Its files are copied into a private folder, together with the write-ahead log in which the
// newest cookies are, and only the copy is opened: a database that is opened in place is changed by that alone. The
// copy is removed before [Read] returns.
package firefox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Database is the name of the file in a profile.
const Database = "cookies.sqlite"

// Magic is how an SQLite file starts.
const Magic = "SQLite format 3\x00"

// Bounds of what is read. Firefox keeps 3000 cookies unless told otherwise.
const (
	maxFile   = 64 << 20
	maxRows   = 20_000
	maxColumn = 64 << 10
	longest   = 30 * time.Second
)

// Errors that a user can do something about.
var (
	ErrNotFirefox = errors.New("it is not the cookie database of a Firefox")
	ErrEncrypted  = errors.New("it is the cookie database of a Chromium, whose values are encrypted")
	ErrDamaged    = errors.New("the database is damaged, or was copied while it changed")
	ErrChanging   = errors.New("the database changes faster than it can be copied")
	ErrTooLarge   = errors.New("the database is larger than clawjail reads")
)

// Profile is what the database of a profile has.
type Profile struct {
	// Rows are the cookies of the default container.
	Rows []Row
	// Containers and Others are how many cookies were left out: those of other containers, and those of private
	// windows, first-party isolation and the like.
	Containers, Others int
}

// Row is one cookie as Firefox has it.
type Row struct {
	Name  string
	Value []byte
	// Host starts with a dot if the cookie is for sub-domains.
	Host, Path string
	// Expires is in seconds since 1970.
	Expires          float64
	Secure, HTTPOnly bool
	SameSite         string // Strict, Lax, None; empty: not specified
	// Partition is the partition key in Firefox's words, see [ParsePartition]; empty: none. Partitioned says that
	// the site asked for it.
	Partition   string
	Partitioned bool
}

// Read reads a database. tempDir is where the private copy is made; empty is the system's folder for such files.
func Read(ctx context.Context, path, tempDir string) (profile *Profile, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	private, remove, err := snapshot(ctx, path, tempDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	dsn := url.URL{Scheme: "file", Path: private, RawQuery: "mode=rw&_pragma=trusted_schema(0)&_pragma=cell_size_check(1)&_pragma=busy_timeout(0)"}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open the copy: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	// One connection: the copy has one reader.
	db.SetMaxOpenConns(1)
	columns, err := columnsOf(ctx, db)
	if err != nil {
		return nil, err
	}
	return readRows(ctx, db, columns)
}

// columnsOf finds out what the version of Firefox that made the database writes.
func columnsOf(ctx context.Context, db *sql.DB) (map[string]bool, error) {
	if ok, err := hasTable(ctx, db, "moz_cookies"); err != nil {
		return nil, err
	} else if !ok {
		if chromium, err := hasTable(ctx, db, "cookies"); err == nil && chromium {
			return nil, ErrEncrypted
		}
		return nil, ErrNotFirefox
	}
	rows, err := db.QueryContext(ctx, `SELECT name FROM pragma_table_info('moz_cookies')`)
	if err != nil {
		return nil, damaged(ctx, err)
	}
	defer rows.Close()
	out := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, damaged(ctx, err)
		}
		out[name] = true
	}
	if err := rows.Err(); err != nil {
		return nil, damaged(ctx, err)
	}
	for _, name := range []string{"originAttributes", "name", "value", "host", "path", "expiry", "isSecure", "isHttpOnly"} {
		if !out[name] {
			return nil, fmt.Errorf("column %s is missing: %w", name, ErrNotFirefox)
		}
	}
	return out, nil
}

// hasTable wants a table and not a view: a view may be a program.
func hasTable(ctx context.Context, db *sql.DB, name string) (bool, error) {
	var n int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ? AND sql NOT LIKE '%VIRTUAL%'`, name).Scan(&n)
	if err != nil {
		return false, damaged(ctx, err)
	}
	return n == 1, nil
}

// damaged tells a database that cannot be read from a caller who does not wait for it. The driver's text names the
// private copy, which is gone, and is left out.
func damaged(ctx context.Context, _ error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("read the copy: %w", err)
	}
	return ErrDamaged
}
