package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// insideAddr is the address that the connections of jails come to.
var insideAddr = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 3000}

// insideFixture is a fixture with an agent's part, asked from whichever jail a test says.
type insideFixture struct {
	*fixture
	handler http.Handler
	ids     map[string]string    // of the agents named worker, by tenant
	jail    string               // the agent whose jail it is; empty for a jail of nobody's
	called  []identity.Principal // of /mcp
}

func newInside(t *testing.T) *insideFixture {
	t.Helper()
	in := &insideFixture{ids: map[string]string{}}
	in.fixture = newFixture(t, func(o *Options) {
		o.MCP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			in.called = append(in.called, Caller(r.Context()))
			fmt.Fprint(w, "tools")
		})
	})
	for _, tenant := range []string{"acme", "beta"} {
		all, err := in.identity.Agents(in.ctx, in.admin, tenant)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a.Name == "worker" {
				in.ids[tenant] = a.ID
			}
		}
		if in.ids[tenant] == "" {
			t.Fatalf("%s has no agent", tenant)
		}
	}
	in.jail = in.ids["acme"]
	in.handler = in.Inside(func(context.Context) string { return in.jail },
		func(host string) bool { return strings.EqualFold(host, "gateway") })
	return in
}

// token makes a token for acme's agent's session, as the one who has a key.
func (in *insideFixture) token(who string, scope identity.Scope) string {
	in.t.Helper()
	by, err := in.identity.Authenticate(in.ctx, in.keys[who], insideAddr.AddrPort().Addr())
	if err != nil {
		in.t.Fatal(err)
	}
	if in.sessions.holders == nil {
		in.sessions.holders = map[string]identity.Principal{}
	}
	token := session.TokenPrefix + strings.ReplaceAll(who, " ", "-")
	in.sessions.holders[token] = by.Within(in.agents, scope, time.Now().Add(time.Hour))
	return token
}

// ask makes a request as a program in the jail does.
func (in *insideFixture) ask(key, method, target string, change ...func(*http.Request)) asked {
	in.t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = "gateway:3000"
	in.clients++ // from an address of its own, so that the limit of wrong keys counts each for itself
	r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1", in.clients>>8+1, in.clients&255)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, insideAddr))
	if key != "" {
		r.Header.Set("Authorization", bearer+" "+key)
	}
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	in.handler.ServeHTTP(w, r)
	return asked{w.Result(), w.Body.String()}
}

func TestInsideTokenAndJailMustAgree(t *testing.T) {
	in := newInside(t)
	keys := map[string]string{"nobody": "", "a wrong key": "wrong"}
	for who, key := range in.keys {
		keys[who] = key
	}
	for _, who := range []string{"acme agent", "acme operator", "admin"} {
		keys["a token of "+who] = in.token(who, identity.ScopeControl)
	}
	for jail, id := range map[string]string{"acme": in.ids["acme"], "beta": in.ids["beta"], "nobody": ""} {
		in.jail = id
		for who, key := range keys {
			path := "/v1/sessions/" + in.agents
			good := jail == "acme" && (who == "acme agent" || who == "a token of acme agent")
			a := in.ask(key, http.MethodGet, path)
			switch {
			case good && a.StatusCode != http.StatusOK:
				t.Errorf("%s in its own jail is answered %d %s", who, a.StatusCode, a.body)
			case who == jail+" agent" && !good && a.StatusCode != http.StatusNotFound:
				t.Errorf("%s in its own jail sees another's session: %d %s", who, a.StatusCode, a.body)
			case !good && who != jail+" agent":
				a.wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
				if a.Header.Get("WWW-Authenticate") == "" {
					t.Errorf("%s in the jail of %s is not told how to send a key", who, jail)
				}
			}

			in.called = nil
			a = in.ask(key, http.MethodPost, mcpPath)
			if own := good || who == jail+" agent"; own != (a.body == "tools") || own != (len(in.called) == 1) {
				t.Errorf("%s in the jail of %s: MCP answers %d %s", who, jail, a.StatusCode, a.body)
			} else if own && (in.called[0].Kind != identity.KindAgent || in.called[0].ID != id) {
				t.Errorf("MCP is told that %+v calls", in.called[0])
			}
			if in.ask(key, http.MethodGet, "/v1/health").StatusCode != http.StatusOK {
				t.Errorf("%s in the jail of %s is not told whether it answers", who, jail)
			}
		}
	}
}

// Ids are of one kind each, and a jail that is nobody's is no agent's either.
func TestInsideNobodyButAnAgentIsTheJailsAgent(t *testing.T) {
	in := newInside(t)
	operator, err := in.identity.Authenticate(in.ctx, in.keys["acme operator"], insideAddr.AddrPort().Addr())
	if err != nil {
		t.Fatal(err)
	}
	in.jail = operator.ID
	in.ask(in.keys["acme operator"], http.MethodGet, "/v1/sessions").wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)

	// Here the two are equal: both are empty.
	w := httptest.NewRecorder()
	ctx := context.WithValue(t.Context(), principalKey{}, identity.Principal{Kind: identity.KindAgent})
	in.fromOwnJail(func(context.Context) string { return "" }, in.MCP).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, mcpPath, nil))
	if w.Code != http.StatusUnauthorized || len(in.called) != 0 {
		t.Errorf("it is answered %d %s", w.Code, w.Body)
	}
}

