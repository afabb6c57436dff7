package api

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// randomID is the random part of an id, in which any word of letters can be.
var randomID = regexp.MustCompile(`_[a-z2-7]{16,}`)

// owner is whose an object is.
type owner int

const (
	acmes        owner = iota // acme's, and no agent's
	callers                   // acme's, made by whoever asks
	ownTenants                // the caller's tenant's, whoever it is
	nobodys                   // the installation's
	needsNothing              // no table says who may: everybody with a key
	workers                   // acme's agent's, which is named worker
	asker                     // an agent's, whoever it is; others are told so
	operators                 // acme's operator's, and its admins'
)

// expectation is what the sweep knows of a route.
type expectation struct {
	op     identity.Operation
	of     owner
	query  string // TENANT stands for a tenant
	body   string
	status int // of the answer to whoever may
	// free says that no key is needed.
	free bool
}

// whatEveryRouteDoes has every route of the API.
func whatEveryRouteDoes() map[string]expectation {
	const inTenant, ofTenant = "tenant=TENANT", `{"tenant":"TENANT"`
	known := map[string]expectation{
		"GET /v1/health": {free: true, status: 200},
		"GET /v1/ready":  {free: true, status: 200},
		"GET /v1/info":   {op: identity.InfoRead, of: ownTenants, status: 200},
		"GET /v1/status": {op: identity.StatusRead, of: ownTenants, status: 200},

		"POST /v1/sessions":                          {op: identity.SessionOpen, of: callers, body: ofTenant + "}", status: 201},
		"POST /v1/sessions/{id}/tokens":              {op: identity.SessionToken, body: `{"scope":"cdp","ttl":"1m"}`, status: 200},
		"GET /v1/sessions/{id}/recording":            {op: identity.SessionRecording, status: 200},
		"GET /v1/sessions/{id}/cdp":                  {op: identity.SessionAttach, status: 400}, // no WebSocket
		"GET /v1/sessions/{id}/cdp/json/version":     {op: identity.SessionAttach, status: 200},
		"GET /v1/sessions/{id}/cdp/json/list":        {op: identity.SessionAttach, status: 200},
		"GET /v1/sessions/{id}/screenshots/{number}": {op: identity.SessionRecording, status: 200},
		"GET /v1/sessions/{id}/live":                 {op: identity.SessionWatch, status: 400}, // no WebSocket
		"GET /v1/sessions/{id}/thumbnail":            {op: identity.SessionLook, status: 200},
		"POST /v1/tasks":                             {op: identity.TaskRun, of: callers, body: ofTenant + `,"goal":"look"}`, status: 200},
		"POST /v1/refreshes":                         {op: identity.SessionRefresh, of: callers, body: ofTenant + `,"domain":"example.com"}`, status: 201},
		"GET /v1/sessions/{id}/seen":                 {op: identity.SessionRefresh, status: 200},
		"POST /v1/sessions/{id}/refresh":             {op: identity.SessionRefresh, body: `{"domains":["example.com"]}`, status: 200},

		"PUT /v1/cookies/{domain}": {op: identity.CookiesImport, status: 200,
			body: ofTenant + `,"cookies":[{"name":"a","value":"` + canary + `","domain":".DOMAIN","path":"/","expires":-1}]}`},
		"POST /v1/account-permissions": {op: identity.CookiesAllow, body: ofTenant + `,"domain":"DOMAIN","agent":"worker"}`, status: 200},

		"POST /v1/rules/explain": {op: identity.RuleExplain, of: callers, body: `{"questions":[{"tenant":"TENANT","method":"GET","url":"https://example.com/"}]}`, status: 200},

		"POST /v1/access-requests":             {op: identity.AccessAsk, of: asker, body: `{"kind":"host","target":"example.net","reason":"to read"}`, status: 200},
		"GET /v1/access-requests/{id}":         {op: identity.AccessList, of: workers, status: 200},
		"POST /v1/access-requests/{id}/answer": {op: identity.AccessAnswer, of: workers, body: `{"approve":false}`, status: 200},

		"POST /v1/crabs":              {op: identity.AgentCreate, of: ownTenants, body: `{"name":"NEW"}`, status: 201},
		"GET /v1/crabs":               {op: identity.AgentList, of: ownTenants, status: 200},
		"PATCH /v1/crabs/{id}/revoke": {op: identity.AgentRevoke, status: 200},
		"POST /v1/secrets":            {op: identity.SecretPut, body: `{"crabId":"CRAB","service":"github","plaintext":"` + canary + `"}`, status: 201},
		"GET /v1/tides":               {op: identity.AuditRead, of: ownTenants, status: 200},

		"PUT /v1/secrets/{service}": {op: identity.SecretPut, body: ofTenant + `,"value":"` + canary + `"}`, status: 204},

		"GET /v1/audit/tail":   {op: identity.AuditRead, query: inTenant, status: 200},
		"GET /v1/audit/export": {op: identity.AuditExport, of: nobodys, status: 200},

		"POST /v1/console/links":           {op: identity.SignIn, of: ownTenants, status: 200},
		"GET /v1/console/sign-ins":         {op: identity.SignInList, of: ownTenants, status: 200},
		"DELETE /v1/console/sign-ins/{id}": {op: identity.SignInEnd, of: operators, status: 204},

		"POST /v1/agents": {op: identity.AgentCreate, body: ofTenant + `,"name":"NEW"}`, status: 201},

		"POST /v1/agents/sync":           {op: identity.AgentSync, body: ofTenant + `,"source":"clawbots.yml","text":"clawbots: []","dry_run":true}`, status: 200},
		"POST /v1/agents/{name}/declare": {op: identity.AgentSync, body: ofTenant + `,"agent":{}}`, status: 200},
		"GET /v1/agents/{name}/log":      {op: identity.AgentLog, query: inTenant, status: 200},
		"POST /v1/agents/{name}/stdin":   {op: identity.AgentType, query: inTenant, body: "{}", status: 200},
		"POST /v1/agents/{name}/webhook": {op: identity.AgentWebhook, query: inTenant, body: "{}", status: 200},

		"POST /v1/agents/{name}/processes":            {op: identity.ProcessStart, body: ofTenant + `,"argv":["/bin/true"]}`, status: 201},
		"GET /v1/agents/{name}/processes":             {op: identity.ProcessList, query: inTenant, status: 200},
		"DELETE /v1/agents/{name}/processes/{id}":     {op: identity.ProcessEnd, query: inTenant, status: 204},
		"POST /v1/agents/{name}/processes/{id}/stdin": {op: identity.AgentType, query: inTenant, body: "{}", status: 200},
		"GET /v1/agents/{name}/processes/{id}/events": {op: identity.AgentLog, query: inTenant, status: 200},
		"GET /v1/agents/{name}/events":                {op: identity.AgentLog, query: inTenant, status: 200},
		"GET /v1/agents/{name}/attach":                {op: identity.ProcessStart, query: inTenant, status: 400}, // no WebSocket

	}
	for _, r := range control.Routes() {
		e := expectation{op: identity.SessionUse, status: 200}
		if r.New().Effect() == browser.Looks {
			e.op = identity.SessionLook
		}
		if r.HasBody() {
			e.body = "{}"
		}
		known[r.Method+" "+ofSession+r.Path] = e
	}
	for _, r := range op.All() {
		if route := r.Method + " " + r.Path; known[route].op == "" { // what is not said above
			known[route] = described(r)
		}
	}
	return known
}

