package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

func testCookieSets(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	b := newCookieSet(t, s, "c1", "acme", "b.example")
	a := newCookieSet(t, s, "c2", "acme", "a.example")
	other := newCookieSet(t, s, "c3", "default", "b.example")
	check(t, "a set", b)(s.CookieSet(ctx, "acme", "b.example"))
	check(t, "of a tenant, by domain", []store.CookieSet{a, b})(s.ListCookieSets(ctx, "acme"))
	check(t, "all", []store.CookieSet{a, b, other})(s.ListCookieSets(ctx, ""))

	must(t, s.MarkInjected(ctx, "acme", "b.example", at(20)))
	must(t, s.MarkInjected(ctx, "acme", "b.example", at(10)))
	b.LastInjectedAt = at(20)
	check(t, "injected last", b)(s.CookieSet(ctx, "acme", "b.example"))
	check(t, "the other tenant's", other)(s.CookieSet(ctx, "default", "b.example"))

	must(t, s.DeleteCookieSet(ctx, "acme", "a.example"))
	_, err := s.CookieSet(ctx, "acme", "a.example")
	wantError(t, "a removed set", err, store.ErrNotFound)
	wantError(t, "remove it again", s.DeleteCookieSet(ctx, "acme", "a.example"), store.ErrNotFound)
	wantError(t, "mark it", s.MarkInjected(ctx, "acme", "a.example", at(1)), store.ErrNotFound)
	wantError(t, "a set of no tenant", s.PutCookieSet(ctx, store.CookieSet{}, cookieSet("c9", "none", "a.example")), store.ErrNotFound)

	bare := store.CookieSet{ID: "c4", Tenant: "acme", Domain: "bare.example", MaxLeases: 2, CreatedAt: at(1)}
	must(t, s.PutCookieSet(ctx, store.CookieSet{}, bare))
	check(t, "a set without anything", bare)(s.CookieSet(ctx, "acme", "bare.example"))
}

func testSignedOut(t *testing.T, s store.Store) {
	ctx := t.Context()
	set := newCookieSet(t, s, "c1", "default", "a.example") // refreshed at 2
	other := newCookieSet(t, s, "c2", "default", "b.example")
	mark := func(opened, when int, by string) {
		t.Helper()
		must(t, s.MarkSignedOut(ctx, "default", "a.example", store.SignedOut{Opened: at(opened), At: at(when), By: by}))
	}
	is := func(what string, when time.Time, by string) {
		t.Helper()
		set.SignedOutAt, set.SignedOutBy = when, by
		check(t, what, set)(s.CookieSet(ctx, "default", "a.example"))
	}
	mark(1, 5, "login_page")
	is("after a session with the cookies from before", time.Time{}, "")
	mark(3, 5, "login_page")
	mark(4, 6, "refused")
	is("what was seen first", at(5), "login_page")
	mark(1, 7, "")
	is("after a session from before that is signed in", at(5), "login_page")

	changed := set
	changed.SignedIn = store.SignedIn{Page: "https://a.example/", Unwatched: true}
	changed.SignedOutAt, changed.SignedOutBy = time.Time{}, "" // as somebody read it before it was seen
	must(t, s.PutCookieSet(ctx, set, changed))
	set.SignedIn = changed.SignedIn
	is("after its rules were changed", at(5), "login_page")
	mark(4, 7, "")
	is("after a session that is signed in", time.Time{}, "")
	mark(4, 8, "refused")
	is("when it is seen again", at(8), "refused")
	was := set
	set.LastRefreshedAt = at(9)
	must(t, s.PutCookieSet(ctx, was, set))
	is("after it was refreshed", time.Time{}, "")
	check(t, "the other set", other)(s.CookieSet(ctx, "default", "b.example"))
	wantError(t, "mark none", s.MarkSignedOut(ctx, "default", "none.example", store.SignedOut{Opened: at(1), At: at(1)}), store.ErrNotFound)
}

