package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
)

var _ store.Guesses = (*DB)(nil)

// AddGuesses implements store.Guesses. Two calls cannot wait for each other: the rows that are removed are locked by no other call, and what is
// changed is locked in its order.
func (db *DB) AddGuesses(ctx context.Context, more []store.Guess, limit time.Duration) error {
	places, left := make([]string, 0, len(more)), make([]int64, 0, len(more))
	for _, g := range more {
		if err := store.Text(g.Place); err != nil {
			return err
		}
		places, left = append(places, g.Place), append(left, g.Left.Microseconds())
	}
	_, err := db.pool.Exec(ctx, `DELETE FROM guesses WHERE place IN
		(SELECT place FROM guesses WHERE until <= statement_timestamp() OR until > statement_timestamp() + $1 * interval '1 microsecond' FOR UPDATE SKIP LOCKED)`, limit.Microseconds())
	if err == nil {
		_, err = db.pool.Exec(ctx, `INSERT INTO guesses (place, until)
			SELECT place, statement_timestamp() + least(micros, $3) * interval '1 microsecond' FROM unnest($1::text[], $2::bigint[]) AS more (place, micros) ORDER BY place
			ON CONFLICT (place) DO UPDATE SET until = least(greatest(guesses.until, statement_timestamp()) + (excluded.until - statement_timestamp()),
				statement_timestamp() + $3 * interval '1 microsecond')`, places, left, limit.Microseconds())
	}
	return failure(ctx, "count wrong keys", err)
}

// ListGuesses implements store.Guesses.
func (db *DB) ListGuesses(ctx context.Context, n int, limit time.Duration) ([]store.Guess, error) {
	rows, err := db.pool.Query(ctx, `SELECT place, until - statement_timestamp() FROM guesses 
		WHERE until > statement_timestamp() AND until <= statement_timestamp() + $2 * interval '1 microsecond' ORDER BY until DESC LIMIT $1`, n, limit.Microseconds())
	if err != nil {
		return nil, failure(ctx, "list wrong keys", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[store.Guess])
	return all, failure(ctx, "list wrong keys", err)
}