// described is what the sweep knows of an operation. A route that names its object says whose that is.
func described(r op.Row) expectation {
	e := expectation{op: r.Right, status: r.Status}
	var body []string
	named := strings.Contains(r.Path, "{")
	for _, f := range r.Fields {
		switch example := f.Tag.Get("example"); {
		case f.Name == "tenant" && f.Place == op.InQuery:
			named, e.query = true, "tenant=TENANT"
		case f.Name == "tenant":
			named, body = true, slices.Insert(body, 0, `"tenant":"TENANT"`)
		case example != "" && f.Type.Kind() == reflect.String:
			body = append(body, fmt.Sprintf("%q:%q", f.Name, example))
		case example != "":
			body = append(body, fmt.Sprintf("%q:%s", f.Name, example))
		}
	}
	if body != nil {
		e.body = "{" + strings.Join(body, ",") + "}"
	}
	i := slices.IndexFunc(identity.Table(), func(rule identity.Rule) bool { return rule.Operation == r.Right })
	switch {
	case i < 0:
		e.of = needsNothing
	case identity.Table()[i].Reach == identity.ReachInstallation:
		e.of = nobodys
	case !named:
		e.of = ownTenants
	case identity.Table()[i].Agents == identity.AgentsOwn && !strings.Contains(r.Path, "{"):
		e.of = callers
	}
	return e
}

