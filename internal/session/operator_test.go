package session

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const two = "example.org" // a second domain, with an account of its own

func TestOperatorSessionHasItsAccountsInEveryContext(t *testing.T) {
	for _, size := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d warm", size), func(t *testing.T) {
			withAccounts(t, warm(size), func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				a.set(t, store.DefaultTenant, two, 1, cookie("o", two))
				// A context that was there before the session: in a warm browser, before anybody asked for one.
				a.mu.Lock()
				a.prepare = func(b *fakeBrowser) { b.jar = map[string][]cookies.Cookie{"context-1": nil} }
				for _, j := range a.jails {
					a.prepare(j.browser)
				}
				a.mu.Unlock()
				token, id := a.issue(t, func(r *grant.Request) { r.Domains = []string{"example.com", two} })
				out, err := a.s.Open(t.Context(), admin, wanting(token, "example.com", "Example.ORG"))
				if err != nil {
					t.Fatal(err)
				}
				if out.Warm != (size == 1) || out.Injected != 3 || !slices.Equal(out.Domains, []string{"example.com", two}) ||
					out.Grant != id || out.CredentialMode != ModeOperator || len(out.NeedsRefresh) != 0 {
					t.Errorf("opened %+v", out)
				}
				for _, id := range []string{"", "context-1"} {
					got, err := a.browserOf(out).Cookies(t.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					want := []cookies.Cookie{cookie("sid", ".example.com"), cookie("host", "www.example.com"), cookie("o", two)}
					cookies.Sort(got)
					cookies.Sort(want)
					if !slices.EqualFunc(got, want, cookies.Cookie.Equal) {
						t.Errorf("context %q has %v", id, got)
					}
				}
				if state := a.stateOf(t, id); state != "used" {
					t.Errorf("the grant is %s", state)
				}
				row, _ := a.db.Grant(t.Context(), id)
				set, err := a.vault.Cookies(t.Context(), store.DefaultTenant, two)
				if err != nil || row.UsedBy != out.ID || !set.LastInjectedAt.Equal(*out.Ready) {
					t.Errorf("the grant was used by %s, and the set at %v, %v", row.UsedBy, set.LastInjectedAt, err)
				}
			})
		})
	}
}

func TestOperatorSessionIsOnRecordBeforeItIsDone(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		token, id := a.issue(t, func(r *grant.Request) { r.EgressDomains = []string{"example.net"} })
		out, err := a.s.Open(t.Context(), admin, wanting(token))
		if err != nil {
			t.Fatal(err)
		}
		a.inOrder(t, "verify grant", "intent session.open_operator default admin", "lease", "use grant", "create",
			"intent session.inject", "decrypt cookies", "set cookies", "outcome session.inject ok", "outcome session.open_operator ok")
		if first := a.steps("intent", "lease", "use grant", "create", "set cookies")[0]; !strings.Contains(first, "session.open_operator") {
			t.Errorf("the first thing that happened was %s", first)
		}
		a.mustClose(t, out.ID)
		a.inOrder(t, "outcome session.open_operator ok", "ending session.close default admin", "destroy", "outcome session.close ok", "release")
		trail := strings.Join(a.steps("intent", "outcome"), "\n")
		for _, want := range []string{id, `"domains":["example.com"]`, `"egress_domains":["example.net"]`, `"cookie_count":2`} {
			if !strings.Contains(trail, want) {
				t.Errorf("%s is not in\n%s", want, trail)
			}
		}
	})
}

// attempt is what a test of a refusal prepares: the request, who asks, and the grant to look at afterwards.
type attempt struct {
	by      identity.Principal
	request OpenRequest
	grant   string // its id
	state   string // what must have become of it
}

