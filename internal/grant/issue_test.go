package grant

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestIssuedGrantIsWhatWasAskedFor(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue(func(r *Request) {
		r.Domains = []string{"Example.com.", "EXAMPLE.org", "example.com"}
		r.EgressDomains = []string{"static.cdn.net", "fonts.example.net"}
		r.Access, r.Origin = AccessCDP, "s_origin"
	})
	want := Grant{
		ID: g.ID, Tenant: store.DefaultTenant, Domains: []string{"example.com", "example.org"}, EgressDomains: []string{"fonts.example.net", "static.cdn.net"},
		Access: "cdp", Origin: "s_origin", Operator: "operator:o1", IssuedAt: noon, NotBefore: noon, ExpiresAt: noon.Add(time.Minute),
	}
	if diff := cmp.Diff(want, g); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
	row, err := w.store.Grant(t.Context(), g.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if e := w.log.Last(t); e.Action != "grant.issue" || e.Target != g.ID || e.Actor != "operator:o1" || e.Result != "ok" {
		t.Errorf("recorded %+v", e)
	}

	parts := strings.Split(token.Reveal(), ".")
	if len(parts) != 4 || parts[0] != "v4" || parts[1] != "public" {
		t.Fatalf("%d parts, %v", len(parts), parts[:2])
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	var said map[string]any
	if err := json.Unmarshal(payload[:len(payload)-64], &said); err != nil {
		t.Fatal(err)
	}
	wantSaid := map[string]any{
		"iss": "clawjail:ab12", "aud": "clawjail:session", "sub": "tenant:default", "jti": g.ID,
		"iat": "2031-05-06T12:00:00.123456Z", "nbf": "2031-05-06T12:00:00.123456Z", "exp": "2031-05-06T12:01:00.123456Z",
		"tenant": "default", "domains": []any{"example.com", "example.org"}, "egress_domains": []any{"fonts.example.net", "static.cdn.net"},
		"access": "cdp", "origin": "s_origin", "operator": "operator:o1",
	}
	if diff := cmp.Diff(wantSaid, said); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	foot, err := base64.RawURLEncoding.DecodeString(parts[3])
	keys, keysErr := w.keys.Keys()
	if err != nil || keysErr != nil || string(foot) != `{"kid":"`+keys[0].ID+`"}` {
		t.Errorf("footer %s, %v, %v", foot, err, keysErr)
	}
}

func TestDefaultsOfAGrant(t *testing.T) {
	w := newFixture(t)
	_, g := w.issue(func(r *Request) { r.TTL = 0 })
	if g.Access != "tools" || g.ExpiresAt.Sub(g.IssuedAt) != 10*time.Minute || g.Origin != "" || len(g.EgressDomains) != 0 {
		t.Errorf("got %+v", g)
	}
}

func TestRefusedRequests(t *testing.T) {
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("example%d.com", i))
		}
		return out
	}
	domain := func(d string) func(*Request) { return func(r *Request) { r.Domains = []string{d} } }
	egress := func(d string) func(*Request) { return func(r *Request) { r.EgressDomains = []string{d} } }
	tests := []struct {
		name   string
		change func(*Request)
		code   string
		says   string
	}{
		{"no domain", func(r *Request) { r.Domains = nil }, problem.BadDomain, "at least one"},
		{"empty domain", domain(""), problem.BadDomain, "no domain"},
		{"wildcard", domain("*.example.com"), problem.BadDomain, "wildcard"},
		{"everything", domain("*"), problem.BadDomain, "wildcard"},
		{"leading dot", domain(".example.com"), problem.BadDomain, "dot"},
		{"suffix", domain("com"), problem.BadDomain, "public suffix"},
		{"suffix of two labels", domain("co.uk"), problem.BadDomain, "public suffix"},
		{"private suffix", domain("github.io"), problem.BadDomain, "public suffix"},
		{"host", domain("www.example.com"), problem.BadDomain, "write example.com"},
		{"IPv4", domain("192.0.2.1"), problem.BadDomain, "IP address"},
		{"IPv4 as a number", domain("3221225985"), problem.BadDomain, ""},
		{"IPv6", domain("[2001:db8::1]"), problem.BadDomain, "IP address"},
		{"localhost", domain("localhost"), problem.BadDomain, ""},
		{"URL", domain("https://example.com/"), problem.BadDomain, "no domain"},
		{"port", domain("example.com:443"), problem.BadDomain, "no domain"},
		{"NUL", domain("example.com\x00"), problem.BadDomain, "no domain"},
		{"too many", func(r *Request) { r.Domains = many(21) }, problem.BadDomain, "may be 20"},
		{"egress wildcard", egress("*.example.com"), problem.BadDomain, "wildcard"},
		{"egress suffix", egress("com"), problem.BadDomain, "public suffix"},
		{"egress IP", egress("10.0.0.1"), problem.BadDomain, "IP address"},
		{"egress too many", func(r *Request) { r.EgressDomains = many(51) }, problem.BadDomain, "may be 50"},
		{"too short", func(r *Request) { r.TTL = time.Second - 1 }, problem.BadLimit, "at least 1s"},
		{"negative", func(r *Request) { r.TTL = -time.Minute }, problem.BadLimit, "at least 1s"},
		{"too long", func(r *Request) { r.TTL = 24*time.Hour + 1 }, problem.BadLimit, "at most 24h"},
		{"access", func(r *Request) { r.Access = "all" }, problem.BadRequest, "access"},
		{"no tenant", func(r *Request) { r.Tenant = "" }, problem.BadRequest, "tenant"},
		{"no operator", func(r *Request) { r.Operator = "" }, problem.BadRequest, "operator"},
		{"odd origin", func(r *Request) { r.Origin = "s 1\n" }, problem.BadRequest, "origin"},
	}
	w := newFixture(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request()
			tt.change(&r)
			token, g, err := w.Issue(t.Context(), r)
			if got := problem.CodeOf(err); got != tt.code {
				t.Fatalf("got %q (%v), want %q", got, err, tt.code)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not say %q", err, tt.says)
			}
			if !token.IsZero() || g.ID != "" {
				t.Error("something was issued all the same")
			}
		})
	}
	if rows, err := w.List(t.Context(), ""); err != nil || len(rows) != 0 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	// The edges of what is refused.
	w.issue(func(r *Request) { r.Domains, r.EgressDomains, r.TTL = many(20), many(50), 24*time.Hour })
	w.issue(func(r *Request) { r.Domains, r.TTL = []string{"user.github.io"}, time.Second })
	_, g := w.issue(func(r *Request) { r.Domains = []string{"bücher.example"} })
	if g.Domains[0] != "xn--bcher-kva.example" {
		t.Errorf("got %q", g.Domains)
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	w := newFixture(t)
	_, _, err := w.Issue(t.Context(), Request{Domains: []string{"*.example.com", "com"}, TTL: -1, Access: "all"})
	var many *problem.ValidationError
	if !errors.As(err, &many) || len(many.Flaws) != 6 {
		t.Errorf("got %v", err)
	}
}

