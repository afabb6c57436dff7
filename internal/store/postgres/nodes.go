package postgres

import (
	"context"

	"github.com/clawjail/clawjail/internal/store"
)

// SeeNode is said often, and must not wait for a disk that is busy: a node would be given up. A server that crashes may forget the
// last one.
func (db *DB) SeeNode(ctx context.Context, name, run string) error {
	const what = "see node"
	done, err := db.pool.Exec(ctx, `UPDATE nodes SET seen_at = statement_timestamp() WHERE name = $1 AND run = $2 AND stopped_at IS NULL AND lost_at IS NULL
		AND set_config('synchronous_commit', 'off', true) = 'off'`, name, run)
	if err == nil && done.RowsAffected() == 0 {
		err = store.ErrNotFound
	}
	return failure(ctx, what, err)
}
