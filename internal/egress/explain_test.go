package egress

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestExplanationsNameTheRule(t *testing.T) {
	w := newFixture(t)
	named := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
	named.Name = "the-rule"
	w.add(named)
	plain := rule(policy.Allow, "p.example").of("acme", w.bot.ID)
	plain.Ports, plain.Methods, plain.Path = policy.Ports(80), []string{"GET"}, policy.MustParsePath("/x/**")
	plain.Name = "plain"
	w.add(plain)
	unseen := rule(policy.Allow, "m.example").of("acme", w.bot.ID)
	unseen.Methods = []string{"GET"} // which nobody sees in a tunnel
	w.add(unseen)
	s := service("github")
	s.Allow = []Allowance{{Path: "/repos/**"}}
	w.must(second2(w.PutService(w.ctx, w.admin, s)))
	w.must(second2(w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme"}, Tools: []Tool{{URL: "https://t.example/**", Methods: []string{"GET"}}, {URL: "https://n.example", Methods: []string{"GET"}}}})))
	registry := s
	registry.Meta, registry.Name, registry.EncodedSlash, registry.Allow = Meta{Tenant: "acme"}, "registry", EncodedSlashAllow, []Allowance{{Path: "/*"}}
	w.must(second2(w.PutService(w.ctx, w.admin, registry)))
	for _, tt := range []struct {
		q          Question
		allowed    bool
		rule, code string
	}{
		{Question{Agent: "bot", URL: "https://A.example./x"}, true, "the-rule", ""},
		{Question{Agent: "bot", Method: "GET", URL: "https://a.example"}, true, "the-rule", ""},
		{Question{Agent: "bot", URL: "https://a.example:8443"}, false, "", problem.PortDenied},
		{Question{Agent: "bot", URL: "https://b.example"}, false, "", problem.HostDenied},
		{Question{Agent: "bot", Method: "GET", URL: "https://m.example/x"}, false, "", problem.MethodDenied},
		{Question{Agent: "bot", URL: "http://p.example/x/y"}, true, "plain", ""},
		{Question{Agent: "bot", URL: "http://p.example/y"}, false, "", problem.PathDenied},
		{Question{Agent: "bot", Method: "POST", URL: "http://p.example/x"}, false, "", problem.MethodDenied},
		{Question{Agent: "twin", URL: "https://a.example"}, false, "", problem.HostDenied},
		{Question{URL: "https://b.example"}, true, "public-web", ""},
		{Question{URL: "https://b.example:22"}, false, "", problem.PortDenied},
		{Question{Agent: "bot", Surface: "execute", Service: "github", URL: "https://t.example/x"}, true, "tool-1", ""},
		{Question{Agent: "bot", Surface: "execute", Service: "github", URL: "https://a.example/x"}, false, "", problem.ToolDenied},
		{Question{Agent: "bot", Surface: "execute", URL: "https://n.example/a//b"}, false, "", problem.PathDenied},
		{Question{Agent: "bot", Surface: "service", Service: "github", URL: "/repos/x"}, true, "service-github-1", ""},
		{Question{Agent: "bot", Surface: "service", Service: "github", URL: "/user"}, false, "", problem.PathDenied},
		{Question{Agent: "bot", Surface: "service", Service: "github", URL: "/repos/../user"}, false, "", problem.PathDenied},
		{Question{Agent: "bot", Surface: "service", Service: "github", URL: "/repos/a%2fb"}, false, "", problem.PathDenied},
		{Question{Agent: "bot", Surface: "service", Service: "registry", URL: "/@scope%2fname"}, true, "service-registry-1", ""},
		{Question{Agent: "bot", Surface: "service", Service: "registry", URL: "/a%2f..%2fb"}, false, "", problem.PathDenied},
		{Question{Agent: "bot", Surface: "service", Service: "none", URL: "/"}, false, "", problem.ServiceUnknown},
		{Question{Agent: "bot", Surface: "llm", URL: "/"}, false, "", problem.BadRequest},
		{Question{Agent: "bot", URL: "a.example"}, false, "", problem.BadURL},
		{Question{Agent: "bot", URL: "https://u@a.example"}, false, "", problem.BadURL},
	} {
		out, err := w.Explain(w.ctx, w.operator, []Question{tt.q})
		w.must(err)
		if e := out[0]; e.Allowed != tt.allowed || e.Rule != tt.rule || e.Code != tt.code || e.Reason == "" || e.Question != tt.q {
			t.Errorf("%+v\nis explained as %+v", tt.q, e)
		}
	}
	// An agent that names nobody is meant itself.
	if out, err := w.Explain(w.ctx, w.bot, []Question{{URL: "https://a.example"}}); err != nil || !out[0].Allowed {
		t.Errorf("%+v, %v", out, err)
	}
	_, err := w.Explain(w.ctx, w.operator, make([]Question, maxQuestions+1))
	w.wantCode("too many", err, problem.BadLimit)
	if out, err := w.Explain(w.ctx, w.operator, make([]Question, maxQuestions)); err != nil || len(out) != maxQuestions {
		t.Errorf("%d answers: %v", len(out), err)
	}
}

// way is a gateway with one session with accounts and one of an agent's, in whose network names lead where they are called.
type way struct{ asked []string }

func (w *way) CallerIn(session string) (Who, bool) {
	base := policy.Only(policy.Rule{Name: "grant-1", Action: policy.Allow, Host: policy.MustParsePattern("shop.example"), Ports: policy.Ports(80, 443)})
	base.Advice = "that takes a grant or a permission with --egress-domain"
	who, found := map[string]Who{
		"s_accounts": {Tenant: "acme", Session: "s_accounts", Base: base, Confined: true},
		"s_bot":      {Tenant: "acme", Session: "s_bot", Opener: "bot's", Base: policy.PublicWeb()},
		"s_beta":     {Tenant: "beta", Session: "s_beta", Base: policy.PublicWeb()},
	}[session]
	return who, found
}

func (w *way) Clean() policy.Policy {
	return policy.PublicWeb(policy.Rule{Name: "private-destination-1", Action: policy.Allow, Host: policy.MustParsePattern("wiki.internal"),
		Ports: policy.Ports(8080), Address: netip.MustParseAddr("10.0.0.9")})
}

func (w *way) Reach(_ context.Context, to hostport.Endpoint, private netip.Addr, lookup bool) *problem.Error {
	if lookup {
		w.asked = append(w.asked, to.Host().String())
	}
	if to.Host().IsAddr() && to.Host().Addr().IsPrivate() && !private.IsValid() || lookup && to.Host().String() == "inside.example" {
		return problem.New(problem.AddressDenied, "only public addresses", "%s leads inside", to)
	}
	if lookup && to.Host().String() == "lost.example" {
		return problem.New(problem.DNSFailed, "one later retry", "the name %s could not be looked up", to.Host())
	}
	return nil
}

// An explanation is what the gateway would do, for that caller: the policy of a session with accounts, addresses inside, and
// the private destinations of the configuration.
func TestExplanationsAreOfTheWholeWayOut(t *testing.T) {
	w := newFixture(t)
	to := new(way)
	w.o.Way = to
	for _, host := range []string{"inside.example", "lost.example", "10.0.0.9", "8.8.8.8"} {
		w.add(rule(policy.Allow, host).of("acme", ""))
	}
	for _, tt := range []struct {
		q          Question
		allowed    bool
		rule, code string
		lookedUp   bool
	}{
		{Question{Session: "s_accounts", URL: "https://shop.example/"}, true, "grant-1", "", false},
		{Question{Session: "s_accounts", URL: "https://other.example/"}, false, "", problem.HostDenied, false},
		{Question{Session: "s_accounts", URL: "https://inside.example/"}, false, "", problem.HostDenied, false}, // a rule adds nothing to a grant
		{Question{Session: "s_bot", URL: "https://other.example/"}, false, "", problem.HostDenied, false},
		{Question{Tenant: "acme", URL: "https://other.example/"}, true, "public-web", "", false},
		{Question{Tenant: "acme", URL: "https://other.example/", Lookup: true}, true, "public-web", "", true},
		{Question{Agent: "bot", URL: "https://10.0.0.9/"}, false, "*", problem.AddressDenied, true},
		{Question{Agent: "bot", URL: "https://8.8.8.8/"}, true, "*", "", true},
		{Question{Tenant: "acme", URL: "http://wiki.internal:8080/"}, true, "private-destination-1", "", true},
		{Question{Agent: "bot", URL: "https://inside.example/", Lookup: true}, false, "*", problem.AddressDenied, true},
		{Question{Agent: "bot", URL: "https://lost.example/", Lookup: true}, true, "*", problem.DNSFailed, false},
		{Question{Agent: "bot", URL: "https://denied.example/", Lookup: true}, false, "", problem.HostDenied, false},
	} {
		out, err := w.Explain(w.ctx, w.operator, []Question{tt.q})
		w.must(err)
		e := out[0]
		if e.Allowed != tt.allowed || e.Rule != tt.rule && (tt.rule != "*" || e.Rule == "") || e.Code != tt.code || e.Reason == "" || e.LookedUp != tt.lookedUp {
			t.Errorf("%+v\nis explained as %+v", tt.q, e)
		}
	}
	if slices.Contains(to.asked, "denied.example") {
		t.Error("a name that no rule allows was looked up")
	}
	for _, q := range []Question{{Session: "s_none", URL: "https://a.example"}, {Session: "s_beta", URL: "https://a.example"}} {
		_, err := w.Explain(w.ctx, w.operator, []Question{q})
		w.wantCode("session "+q.Session, err, problem.NotFound)
	}
	_, err := w.Explain(w.ctx, w.operator, []Question{{Session: "s_bot", Agent: "bot", URL: "https://a.example"}})
	w.wantCode("a session and an agent", err, problem.BadRequest)
	_, err = w.Explain(w.ctx, w.bot, []Question{{Session: "s_bot", URL: "https://a.example"}})
	w.wantCode("an agent about a session of another", err, problem.NotFound)
	// A question of an agent leaves no record, so no name may be looked up for it.
	to.asked = nil
	out, err := w.Explain(w.ctx, w.viewer, []Question{{Agent: "bot", URL: "https://inside.example/", Lookup: true}})
	if err != nil || !out[0].Allowed || out[0].LookedUp {
		t.Errorf("to a viewer: %+v, %v", out, err)
	}
	out, err = w.Explain(w.ctx, w.bot, []Question{{URL: "https://inside.example/", Lookup: true}})
	if w.must(err); !out[0].Allowed || out[0].LookedUp || len(to.asked) > 0 {
		t.Errorf("for an agent %v was looked up: %+v", to.asked, out)
	}
	if _, err := w.Explain(w.ctx, w.operator, slices.Repeat([]Question{{URL: "https://a.example/", Lookup: true}}, 3*maxLookups)); err != nil || len(to.asked) != maxLookups {
		t.Errorf("%d names were looked up at once: %v", len(to.asked), err)
	}
}

// Asking does not use anything up.
func TestExplainingUsesNothing(t *testing.T) {
	w := newFixture(t)
	r := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
	r.Once, r.ExpiresAt = true, w.clock.Now().Add(time.Hour)
	w.add(r)
	for range 2 {
		if out, err := w.Explain(w.ctx, w.operator, []Question{{Agent: "bot", URL: "https://a.example"}}); err != nil || !out[0].Allowed {
			t.Errorf("%+v, %v", out, err)
		}
	}
	w.want(agent(w.bot), "a.example", true)
}
