package postgres_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/store/storetest"
)

func open(t testing.TB, url string) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// database is a storetest.Database.
type database string

func (d database) Open(ctx context.Context) (store.Store, error) {
	db, err := postgres.Open(ctx, string(d))
	if err != nil {
		return nil, err
	}
	return db, nil
}

func (d database) Exec(ctx context.Context, statement string) error {
	return pgtest.Exec(ctx, string(d), statement)
}

func (d database) Unguard(ctx context.Context) error {
	return d.Exec(ctx, `ALTER TABLE audit DISABLE TRIGGER USER`)
}

func TestStore(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := pgtest.Start(t)
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, server.Database(t)) })
}

func TestSharedDatabase(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := pgtest.Start(t)
	storetest.RunShared(t, func(t *testing.T) storetest.Database { return database(server.Database(t)) })
}
