package egress

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestWhoMayChangeWhat(t *testing.T) {
	w := newFixture(t)
	inside := netip.MustParseAddr("10.0.0.7")
	own := func(r Rule) Rule { return r.of("acme", "") }
	withAddress := own(rule(policy.Allow, "db.example"))
	withAddress.Address = inside
	as := map[string]identity.Principal{"admin": w.admin, "operator": w.operator, "viewer": w.viewer, "stranger": w.stranger, "bot": w.bot, "nobody": {}}
	session := w.operator.Within("s_1", identity.ScopeCDP, w.clock.Now().AddDate(1, 0, 0))
	as["token"] = session
	tests := []struct {
		name string
		do   func(identity.Principal) error
		want string // who may
	}{
		{"rule of a tenant", func(p identity.Principal) error {
			_, err := w.AddRule(w.ctx, p, own(rule(policy.Allow, "a.example")))
			return err
		}, "admin operator"},
		{"rule of all", func(p identity.Principal) error {
			_, err := w.AddRule(w.ctx, p, rule(policy.Deny, "a.example"))
			return err
		}, "admin"},
		{"rule that leads inside", func(p identity.Principal) error {
			_, err := w.AddRule(w.ctx, p, withAddress)
			return err
		}, "admin"},
		{"service", func(p identity.Principal) error {
			s := service("a")
			s.Tenant = "acme"
			_, err := w.PutService(w.ctx, p, s)
			return err
		}, "admin operator"},
		{"service of all", func(p identity.Principal) error {
			_, err := w.PutService(w.ctx, p, service("a"))
			return err
		}, "admin"},
		{"service that leads inside", func(p identity.Principal) error {
			s := service("b")
			s.Tenant, s.Address = "acme", inside
			_, err := w.PutService(w.ctx, p, s)
			return err
		}, "admin"},
		{"provider that leads inside", func(p identity.Principal) error {
			s := provider("b", WireOllama, "*")
			s.Tenant, s.Address = "acme", inside
			_, err := w.PutProvider(w.ctx, p, s)
			return err
		}, "admin"},
		{"provider", func(p identity.Principal) error {
			s := provider("c", WireOllama, "*")
			s.Tenant = "acme"
			_, err := w.PutProvider(w.ctx, p, s)
			return err
		}, "admin operator"},
		{"settings", func(p identity.Principal) error {
			_, err := w.PutSettings(w.ctx, p, Settings{Meta: Meta{Tenant: "acme"}})
			return err
		}, "admin operator"},
		{"settings of all", func(p identity.Principal) error { _, err := w.PutSettings(w.ctx, p, Settings{}); return err }, "admin"},
		{"list rules", func(p identity.Principal) error { _, err := w.Rules(w.ctx, p, "acme"); return err }, "admin operator viewer"},
		{"list services", func(p identity.Principal) error { _, err := w.ListServices(w.ctx, p, "acme"); return err }, "admin operator viewer"},
		{"list providers", func(p identity.Principal) error { _, err := w.ListProviders(w.ctx, p, "acme"); return err }, "admin operator viewer"},
		{"own settings", func(p identity.Principal) error { _, _, err := w.ShowSettings(w.ctx, p, "acme", "bot"); return err }, "admin bot operator viewer"},
		{"other settings", func(p identity.Principal) error { _, _, err := w.ShowSettings(w.ctx, p, "acme", "twin"); return err }, "admin operator viewer"},
		{"ask", func(p identity.Principal) error {
			_, err := w.Ask(w.ctx, p, AccessHost, "a.example", "x", 0)
			return err
		}, "bot"},
		{"usage", func(p identity.Principal) error { _, err := w.Usage(w.ctx, p, "acme", ""); return err }, "admin bot operator viewer"},
		{"explain", func(p identity.Principal) error {
			_, err := w.Explain(w.ctx, p, []Question{{Tenant: "acme", Agent: "bot", URL: "https://a.example"}})
			return err
		}, "admin bot operator viewer"},
		{"explain another", func(p identity.Principal) error {
			_, err := w.Explain(w.ctx, p, []Question{{Tenant: "acme", Agent: "twin", URL: "https://a.example"}})
			return err
		}, "admin operator viewer"},
		{"answer", func(p identity.Principal) error {
			w.clock.Forward(askAgain) // the answer before is none to this question
			asked := w.ask(w.twin, AccessHost, "z.example")
			_, err := w.Answer(w.ctx, p, asked.ID, AccessAnswer{})
			return err
		}, "admin operator"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var may []string
			for name, p := range as {
				if err := tt.do(p); err == nil {
					may = append(may, name)
				} else if code := problem.CodeOf(err); code != problem.Forbidden && code != problem.NotFound {
					t.Errorf("%s is told %v", name, err)
				}
			}
			slices.Sort(may)
			if got := strings.Join(may, " "); got != tt.want {
				t.Errorf("%q may, want %q", got, tt.want)
			}
		})
	}
}

