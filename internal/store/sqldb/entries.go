package sqldb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

const entryColumns = `id, kind, tenant, agent, name, body, version, created_at, updated_at, expires_at`

func scanEntry(row Scanner) (e store.Entry, err error) {
	err = row.Scan(&e.ID, &e.Kind, optional{&e.Tenant}, optional{&e.Agent}, &e.Name, blob{&e.Body}, &e.Version,
		moment{&e.CreatedAt}, moment{&e.UpdatedAt}, moment{&e.ExpiresAt})
	return e, err
}

func (db *Tables) CreateEntry(ctx context.Context, e store.Entry) error {
	if err := e.Validate(); err != nil {
		return err
	}
	return db.add(ctx, "create entry", `INSERT INTO entries (`+entryColumns+`) VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8, $9)`,
		e.ID, e.Kind, text(e.Tenant), text(e.Agent), e.Name, e.Body, db.dialect.Stamp(e.CreatedAt), db.dialect.Stamp(e.UpdatedAt), db.dialect.Stamp(e.ExpiresAt))
}

func (db *Tables) Entry(ctx context.Context, id string) (store.Entry, error) {
	return one(ctx, db, "read entry", scanEntry, `SELECT `+entryColumns+` FROM entries WHERE id = $1`, id)
}

func (db *Tables) ListEntries(ctx context.Context, kind string) ([]store.Entry, error) {
	if err := store.Text(kind); err != nil {
		return nil, err
	}
	return list(ctx, db, "list entries", scanEntry,
		`SELECT `+entryColumns+` FROM entries WHERE $1 = '' OR kind = $1 ORDER BY created_at, id`, kind)
}

func (db *Tables) AgentEntries(ctx context.Context, kind, tenant, agent string) ([]store.Entry, error) {
	if err := store.Text(kind, tenant, agent); err != nil {
		return nil, err
	}
	return list(ctx, db, "list the entries of an agent", scanEntry,
		`SELECT `+entryColumns+` FROM entries WHERE agent = $3 AND tenant = $2 AND kind = $1 ORDER BY created_at, id`, kind, tenant, agent)
}

func (db *Tables) UpdateEntry(ctx context.Context, e store.Entry) error {
	if err := e.ValidateUpdate(); err != nil {
		return err
	}
	var version int64
	changed, err := db.decide(ctx, "update entry", func(row Scanner) error { return row.Scan(&version) },
		statement{`UPDATE entries SET name = $3, body = $4, updated_at = $5, expires_at = $6, version = version + 1
			WHERE id = $1 AND version = $2 RETURNING version`, []any{e.ID, e.Version, e.Name, e.Body, db.dialect.Stamp(e.UpdatedAt), db.dialect.Stamp(e.ExpiresAt)}},
		statement{`SELECT version FROM entries WHERE id = $1`, []any{e.ID}})
	if err == nil && !changed {
		err = fmt.Errorf("update entry: %w", store.Outdated(version, e.Version))
	}
	return err
}

func (db *Tables) DeleteEntry(ctx context.Context, id string) error {
	return db.changeOne(ctx, "delete entry", `DELETE FROM entries WHERE id = $1`, id)
}

func (db *Tables) DeleteEntriesBefore(ctx context.Context, kind string, expired time.Time) (int, error) {
	if err := errors.Join(store.Text(kind), store.Moment("expired", expired)); err != nil {
		return 0, err
	}
	return db.remove(ctx, "delete old entries", `DELETE FROM entries WHERE expires_at < $2 AND ($1 = '' OR kind = $1)`, kind, db.dialect.Stamp(expired))
}

func (db *Tables) EntriesRevision(ctx context.Context) (int64, error) {
	return one(ctx, db, "read the revision of the entries", func(row Scanner) (n int64, err error) {
		err = row.Scan(&n)
		return n, err
	}, `SELECT revision FROM entries_revision`)
}