func testReplacedCookieSets(t *testing.T, s store.Store) {
	ctx := t.Context()
	old := newCookieSet(t, s, "c1", "default", "a.example")
	must(t, s.MarkInjected(ctx, "default", "a.example", at(50)))
	busy, err := s.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Session: "s1", Node: "n1", At: at(1), ExpiresAt: at(100)}, []string{"a.example"})
	must(t, err)
	same(t, "busy", busy, []string(nil))

	fresh := store.CookieSet{
		ID: "c1", Tenant: "default", Domain: "a.example", Ciphertext: []byte("new"), Count: 9, Scopes: []string{"new"}, MaxLeases: 1,
		CreatedAt: at(60), LastRefreshedAt: at(60), ExpiresAt: at(99), LastInjectedAt: at(40),
		EgressDomains: []string{"other.example"},
	}
	must(t, s.PutCookieSet(ctx, old, fresh))
	must(t, s.PutCookieSet(ctx, fresh, fresh))
	want := fresh
	want.CreatedAt, want.LastInjectedAt = old.CreatedAt, at(50)
	check(t, "the new set", want)(s.CookieSet(ctx, "default", "a.example"))
	busy, err = s.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Session: "s2", Node: "n1", At: at(1), ExpiresAt: at(100)}, []string{"a.example"})
	must(t, err)
	same(t, "busy after it was replaced", busy, []string{"a.example"})

	stranger := cookieSet("c2", "default", "a.example")
	wantError(t, "another ID for the same place", s.PutCookieSet(ctx, store.CookieSet{}, stranger), store.ErrExists)
	moved := cookieSet("c1", "default", "b.example")
	for what, was := range map[string]store.CookieSet{"a new": {}, "an old": fresh} {
		wantError(t, "the same ID for another place, as "+what+" one", s.PutCookieSet(ctx, was, moved), store.ErrExists)
	}
	for what, change := range map[string]func(*store.CookieSet){
		"cookies": func(c *store.CookieSet) { c.Ciphertext = []byte("others") }, "scopes": func(c *store.CookieSet) { c.Scopes = nil },
		"leases":         func(c *store.CookieSet) { c.MaxLeases = 2 },
		"egress domains": func(c *store.CookieSet) { c.EgressDomains = []string{"other.example", "x.example"} },
		"page":           func(c *store.CookieSet) { c.SignedIn.Page = "https://a.example/" },
		"marker":         func(c *store.CookieSet) { c.SignedIn.Marker = "a" }, "watching": func(c *store.CookieSet) { c.SignedIn.Unwatched = true },
	} {
		was := fresh
		change(&was)
		wantError(t, "somebody has changed its "+what, s.PutCookieSet(ctx, was, old), store.ErrExists)
	}
	check(t, "the set after all", want)(s.CookieSet(ctx, "default", "a.example"))
	gone := cookieSet("c9", "default", "gone.example")
	wantError(t, "somebody has removed it", s.PutCookieSet(ctx, gone, gone), store.ErrExists)
	_, err = s.CookieSet(ctx, "default", "gone.example")
	wantError(t, "what was removed", err, store.ErrNotFound)

	// Of many that fill an empty place, each with an ID of its own, one does.
	var won counter
	race(8, func(i int) {
		switch err := s.PutCookieSet(ctx, store.CookieSet{}, cookieSet(fmt.Sprint("r", i), "default", "race.example")); {
		case err == nil:
			won.add()
		case !errors.Is(err, store.ErrExists):
			t.Error(err)
		}
	})
	won.want(t, "sets that took the place", 1)
}