// outside is an authority that lets nobody lead inside, or decide for all.
type outside struct{ Authority }

func (o outside) AuthorizeWith(ctx context.Context, p identity.Principal, op identity.Operation, object identity.Object) error {
	if op == identity.EgressInside {
		return problem.New(problem.Forbidden, "", "no")
	}
	return o.Authority.AuthorizeWith(ctx, p, op, object)
}

func TestWhatIsForAllIsAskedForBesides(t *testing.T) {
	w := newFixture(t)
	b := w.another(func(o *Options) { o.Identity = outside{o.Identity} })
	r := w.add(rule(policy.Allow, "a.example"))
	s, err := w.PutService(w.ctx, w.admin, service("a"))
	w.must(err)
	w.wantCode("add", second2(b.AddRule(w.ctx, w.admin, rule(policy.Allow, "b.example"))), problem.Forbidden)
	w.wantCode("put", second2(b.PutSettings(w.ctx, w.admin, Settings{})), problem.Forbidden)
	w.wantCode("remove", b.RemoveRule(w.ctx, w.admin, r.ID), problem.Forbidden)
	w.wantCode("remove", b.RemoveService(w.ctx, w.admin, s.ID), problem.Forbidden)
	w.must(second2(b.AddRule(w.ctx, w.admin, rule(policy.Allow, "b.example").of("acme", ""))))
}

// What somebody may use and not see, they cannot have shown to them by a service of their own.
func TestOnlyServicesWithoutACredentialAreNotScrubbed(t *testing.T) {
	w := newFixture(t)
	for how, want := range map[InjectionType]Scrub{InjectBearer: ScrubRedact, InjectNone: ScrubOff} {
		s := service("a")
		s.Inject, s.Scrub = Injection{Type: how}, ScrubOff
		s, err := w.PutService(w.ctx, w.admin, s)
		w.must(err)
		if s.Scrub != want {
			t.Errorf("%s: answers are to be treated as %s, want %s", how, s.Scrub, want)
		}
	}
}

// Of another tenant's things somebody is told what is told of things that do not exist.
func TestOtherTenantsThingsDoNotExist(t *testing.T) {
	w := newFixture(t)
	r := w.add(rule(policy.Allow, "secret-host.example").of("acme", w.bot.ID))
	s := service("hidden")
	s.Tenant = "acme"
	s, err := w.PutService(w.ctx, w.admin, s)
	w.must(err)
	p := provider("hidden", WireOpenAI, "*")
	p.Tenant = "acme"
	p, err = w.PutProvider(w.ctx, w.admin, p)
	w.must(err)
	a := w.ask(w.bot, AccessHost, "hidden.example")
	same := func(what string, do func(identity.Principal, string) error, by identity.Principal, id string) {
		t.Helper()
		got, want := do(by, id), do(by, "no-such-id")
		if got == nil || want == nil || got.Error() != want.Error() || problem.CodeOf(got) != problem.NotFound {
			t.Errorf("%s: %v, and of nothing: %v", what, got, want)
		}
	}
	rules := func(by identity.Principal, id string) error { return w.RemoveRule(w.ctx, by, id) }
	services := func(by identity.Principal, id string) error { return w.RemoveService(w.ctx, by, id) }
	providers := func(by identity.Principal, id string) error { return w.RemoveProvider(w.ctx, by, id) }
	look := func(by identity.Principal, id string) error { _, err := w.AccessRequest(w.ctx, by, id, 0); return err }
	answer := func(by identity.Principal, id string) error {
		_, err := w.Answer(w.ctx, by, id, AccessAnswer{Approve: true})
		return err
	}
	same("rule", rules, w.stranger, r.ID)
	same("service", services, w.stranger, s.ID)
	same("provider", providers, w.stranger, p.ID)
	same("request", look, w.stranger, a.ID)
	same("request of another agent", look, w.twin, a.ID)
	same("request of another tenant's agent", look, w.spy, a.ID)
	same("answer", answer, w.stranger, a.ID)
	same("kinds", rules, w.operator, s.ID)
	same("kinds", services, w.operator, r.ID)
	settings := func(by identity.Principal, name string) error {
		_, _, err := w.ShowSettings(w.ctx, by, "acme", name)
		return err
	}
	same("settings", settings, w.stranger, "bot")
	same("settings", settings, w.twin, "bot")
	explain := func(by identity.Principal, name string) error {
		_, err := w.Explain(w.ctx, by, []Question{{Tenant: "acme", Agent: name, URL: "https://a.example"}})
		return err
	}
	same("explain", explain, w.stranger, "bot")
	same("explain", explain, w.twin, "bot")
	// An agent of one tenant is none of another.
	_, err = w.AddRule(w.ctx, w.stranger, rule(policy.Allow, "a.example").of("beta", w.bot.ID))
	w.wantCode("a rule for a foreign agent", err, problem.NotFound)
	for what, list := range map[string]func() (int, error){
		"rules":     func() (int, error) { l, err := w.Rules(w.ctx, w.stranger, ""); return len(l), err },
		"services":  func() (int, error) { l, err := w.ListServices(w.ctx, w.stranger, ""); return len(l), err },
		"providers": func() (int, error) { l, err := w.ListProviders(w.ctx, w.stranger, ""); return len(l), err },
		"requests":  func() (int, error) { l, err := w.AccessRequests(w.ctx, w.stranger, "", true); return len(l), err },
		"own":       func() (int, error) { l, err := w.AccessRequests(w.ctx, w.twin, "", true); return len(l), err },
	} {
		if n, err := list(); err != nil || n != 0 {
			t.Errorf("%s: a stranger sees %d: %v", what, n, err)
		}
	}
	w.want(agent(w.spy), "secret-host.example", false)
}