func TestGrantIsRefusedWithItsReasonAndNothingIsDone(t *testing.T) {
	set := func(change ...func(*grant.Request)) func(*testing.T, *accounts) attempt {
		return func(t *testing.T, a *accounts) attempt {
			token, id := a.issue(t, change...)
			return attempt{admin, wanting(token), id, "active"}
		}
	}
	withAccess := func(access grant.Access) func(*grant.Request) { return func(r *grant.Request) { r.Access = access } }
	tests := map[string]struct {
		code    string
		prepare func(t *testing.T, a *accounts) attempt
	}{
		"missing": {problem.GrantMissing, func(*testing.T, *accounts) attempt {
			return attempt{by: admin, request: wanting(grant.Token{})}
		}},
		"no grant at all": {problem.GrantInvalid, func(*testing.T, *accounts) attempt {
			return attempt{by: admin, request: wanting(grant.ParseToken("v4.public.AAAA"))}
		}},
		"signed by somebody else": {problem.GrantInvalid, func(t *testing.T, a *accounts) attempt {
			mine := a.issuer
			a.issuer = a.newIssuer(t)
			defer func() { a.issuer = mine }()
			return set()(t, a)
		}},
		"expired": {problem.GrantExpired, func(t *testing.T, a *accounts) attempt {
			out := set()(t, a)
			out.state = "expired"
			time.Sleep(10 * time.Minute)
			return out
		}},
		"used": {problem.GrantUsed, func(t *testing.T, a *accounts) attempt {
			out := set()(t, a)
			out.state = "used"
			first, err := a.s.Open(t.Context(), admin, out.request)
			if err != nil {
				t.Fatal(err)
			}
			a.mustClose(t, first.ID)
			return out
		}},
		"revoked": {problem.GrantRevoked, func(t *testing.T, a *accounts) attempt {
			out := set()(t, a)
			out.state = "revoked"
			if _, err := a.issuer.Revoke(t.Context(), "", out.grant, "admin"); err != nil {
				t.Fatal(err)
			}
			return out
		}},
		"of another tenant": {problem.GrantWrongTenant, set(func(r *grant.Request) { r.Tenant = other })},
		"of another origin": {problem.GrantWrongOrigin, set(func(r *grant.Request) { r.Origin = "s_somebody" })},
		"for another domain": {problem.GrantScope, func(t *testing.T, a *accounts) attempt {
			out := set()(t, a)
			out.request.Domains = []string{"example.com", two}
			return out
		}},
		"for tools, and cdp is wanted": {problem.GrantScope, func(t *testing.T, a *accounts) attempt {
			out := set()(t, a)
			out.request.Access = "cdp"
			return out
		}},
		"for cdp, and the account is for tools": {problem.GrantScope, func(t *testing.T, a *accounts) attempt {
			a.setScoped(t, store.DefaultTenant, "example.com", 1, []string{"tools"})
			out := set(withAccess(grant.AccessCDP))(t, a)
			out.request.Access = "cdp"
			return out
		}},
		"for an account that is for nothing": {problem.GrantScope, func(t *testing.T, a *accounts) attempt {
			a.setScoped(t, store.DefaultTenant, "example.com", 1, nil)
			return set()(t, a)
		}},
		"for an account that is not there": {problem.NotFound, func(t *testing.T, a *accounts) attempt {
			token, id := a.issue(t, func(r *grant.Request) { r.Domains = []string{"example.com", "example.net"} })
			return attempt{admin, wanting(token, "example.com", "example.net"), id, "active"}
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				a.set(t, store.DefaultTenant, two, 1)
				try := test.prepare(t, a)
				a.mu.Lock()
				a.log = nil
				a.mu.Unlock()
				a.refused(t, try.by, try.request, test.code)
				if done := a.steps("create", "lease", "use grant", "intent", "decrypt"); len(done) > 0 {
					t.Errorf("before the refusal there was %q", done)
				}
				a.mu.Lock()
				last := a.trail[len(a.trail)-1]
				a.mu.Unlock()
				if !strings.HasPrefix(last, "event session.open_operator refused") || !strings.Contains(last, `"code":"`+test.code+`"`) {
					t.Errorf("the refusal is not on record, the last of which is %q", last)
				}
				a.free(t, store.DefaultTenant, "example.com")
				a.free(t, store.DefaultTenant, two)
				if try.grant != "" {
					if state := a.stateOf(t, try.grant); state != try.state {
						t.Errorf("the grant is %s, want %s", state, try.state)
					}
				}
			})
		})
	}
}

// The access that a session asks for decides, and not all that its grant would allow.
func TestWideGrantOpensANarrowSession(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.setScoped(t, store.DefaultTenant, "example.com", 1, []string{"tools"})
		a.set(t, store.DefaultTenant, two, 1)
		token, _ := a.issue(t, func(r *grant.Request) { r.Access, r.Domains = grant.AccessCDP, []string{"example.com", two} })
		out, err := a.s.Open(t.Context(), admin, wanting(token))
		if err != nil {
			t.Fatal(err)
		}
		if out.Injected != 2 || len(a.browserOf(out).jar[""]) != 2 {
			t.Errorf("it has %d cookies", out.Injected)
		}
		a.free(t, store.DefaultTenant, two)
	})
}