func testLeases(t *testing.T, s store.Store) {
	ctx := t.Context()
	lease := func(session, node string, domains ...string) ([]string, error) {
		return s.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Session: session, Node: node, At: at(1), ExpiresAt: at(100)}, domains)
	}
	for _, domain := range []string{"a.example", "b.example"} {
		newCookieSet(t, s, "c"+domain, "default", domain)
	}
	wide := cookieSet("wide", "default", "wide.example")
	wide.MaxLeases = 2
	must(t, s.PutCookieSet(ctx, store.CookieSet{}, wide))
	free := []string(nil)

	check(t, "nothing", free)(lease("s0", "n1"))
	check(t, "two sets", free)(lease("s1", "n1", "b.example", "wide.example", "b.example"))
	check(t, "the same again", free)(lease("s1", "n1", "b.example", "wide.example"))
	check(t, "one of them is busy, so none is taken", []string{"b.example"})(lease("s2", "n1", "wide.example", "b.example", "a.example"))
	check(t, "the second lease of two", free)(lease("s3", "n2", "wide.example"))
	check(t, "a third", []string{"wide.example"})(lease("s4", "n2", "wide.example"))
	check(t, "what the refused one did not take", free)(lease("s5", "n2", "a.example"))
	check(t, "all are busy, sorted", []string{"a.example", "b.example", "wide.example"})(lease("s6", "n1", "wide.example", "b.example", "a.example"))

	_, err := lease("s7", "n1", "a.example", "none.example")
	wantError(t, "a set that does not exist", err, store.ErrNotFound)

	must(t, s.ReleaseLeases(ctx, "s1"))
	must(t, s.ReleaseLeases(ctx, "s1"))
	must(t, s.ReleaseLeases(ctx, "never"))
	check(t, "what s1 gave back", free)(lease("s8", "n1", "b.example", "wide.example"))
	must(t, s.ReleaseNodeLeases(ctx, "n2"))
	must(t, s.ReleaseNodeLeases(ctx, "n2"))
	check(t, "what n2 gave back", free)(lease("s9", "n1", "a.example", "wide.example"))
	check(t, "what n1 kept", []string{"b.example"})(lease("s10", "n2", "b.example"))

	late := store.Lease{Tenant: "default", Session: "late", Node: "n2", At: at(99), ExpiresAt: at(200)}
	check(t, "until its time is over", []string{"b.example", "wide.example"})(s.LeaseCookieSets(ctx, late, []string{"b.example", "wide.example"}))
	late.At = at(100)
	check(t, "what nobody gave back when its time was over", free)(s.LeaseCookieSets(ctx, late, []string{"b.example", "wide.example"}))
	check(t, "who comes after", []string{"b.example"})(lease("s10", "n2", "b.example"))

	must(t, s.DeleteCookieSet(ctx, "default", "b.example"))
	newCookieSet(t, s, "new", "default", "b.example")
	check(t, "a new set has no leases", free)(lease("s11", "n2", "b.example"))
	_, err = s.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Node: "n1", At: at(1), ExpiresAt: at(100)}, []string{"b.example"})
	wantError(t, "a lease of no session", err, store.ErrInvalid)
}

// testLeaseRace: sessions want the same three sets in different orders. One gets them, the others take none.
func testLeaseRace(t *testing.T, s store.Store) {
	ctx := t.Context()
	orders := [][]string{
		{"a.example", "b.example", "c.example"}, {"c.example", "b.example", "a.example"}, {"b.example", "c.example", "a.example"},
	}
	for _, domain := range orders[0] {
		newCookieSet(t, s, "set-"+domain, "default", domain)
	}
	for round := range 3 {
		winners := make([]bool, 24)
		race(len(winners), func(i int) {
			l := store.Lease{Tenant: "default", Session: fmt.Sprint("s", i), Node: "n1", At: at(1), ExpiresAt: at(100)}
			busy, err := s.LeaseCookieSets(ctx, l, orders[i%len(orders)])
			if err != nil {
				t.Error(err)
			}
			winners[i] = err == nil && len(busy) == 0
		})
		won := -1
		for i, w := range winners {
			if w && won >= 0 {
				t.Errorf("round %d: sessions %d and %d have the same sets", round, won, i)
			}
			if w {
				won = i
			}
		}
		if won < 0 {
			t.Fatalf("round %d: nobody has the sets", round)
		}
		must(t, s.ReleaseLeases(ctx, fmt.Sprint("s", won)))
		l := store.Lease{Tenant: "default", Session: "after", Node: "n1", At: at(1), ExpiresAt: at(100)}
		check(t, "what the losers hold", []string(nil))(s.LeaseCookieSets(ctx, l, orders[0]))
		must(t, s.ReleaseLeases(ctx, "after"))
	}
}