func TestNothingIsIssuedWithoutARecord(t *testing.T) {
	w := newFixture(t)
	w.log.Fail(errPlanted)
	if _, _, err := w.Issue(t.Context(), request()); !errors.Is(err, errPlanted) {
		t.Errorf("got %v", err)
	}
	if rows, err := w.List(t.Context(), ""); err != nil || len(rows) != 0 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// full is a store that takes no grant.
type full struct{ Store }

func (full) CreateGrant(context.Context, store.Grant) error { return errPlanted }

func (full) RevokeGrant(context.Context, string, string, time.Time) error { return errPlanted }

func TestIssueThatFailsSaysSo(t *testing.T) {
	w := newFixture(t)
	o := w.options()
	o.Store = full{w.store}
	i, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := i.Issue(t.Context(), request())
	if !errors.Is(err, errPlanted) || !token.IsZero() {
		t.Errorf("got %v", err)
	}
	if e := w.log.Last(t); e.Action != "grant.issue" || e.Result != "failed" {
		t.Errorf("recorded %+v", e)
	}
	_, g := w.issue()
	if _, err := i.Revoke(t.Context(), "", g.ID, "admin"); !errors.Is(err, errPlanted) {
		t.Errorf("got %v", err)
	}
	if e := w.log.Last(t); e.Action != "grant.revoke" || e.Result != "failed" {
		t.Errorf("recorded %+v", e)
	}
}

func TestRevoke(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	for _, tenant := range []string{"other", "nobody"} {
		if _, err := w.Revoke(t.Context(), tenant, g.ID, "operator:x"); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("%s: got %v", tenant, err)
		}
	}
	_, unknown := w.Revoke(t.Context(), "other", "g_unknown", "operator:x")
	_, foreign := w.Revoke(t.Context(), "other", g.ID, "operator:x")
	if strings.ReplaceAll(unknown.Error(), "g_unknown", g.ID) != foreign.Error() {
		t.Errorf("another tenant's grant is answered unlike one that does not exist: %v, %v", unknown, foreign)
	}
	w.works(token, want())

	_, second := w.issue()
	w.clock.Forward(time.Second)
	first, err := w.Revoke(t.Context(), store.DefaultTenant, second.ID, "operator:o2")
	if err != nil || !first.RevokedAt.Equal(noon.Add(time.Second)) || first.RevokedBy != "operator:o2" {
		t.Errorf("got %+v, %v", first, err)
	}
	if e := w.log.Last(t); e.Action != "grant.revoke" || e.Actor != "operator:o2" || e.Target != second.ID || e.Result != "ok" ||
		e.Detail.String() != `{"domain_count":1,"domains":["example.com"]}` {
		t.Errorf("recorded %+v", e)
	}
	w.clock.Forward(time.Second)
	again, err := w.Revoke(t.Context(), "", second.ID, "operator:o3")
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Errorf("the first time does not stay: %v\n%s", err, diff)
	}
}