func TestGrantOpensOneOfManySessions(t *testing.T) {
	const racers = 64
	withAccounts(t, func(o *Options) { o.Sessions.Max = 2 * racers }, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 2*racers) // so that leases decide nothing
		token, id := a.issue(t)
		// All of them have found the grant to be good before one of them uses it.
		release := a.holding("use grant")
		var racing sync.WaitGroup
		var mu sync.Mutex
		var opened []Session
		codes := map[string]int{}
		for range racers {
			racing.Go(func() {
				out, err := a.s.Open(t.Context(), admin, wanting(token))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					opened = append(opened, out)
				}
				codes[problem.CodeOf(err)]++
			})
		}
		waitSteps(t, a, "use grant", racers)
		release()
		racing.Wait()
		if len(opened) != 1 || codes[problem.GrantUsed] != racers-1 {
			t.Fatalf("%d were opened, the others were refused with %v", len(opened), codes)
		}
		if row, err := a.db.Grant(t.Context(), id); err != nil || row.UsedBy != opened[0].ID {
			t.Errorf("it was used by %s, %v", row.UsedBy, err)
		}
		if a.count("create") != 1 || a.count("release") != racers-1 {
			t.Errorf("%d jails were made, and the leases of %d given back", a.count("create"), a.count("release"))
		}
	})
}

// waitSteps waits, with the database at work, until a step was reached that often.
func waitSteps(t testing.TB, a *accounts, step string, times int) {
	t.Helper()
	for range 10_000 {
		if a.count(step) == times {
			return
		}
		time.Sleep(time.Millisecond) // of the bubble: it passes when all others wait
	}
	t.Fatalf("%q was reached %d times, not %d", step, a.count(step), times)
}

func TestTenantWithoutOperatorModeHasNoAccounts(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		who := a.people(t)
		a.s.Authority = who
		a.set(t, other, "example.com", 1)
		if _, err := who.SetPolicy(t.Context(), keyAdmin, other, func(p *identity.Policy) { p.ForbidOperatorMode = true }); err != nil {
			t.Fatal(err)
		}
		token, id := a.issue(t, func(r *grant.Request) { r.Tenant = other })
		request := wanting(token)
		request.Tenant = other
		a.refused(t, keyAdmin, request, problem.Forbidden)
		if done := a.steps("verify grant", "create", "lease", "use grant", "intent"); len(done) > 0 {
			t.Errorf("before the refusal there was %q", done)
		}
		a.free(t, other, "example.com")
		if _, err := a.s.Open(t.Context(), keyAdmin, OpenRequest{Tenant: other}); err != nil {
			t.Errorf("a clean session: %v", err)
		}
		if _, err := who.SetPolicy(t.Context(), keyAdmin, other, func(p *identity.Policy) { p.ForbidOperatorMode = false }); err != nil {
			t.Fatal(err)
		}
		if _, err := a.s.Open(t.Context(), keyAdmin, request); err != nil || a.stateOf(t, id) != "used" {
			t.Errorf("when it is allowed again: %v", err)
		}
	})
}

func TestAccountWhoseCookiesHaveAllExpiredNeedsARefresh(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1, until(cookie("a", ".example.com"), time.Minute), until(cookie("b", ".example.com"), time.Minute))
		time.Sleep(time.Minute)
		token, id := a.issue(t)
		a.refused(t, admin, wanting(token), problem.NeedsRefresh)
		if events := a.steps("event session.needs_refresh refused example.com"); len(events) != 1 || !strings.Contains(events[0], ReasonExpired) {
			t.Errorf("the events are %q", events)
		}
		if a.stateOf(t, id) != "active" || a.count("create") != 0 {
			t.Error("the grant was used, or a jail was made")
		}
		a.free(t, store.DefaultTenant, "example.com")
	})
}