func testSecrets(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newAgent(t, s, "a1", "acme", "bea")
	newAgent(t, s, "a2", "default", "bea")
	own := store.Secret{ID: "x1", Tenant: "acme", Agent: "a1", Service: "mail", Ciphertext: []byte("own"), CreatedAt: at(1), UpdatedAt: at(2)}
	shared := store.Secret{ID: "x2", Tenant: "acme", Service: "mail", Ciphertext: []byte("shared"), CreatedAt: at(1), UpdatedAt: at(2)}
	early := store.Secret{ID: "x3", Tenant: "acme", Service: "bank", Ciphertext: []byte("bank"), CreatedAt: at(1), UpdatedAt: at(2)}
	for _, x := range []store.Secret{own, shared, early} {
		must(t, s.PutSecret(ctx, store.Secret{}, x))
	}
	check(t, "an agent's", own)(s.Secret(ctx, "acme", "a1", "mail"))
	check(t, "the tenant's", shared)(s.Secret(ctx, "acme", "", "mail"))
	check(t, "all, by service and agent", []store.Secret{early, shared, own})(s.ListSecrets(ctx, "acme"))
	check(t, "of all tenants", []store.Secret{early, shared, own})(s.ListSecrets(ctx, ""))
	check(t, "of another tenant", []store.Secret(nil))(s.ListSecrets(ctx, "default"))

	long := newCookieSet(t, s, "c1", "default", "a.example")
	long.Ciphertext = bytes.Repeat([]byte("0123456789"), 10)
	must(t, s.PutCookieSet(ctx, cookieSet("c1", "default", "a.example"), long))
	sealed, err := s.ListSealed(ctx)
	must(t, err)
	slices.SortFunc(sealed, func(a, b store.Sealed) int { return strings.Compare(a.ID, b.ID) })
	want := []store.Sealed{{ID: "c1", Tenant: "default", Name: "a.example", Head: long.Ciphertext[:store.SealedHead], Bytes: 100}}
	for _, x := range []store.Secret{early, shared, own} {
		want = append(want, store.Sealed{ID: x.ID, Tenant: x.Tenant, Agent: x.Agent, Name: x.Service, Secret: true,
			Head: x.Ciphertext[:min(len(x.Ciphertext), store.SealedHead)], Bytes: int64(len(x.Ciphertext))})
	}
	slices.SortFunc(want, func(a, b store.Sealed) int { return strings.Compare(a.ID, b.ID) })
	same(t, "what is encrypted", sealed, want)

	must(t, s.MarkUsed(ctx, "acme", "", "mail", at(30)))
	must(t, s.MarkUsed(ctx, "acme", "", "mail", at(20)))
	next := shared
	next.Ciphertext, next.CreatedAt, next.UpdatedAt, next.UsedAt = []byte("next"), at(90), at(90), at(10)
	must(t, s.PutSecret(ctx, shared, next))
	next.CreatedAt, next.UsedAt = at(1), at(30)
	check(t, "replaced", next)(s.Secret(ctx, "acme", "", "mail"))
	wantError(t, "somebody has changed it", s.PutSecret(ctx, shared, shared), store.ErrExists)
	check(t, "what somebody has changed", next)(s.Secret(ctx, "acme", "", "mail"))
	check(t, "the agent's of the same service", own)(s.Secret(ctx, "acme", "a1", "mail"))

	taken := next
	taken.ID = "x9"
	wantError(t, "another ID for the same place", s.PutSecret(ctx, store.Secret{}, taken), store.ErrExists)
	taken = own
	taken.Service = "other"
	wantError(t, "the same ID for another place", s.PutSecret(ctx, store.Secret{}, taken), store.ErrExists)
	taken = own
	taken.ID, taken.Agent = "x9", "a2"
	wantError(t, "the agent of another tenant", s.PutSecret(ctx, store.Secret{}, taken), store.ErrNotFound)

	must(t, s.DeleteSecret(ctx, "acme", "", "mail"))
	wantError(t, "somebody has removed it", s.PutSecret(ctx, next, next), store.ErrExists)
	wantError(t, "remove it again", s.DeleteSecret(ctx, "acme", "", "mail"), store.ErrNotFound)
	wantError(t, "mark it", s.MarkUsed(ctx, "acme", "", "mail", at(1)), store.ErrNotFound)
	_, err = s.Secret(ctx, "acme", "", "mail")
	wantError(t, "read it", err, store.ErrNotFound)
	check(t, "the agent's own is still there", own)(s.Secret(ctx, "acme", "a1", "mail"))
	wantError(t, "mark at no time", s.MarkUsed(ctx, "acme", "a1", "mail", time.Time{}), store.ErrInvalid)
}

