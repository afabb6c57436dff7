package api

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// fakeEgress keeps what it was asked, and answers with what it was given.
type fakeEgress struct {
	mu       sync.Mutex
	calls    []string
	by       identity.Principal
	rule     egress.Rule
	service  egress.Service
	provider egress.Provider
	settings egress.Settings
	asked    []egress.Question
	answer   egress.AccessAnswer
	fail     error
}

func (f *fakeEgress) called(by identity.Principal, parts ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by = by
	f.calls = append(f.calls, strings.TrimSpace(fmt.Sprintln(parts...)))
	return f.fail
}

func (f *fakeEgress) Rules(_ context.Context, by identity.Principal, tenant string) ([]egress.Rule, error) {
	return []egress.Rule{f.rule}, f.called(by, "rules", tenant)
}

func (f *fakeEgress) AddRule(_ context.Context, by identity.Principal, r egress.Rule) (egress.Rule, error) {
	f.rule = r
	r.ID = "ru_1"
	return r, f.called(by, "add rule")
}

func (f *fakeEgress) RemoveRule(_ context.Context, by identity.Principal, id string) error {
	return f.called(by, "remove rule", id)
}

func (f *fakeEgress) Explain(_ context.Context, by identity.Principal, q []egress.Question) ([]egress.Explanation, error) {
	f.asked = q
	return []egress.Explanation{{Question: q[0], Allowed: true, Rule: "some", Reason: "because"}}, f.called(by, "explain")
}

func (f *fakeEgress) ListServices(_ context.Context, by identity.Principal, tenant string) ([]egress.Service, error) {
	return nil, f.called(by, "services", tenant)
}

func (f *fakeEgress) PutService(_ context.Context, by identity.Principal, s egress.Service) (egress.Service, error) {
	f.service = s
	return s, f.called(by, "put service")
}

func (f *fakeEgress) RemoveService(_ context.Context, by identity.Principal, id string) error {
	return f.called(by, "remove service", id)
}

func (f *fakeEgress) ListProviders(_ context.Context, by identity.Principal, tenant string) ([]egress.Provider, error) {
	return nil, f.called(by, "providers", tenant)
}

func (f *fakeEgress) PutProvider(_ context.Context, by identity.Principal, p egress.Provider) (egress.Provider, error) {
	f.provider = p
	return p, f.called(by, "put provider")
}

func (f *fakeEgress) RemoveProvider(_ context.Context, by identity.Principal, id string) error {
	return f.called(by, "remove provider", id)
}

func (f *fakeEgress) ShowSettings(_ context.Context, by identity.Principal, tenant, agent string) (egress.Settings, egress.Settings, error) {
	return egress.Settings{Hold: "1m"}, egress.Settings{Hold: "1m", Rates: egress.Rates{Execute: 60}}, f.called(by, "settings", tenant, agent)
}

func (f *fakeEgress) PutSettings(_ context.Context, by identity.Principal, s egress.Settings) (egress.Settings, error) {
	f.settings = s
	return s, f.called(by, "put settings")
}

func (f *fakeEgress) Ask(_ context.Context, by identity.Principal, kind egress.AccessKind, target, reason string, wait time.Duration) (egress.AccessRequest, error) {
	return egress.AccessRequest{Kind: kind}, f.called(by, "ask", kind, target, reason, wait)
}

func (f *fakeEgress) AccessRequests(_ context.Context, by identity.Principal, tenant string, all bool) ([]egress.AccessRequest, error) {
	return nil, f.called(by, "access", tenant, all)
}

func (f *fakeEgress) AccessRequest(_ context.Context, by identity.Principal, id string, wait time.Duration) (egress.AccessRequest, error) {
	return egress.AccessRequest{Meta: egress.Meta{ID: id}}, f.called(by, "access", id, wait)
}

