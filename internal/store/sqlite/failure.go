package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqldb"
)

// failure gives an error its meaning for callers. It is nil for nil.
func failure(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if over := ctx.Err(); over != nil && interrupted(err) {
		return fmt.Errorf("%s: %w", what, over)
	}
	return fmt.Errorf("%s: %w", what, meaning(err))
}

// meaning follows https://www.sqlite.org/rescode.html; the low byte of a code is the primary one.
func meaning(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrNotFound
	}
	if code(err) == 0 {
		if sqldb.Closed(err) {
			return store.Unavailable(err)
		}
		return err
	}
	switch code(err) {
	case codes.SQLITE_CONSTRAINT_PRIMARYKEY, codes.SQLITE_CONSTRAINT_UNIQUE, codes.SQLITE_CONSTRAINT_ROWID:
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	case codes.SQLITE_CONSTRAINT_FOREIGNKEY:
		return fmt.Errorf("%w: %w", store.ErrNotFound, err)
	case codes.SQLITE_IOERR_SHMSIZE: // the file of shared memory cannot grow
		return store.Full(err)
	}
	switch code(err) & 0xff {
	case codes.SQLITE_FULL:
		return store.Full(err)
	case codes.SQLITE_BUSY, codes.SQLITE_LOCKED, codes.SQLITE_IOERR, codes.SQLITE_CANTOPEN, codes.SQLITE_READONLY,
		codes.SQLITE_NOMEM, codes.SQLITE_PERM, codes.SQLITE_PROTOCOL:
		return store.Unavailable(err)
	}
	return err
}

// code is the extended result code of an error of SQLite; 0 for others.
func code(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// interrupted says whether an error may be the effect of a context that is over.
func interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) ||
		code(err)&0xff == codes.SQLITE_INTERRUPT
}
