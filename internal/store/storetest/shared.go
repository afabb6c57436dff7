package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Database is where several stores can be opened: nodes that share a server, or processes that share a file.
type Database interface {
	Open(ctx context.Context) (store.Store, error)
	// Exec runs a statement behind the stores' backs, as somebody with a database tool would.
	Exec(ctx context.Context, statement string) error
	// Unguard removes the triggers of the audit log. It shows that they, and nothing else, refuse a statement.
	Unguard(ctx context.Context) error
}

// RunShared tests a database that several stores use, one after the other and at the same time. fresh makes an empty
// one for each test.
func RunShared(t *testing.T, fresh func(t *testing.T) Database) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Database)
	}{
		{"GrantRaceOfTwoNodes", testGrantRaceOfTwoNodes}, {"AuditRaceOfTwoNodes", testAuditRaceOfTwoNodes},
		{"LeasesOfTwoNodes", testLeasesOfTwoNodes}, {"LeasesOfBefore", testLeasesOfBefore}, {"GrantMachine", testGrantMachine}, {"Restart", testRestart},
		{"ManyOpenAtOnce", testManyOpenAtOnce}, {"OtherSchemas", testOtherSchemas}, {"AuditRowsAreRefused", testAuditRowsAreRefused},
		{"RowsAreRefusedAfterATrim", testRowsAreRefusedAfterATrim},
		{"EntriesOfTwoNodes", testEntriesOfTwoNodes}, {"EntryMachine", testEntryMachine}, {"UsageRaceOfTwoNodes", testUsageRaceOfTwoNodes},
		{"UsageMachine", testUsageMachine}, {"EntriesAndUsageAfterARestart", testEntriesAndUsageAfterARestart},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, fresh(t)) })
	}
}

// open opens a store that is closed when the test ends.
func open(t *testing.T, d Database) store.Store {
	t.Helper()
	s, err := d.Open(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testGrantRaceOfTwoNodes(t *testing.T, d Database) {
	grantRace(t, []store.Store{open(t, d), open(t, d)})
}

func testAuditRaceOfTwoNodes(t *testing.T, d Database) {
	auditRace(t, []store.Store{open(t, d), open(t, d)})
}

func testLeasesOfTwoNodes(t *testing.T, d Database) {
	nodes := []store.Store{open(t, d), open(t, d)}
	set := cookieSet("c1", "default", "a.example")
	set.MaxLeases = 3
	must(t, nodes[0].PutCookieSet(t.Context(), store.CookieSet{}, set))
	var got counter
	race(16, func(i int) {
		l := store.Lease{Tenant: "default", Session: fmt.Sprint("s", i), Node: fmt.Sprint("n", i%2), At: at(1), ExpiresAt: at(100)}
		busy, err := nodes[i%2].LeaseCookieSets(t.Context(), l, []string{"a.example"})
		if err != nil {
			t.Error(err)
		}
		if err == nil && len(busy) == 0 {
			got.add()
		}
	})
	got.want(t, "sessions that have one of three leases", 3)
}

// testRestart: what was written is there for the next process.
func testRestart(t *testing.T, d Database) {
	ctx := t.Context()
	first, err := d.Open(ctx)
	must(t, err)
	set := newCookieSet(t, first, "c1", "default", "a.example")
	g := grant("g1", "default")
	must(t, first.CreateGrant(ctx, g))
	used, ok, err := first.UseGrant(ctx, "g1", "default", "s1", at(20))
	if err != nil || !ok {
		t.Fatalf("used %v, %v", ok, err)
	}
	must(t, first.AppendAudit(ctx, auditRows("n1", 1, 5)))
	busy, err := first.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Session: "s1", Node: "n1", At: at(1), ExpiresAt: at(100)}, []string{"a.example"})
	if err != nil || busy != nil {
		t.Fatalf("busy %v, %v", busy, err)
	}
	created, err := first.Tenant(ctx, store.DefaultTenant)
	must(t, err)
	must(t, first.Close())

	second := open(t, d)
	check(t, "the first tenant, which is made once", created)(second.Tenant(ctx, store.DefaultTenant))
	check(t, "cookies", set)(second.CookieSet(ctx, "default", "a.example"))
	check(t, "the grant", used)(second.Grant(ctx, "g1"))
	same(t, "the log", walk(t, second, "n1", 1), auditRows("n1", 1, 5))
	if _, again, err := second.UseGrant(ctx, "g1", "default", "s2", at(21)); err != nil || again {
		t.Errorf("the grant after a restart: used %v, %v", again, err)
	}
	l := store.Lease{Tenant: "default", Session: "s2", Node: "n2", At: at(1), ExpiresAt: at(100)}
	check(t, "the lease", []string{"a.example"})(second.LeaseCookieSets(ctx, l, []string{"a.example"}))
}