func (f *fakeEgress) Answer(_ context.Context, by identity.Principal, id string, a egress.AccessAnswer) (egress.AccessRequest, error) {
	f.answer = a
	return egress.AccessRequest{Meta: egress.Meta{ID: id}}, f.called(by, "answer", id)
}

func (f *fakeEgress) Usage(_ context.Context, by identity.Principal, tenant, from string) ([]egress.Usage, error) {
	return []egress.Usage{{Agent: "ag_1", Day: from}}, f.called(by, "usage", tenant, from)
}

// Agents are those of every tenant of the fake.
func (f *fakeIdentity) Agents(_ context.Context, _ identity.Principal, tenant string) ([]identity.Agent, error) {
	if tenant == "" {
		tenant = "default"
	}
	return []identity.Agent{{ID: "ag_1", Tenant: tenant, Name: "writer", CreatedAt: time.Unix(1, 0).UTC()}}, nil
}

func TestEgressRoutesReachTheirService(t *testing.T) {
	for _, test := range []struct {
		method, path, body string
		status             int
		call, want         string
	}{
		{"GET", "/v1/rules", "", 200, "rules", `"rules":[{`},
		{"GET", "/v1/rules?tenant=acme", "", 200, "rules acme", `"rules":[{`},
		{"POST", "/v1/rules", `{"action":"allow","target":"example.com","agent":"writer"}`, 201, "add rule", `"agent_name":"writer"`},
		{"DELETE", "/v1/rules/ru_1", "", 204, "remove rule ru_1", ""},
		{"POST", "/v1/rules/explain", `{"questions":[{"method":"GET","url":"https://example.com/"}]}`, 200, "explain", `"rule":"some"`},
		{"GET", "/v1/services", "", 200, "services", `"services":[]`},
		{"PUT", "/v1/services", `{"name":"github","base_url":"https://github.com","inject":{"type":"none"}}`, 200, "put service", `"name":"github"`},
		{"DELETE", "/v1/services/sv_1", "", 204, "remove service sv_1", ""},
		{"GET", "/v1/providers?tenant=acme", "", 200, "providers acme", `"providers":[]`},
		{"PUT", "/v1/providers", `{"name":"openai","wire":"openai","base_url":"https://api.openai.com","models":["gpt-*"]}`, 200, "put provider", `"models":["gpt-*"]`},
		{"DELETE", "/v1/providers/pr_1", "", 204, "remove provider pr_1", ""},
		{"GET", "/v1/settings", "", 200, "settings default", `"execute":60`},
		{"GET", "/v1/settings?all_tenants=true", "", 200, "settings", `"execute":60`},
		{"GET", "/v1/agents/writer/settings?tenant=acme", "", 200, "settings acme writer", `"hold":"1m"`},
		{"PUT", "/v1/settings?tenant=acme", `{"hold":"2m"}`, 200, "put settings", `"hold":"2m"`},
		{"PUT", "/v1/agents/writer/settings", `{"hold":"2m"}`, 200, "put settings", `"hold":"2m"`},
		{"GET", "/v1/usage?from=2026-01-02&tenant=acme", "", 200, "usage acme 2026-01-02", `"agent_name":"writer"`},
		{"GET", "/v1/usage", "", 200, "usage  2023-11-14", `"day":"2023-11-14"`},
		{"POST", "/v1/access-requests", `{"kind":"host","target":"example.com","reason":"docs","wait":"2m"}`, 200, "ask host example.com docs 2m0s", `"kind":"host"`},
		{"GET", "/v1/access-requests?all=true&tenant=acme", "", 200, "access acme true", `"requests":[]`},
		{"GET", "/v1/access-requests/ar_1?wait=30s", "", 200, "access ar_1 30s", `"id":"ar_1"`},
		{"POST", "/v1/access-requests/ar_1/answer", `{"approve":false,"comment":"no"}`, 200, "answer ar_1", `"id":"ar_1"`},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			d := newTestAPI(t)
			a := d.ask(t, test.method, test.path, test.body)
			if a.StatusCode != test.status || !strings.Contains(a.body, test.want) {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if !reflect.DeepEqual(d.egress.calls, []string{test.call}) || d.egress.by.ID != "admin" {
				t.Errorf("the service was asked for %q by %+v", d.egress.calls, d.egress.by)
			}
		})
	}
}