// sweeper goes through all routes and collects complaints.
type sweeper struct {
	*fixture
	complaints []string
	made       int
	changed    bool // something may have been since the last restore
}

// restore makes what acme has once more, unless every request since has been refused.
func (s *sweeper) restore() {
	if s.changed {
		s.seed()
	}
	s.changed = false
}

func (s *sweeper) complain(format string, args ...any) {
	s.complaints = append(s.complaints, fmt.Sprintf(format, args...))
}

// things are the names of what acme has, and of what nobody has, in the place of the wildcards of a route.
func (s *sweeper) things(path string, there bool) map[string]string {
	pick := func(real, missing string) string {
		if there {
			return real
		}
		return missing
	}
	out := map[string]string{
		"{domain}": pick("example.com", "example.net"), "{service}": pick("github", "gitlab"), "{name}": pick("writer2", "writer9"), "{node}": "n1",
		"{number}": "1", "{targetId}": pick("t1", "t9"), "{media}": pick("m1", "m9"), "{token}": pick("st_1", "st_9"),
	}
	switch {
	case strings.HasPrefix(path, "/v1/sessions/"):
		out["{id}"] = pick(s.session, "s_nobodysaaaaaaaaa")
	case strings.HasPrefix(path, "/v1/grants/"):
		out["{id}"] = pick(s.grant, "g_aaaaaaaaaaaaaaaaaaaa")
	case strings.HasPrefix(path, "/v1/account-permissions/"):
		out["{id}"] = pick(s.permission, "perm_aaaaaaaaaaaaaaaaaaaa")
	case strings.HasPrefix(path, "/v1/operators/"):
		out["{id}"] = pick(s.operator, "op_aaaaaaaaaaaaaaaaaaaa")
	case strings.HasPrefix(path, "/v1/console/sign-ins/"):
		out["{id}"] = pick(s.signIn, "si_aaaaaaaaaaaaaaaaaaaa")
	case strings.HasPrefix(path, "/v1/rules/"):
		out["{id}"] = pick(s.rule, "AAAAAAAAAAAAAAAAAAAAAAAAAA")
	case strings.HasPrefix(path, "/v1/services/"):
		out["{id}"] = pick(s.service, "AAAAAAAAAAAAAAAAAAAAAAAAAA")
	case strings.HasPrefix(path, "/v1/providers/"):
		out["{id}"] = pick(s.provider, "AAAAAAAAAAAAAAAAAAAAAAAAAA")
	case strings.HasPrefix(path, "/v1/access-requests/"):
		out["{id}"] = pick(s.access, "AAAAAAAAAAAAAAAAAAAAAAAAAA")
	case strings.HasPrefix(path, "/v1/crabs/"), path == "/v1/secrets":
		out["{id}"] = pick(s.writer, "ag_aaaaaaaaaaaaaaaaaaaa")
	case strings.HasPrefix(path, "/v1/tenants/"):
		out["{id}"] = pick("acme", "nosuch")
	default:
		out["{id}"] = pick(s.token, "tk_aaaaaaaaaaaaaaaaaaaa")
	}
	return out
}

// ask makes a route's request about what acme has, or nobody; tenant is the one that it names, or empty for none.
func (s *sweeper) ask(who, route string, e expectation, there bool, tenant string) asked {
	s.t.Helper()
	method, path, _ := strings.Cut(route, " ")
	things := s.things(path, there)
	for wildcard, name := range things {
		path = strings.ReplaceAll(path, wildcard, name)
	}
	body := strings.NewReplacer("TENANT", tenant, "DOMAIN", things["{domain}"], "CRAB", things["{id}"]).Replace(e.body)
	if tenant == "" {
		body = strings.Replace(body, `"tenant":"",`, "", 1)
		body = strings.Replace(body, `"tenant":""`, "", 1)
	}
	s.made++
	body = strings.Replace(body, "NEW", fmt.Sprintf("new-%d", s.made), 1)
	if e.query != "" && tenant != "" {
		path += "?" + strings.ReplaceAll(e.query, "TENANT", tenant)
	}
	a := s.request(who, method, path, body)
	switch a.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
	default:
		s.changed = s.changed || method != http.MethodGet
	}
	a.body = strings.TrimSpace(a.body)
	// Names as they were asked for: what is left is what the answer tells.
	for wildcard, name := range things {
		a.body = strings.ReplaceAll(a.body, name, wildcard)
	}
	return a
}