// Which of the two does not agree is not told: a token that was found can be tried nowhere.
func TestInsideARefusalDoesNotSayWhoseTheTokenIs(t *testing.T) {
	in := newInside(t)
	want := in.ask(in.keys["beta agent"], http.MethodGet, "/v1/sessions").body
	for _, who := range []string{"admin", "acme operator", "beta viewer"} {
		if got := in.ask(in.keys[who], http.MethodGet, "/v1/sessions").body; got != want {
			t.Errorf("%s is answered %s, another agent %s", who, got, want)
		}
	}
}

func TestInsideAreTheSessionsAndNothingElse(t *testing.T) {
	in := newInside(t)
	agent := in.keys["acme agent"]
	filled := strings.NewReplacer("{id}", in.agents, "{number}", "1", "{domain}", "example.com", "{service}", "github",
		"{name}", "worker", "{targetId}", "t1", "{media}", "m1")
	inside := 0
	for _, route := range routes(t, &testAPI{API: in.API, key: in.keys["admin"]}) {
		method, path := route[0], filled.Replace(route[1])
		if path == "/v1/sessions" || strings.HasPrefix(path, "/v1/sessions/") || path == "/v1/health" || path == "/v1/tasks" ||
			path == "/v1/access-requests" || strings.HasPrefix(path, "/v1/access-requests/") {
			inside++
			continue
		}
		for who, key := range map[string]string{"its agent": agent, "nobody": "", "the admin": in.keys["admin"]} {
			a := in.ask(key, method, path)
			a.wantProblem(t, http.StatusNotFound, problem.NotFound)
			if !strings.Contains(a.body, "the gateway has nothing at") {
				t.Errorf("%s %s of %s comes to the API: %s", method, path, who, a.body)
			}
		}
	}
	if inside < 20 {
		t.Errorf("there are %d routes of sessions", inside)
	}
	for _, path := range []string{"/", "/nothing", "/mcpx", "/MCP", "/v1", "/v1/sessionsx", "/v1/tasksx", "/v1/tasks/x", "/v1/access-requestsx", "/v1/rules/explain", "/v1/health/", "/v1/health/x", "/openapi.json", "//v1/sessions"} {
		p := in.ask(agent, http.MethodGet, path).wantProblem(t, http.StatusNotFound, problem.NotFound)
		if !strings.Contains(p.Detail, "the gateway has nothing at") {
			t.Errorf("%s comes to the API: %s", path, p.Detail)
		}
	}
	// Addresses that lead elsewhere once somebody has cleaned them lead to a refusal at most.
	for _, path := range []string{"/v1/sessions/../agents", "/v1/sessions/%2e%2e/agents", "/v1/sessions/..%2fagents", "/v1/sessions/../whoami",
		"/mcp/../v1/whoami", "/v1/sessions//../../v1/whoami"} {
		a := in.ask(agent, http.MethodGet, path)
		if a.StatusCode < 300 || strings.Contains(a.body, in.ids["acme"]) {
			t.Errorf("%s is answered %d %s", path, a.StatusCode, a.body)
		}
		if to := a.Header.Get("Location"); to != "" {
			t.Errorf("%s is sent to %s", path, to)
		}
	}
}

func TestInsideAnAgentSeesItsOwnSessions(t *testing.T) {
	in := newInside(t)
	agent := in.keys["acme agent"]
	if a := in.ask(agent, http.MethodGet, "/v1/sessions"); !strings.Contains(a.body, in.agents) || strings.Contains(a.body, in.session) {
		t.Errorf("the sessions are %s", a.body)
	}
	for _, path := range []string{"", "/snapshot", "/tabs", "/cdp/json/version", "/recording"} {
		in.ask(agent, http.MethodGet, "/v1/sessions/"+in.session+path).wantProblem(t, http.StatusNotFound, problem.NotFound)
	}
}