func TestWhatIsDecidedArrives(t *testing.T) {
	d := newTestAPI(t)
	d.ask(t, "POST", "/v1/rules", `{"tenant":"acme","agent":"writer","action":"deny","target":"https://*.Example.com:8443/a/**","methods":["GET"],"session":"s_1",
		"priority":7,"once":true,"for":"2d","name":"n","note":"why"}`)
	r := d.egress.rule
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"","tenant":"acme","agent":"ag_1","note":"why","expires_at":"2023-11-16T22:13:20Z","name":"n","action":"deny","host":"*.example.com","ports":["8443"],` +
		`"scheme":"https","methods":["GET"],"path":"/a/**","session":"s_1","priority":7,"once":true}`
	if string(text) != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	d.ask(t, "POST", "/v1/rules", `{"all_tenants":true,"action":"allow","target":"wiki.internal:8080","address":"192.168.1.20","opaque":true}`)
	if r := d.egress.rule; r.Tenant != "" || r.Agent != "" || r.Address.String() != "192.168.1.20" || !r.Opaque || !r.ExpiresAt.IsZero() || r.Priority != 0 {
		t.Errorf("%+v", r)
	}
	d.ask(t, "POST", "/v1/rules", `{"action":"allow","target":"example.com"}`)
	if d.egress.rule.Tenant != "default" {
		t.Errorf("a rule that names no tenant is for %q", d.egress.rule.Tenant)
	}

	d.ask(t, "PUT", "/v1/services", `{"tenant":"acme","agent":"writer","name":"a","base_url":"https://a.test/x","address":"10.0.0.1","secret":"s","allow":[{"methods":["GET"],"path":"/b"}],
		"inject":{"type":"header","name":"X-Key","user":"u"},"scrub":"block","compressed":"refuse","git":"https://a.test/","env":{"A":"{url}"},"note":"n"}`)
	s := d.egress.service
	if s.Tenant != "acme" || s.Agent != "ag_1" || s.Note != "n" || s.Name != "a" || s.BaseURL != "https://a.test/x" || s.Address.String() != "10.0.0.1" || s.Secret != "s" ||
		len(s.Allow) != 1 || s.Allow[0].Path != "/b" || s.Inject != (egress.Injection{Type: "header", Name: "X-Key", User: "u"}) || s.Scrub != "block" ||
		s.Compressed != "refuse" || s.Git != "https://a.test/" || s.Env["A"] != "{url}" {
		t.Errorf("%+v", s)
	}
	d.ask(t, "PUT", "/v1/providers", `{"agent":"writer","name":"a","base_url":"https://a.test","wire":"anthropic","models":["m*"],"priority":3,"secret":"s","address":"10.0.0.1",
		"inject":{"type":"bearer"},"prices":[{"model":"m*","input":1.5,"output":2}],"note":"n"}`)
	p := d.egress.provider
	if p.Tenant != "default" || p.Agent != "ag_1" || p.Note != "n" || p.Name != "a" || p.Wire != "anthropic" || len(p.Models) != 1 || p.Priority != 3 || p.Secret != "s" ||
		!p.Address.IsValid() || p.Inject.Type != "bearer" || len(p.Prices) != 1 || p.Prices[0].Input != 1.5 {
		t.Errorf("%+v", p)
	}
	d.ask(t, "PUT", "/v1/agents/writer/settings", `{"version":4,"mode":"report","tools":[],"rates":{"execute":5},"budget":{"tokens_per_day":6},"hold":"1m","note":"n"}`)
	if s := d.egress.settings; s.Agent != "ag_1" || s.Version != 4 || s.Mode != "report" || s.Tools == nil || len(s.Tools) != 0 || s.Rates.Execute != 5 ||
		s.Budget.TokensPerDay != 6 || s.Hold != "1m" || s.Note != "n" {
		t.Errorf("%+v", s)
	}
	d.ask(t, "PUT", "/v1/settings?all_tenants=true", `{}`)
	if s := d.egress.settings; s.Tenant != "" || s.Agent != "" || s.Tools != nil {
		t.Errorf("a list that is not there must not be an empty one: %+v", s)
	}
	d.ask(t, "POST", "/v1/access-requests/x/answer", `{"approve":true,"once":true,"for":"1h","comment":"c"}`)
	if d.egress.answer != (egress.AccessAnswer{Approve: true, Once: true, For: "1h", Comment: "c"}) {
		t.Errorf("%+v", d.egress.answer)
	}
	d.ask(t, "POST", "/v1/rules/explain", `{"questions":[{"method":"GET","url":"u"},{"tenant":"acme","agent":"writer","surface":"execute","service":"s","method":"GET","url":"u"}]}`)
	if q := d.egress.asked; len(q) != 2 || q[0] != (egress.Question{Tenant: "default", Method: "GET", URL: "u"}) ||
		q[1] != (egress.Question{Tenant: "acme", Agent: "writer", Surface: "execute", Service: "s", Method: "GET", URL: "u"}) {
		t.Errorf("%+v", q)
	}
}

func TestWhatCannotBeDecidedIsRefusedBeforeTheServiceHearsOfIt(t *testing.T) {
	many := `{"questions":[` + strings.Repeat(`{"method":"GET","url":"u"},`, 10_000) + `{"method":"GET","url":"u"}]}`
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		code, want         string
	}{
		"a rule without a target":    {"POST", "/v1/rules", `{"action":"allow"}`, 400, problem.BadRequest, "target"},
		"a target that is none":      {"POST", "/v1/rules", `{"action":"allow","target":"https://a b/"}`, 400, problem.BadURL, "cannot be read"},
		"a target with a query":      {"POST", "/v1/rules", `{"action":"allow","target":"https://a.test/?x=1"}`, 400, problem.BadURL, "query"},
		"a field of answers":         {"POST", "/v1/rules", `{"action":"allow","target":"a.test","created_by":"admin"}`, 400, problem.BadJSON, "created_by"},
		"an id of the caller's":      {"PUT", "/v1/services", `{"id":"x","name":"a"}`, 400, problem.BadJSON, `\"id\"`},
		"days":                       {"POST", "/v1/rules", `{"action":"allow","target":"a.test","for":"0d"}`, 400, problem.BadLimit, "0d"},
		"no duration":                {"POST", "/v1/rules", `{"action":"allow","target":"a.test","for":"soon"}`, 400, problem.BadLimit, "soon"},
		"a duration of nothing":      {"POST", "/v1/rules", `{"action":"allow","target":"a.test","for":"-1h"}`, 400, problem.BadLimit, "-1h"},
		"all tenants and one":        {"POST", "/v1/rules", `{"all_tenants":true,"tenant":"acme","action":"allow","target":"a.test"}`, 400, problem.BadRequest, "all_tenants"},
		"all tenants and an agent":   {"PUT", "/v1/providers", `{"all_tenants":true,"agent":"writer","name":"a"}`, 400, problem.BadRequest, "all_tenants"},
		"all tenants and one, asked": {"GET", "/v1/settings?all_tenants=true&tenant=acme", "", 400, problem.BadRequest, "all_tenants"},
		"a tenant that is none":      {"PUT", "/v1/services", `{"tenant":"A!","name":"a"}`, 400, problem.BadName, "tenant"},
		"an agent that is none":      {"PUT", "/v1/services", `{"agent":"nobody","name":"a"}`, 404, problem.NotFound, "nobody"},
		"settings of nobody":         {"PUT", "/v1/agents/nobody/settings", `{}`, 404, problem.NotFound, "nobody"},
		"no questions":               {"POST", "/v1/rules/explain", `{}`, 400, problem.BadRequest, "0 questions"},
		"too many questions":         {"POST", "/v1/rules/explain", many, 400, problem.BadRequest, "10001 questions"},
		"a question of no tenant":    {"POST", "/v1/rules/explain", `{"questions":[{"tenant":"A!"}]}`, 400, problem.BadName, "tenant"},
		"a day that is none":         {"GET", "/v1/usage?from=yesterday", "", 422, problem.BadRequest, "query.from"},
		"no answer":                  {"POST", "/v1/access-requests/ar_1/answer", `{"comment":"x"}`, 400, problem.BadRequest, "approve"},
		"a wait that is none":        {"POST", "/v1/access-requests", `{"kind":"host","wait":"soon"}`, 400, problem.BadLimit, "soon"},
		"a wait that is too long":    {"GET", "/v1/access-requests/ar_1?wait=6m", "", 400, problem.BadLimit, "6m"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t)
			p := d.ask(t, test.method, test.path, test.body).wantProblem(t, test.status, test.code)
			if text, _ := json.Marshal(p); !strings.Contains(string(text), test.want) {
				t.Errorf("%s does not speak of %s", text, test.want)
			}
			if len(d.egress.calls) > 0 {
				t.Errorf("the service was asked for %q", d.egress.calls)
			}
		})
	}
}