// testLeasesOfBefore: a lease of a version that did not say when it is over counts until it is given back.
func testLeasesOfBefore(t *testing.T, d Database) {
	ctx := t.Context()
	first := open(t, d)
	newCookieSet(t, first, "c1", "default", "a.example")
	busy, err := first.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Session: "s1", Node: "n1", At: at(1), ExpiresAt: at(100)}, []string{"a.example"})
	if err != nil || busy != nil {
		t.Fatalf("busy %v, %v", busy, err)
	}
	must(t, d.Exec(ctx, `UPDATE leases SET expires_at = NULL`)) // as the column was added
	second := open(t, d)
	l := store.Lease{Tenant: "default", Session: "s2", Node: "n2", At: at(1000), ExpiresAt: at(2000)}
	check(t, "the lease", []string{"a.example"})(second.LeaseCookieSets(ctx, l, []string{"a.example"}))
	must(t, second.ReleaseNodeLeases(ctx, "n1"))
	check(t, "when it was given back", []string(nil))(second.LeaseCookieSets(ctx, l, []string{"a.example"}))
}

// testManyOpenAtOnce: several nodes start for the first time at the same moment.
func testManyOpenAtOnce(t *testing.T, d Database) {
	stores := make([]store.Store, 6)
	race(len(stores), func(i int) {
		var err error
		if stores[i], err = d.Open(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for i, s := range stores {
		if s == nil {
			continue
		}
		if err := s.CreateTenant(t.Context(), store.Tenant{ID: fmt.Sprint("t", i), CreatedAt: at(0)}); err != nil {
			t.Error(err)
		}
		must(t, s.Close())
	}
}

// testOtherSchemas: what a newer clawjail has changed, or one from before the first release has made, is not touched.
func testOtherSchemas(t *testing.T, d Database) {
	ctx := t.Context()
	s, err := d.Open(ctx)
	must(t, err)
	must(t, s.Close())
	for _, other := range []struct {
		by   int
		code string
	}{{4711, problem.DatabaseTooNew}, {-9, problem.DatabaseTooOld}} {
		shift := fmt.Sprintf(`UPDATE goose_db_version SET version_id = version_id + (%d) WHERE version_id > 0`, other.by)
		must(t, d.Exec(ctx, shift))
		s, err = d.Open(ctx)
		if err == nil {
			t.Fatal(errors.Join(fmt.Errorf("a schema that differs by %d is opened", other.by), s.Close()))
		}
		if code := problem.CodeOf(err); code != other.code {
			t.Errorf("got the code %q, want %q: %v", code, other.code, err)
		}
		must(t, d.Exec(ctx, strings.Replace(shift, "+", "-", 1)))
		// Nothing was written: this is the version that it had.
		s, err = d.Open(ctx)
		must(t, err)
		must(t, s.Close())
	}
}

// testAuditRowsAreRefused: the database refuses to change the log, for every caller. Without the triggers the same
// statements work.
func testAuditRowsAreRefused(t *testing.T, d Database) {
	ctx := t.Context()
	s := open(t, d)
	must(t, s.AppendAudit(ctx, auditRows("n1", 1, 4)))
	copyAs := func(seq int, id string) string {
		return fmt.Sprintf(`INSERT INTO audit (node, seq, time, id, ref, phase, action, result, tenant, actor, session, jail, target, detail, prev_hash, hash)
			SELECT node, %d, time, '%s', ref, phase, action, result, tenant, actor, session, jail, target, detail, prev_hash, hash
			FROM audit WHERE node = 'n1' AND seq = 2`, seq, id)
	}
	statements := []string{
		`UPDATE audit SET target = 'other'`,
		`UPDATE audit SET seq = seq + 100 WHERE seq = 4`,
		`DELETE FROM audit WHERE seq = 4`,
		`DELETE FROM audit`,
		copyAs(9, "forged"),
		copyAs(0, "forged"),
	}
	for _, statement := range statements {
		if err := d.Exec(ctx, statement); err == nil {
			t.Errorf("the database does this:\n%s", statement)
		}
	}
	same(t, "the log", walk(t, s, "n1", 1), auditRows("n1", 1, 4))

	must(t, d.Unguard(ctx))
	for _, statement := range []string{statements[0], statements[1], copyAs(9, "forged"), statements[3]} {
		must(t, d.Exec(ctx, statement))
	}
	same(t, "the log without its triggers", walk(t, s, "n1", 1), []store.AuditRow(nil))
}

// testRowsAreRefusedAfterATrim: removing the oldest rows makes the others no easier to remove.
func testRowsAreRefusedAfterATrim(t *testing.T, d Database) {
	ctx := t.Context()
	s := open(t, d)
	must(t, s.AppendAudit(ctx, auditRows("n1", 1, 9)))
	check(t, "removed", 2)(s.TrimAudit(ctx, "n1", 2, store.Duty{}))
	for _, statement := range []string{`DELETE FROM audit WHERE seq <= 3`, `DELETE FROM audit WHERE seq = 9`, `UPDATE audit SET seq = 2 WHERE seq = 3`} {
		if err := d.Exec(ctx, statement); err == nil {
			t.Errorf("the database does this after a trim:\n%s", statement)
		}
	}
	same(t, "the log", walk(t, s, "n1", 1), auditRows("n1", 3, 9))
}
