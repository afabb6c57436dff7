// Package storetest is the suite that every store.Store passes: each method's promise, concurrency, isolation of
// tenants, and, for real databases, what happens between two nodes and across a restart.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/store"
)

// Run tests a store. open makes one with an empty database, and closes it when the test ends.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, store.Store)
	}{
		{"Tenants", testTenants}, {"Operators", testOperators}, {"Agents", testAgents}, {"Tokens", testTokens},
		{"CookieSets", testCookieSets}, {"ReplacedCookieSets", testReplacedCookieSets}, {"SignedOut", testSignedOut}, {"Leases", testLeases}, {"LeaseRace", testLeaseRace},
		{"Secrets", testSecrets}, {"Grants", testGrants}, {"GrantLife", testGrantLife}, {"GrantRace", testGrantRace},
		{"TenantsAreSeparate", testTenantsAreSeparate}, {"Times", testTimes}, {"Texts", testTexts}, {"LargeValues", testLargeValues},
		{"InvalidRows", testInvalidRows}, {"Canceled", testCanceled}, {"Ping", testPing}, {"Closed", testClosed},
		{"AuditAppend", testAuditAppend}, {"AuditOrder", testAuditOrder}, {"AuditRace", testAuditRace}, {"AuditFilter", testAuditFilter},
		{"AuditWalk", testAuditWalk}, {"AuditWalkSeesOneState", testAuditWalkSeesOneState}, {"AuditWalksStarveNobody", testAuditWalksStarveNobody},
		{"OpenIntents", testOpenIntents}, {"AuditTrim", testAuditTrim}, {"AuditSizes", testAuditSizes},
		{"Entries", testEntries}, {"EntryNames", testEntryNames}, {"EntriesOfAgents", testEntriesOfAgents}, {"EntryUpdates", testEntryUpdates},
		{"EntriesExpire", testEntriesExpire}, {"EntriesRevision", testEntriesRevision}, {"InvalidEntries", testInvalidEntries},
		{"Usage", testUsage}, {"UsageLimits", testUsageLimits}, {"UsageRace", testUsageRace}, {"InvalidUsage", testInvalidUsage},
		{"SignIns", testSignIns}, {"Passkeys", testPasskeys}, {"PasskeyCounts", testPasskeyCounts}, {"PasskeyRace", testPasskeyRace},
		{"Nodes", testNodes}, {"NodeRace", testNodeRace}, {"Duties", testDuties}, {"AuditKeys", testAuditKeys},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// start is when the tests' world begins: a time with microseconds.
var start = time.Date(2031, 2, 3, 4, 5, 6, 789_012_000, time.UTC)

// at is a number of seconds after start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// hash makes 32 bytes of a text.
func hash(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// same compares exactly: times must be in UTC, empty lists nil.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// check compares what a read of one row returned, in one piece: check(t, "what", want)(s.Tenant(ctx, id)).
func check[T any](t *testing.T, what string, want T) func(T, error) {
	t.Helper()
	return func(got T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		same(t, what, got, want)
	}
}

// race runs f n times at the same moment, and waits.
func race(n int, f func(i int)) {
	var all sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-gate
			f(i)
		})
	}
	close(gate)
	all.Wait()
}

// counter counts in several goroutines.
type counter struct{ n atomic.Int64 }

func (c *counter) add() { c.n.Add(1) }

func (c *counter) want(t *testing.T, what string, want int64) {
	t.Helper()
	if got := c.n.Load(); got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func newTenant(t *testing.T, s store.Store, id string) {
	t.Helper()
	must(t, s.CreateTenant(t.Context(), store.Tenant{ID: id, CreatedAt: at(0)}))
}

func newAgent(t *testing.T, s store.Store, id, tenant, name string) store.Agent {
	t.Helper()
	a := store.Agent{ID: id, Tenant: tenant, Name: name, CreatedAt: at(1)}
	must(t, s.CreateAgent(t.Context(), a))
	return a
}

func cookieSet(id, tenant, domain string) store.CookieSet {
	return store.CookieSet{
		ID: id, Tenant: tenant, Domain: domain, Ciphertext: []byte("sealed " + id), Count: 3, Scopes: []string{"tools", "cdp"},
		MaxLeases: 1, CreatedAt: at(1), LastRefreshedAt: at(2), ExpiresAt: at(1000),
		EgressDomains: []string{"cdn.example", "login.example"},
		SignedIn:      store.SignedIn{Page: "https://a.example/inbox", Marker: "a.out"},
	}
}

func newCookieSet(t *testing.T, s store.Store, id, tenant, domain string) store.CookieSet {
	t.Helper()
	c := cookieSet(id, tenant, domain)
	must(t, s.PutCookieSet(t.Context(), store.CookieSet{}, c))
	return c
}

func grant(id, tenant string) store.Grant {
	return store.Grant{
		ID: id, Tenant: tenant, Domains: []string{"example.com", "example.org"}, EgressDomains: []string{"cdn.example"}, Access: "cdp",
		Origin: "session-0", Operator: "operator-1", IssuedAt: at(0), NotBefore: at(10), ExpiresAt: at(100),
	}
}

func auditRow(node string, seq int) store.AuditRow {
	return store.AuditRow{
		Node: node, Seq: int64(seq), Time: at(seq), ID: fmt.Sprintf("%s-%d", node, seq), Phase: "event", Action: "session.open", Result: "ok",
		Tenant: "default", Actor: "operator:1", Session: "s1", Jail: "j1", Target: "example.com", Detail: []byte(`{"a":1}`),
		PrevHash: hash(fmt.Sprint(node, seq-1)), Hash: hash(fmt.Sprint(node, seq)),
	}
}

func auditRows(node string, from, to int) (rows []store.AuditRow) {
	for seq := from; seq <= to; seq++ {
		rows = append(rows, auditRow(node, seq))
	}
	return rows
}

func testPing(t *testing.T, s store.Store) { must(t, s.Ping(t.Context())) }

func testClosed(t *testing.T, s store.Store) {
	must(t, s.Close())
	wantError(t, "ping a closed store", s.Ping(t.Context()), store.ErrUnavailable)
	_, err := s.Tenant(t.Context(), store.DefaultTenant)
	wantError(t, "read from a closed store", err, store.ErrUnavailable)
}

// testCanceled: a call whose context has ended changes nothing, and breaks no other call.
func testCanceled(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "create", s.CreateTenant(ctx, store.Tenant{ID: "late", CreatedAt: at(0)}), context.Canceled)
	_, err := s.ListTenants(ctx)
	wantError(t, "list", err, context.Canceled)
	wantError(t, "append", s.AppendAudit(ctx, auditRows("n1", 1, 3)), context.Canceled)
	for _, err := range s.WalkAudit(ctx, "n1", 1) {
		wantError(t, "walk", err, context.Canceled)
	}
	_, err = s.Tenant(t.Context(), "late")
	wantError(t, "what was given up", err, store.ErrNotFound)
	must(t, s.AppendAudit(t.Context(), auditRows("n1", 1, 3)))
}