func TestWhatTheServiceRefusesIsAnswered(t *testing.T) {
	d := newTestAPI(t)
	d.egress.fail = problem.New(problem.Conflict, "look again", "it has changed")
	for _, r := range [][3]string{
		{"GET", "/v1/rules"}, {"POST", "/v1/rules", `{"action":"allow","target":"a.test"}`}, {"DELETE", "/v1/rules/x"},
		{"POST", "/v1/rules/explain", `{"questions":[{}]}`}, {"GET", "/v1/services"}, {"PUT", "/v1/services", "{}"}, {"DELETE", "/v1/services/x"},
		{"GET", "/v1/providers"}, {"PUT", "/v1/providers", "{}"}, {"DELETE", "/v1/providers/x"}, {"GET", "/v1/settings"}, {"PUT", "/v1/settings", "{}"},
		{"GET", "/v1/agents/writer/settings"}, {"PUT", "/v1/agents/writer/settings", "{}"}, {"GET", "/v1/usage"}, {"POST", "/v1/access-requests", "{}"},
		{"GET", "/v1/access-requests"}, {"GET", "/v1/access-requests/x"}, {"POST", "/v1/access-requests/x/answer", `{"approve":true}`},
	} {
		d.ask(t, r[0], r[1], r[2]).wantProblem(t, 409, problem.Conflict)
	}
}

// An agent that asks what it may means itself.
func TestAnAgentAsksAboutItself(t *testing.T) {
	f := &fakeEgress{}
	agent := identity.Principal{Kind: identity.KindAgent, ID: "ag_1", Name: "writer", Tenant: "acme"}
	if _, err := op.ExplainRules().Call(t.Context(), op.Backend{Egress: f}, agent,
		op.Questions{Body: op.With(op.ExplainRequest{Questions: []egress.Question{{Method: "GET", URL: "u"}, {Agent: "other", Method: "GET", URL: "u"}}})}); err != nil {
		t.Fatal(err)
	}
	if f.asked[0].Agent != "writer" || f.asked[0].Tenant != "acme" || f.asked[1].Agent != "other" || f.by.ID != agent.ID {
		t.Errorf("%+v by %+v", f.asked, f.by)
	}
}

func TestAnAPINeedsWhatIsDecided(t *testing.T) {
	d := newTestAPI(t)
	o := d.Options
	o.Egress = nil
	if _, err := New(o); err == nil {
		t.Error("it was made")
	}
}