// testTenantsAreSeparate: what one tenant has in a place, another that asks for the same place does not get, change
// or remove.
func testTenantsAreSeparate(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newTenant(t, s, "evil")
	set := newCookieSet(t, s, "c1", "acme", "a.example")
	agent := newAgent(t, s, "a1", "acme", "bea")
	secret := store.Secret{ID: "x1", Tenant: "acme", Agent: "a1", Service: "mail", Ciphertext: []byte("x"), CreatedAt: at(1)}
	must(t, s.PutSecret(ctx, store.Secret{}, secret))
	g := grant("g1", "acme")
	must(t, s.CreateGrant(ctx, g))
	row := auditRow("n1", 1)
	row.Tenant = "acme"
	must(t, s.AppendAudit(ctx, []store.AuditRow{row}))

	_, errSet := s.CookieSet(ctx, "evil", "a.example")
	_, errAgent := s.Agent(ctx, "evil", "bea")
	_, errSecret := s.Secret(ctx, "evil", "a1", "mail")
	_, errLease := s.LeaseCookieSets(ctx, store.Lease{Tenant: "evil", Session: "s1", Node: "n1", At: at(1), ExpiresAt: at(100)}, []string{"a.example"})
	for what, err := range map[string]error{
		"read cookies": errSet, "read agent": errAgent, "read secret": errSecret, "lease cookies": errLease,
		"remove cookies": s.DeleteCookieSet(ctx, "evil", "a.example"), "mark cookies": s.MarkInjected(ctx, "evil", "a.example", at(9)),
		"mark as signed out": s.MarkSignedOut(ctx, "evil", "a.example", store.SignedOut{Opened: at(9), At: at(9), By: "login_page"}),
		"remove secret":      s.DeleteSecret(ctx, "evil", "a1", "mail"), "mark secret": s.MarkUsed(ctx, "evil", "a1", "mail", at(9)),
	} {
		wantError(t, what, err, store.ErrNotFound)
	}
	stolen := set
	stolen.Tenant = "evil"
	wantError(t, "the row of another tenant", s.PutCookieSet(ctx, store.CookieSet{}, stolen), store.ErrExists)
	check(t, "agents", []store.Agent(nil))(s.ListAgents(ctx, "evil"))
	check(t, "cookies", []store.CookieSet(nil))(s.ListCookieSets(ctx, "evil"))
	check(t, "secrets", []store.Secret(nil))(s.ListSecrets(ctx, "evil"))
	check(t, "grants", []store.Grant(nil))(s.ListGrants(ctx, "evil"))
	check(t, "audit", []store.AuditRow(nil))(s.ListAudit(ctx, store.AuditFilter{Tenant: "evil", Limit: 9}))
	if _, used, err := s.UseGrant(ctx, "g1", "evil", "s1", at(20)); err != nil || used {
		t.Errorf("the grant of another tenant: used %v, %v", used, err)
	}

	check(t, "the set afterwards", set)(s.CookieSet(ctx, "acme", "a.example"))
	check(t, "the agent afterwards", agent)(s.Agent(ctx, "acme", "bea"))
	check(t, "the secret afterwards", secret)(s.Secret(ctx, "acme", "a1", "mail"))
	check(t, "the grant afterwards", g)(s.Grant(ctx, "g1"))
	check(t, "the audit log", []store.AuditRow{row})(s.ListAudit(ctx, store.AuditFilter{Tenant: "acme", Limit: 9}))
}

func testTimes(t *testing.T, s store.Store) {
	ctx := t.Context()
	zone := time.FixedZone("", 5*3600)
	for i, tt := range []struct{ given, want time.Time }{
		{time.Date(2031, 1, 2, 3, 4, 5, 999_999_999, time.UTC), time.Date(2031, 1, 2, 3, 4, 5, 999_999_000, time.UTC)},
		{time.Date(2031, 1, 2, 3, 4, 5, 6_789, zone), time.Date(2031, 1, 1, 22, 4, 5, 6_000, time.UTC)},
		{time.Date(1969, 12, 31, 23, 59, 59, 999_999_999, time.UTC), time.Date(1969, 12, 31, 23, 59, 59, 999_999_000, time.UTC)},
		{time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)},
		{time.Date(1600, 2, 29, 0, 0, 0, 1_500, time.UTC), time.Date(1600, 2, 29, 0, 0, 0, 1_000, time.UTC)},
		{time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)},
	} {
		id := fmt.Sprint("t", i)
		must(t, s.CreateTenant(ctx, store.Tenant{ID: id, CreatedAt: tt.given}))
		got, err := s.Tenant(ctx, id)
		must(t, err)
		if got.CreatedAt != tt.want {
			t.Errorf("%v: got %v, want %v", tt.given, got.CreatedAt, tt.want)
		}
	}
}