func TestAccountWithSomeExpiredCookiesOpensAndSaysSo(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1, until(cookie("old", ".example.com"), time.Minute),
			until(cookie("young", ".example.com"), time.Hour), cookie("session", ".example.com"))
		time.Sleep(time.Minute)
		out := a.mustOpenOperator(t)
		if out.Injected != 2 || len(out.NeedsRefresh) != 1 {
			t.Fatalf("opened %+v", out)
		}
		if f := out.NeedsRefresh[0]; f.Domain != "example.com" || f.Reason != ReasonExpired || !slices.Equal(f.Cookies, []string{"old"}) || f.At.IsZero() {
			t.Errorf("it says %+v", f)
		}
		if events := a.steps("event session.needs_refresh failed example.com"); len(events) != 1 || !strings.Contains(events[0], `"cookie_names":["old"]`) {
			t.Errorf("the events are %q", events)
		}
	})
}

// A record has a bounded length, and would be refused as a whole.
func TestManyExpiredCookiesFitIntoTheirRecord(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		list := []cookies.Cookie{cookie("session", ".example.com")}
		for n := range 300 {
			list = append(list, until(cookie(fmt.Sprintf("a-rather-long-name-%d", n), ".example.com"), time.Minute))
		}
		a.set(t, store.DefaultTenant, "example.com", 1, list...)
		time.Sleep(time.Minute)
		out := a.mustOpenOperator(t)
		if len(out.NeedsRefresh) != 1 || len(out.NeedsRefresh[0].Cookies) != 300 {
			t.Errorf("it says %+v", out.NeedsRefresh)
		}
		if events := a.steps("event session.needs_refresh"); len(events) != 1 || !strings.Contains(events[0], `"cookie_count":300`) ||
			!strings.Contains(events[0], "a-rather-long-name-0") {
			t.Errorf("the events are %q", events)
		}
	})
}

func TestOperatorSessionReachesWhatItsGrantNames(t *testing.T) {
	private := func(name, host string, port uint16) policy.Rule {
		return policy.Rule{Name: name, Action: policy.Allow, Host: policy.MustParsePattern(host), Ports: policy.Ports(port)}
	}
	change := func(o *Options) {
		o.Policy = policy.PublicWeb(private("git", "git.example.com", 8443), private("intranet", "intranet.test", 8080), private("address", "10.1.2.3", 80))
	}
	withAccounts(t, change, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		token, _ := a.issue(t, func(r *grant.Request) { r.EgressDomains = []string{"static.example.net"} })
		out, err := a.s.Open(t.Context(), admin, wanting(token))
		if err != nil {
			t.Fatal(err)
		}
		may := a.knownAs(netip.MustParseAddr(out.Address)).Policy
		for _, test := range []struct {
			host    string
			port    uint16
			allowed bool
		}{
			{"example.com", 443, true}, {"example.com", 80, true}, {"www.example.com", 443, true}, {"a.b.example.com", 443, true},
			{"static.example.net", 443, true}, {"x.static.example.net", 80, true},
			{"git.example.com", 8443, true}, // configured, and of a domain of the grant
			{"example.com", 8443, false}, {"example.com", 22, false}, {"www.example.com", 8080, false},
			{"example.net", 443, false}, {"other.example.net", 443, false},
			{"evil-example.com", 443, false}, {"example.com.evil.test", 443, false}, {"com", 443, false},
			{"example.org", 443, false}, {"intranet.test", 8080, false}, {"intranet.test", 80, false},
			{"10.1.2.3", 80, false}, {"192.0.2.1", 443, false},
		} {
			host, err := hostport.ParseHost(test.host)
			if err != nil {
				t.Fatal(err)
			}
			d := may.Decide(policy.Request{Scheme: policy.HTTPS, Host: host, Port: test.port, Method: policy.Connect})
			if d.Allowed != test.allowed {
				t.Errorf("%s port %d: %+v", test.host, test.port, d)
			}
			if !d.Allowed && !host.IsAddr() && !strings.Contains(d.Hint, "--egress-domain") {
				t.Errorf("the hint for %s is %q", test.host, d.Hint)
			}
			// The configured policy is for clean sessions, and would have let all names through.
			if !a.s.Policy.Decide(policy.Request{Scheme: policy.HTTPS, Host: host, Port: 443, Method: policy.Connect}).Allowed && !host.IsAddr() {
				t.Errorf("%s is not of the public web: the table tests nothing", test.host)
			}
		}
	})
}