func TestAddressesOfTheInsideAreNotShownToTenants(t *testing.T) {
	w := newFixture(t)
	inside := netip.MustParseAddr("10.0.0.7")
	r := rule(policy.Allow, "db.example")
	r.Address = inside
	w.add(r)
	s := service("db")
	s.Address = inside
	_, err := w.PutService(w.ctx, w.admin, s)
	w.must(err)
	p := provider("db", WireOllama, "*")
	p.Address = inside
	_, err = w.PutProvider(w.ctx, w.admin, p)
	w.must(err)
	all := func(by identity.Principal) string {
		rules, err := w.Rules(w.ctx, by, "")
		w.must(err)
		services, err := w.ListServices(w.ctx, by, "")
		w.must(err)
		providers, err := w.ListProviders(w.ctx, by, "")
		w.must(err)
		text, err := json.Marshal([]any{rules, services, providers})
		w.must(err)
		return string(text)
	}
	if strings.Count(all(w.admin), "10.0.0.7") != 3 {
		t.Errorf("the admin sees %s", all(w.admin))
	}
	if text := all(w.operator); strings.Contains(text, "10.0.0.7") || strings.Count(text, "db") < 3 {
		t.Errorf("an operator sees %s", text)
	}
	if d := w.View(agent(w.bot)).Proxy().Decide(ask("db.example", 443)); !d.Allowed || d.Address != inside {
		t.Errorf("the rule does not lead inside: %+v", d)
	}
}

func TestNothingIsChangedWithoutARecord(t *testing.T) {
	w := newFixture(t)
	allow := w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	deny := w.add(rule(policy.Deny, "b.example").of("acme", w.bot.ID))
	w.log.fail = errDown
	if _, err := w.AddRule(w.ctx, w.operator, rule(policy.Allow, "c.example").of("acme", w.bot.ID)); err == nil {
		t.Error("a rule was made")
	}
	if err := w.RemoveRule(w.ctx, w.operator, deny.ID); err == nil {
		t.Error("a rule that denies was removed")
	}
	w.must(w.RemoveRule(w.ctx, w.operator, allow.ID)) // taking away never waits
	w.want(agent(w.bot), "a.example", false)
	w.want(agent(w.bot), "c.example", false)
	w.log.fail = nil
	trail := strings.Join(w.trail("rule.change"), "\n")
	for _, text := range []string{"a.example", "b.example", `"removed":true`, w.operator.Actor(), `"agent_id":"` + w.bot.ID} {
		if !strings.Contains(trail, text) {
			t.Errorf("the record does not have %q: %s", text, trail)
		}
	}
}

func TestVersionsAreCompared(t *testing.T) {
	w := newFixture(t)
	s := service("a")
	s.Tenant = "acme"
	first, err := w.PutService(w.ctx, w.operator, s)
	w.must(err)
	second, err := w.PutService(w.ctx, w.operator, first)
	w.must(err)
	if second.ID != first.ID || second.Version != first.Version+1 || !second.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("%+v after %+v", second.Meta, first.Meta)
	}
	_, err = w.PutService(w.ctx, w.operator, first)
	w.wantCode("an old version", err, problem.Conflict)
	s.Name, s.Version = "b", 1
	_, err = w.PutService(w.ctx, w.operator, s)
	w.wantCode("a version of nothing", err, problem.Conflict)
	set, err := w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Hold: "1s"})
	w.must(err)
	w.must(second2(w.PutSettings(w.ctx, w.operator, set)))
	_, err = w.PutSettings(w.ctx, w.operator, set)
	w.wantCode("an old version", err, problem.Conflict)
	named := rule(policy.Allow, "a.example").of("acme", "")
	named.Name = "twice"
	w.add(named)
	named.Action = policy.Deny
	_, err = w.AddRule(w.ctx, w.operator, named)
	w.wantCode("a name that is taken", err, problem.Conflict)
}

