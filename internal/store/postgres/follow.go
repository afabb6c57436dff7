package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
)

var _ store.Follower = (*DB)(nil)

// Follow implements store.Follower. It has a connection of its own, besides those of the pool. A pooler that gives its clients another
// connection for each transaction passes nothing on.
func (db *DB) Follow(ctx context.Context, changed func(store.Changed)) error {
	err := db.follow(ctx, changed)
	if ctx.Err() != nil {
		return nil
	}
	return failure(ctx, "listen to the database", err)
}

func (db *DB) follow(ctx context.Context, changed func(store.Changed)) error {
	conn, err := pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTime)
		defer cancel()
		_ = conn.Close(ending) // nothing of it is needed any more
	}()
	var schema string
	if err := conn.QueryRow(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `LISTEN clawjail`); err != nil {
		return err
	}
	changed(store.ChangedUnknown)
	for {
		told, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if what, ours := strings.CutPrefix(told.Payload, schema+"."); ours {
			changed(store.Changed(what))
		}
	}
}
