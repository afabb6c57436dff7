package egress

import (
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestExplanationsNameTheRule(t *testing.T) {
	w := newWorld(t)
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

// Asking does not use anything up.
func TestExplainingUsesNothing(t *testing.T) {
	w := newWorld(t)
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