// sweep asks for every route of the document as everybody, and returns what is not as the table of identity says.
func sweep(t *testing.T, w *fixture, known map[string]expectation) []string {
	s := &sweeper{fixture: w}
	w.t = t
	var seen []string
	for _, r := range routes(t, &testAPI{API: w.API}) {
		route := r[0] + " " + r[1]
		seen = append(seen, route)
		e, ok := known[route]
		if !ok {
			s.complain("%s: nobody has said who may", route)
			continue
		}
		s.keyless(route, e)
		if e.free {
			continue
		}
		s.roles(route, e)
		s.strangers(route, e)
	}
	for route := range known {
		if !slices.Contains(seen, route) {
			s.complain("%s: there is no such route", route)
		}
	}
	return s.complaints
}

// keyless asks without a good key.
func (s *sweeper) keyless(route string, e expectation) {
	for _, who := range []string{"", "cjop_wrong", "wrong"} {
		want := http.StatusUnauthorized
		if e.free {
			want = e.status
		}
		if who != "" && e.free {
			continue // a key that is not needed is not looked at
		}
		if a := s.ask(who, route, e, true, "acme"); a.StatusCode != want {
			s.complain("%s: with the key %q the answer is %d %s", route, who, a.StatusCode, a.body)
		}
	}
}

