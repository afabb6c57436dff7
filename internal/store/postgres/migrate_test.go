package postgres

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
)

// TestOlderSchemaIsBroughtUpToDate: what is in a database of the first version stays, and the rest is added.
func TestOlderSchemaIsBroughtUpToDate(t *testing.T) {
	ctx := t.Context()
	url := pgtest.Start(t).Database(t)
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	plain := stdlib.OpenDBFromPool(pool)
	provider, err := goose.NewProvider(goose.DialectPostgres, plain, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(ctx, 1); err != nil {
		t.Fatal(err)
	}
	agent := store.Agent{ID: "a1", Tenant: store.DefaultTenant, Name: "bea", CreatedAt: time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)}
	if err := (&DB{pool: pool}).CreateAgent(ctx, agent); err != nil {
		t.Fatal(err)
	}
	var rows []store.AuditRow
	for n, actor := range []string{"agent:a1", "operator:o", "agent:a1", "system"} {
		rows = append(rows, store.AuditRow{Node: "n1", Seq: int64(n + 1), Time: agent.CreatedAt, ID: actor + string(rune('0'+n)), Phase: "event", Action: "x",
			Tenant: agent.Tenant, Actor: actor, Target: "ü", Detail: []byte(`{"n":1}`), PrevHash: make([]byte, 32), Hash: make([]byte, 32)})
		r := rows[n]
		if _, err := pool.Exec(ctx, `INSERT INTO audit (`+auditColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
			r.Node, r.Seq, r.Time, r.ID, r.Ref, r.Phase, r.Action, r.Result, r.Tenant, r.Actor, r.Session, r.Jail, r.Target, r.Detail, r.PrevHash, r.Hash); err != nil {
			t.Fatal(err)
		}
	}
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	pool.Close()

	db, err := Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got, err := db.AgentByID(ctx, "a1"); err != nil || got != agent {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := db.AuditSizes(ctx); err != nil || !slices.Equal(got, store.SizesOf(rows)) {
		t.Errorf("the log is said to be %+v, %v", got, err)
	}
	e := store.Entry{ID: "e1", Kind: "rule", Tenant: agent.Tenant, Agent: agent.ID, Body: []byte(`{}`), CreatedAt: agent.CreatedAt}
	_, charged, err := db.ChargeUsage(ctx, store.Usage{UsageKey: store.UsageKey{Tenant: agent.Tenant, Agent: agent.ID, Day: "2031-02-03"}}, store.UsageLimit{})
	if err := errors.Join(db.CreateEntry(ctx, e), err); err != nil || !charged {
		t.Errorf("%v, %v", charged, err)
	}
}