// Ending is exempt from the rule that nothing happens without a record.
func TestRevokeHappensWithoutARecord(t *testing.T) {
	w := newFixture(t)
	token, g := w.issue()
	w.log.Fail(errPlanted)
	if _, err := w.Revoke(t.Context(), "", g.ID, "admin"); err != nil {
		t.Errorf("it waits for its record: %v", err)
	}
	if e := w.log.Last(t); e.Action != "grant.revoke" || e.Result != "ok" {
		t.Errorf("recorded %+v", e)
	}
	w.log.Fail(nil)
	w.refusal(token, want(), problem.GrantRevoked)
}

func TestListIsOfOneTenant(t *testing.T) {
	w := newFixture(t)
	_, a := w.issue()
	w.clock.Forward(time.Second)
	_, b := w.issue(func(r *Request) { r.Tenant = "other" })
	ids := func(tenant string) (out []string) {
		rows, err := w.List(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range rows {
			out = append(out, g.ID)
		}
		return out
	}
	if diff := cmp.Diff([][]string{{a.ID}, {b.ID}, {b.ID, a.ID}}, [][]string{ids(store.DefaultTenant), ids("other"), ids("")}); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}

func TestState(t *testing.T) {
	g := Grant{NotBefore: noon, ExpiresAt: noon.Add(time.Minute)}
	used, revoked := g, g
	used.UsedAt, revoked.UsedAt, revoked.RevokedAt = noon, noon, noon
	for want, got := range map[string]string{
		"active": State(g, noon), "pending": State(g, noon.Add(-1)), "expired": State(g, noon.Add(time.Minute)),
		"used": State(used, noon.Add(time.Hour)), "revoked": State(revoked, noon.Add(time.Hour)),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := New(Options{})
	var many *problem.ValidationError
	if !errors.As(err, &many) || len(many.Flaws) != 9 {
		t.Errorf("got %v", err)
	}
	w := newFixture(t)
	for name, change := range map[string]func(*Limits){
		"max above the most": func(l *Limits) { l.MaxTTL = MaxTTL + 1 },
		"default above max":  func(l *Limits) { l.MaxTTL, l.DefaultTTL = time.Minute, time.Hour },
		"no domains":         func(l *Limits) { l.MaxDomains = 0 },
		"too many domains":   func(l *Limits) { l.MaxDomains, l.MaxEgressDomains = 60, 41 },
		"negative keep":      func(l *Limits) { l.Keep = -1 },
	} {
		o := w.options()
		change(&o.Limits)
		if _, err := New(o); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