func (s *sweeper) principal(who string) identity.Principal {
	p, err := s.fixture.identity.Authenticate(s.ctx, s.keys[who], netip.Addr{})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// allowed is what the table says.
func (s *sweeper) allowed(p identity.Principal, e expectation) error {
	switch e.of {
	case needsNothing:
		return nil
	case nobodys:
		return identity.CanWith(p, e.op, identity.Object{})
	case callers:
		return identity.CanWith(p, e.op, identity.Object{Tenant: "acme", Agent: agentID(p)})
	case workers:
		return identity.CanWith(p, e.op, identity.Object{Tenant: "acme", Agent: s.worker})
	case asker:
		if p.Kind != identity.KindAgent {
			return problem.New(problem.Forbidden, "", "only agents ask")
		}
		return identity.CanWith(p, e.op, identity.Object{Tenant: p.Tenant, Agent: p.ID})
	case operators:
		err := identity.CanWith(p, e.op, identity.Object{Tenant: "acme"})
		if err == nil && p.Role == identity.RoleViewer {
			return problem.New(problem.NotFound, "", "it is another's")
		}
		return err
	case ownTenants:
		return identity.CanWith(p, e.op, identity.Object{Tenant: p.TenantOr(""), Agent: agentID(p)})
	}
	return identity.CanWith(p, e.op, identity.Object{Tenant: "acme"})
}

// roles asks as everybody for what acme has.
func (s *sweeper) roles(route string, e expectation) {
	for _, who := range []string{"acme viewer", "acme operator", "acme admin", "acme agent", "beta viewer", "beta operator", "beta admin", "beta agent", "admin"} {
		s.restore()
		a := s.ask(who, route, e, true, "acme")
		err := s.allowed(s.principal(who), e)
		want := e.status
		if err != nil {
			want = problem.Status(problem.CodeOf(err))
		}
		if a.StatusCode == http.StatusConflict && route == "POST /v1/tenants" && err == nil {
			continue // the second of two admins who make the same
		}
		if a.StatusCode != want {
			s.complain("%s: %s gets %d and should get %d: %s", route, who, a.StatusCode, want, a.body)
		}
		if strings.Contains(a.body, canary) {
			s.complain("%s: %s is told a value: %s", route, who, a.body)
		}
		if strings.HasPrefix(who, "beta") && strings.Contains(strings.ReplaceAll(randomID.ReplaceAllString(a.body, ""), `"acme"`, ""), "acme") && a.StatusCode/100 == 2 {
			s.complain("%s: %s is told of acme: %s", route, who, a.body)
		}
	}
}

// strangers compares what others are told of what acme has with what they are told of what does not exist: of a thing,
// of a tenant, and of both.
func (s *sweeper) strangers(route string, e expectation) {
	for _, who := range []string{"beta admin", "beta agent", "acme agent"} {
		if e.of != acmes && e.of != nobodys && e.of != workers && e.of != operators || strings.HasPrefix(who, "acme") && !strings.Contains(route, "/sessions/") {
			continue
		}
		s.restore()
		real := s.ask(who, route, e, true, "acme")
		if real.StatusCode/100 == 2 {
			continue // roles has complained
		}
		others := map[string]asked{"of nobody": s.ask(who, route, e, false, "acme")}
		if strings.HasPrefix(who, "beta") {
			others["of no tenant"] = s.ask(who, route, e, true, "nosuch")
			others["of nobody and no tenant"] = s.ask(who, route, e, false, "nosuch")
			if strings.Contains(route, "{") && e.status != http.StatusCreated && !strings.HasPrefix(route, "PUT ") && !strings.HasSuffix(route, "/declare") && !strings.HasSuffix(route, "/attach") {
				// A thing that is not named in a tenant is looked for in one's own, where there is nothing of the name.
				others["in one's own tenant"] = s.ask(who, route, e, true, "")
				others["of nobody in one's own tenant"] = s.ask(who, route, e, false, "")
			}
		}
		for what, other := range others {
			if other.StatusCode != real.StatusCode || other.body != real.body || other.Header.Get("Content-Type") != real.Header.Get("Content-Type") {
				s.complain("%s: %s is told of a thing that exists %d %s and of one %s %d %s", route, who, real.StatusCode, real.body, what, other.StatusCode, other.body)
			}
		}
	}
}

func TestEveryRouteAnswersAsTheTableSays(t *testing.T) {
	w := newFixture(t)
	for _, complaint := range sweep(t, w, whatEveryRouteDoes()) {
		t.Error(complaint)
	}
	if strings.Contains(w.written.String(), canary) {
		t.Errorf("the log has a value: %s", w.written)
	}
}

// A tenant that does not exist is the caller's mistake, and never one that has nothing.
func TestATenantThatDoesNotExistIsSaidToBeNone(t *testing.T) {
	w := newFixture(t)
	s := &sweeper{fixture: w}
	for route, e := range whatEveryRouteDoes() {
		for _, there := range []bool{true, false} {
			a := s.ask("admin", route, e, there, "nosuch")
			names := strings.Contains(e.query+e.body, "TENANT")
			if a.StatusCode >= http.StatusInternalServerError || names && (a.StatusCode != http.StatusNotFound || !strings.Contains(a.body, `there is no tenant \"nosuch\"`)) {
				t.Errorf("%s: %d %s", route, a.StatusCode, a.body)
			}
		}
	}
	if strings.Contains(w.written.String(), "level=ERROR") {
		t.Errorf("%s", w.written)
	}
	// The records of one outlive it.
	if err := w.log.Event(w.ctx, audit.Event{Action: "tenant.delete", Tenant: "nosuch"}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/audit", "/v1/audit/tail"} {
		a := w.request("admin", http.MethodGet, path+"?tenant=nosuch", "")
		if a.StatusCode != http.StatusOK || !strings.Contains(a.body, "tenant.delete") {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
		if a := w.request("acme admin", http.MethodGet, path+"?tenant=nosuch", ""); a.StatusCode == http.StatusOK || strings.Contains(a.body, "tenant.delete") {
			t.Errorf("%s by one of another tenant: %d %s", path, a.StatusCode, a.body)
		}
	}
}

// A sweep that finds nothing must be one that would find something.
func TestTheSweepNoticesWhatIsPlanted(t *testing.T) {
	w := newFixture(t)
	// Three mistakes: nobody is asked, the wrong question is asked, and strangers hear of what exists.
	add(w.API, route{method: http.MethodGet, path: "/v1/planted/all", id: "planted-all", summary: "Planted"},
		func(ctx context.Context, _ identity.Principal, _ *nothing) (*answer[op.CookieSets], error) {
			all, err := w.accounts.Vault.ListCookies(ctx, "")
			return &answer[op.CookieSets]{op.CookieSets{Sets: all}}, err
		})
	add(w.API, route{method: http.MethodGet, path: "/v1/planted/keys", id: "planted-keys", summary: "Planted"},
		func(ctx context.Context, by identity.Principal, _ *nothing) (*answer[op.VaultStatus], error) {
			if err := w.identity.Authorize(ctx, by, identity.InfoRead, by.TenantOr("")); err != nil {
				return nil, err
			}
			status, err := w.accounts.Vault.Status(ctx)
			return &answer[op.VaultStatus]{op.VaultStatus(status)}, err
		})
	add(w.API, route{method: http.MethodGet, path: "/v1/planted/{domain}", id: "planted-one", summary: "Planted"},
		func(ctx context.Context, by identity.Principal, in *op.AccountNamed) (*nothing, error) {
			if _, err := w.accounts.Vault.Cookies(ctx, in.Tenant, in.Domain); err != nil {
				return nil, err
			}
			return nil, w.identity.Authorize(ctx, by, identity.CookiesList, in.Tenant)
		})
	add(w.API, route{method: http.MethodGet, path: "/v1/planted/unknown", id: "planted-unknown", summary: "Planted"}, w.info)
	known := whatEveryRouteDoes()
	known["GET /v1/planted/all"] = expectation{op: identity.CookiesList, status: 200}
	known["GET /v1/planted/keys"] = expectation{op: identity.VaultStatus, of: nobodys, status: 200}
	known["GET /v1/planted/{domain}"] = expectation{op: identity.CookiesList, query: "tenant=TENANT", status: 204}
	known["GET /v1/planted/removed"] = expectation{op: identity.CookiesList, status: 200}
	complaints := strings.Join(sweep(t, w, known), "\n")
	for _, want := range []string{
		"GET /v1/planted/all: beta admin gets 200 and should get 404", "GET /v1/planted/all: acme agent gets 200 and should get 403",
		"GET /v1/planted/keys: acme viewer gets 200 and should get 403", "GET /v1/planted/unknown: nobody has said who may",
		"GET /v1/planted/{domain}: beta admin is told of a thing that exists 404", "GET /v1/planted/removed: there is no such route",
	} {
		if !strings.Contains(complaints, want) {
			t.Errorf("the sweep did not notice: %s; it said\n%s", want, complaints)
		}
	}
	for _, complaint := range strings.Split(complaints, "\n") {
		if !strings.Contains(complaint, "planted") {
			t.Errorf("the sweep complained of what is right: %s", complaint)
		}
	}
}

// A token for a session does what its scope says with that session, and nothing with anything else.
func TestATokenDoesWhatItsScopeSays(t *testing.T) {
	w := newFixture(t)
	w.sessions.holders = map[string]identity.Principal{}
	s := &sweeper{fixture: w}
	maker := s.principal("acme operator")
	for _, scope := range []identity.Scope{identity.ScopeView, identity.ScopeControl, identity.ScopeCDP} {
		token := session.TokenPrefix + string(scope)
		by := maker.Within(w.session, scope, time.Now().Add(time.Hour))
		w.sessions.holders[token] = by
		allowed := 0
		for route, e := range whatEveryRouteDoes() {
			if e.free || e.of == needsNothing {
				continue
			}
			want := e.status
			if err := identity.CanWith(by, e.op, identity.Object{Tenant: "acme", Session: w.session}); err != nil {
				want = problem.Status(problem.CodeOf(err))
			} else if allowed++; !strings.Contains(route, "/v1/sessions/{id}") {
				t.Errorf("%s may %s", scope, route)
			}
			if a := s.ask(token, route, e, true, "acme"); a.StatusCode != want {
				t.Errorf("%s: %s gets %d and should get %d: %s", route, scope, a.StatusCode, want, a.body)
			}
			// Another session of the same tenant is none.
			method, path, _ := strings.Cut(route, " ")
			if strings.HasPrefix(path, "/v1/sessions/{id}") && want != http.StatusForbidden {
				path = strings.NewReplacer("{id}", w.agents, "{number}", "1", "{name}", "a", "{node}", "n1", "{media}", "m1", "{targetId}", "t1", "{token}", "st_1").Replace(path)
				w.request(token, method, path, e.body).wantProblem(t, 404, problem.NotFound)
			}
		}
		if allowed < 3 {
			t.Errorf("%s may do %d things", scope, allowed)
		}
	}
	w.request(session.TokenPrefix+"x", "GET", "/v1/sessions/"+w.session, "").wantProblem(t, 401, problem.Unauthorized)
}

func TestAnMCPServerInTheJailOfNoAgentIsRefused(t *testing.T) {
	w := newFixture(t)
	for name, want := range map[string]int{"writer9": http.StatusNotFound, "worker": http.StatusOK} {
		if a := w.request("admin", http.MethodPut, "/v1/mcp-servers", `{"name":"x","command":["/x"],"tenants":["acme"],"agent":"`+name+`"}`); a.StatusCode != want {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
}
