package postgres_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

func tenant(id string) store.Tenant {
	return store.Tenant{ID: id, CreatedAt: time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)}
}

// TestServerThatCrashes: while it is away the store says so, and what was confirmed before is there afterwards.
func TestServerThatCrashes(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := pgtest.StartDurable(t)
	url := server.Database(t)
	db := open(t, url)
	if err := db.CreateTenant(t.Context(), tenant("before")); err != nil {
		t.Fatal(err)
	}
	// Confirmed is on the disk, also where the database is set to confirm earlier.
	for _, setting := range []string{"off", "remote_apply"} {
		if err := pgtest.Exec(t.Context(), url, "ALTER DATABASE test1 SET synchronous_commit = "+setting); err != nil {
			t.Fatal(err)
		}
		want := strings.Replace(setting, "off", "on", 1)
		if got := synchronousCommit(t, url); got != want {
			t.Errorf("with synchronous_commit=%s of the database, the store has %s, want %s", setting, got, want)
		}
	}

	server.Crash(t)
	for name, err := range map[string]error{
		"ping": db.Ping(t.Context()), "write": db.CreateTenant(t.Context(), tenant("during")), "walk": walkError(t, db),
	} {
		if !errors.Is(err, store.ErrUnavailable) || problem.CodeOf(err) != problem.DatabaseUnavailable {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if other, err := postgres.Open(t.Context(), url); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("open: got %v, %v", other, err)
	}

	server.Go(t)
	testenv.Eventually(t, 10*time.Second, func() bool { return db.Ping(t.Context()) == nil }, "the store works again")
	if got, err := db.Tenant(t.Context(), "before"); err != nil || got != tenant("before") {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := db.Tenant(t.Context(), "during"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what was refused is there: %v", err)
	}
}

// TestACommitThatOutlivesItsCallerIsNoBreakOfTheLog: a server that waits for its disk or its standby cannot be stopped at a commit. It ends
// when nobody waits for it any more, with rows that were asked for and not there.
func TestACommitThatOutlivesItsCallerIsNoBreakOfTheLog(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	url := pgtest.Start(t).Database(t)
	db := open(t, url)
	for _, statement := range []string{
		`CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOOP
			BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; EXCEPTION WHEN query_canceled THEN NULL; END;
		END LOOP; END $$`,
		`CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON audit DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NEW.action = 'doubtful') EXECUTE FUNCTION stall()`,
	} {
		if err := pgtest.Exec(t.Context(), url, statement); err != nil {
			t.Fatal(err)
		}
	}
	disk, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}

	key, err := checkpoint.LoadKey(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(t.Context(), audit.Options{Store: db, Node: "n1", SpillPath: filepath.Join(t.TempDir(), "spill"), SpillSize: 1 << 20,
		Key: key, Checkpoints: nowhere{}, CommitTimeout: 200 * time.Millisecond, RetryEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"doubtful", "waiting"} {
		if _, err := log.Begin(t.Context(), audit.Intent{Action: action}); problem.CodeOf(err) != problem.AuditUnavailable {
			t.Errorf("%s: got %v", action, err)
		}
	}
	if err := disk.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool {
		_, err := db.LastAudit(t.Context(), "n1")
		return err == nil
	}, "the commit ends")
	if err := errors.Join(log.Event(t.Context(), audit.Event{Action: "after"}), log.Close(t.Context())); err != nil {
		t.Error(err)
	}
	var rows []string
	for row, err := range db.WalkAudit(t.Context(), "n1", 1) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row.Phase+" "+row.Action+" "+row.Result)
	}
	slices.Sort(rows)
	if want := []string{"event after ok", "intent doubtful ", "outcome doubtful failed"}; !slices.Equal(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
}

// nowhere keeps no checkpoint.
type nowhere struct{}

func (nowhere) Append(context.Context, []byte) error { return nil }

func walkError(t *testing.T, db *postgres.DB) error {
	for _, err := range db.WalkAudit(t.Context(), "n1", 1) {
		return err
	}
	return nil
}

// synchronousCommit has the server note down how a connection of the store is set.
func synchronousCommit(t *testing.T, url string) (got string) {
	t.Helper()
	for _, statement := range []string{
		`DROP TABLE IF EXISTS noted`, `CREATE TABLE noted (value text)`,
		`CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE OR REPLACE TRIGGER note AFTER UPDATE ON heartbeat EXECUTE FUNCTION note()`,
	} {
		if err := pgtest.Exec(t.Context(), url, statement); err != nil {
			t.Fatal(err)
		}
	}
	db := open(t, url)
	if err := db.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.QueryRow(t.Context(), `SELECT value FROM noted`).Scan(&got), conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWhatTheServerRefusesIsSaidInWords(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := pgtest.Start(t)
	url := server.Database(t)
	for name, bad := range map[string]string{
		"no such database": server.URL("none"), "no such user": strings.Replace(url, "clawjail@", "stranger@", 1),
	} {
		if db, err := postgres.Open(t.Context(), bad); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: got %v, %v", name, db, err)
		}
	}

	db := open(t, url)
	if err := pgtest.Exec(t.Context(), url, `TRUNCATE audit`); err == nil || !strings.Contains(err.Error(), "neither changed nor removed") {
		t.Errorf("the log can be emptied: %v", err)
	}
	if err := pgtest.Exec(t.Context(), url, `ALTER DATABASE test1 SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	second := open(t, url)
	if err := second.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a database that is read-only: got %v", err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
}

func BenchmarkUseGrant(b *testing.B) {
	db := open(b, pgtest.StartDurable(b).Database(b))
	g := store.Grant{Tenant: store.DefaultTenant, Access: "cdp", IssuedAt: tenant("").CreatedAt, NotBefore: tenant("").CreatedAt}
	g.ExpiresAt = g.NotBefore.Add(time.Hour)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		g.ID = strings.Repeat("g", 1+i%7) + time.Duration(i).String()
		if err := db.CreateGrant(b.Context(), g); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, used, err := db.UseGrant(b.Context(), g.ID, g.Tenant, "s", g.NotBefore); err != nil || !used {
			b.Fatal(used, err)
		}
	}
}