func second2[T any](_ T, err error) error { return err }

// Each request of an agent is on record, and what one tenant writes there all tenants keep.
func TestOnlyAnAdminOfTheInstallationRaisesRatesBeyondThoseOfAll(t *testing.T) {
	w := newFixture(t)
	of := func(agent string, r Rates) Settings {
		return Settings{Meta: Meta{Tenant: "acme", Agent: agent}, Rates: r}
	}
	put := func(by identity.Principal, s Settings) error { return second2(w.PutSettings(w.ctx, by, s)) }
	for _, step := range []struct {
		name string
		err  func() error
		code string
	}{
		{"lower", func() error { return put(w.operator, of("", Rates{Proxy: 10, Tunnels: 5})) }, ""},
		{"as for all", func() error { return put(w.operator, of("", Rates{Proxy: 3000, Tunnels: 128})) }, ""},
		{"more requests", func() error { return put(w.operator, of("", Rates{Proxy: 3001})) }, problem.BadLimit},
		{"more tunnels", func() error { return put(w.operator, of("", Rates{Tunnels: 129})) }, problem.BadLimit},
		{"more, of one agent", func() error { return put(w.operator, of(w.bot.ID, Rates{LLM: 121})) }, problem.BadLimit},
		{"declared", func() error {
			return second2(w.DeclareSettings(w.ctx, w.operator, of(w.bot.ID, Rates{Execute: 1_000_000})))
		}, problem.BadLimit},
		{"by an admin of the installation", func() error { return put(w.admin, of("", Rates{Proxy: 50_000, LLM: 500})) }, ""},
		{"what is set stays", func() error { return put(w.operator, of("", Rates{Proxy: 50_000, LLM: 400})) }, ""},
		{"of an agent as of its tenant", func() error { return put(w.operator, of(w.bot.ID, Rates{Proxy: 50_000, LLM: 400})) }, ""},
		{"of an agent more", func() error { return put(w.operator, of(w.bot.ID, Rates{Proxy: 50_001})) }, problem.BadLimit},
		{"back to less", func() error { return put(w.operator, of("", Rates{Proxy: 1000})) }, ""},
		{"and not up again", func() error { return put(w.operator, of("", Rates{Proxy: 50_000})) }, problem.BadLimit},
		{"for all", func() error { return put(w.admin, Settings{Rates: Rates{Proxy: 50_000}}) }, ""},
		{"then for a tenant", func() error { return put(w.operator, of("", Rates{Proxy: 50_000})) }, ""},
	} {
		w.wantCode(step.name, step.err(), step.code)
	}
}

func TestSettingsOfAllScopesAddUp(t *testing.T) {
	w := newFixture(t)
	put := func(s Settings) { t.Helper(); w.must(second2(w.PutSettings(w.ctx, w.admin, s))) }
	_, effective, err := w.ShowSettings(w.ctx, w.bot, "", "")
	w.must(err)
	if effective.Mode != policy.Enforce || effective.Rates != defaults().Rates || effective.Budget != (Budget{}) || effective.Hold != "0s" || effective.Tools == nil {
		t.Errorf("the defaults are %+v", effective)
	}
	put(Settings{Rates: Rates{Proxy: 1, LLM: 2}, Budget: Budget{TokensPerDay: 3}, Hold: "4s", Mode: policy.Report})
	put(Settings{Meta: Meta{Tenant: "acme"}, Rates: Rates{Proxy: 5}, Budget: Budget{CostPerDay: 6}})
	put(Settings{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Rates: Rates{Tunnels: 7}, Mode: policy.Enforce})
	set, effective, err := w.ShowSettings(w.ctx, w.operator, "", "bot")
	w.must(err)
	if set.Rates != (Rates{Tunnels: 7}) || effective.Rates != (Rates{Proxy: 5, Execute: 60, Service: 600, LLM: 2, Tunnels: 7}) ||
		effective.Budget != (Budget{TokensPerDay: 3, CostPerDay: 6}) || effective.Hold != "4s" || effective.Mode != policy.Enforce {
		t.Errorf("set %+v, in effect %+v", set, effective)
	}
	if v := w.View(agent(w.bot)); v.Settings().Rates != effective.Rates || v.Hold().String() != "4s" {
		t.Errorf("the view has %+v", v.Settings())
	}
}