func TestInsideHostsAndOrigins(t *testing.T) {
	in := newInside(t)
	ask := func(change ...func(*http.Request)) int {
		return in.ask(in.keys["acme agent"], http.MethodGet, "/v1/sessions", change...).StatusCode
	}
	for host, want := range map[string]int{
		"gateway": 200, "gateway:3000": 200, "GATEWAY:3000": 200, "10.0.0.1": 200, "10.0.0.1:3000": 200, "[::ffff:10.0.0.1]:3000": 200,
		"attacker.example": 403, "attacker.example:3000": 403, "gateway.attacker.example": 403, "localhost": 403, "127.0.0.1:3000": 403,
		"10.0.0.2:3000": 403, "": 403, "127.0.0.1:18780": 403, "user@gateway": 403, "gateway.": 403,
	} {
		if got := ask(func(r *http.Request) { r.Host = host }); got != want {
			t.Errorf("the host %q is answered %d, want %d", host, got, want)
		}
	}
	for origin, want := range map[string]int{"http://gateway:3000": 200, "http://attacker.example": 403, "null": 403, "http://gateway:3001": 403} {
		if got := ask(header("Origin", origin)); got != want {
			t.Errorf("the origin %q is answered %d, want %d", origin, got, want)
		}
	}
	for site, want := range map[string]int{"same-origin": 200, "none": 200, "cross-site": 403, "same-site": 403} {
		if got := ask(header("Sec-Fetch-Site", site)); got != want {
			t.Errorf("a request that is %s is answered %d, want %d", site, got, want)
		}
	}
}

func TestInsideBodiesAreBounded(t *testing.T) {
	in := newInside(t)
	large := func(r *http.Request) { r.ContentLength = maxBody + 2 }
	for _, path := range []string{"/v1/sessions", mcpPath} {
		a := in.ask(in.keys["acme agent"], http.MethodPost, path, large, header("Content-Type", "application/json"))
		if a.StatusCode != http.StatusBadRequest || !strings.Contains(a.body, "the body has more than") {
			t.Errorf("%s takes %d bytes: %d %s", path, maxBody+2, a.StatusCode, a.body)
		}
	}
}

func TestInsideASocketEndsWithTheAgentsToken(t *testing.T) {
	in := newInside(t)
	server := serve(t, in.handler)
	at := server.URL + "/v1/sessions/" + in.agents + "/cdp?token="
	if conn, _, err := websocket.Dial(t.Context(), at+in.token("acme operator", identity.ScopeCDP), nil); err == nil {
		conn.CloseNow()
		t.Error("an operator's token opens a socket there")
	}
	conn, _, err := websocket.Dial(t.Context(), at+in.token("acme agent", identity.ScopeCDP), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow() // closed by the other end
	if err := in.identity.RevokeAgent(t.Context(), in.admin, "acme", "worker"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("the socket ends with %v", err)
	}
}

// An agent asks from its jail and hears the answer there, and can give none.
func TestInsideAnAgentAsksForAccess(t *testing.T) {
	in := newInside(t)
	agent := in.keys["acme agent"]
	body := func(text string) func(*http.Request) {
		return func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
			r.Header.Set("Content-Type", "application/json")
		}
	}
	asked := read[object](t, in.ask(agent, http.MethodPost, "/v1/access-requests", body(`{"kind":"host","target":"docs.example.com","reason":"to read"}`)), 200)
	id := fmt.Sprint(asked["id"])
	if asked["state"] != "pending" || asked["agent"] != in.ids["acme"] {
		t.Errorf("%v", asked)
	}
	in.ask(agent, http.MethodPost, "/v1/access-requests/"+id+"/answer", body(`{"approve":true}`)).wantProblem(t, http.StatusForbidden, problem.Forbidden)
	if a := in.request("acme operator", http.MethodPost, "/v1/access-requests/"+id+"/answer", `{"approve":true,"comment":"go on"}`); a.StatusCode != 200 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if heard := read[object](t, in.ask(agent, http.MethodGet, "/v1/access-requests/"+id), 200); heard["state"] != "approved" || heard["answer"] != "go on" {
		t.Errorf("%v", heard)
	}
	in.jail = in.ids["beta"]
	in.ask(in.keys["beta agent"], http.MethodGet, "/v1/access-requests/"+id).wantProblem(t, http.StatusNotFound, problem.NotFound)
}

// The address of a jail is another host's elsewhere, and a jail has no proxy that could say another one.
func TestWrongKeysInAJailBrakeItsAddressInsideOnly(t *testing.T) {
	in := newInside(t)
	in.API.BehindProxy = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	from := func(r *http.Request) {
		r.RemoteAddr = "10.0.9.9:1"
		r.Header.Set("X-Forwarded-For", "192.0.2.9")
	}
	burst := identity.DefaultRateLimit().Burst
	for range burst {
		in.ask("cjag_wrong", http.MethodGet, "/v1/sessions", from).wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
	}
	in.ask(in.keys["acme agent"], http.MethodGet, "/v1/sessions", from).wantProblem(t, http.StatusTooManyRequests, problem.RateLimited)
	d := &testAPI{API: in.API, key: in.keys["acme viewer"]}
	for _, addr := range []string{"10.0.9.9:1", "192.0.2.9:1"} {
		if a := d.ask(t, http.MethodGet, "/v1/whoami", "", func(r *http.Request) { r.RemoteAddr = addr }); a.StatusCode != http.StatusOK {
			t.Errorf("%s outside is answered %d %s", addr, a.StatusCode, a.body)
		}
	}
}