// texts are what a value may hold.
func texts() []string {
	return []string{
		"Zoë 日本語 🦀", "\u202egnirts", "'; DROP TABLE audit; --", `"quoted" \back\ %_?$1`, "line\nbreak\ttab\r\x01\x7f", "{a,b}", `["a"]`, "NULL", " ",
	}
}

func testTexts(t *testing.T, s store.Store) {
	ctx := t.Context()
	for i, text := range texts() {
		o := store.Operator{ID: text, Name: text, Tenant: "default", Role: text, KeyHash: hash(text), KeyHint: text, CreatedAt: at(1)}
		must(t, s.CreateOperator(ctx, o))
		check(t, text, o)(s.Operator(ctx, text))
		g := grant(text, "default")
		g.Domains, g.EgressDomains, g.Origin, g.Operator = texts(), []string{text}, text, text
		must(t, s.CreateGrant(ctx, g))
		must(t, s.RevokeGrant(ctx, text, text, at(5)))
		g.RevokedAt, g.RevokedBy = at(5), text
		check(t, text, g)(s.Grant(ctx, text))
		row := auditRow("n1", i+1)
		row.ID, row.Ref, row.Action, row.Actor, row.Target, row.Detail = text, text, text, text, text, []byte(text+"\x00\xff")
		must(t, s.AppendAudit(ctx, []store.AuditRow{row}))
		check(t, text, []store.AuditRow{row})(s.ListAudit(ctx, store.AuditFilter{Ref: text, ActionPrefix: text, Limit: 2}))
	}
	// A text that cannot be in the database is not found, and does no harm.
	for _, text := range []string{"a\x00b", "\xff", "\xed\xa0\x80"} {
		_, err := s.Operator(ctx, text)
		wantError(t, "look for bad text", err, store.ErrNotFound)
		_, err = s.Agent(ctx, "default", text)
		wantError(t, "look for bad text", err, store.ErrNotFound)
		_, _, err = s.UseGrant(ctx, text, "default", "s1", at(20))
		wantError(t, "use a grant of bad text", err, store.ErrNotFound)
		_, _, err = s.UseGrant(ctx, " ", "default", text, at(20))
		wantError(t, "use a grant for a session of bad text", err, store.ErrInvalid)
		wantError(t, "remove bad text", s.DeleteCookieSet(ctx, "default", text), store.ErrNotFound)
		_, err = s.ListAudit(ctx, store.AuditFilter{Actor: text, Limit: 1})
		wantError(t, "filter for bad text", err, store.ErrInvalid)
	}
}

func testLargeValues(t *testing.T, s store.Store) {
	ctx := t.Context()
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = byte(i * i >> 3)
	}
	set := cookieSet("c1", "default", "a.example")
	set.Ciphertext = large
	must(t, s.PutCookieSet(ctx, store.CookieSet{}, set))
	secret := store.Secret{ID: "x1", Tenant: "default", Service: "mail", Ciphertext: large, CreatedAt: at(1)}
	must(t, s.PutSecret(ctx, store.Secret{}, secret))
	row := auditRow("n1", 1)
	row.Detail = large
	must(t, s.AppendAudit(ctx, []store.AuditRow{row}))
	gotSet, err := s.CookieSet(ctx, "default", "a.example")
	must(t, err)
	gotSecret, err := s.Secret(ctx, "default", "", "mail")
	must(t, err)
	gotRow, err := s.LastAudit(ctx, "n1")
	must(t, err)
	for what, got := range map[string][]byte{"cookies": gotSet.Ciphertext, "secret": gotSecret.Ciphertext, "audit": gotRow.Detail} {
		if !bytes.Equal(got, large) {
			t.Errorf("%s: %d bytes came back, and they are not the %d that were written", what, len(got), len(large))
		}
	}
}
