package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

func ruleEntry(id string) store.Entry {
	return store.Entry{ID: id, Kind: "rule", Body: []byte(`{"host":"example.com"}`), CreatedAt: tenant("").CreatedAt, UpdatedAt: tenant("").CreatedAt}
}

// TestRevisionsBecomeVisibleInTheirOrder: a change that is not committed yet holds back those after it, so that nobody
// sees a revision that counts a change which cannot be seen.
func TestRevisionsBecomeVisibleInTheirOrder(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	url := pgtest.Start(t).Database(t)
	db := open(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO entries VALUES ('slow', 'rule', NULL, NULL, '', '{}', 1, now())`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- db.CreateEntry(t.Context(), ruleEntry("quick")) }()
	testenv.Eventually(t, 10*time.Second, func() bool {
		var waiting int
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("the second change did not wait for the first: %v", err)
		default:
		}
		return waiting > 0
	}, "the second change waits")
	state := func(wantRevision int64, wantEntries int) {
		t.Helper()
		revision, err := db.EntriesRevision(t.Context())
		if err != nil || revision != wantRevision {
			t.Errorf("the revision is %d, %v; want %d", revision, err, wantRevision)
		}
		if list, err := db.ListEntries(t.Context(), ""); err != nil || len(list) != wantEntries {
			t.Errorf("%d entries, %v; want %d", len(list), err, wantEntries)
		}
	}
	state(1, 0)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	state(3, 2)

	// Somebody with a tool of the database is noticed as well.
	if err := pgtest.Exec(t.Context(), url, `TRUNCATE entries`); err != nil {
		t.Fatal(err)
	}
	state(4, 0)
}

// BenchmarkChargeUsage: a charge that fits, of one row that all charge, beside a plain insert into the same table.
func BenchmarkChargeUsage(b *testing.B) {
	url := pgtest.StartDurable(b).Database(b)
	db := open(b, url)
	u := store.Usage{UsageKey: store.UsageKey{Tenant: store.DefaultTenant, Agent: "a1", Day: "2031-02-03"}, Requests: 1, InputTokens: 9}
	b.Run("charge", func(b *testing.B) {
		for b.Loop() {
			if _, charged, err := db.ChargeUsage(b.Context(), u, store.UsageLimit{Tokens: 1 << 50}); err != nil || !charged {
				b.Fatal(charged, err)
			}
		}
	})
	b.Run("refuse", func(b *testing.B) {
		for b.Loop() {
			if _, charged, err := db.ChargeUsage(b.Context(), u, store.UsageLimit{Tokens: 1}); err != nil || charged {
				b.Fatal(charged, err)
			}
		}
	})
	b.Run("plain insert", func(b *testing.B) {
		conn, err := pgx.Connect(b.Context(), url)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close(b.Context())
		if _, err := conn.Exec(b.Context(), `CREATE TABLE plain (day text, agent text, tokens bigint)`); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := conn.Exec(b.Context(), `INSERT INTO plain VALUES ($1, $2, $3)`, u.Day, u.Agent, u.InputTokens); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := conn.Exec(b.Context(), `DROP TABLE plain`); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkEntries lists 10 000 entries, asks for their revision, and changes one of them.
func BenchmarkEntries(b *testing.B) {
	url := pgtest.StartDurable(b).Database(b)
	db := open(b, url)
	if err := pgtest.Exec(b.Context(), url, `INSERT INTO entries SELECT 'entry' || n, 'rule', NULL, NULL, '',
		'{"host":"example.com","methods":["GET","POST"],"path":"/a/b/c"}', 1, now(), now(), NULL FROM generate_series(1, 10000) AS n`); err != nil {
		b.Fatal(err)
	}
	b.Run("list 10000", func(b *testing.B) {
		for b.Loop() {
			if list, err := db.ListEntries(b.Context(), ""); err != nil || len(list) != 10_000 {
				b.Fatal(len(list), err)
			}
		}
	})
	b.Run("revision", func(b *testing.B) {
		for b.Loop() {
			if _, err := db.EntriesRevision(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	e := ruleEntry("entry77")
	b.Run("update", func(b *testing.B) {
		for b.Loop() {
			e.Version++
			if err := db.UpdateEntry(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	})
}
