package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRoutesReachTheirService(t *testing.T) {
	for _, test := range []struct {
		method, path, body string
		status             int
		call               string
		want               string // in the answer
	}{
		{"GET", "/v1/health", "", 200, "", `"status":"ok"`},
		{"GET", "/v1/ready", "", 200, "", `"status":"ok"`},
		{"GET", "/v1/info", "", 200, "", `"installation":"abcd"`},
		{"POST", "/v1/sessions", "", 201, "open", someID},
		{"POST", "/v1/sessions", "{}", 201, "open", someID},
		{"GET", "/v1/sessions", "", 200, "list", `"sessions":[]`},
		{"GET", "/v1/sessions?all=true", "", 200, "list", `"sessions":[]`},
		{"GET", "/v1/sessions/" + someID, "", 200, "get " + someID, someID},
		{"DELETE", "/v1/sessions/" + someID, "", 200, "close " + someID, `"closing"`},
		{"DELETE", "/v1/sessions/" + someID + "?wait=true", "", 200, "wait " + someID, `"closed"`},
		{"POST", "/v1/sessions/" + someID + "/tokens", `{"scope":"view"}`, 200, "token " + someID, `"token":"cjses_issued"`},
		{"GET", "/v1/sessions/" + someID + "/tokens", "", 200, "tokens " + someID, `{"id":"st_1","scope":"view","by":"admin","created_at":"2001-09-09T01:46:40Z","expires_at":"2001-09-09T02:46:40Z"}`},
		{"DELETE", "/v1/sessions/" + someID + "/tokens/st_1", "", 204, "revoke st_1 " + someID, ""},
		{"GET", "/v1/sessions/" + someID + "/thumbnail", "", 200, "thumbnail " + someID, "small picture"},
		{"POST", "/v1/sessions/" + someID + "/take-over", "", 200, "take-over " + someID, someID},
		{"POST", "/v1/sessions/" + someID + "/hand-back", "{}", 200, "hand-back " + someID, someID},
		{"POST", "/v1/refreshes", `{"domain":"example.com"}`, 201, "refresh", someID},
		{"GET", "/v1/sessions/" + someID + "/seen", "", 200, "seen " + someID, `"domain":"example.com"`},
		{"GET", "/v1/sessions/" + someID + "/screenshots/3", "", 200, "recorded " + someID, "old picture"},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			d := newTestAPI(t)
			a := d.ask(t, test.method, test.path, test.body)
			if a.StatusCode != test.status || !strings.Contains(a.body, test.want) {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if test.call != "" && !slices.Contains(d.sessions.calls, test.call) {
				t.Errorf("the service was asked for %q", d.sessions.calls)
			}
			if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("the header is %v", a.Header)
			}
		})
	}
}

func TestWhatIsAskedForArrives(t *testing.T) {
	d := newTestAPI(t)
	d.ask(t, "POST", "/v1/sessions", `{"credential_mode":"clean","record":"off","browser":"full","template":"t1","label":"x","ttl":"90s","idle":"2d",
		"limits":{"memory":"512MiB","cpu":1.5,"tasks":300,"disk":"64MiB","shared_memory":"32MiB","files":1000}}`)
	r := d.sessions.request
	if r.CredentialMode != "clean" || r.Record != "off" || r.Browser != "full" || r.Template != "t1" || r.Label != "x" ||
		r.TTL != "90s" || r.Idle != "2d" || r.Limits.Memory != "512MiB" || *r.Limits.CPU != 1.5 ||
		*r.Limits.Tasks != 300 || r.Limits.Disk != "64MiB" || r.Limits.SHM != "32MiB" || *r.Limits.Files != 1000 {
		t.Errorf("the request is %+v", r)
	}
	d.ask(t, "POST", "/v1/sessions", `{"limits":{"tasks":0,"cpu":0}}`)
	if r := d.sessions.request; r.Limits.Tasks == nil || r.Limits.CPU == nil || r.Limits.Files != nil || r.TTL != "" {
		t.Errorf("a zero that was given must not be the same as nothing: %+v", r.Limits)
	}
	if d.ask(t, "GET", "/v1/sessions?all=true&tenant=acme", ""); !d.sessions.all || d.sessions.tenant != "acme" {
		t.Error("all or the tenant did not arrive")
	}
	d.ask(t, "POST", "/v1/sessions", `{"credential_mode":"operator","tenant":"acme","domains":["example.com"],"grant":"v4.public.x","access":"cdp","origin":"s_1"}`)
	if r := d.sessions.request; r.CredentialMode != "operator" || r.Tenant != "acme" || !slices.Equal(r.Domains, []string{"example.com"}) ||
		r.Grant.Reveal() != "v4.public.x" || r.Access != "cdp" || r.Origin != "s_1" {
		t.Errorf("the request is %+v", r)
	}
}

func TestBadInputIsRefusedBeforeTheServiceHearsOfIt(t *testing.T) {
	sessions, navigate, screenshot := "/v1/sessions", "/v1/sessions/"+someID+"/navigate", "/v1/sessions/"+someID+"/screenshot"
	tokens := "/v1/sessions/" + someID + "/tokens"
	large := `{"label":"` + strings.Repeat("x", maxBody) + `"}`
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		code               string
		want               []string // in the answer
	}{
		"not JSON":                {"POST", sessions, "{", 400, problem.BadJSON, []string{"line 1, column"}},
		"an array":                {"POST", sessions, "[]", 400, problem.BadJSON, []string{"line 1, column 1", "not an object"}},
		"null":                    {"POST", sessions, "null", 400, problem.BadJSON, []string{"not an object"}},
		"two values":              {"POST", sessions, "{}{}", 400, problem.BadJSON, []string{"line 1, column 3"}},
		"not UTF-8":               {"POST", sessions, "{\"label\":\"\xff\"}", 400, problem.BadJSON, nil},
		"unknown key":             {"POST", sessions, "{\n  \"browser\": \"full\",\n  \"colour\": 1}", 400, problem.BadJSON, []string{`\"colour\" is not known`, "line 3, column 3"}},
		"unknown key below":       {"POST", sessions, `{"limits":{"swap":1}}`, 400, problem.BadJSON, []string{`\"limits.swap\" is not known`}},
		"key of another case":     {"POST", sessions, `{"Browser":"full"}`, 400, problem.BadJSON, []string{"is not known"}},
		"doubled key":             {"POST", sessions, `{"ttl":"1m","ttl":"2m"}`, 400, problem.BadJSON, []string{`\"ttl\" is there twice`, "column 13"}},
		"doubled key, escaped":    {"POST", sessions, `{"ttl":"1m","\u0074tl":"2m"}`, 400, problem.BadJSON, []string{"is there twice"}},
		"doubled key below":       {"POST", sessions, `{"limits":{"tasks":1,"tasks":2}}`, 400, problem.BadJSON, []string{`\"limits.tasks\" is there twice`}},
		"wrong type":              {"POST", sessions, `{"ttl":5}`, 400, problem.BadJSON, []string{`\"ttl\" has the wrong type`}},
		"fraction of a task":      {"POST", sessions, `{"limits":{"tasks":1.5}}`, 400, problem.BadJSON, []string{`\"limits.tasks\"`}},
		"too large":               {"POST", sessions, large, 400, problem.BadRequest, []string{"more than 1048576 bytes"}},
		"body that is not known":  {"POST", navigate, `{"url":"https://example.com/","timeout":"5s"}`, 400, problem.BadJSON, []string{"not known"}},
		"number in a query":       {"GET", screenshot + "?quality=x", "", 400, problem.BadRequest, []string{"query.quality"}},
		"parameter of no use":     {"GET", screenshot + "?format=png", "", 400, problem.BadRequest, []string{"query.format"}},
		"long id of a browser":    {"GET", sessions + "/" + strings.Repeat("x", 65) + "/tabs", "", 400, problem.BadRequest, []string{"64 bytes"}},
		"life that is none":       {"POST", tokens, `{"scope":"cdp","ttl":"soon"}`, 400, problem.BadLimit, []string{"soon"}},
		"life of nothing":         {"POST", tokens, `{"scope":"cdp","ttl":"0s"}`, 400, problem.BadLimit, []string{"0s"}},
		"unknown key of a token":  {"POST", tokens, `{"scopes":"cdp"}`, 400, problem.BadJSON, []string{"not known"}},
		"unknown parameter":       {"GET", sessions + "?every=1", "", 422, problem.BadRequest, []string{"unknown query parameter"}},
		"one of no use":           {"POST", "/v1/refreshes?tenant=acme", "{}", 400, problem.BadRequest, []string{"query.tenant"}},
		"parameter that is twice": {"GET", sessions + "?all=true&all=false", "", 400, problem.BadRequest, []string{`\"all\" is there 2 times`}},
		"parameter of bad type":   {"GET", sessions + "?all=maybe", "", 422, problem.BadRequest, []string{"query.all"}},
		"number that is none":     {"GET", "/v1/sessions/" + someID + "/screenshots/x", "", 422, problem.BadRequest, []string{"path.number"}},
		"nothing there":           {"GET", "/v1/nothing", "", 404, problem.NotFound, []string{"/v1/nothing"}},
		"id that is far too long": {"GET", sessions + "/" + strings.Repeat("x", 65), "", 422, problem.BadRequest, []string{"path.id"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t)
			a := d.ask(t, test.method, test.path, test.body)
			p := a.wantProblem(t, test.status, test.code)
			for _, want := range test.want {
				if !strings.Contains(a.body, want) {
					t.Errorf("%q is not in %s", want, a.body)
				}
			}
			if p.Hint == "" {
				t.Error("there is no hint")
			}
			noCalls(t, d)
		})
	}
}

func TestLargeBodyThatDoesNotSayItsLengthIsRefused(t *testing.T) {
	d := newTestAPI(t)
	a := d.ask(t, "POST", "/v1/sessions", `{"label":"`+strings.Repeat("x", 2*maxBody)+`"}`, func(r *http.Request) { r.ContentLength = -1 })
	a.wantProblem(t, http.StatusRequestEntityTooLarge, problem.BadRequest)
	noCalls(t, d)
}

func TestBodyMustSayThatItIsJSON(t *testing.T) {
	d := newTestAPI(t)
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx"} {
		d.ask(t, "POST", "/v1/sessions", "{}", header("Content-Type", kind)).wantProblem(t, http.StatusBadRequest, problem.BadRequest)
	}
	noCalls(t, d)
	for _, kind := range []string{"application/json; charset=utf-8", "application/json ; charset=utf-8", `Application/JSON; profile="a+b"`} {
		if a := d.ask(t, "POST", "/v1/sessions", "{}", header("Content-Type", kind)); a.StatusCode != http.StatusCreated {
			t.Errorf("%s: %d %s", kind, a.StatusCode, a.body)
		}
		if a := d.ask(t, "POST", "/v1/rules", "{}", header("Content-Type", kind)); a.StatusCode != http.StatusBadRequest { // a described one, without a target
			t.Errorf("%s: %d %s", kind, a.StatusCode, a.body)
		}
	}
}

func TestMethodThatARouteDoesNotHave(t *testing.T) {
	d := newTestAPI(t)
	a := d.ask(t, "PUT", "/v1/sessions", "")
	a.wantProblem(t, http.StatusMethodNotAllowed, problem.BadRequest)
	if got := a.Header.Values("Allow"); !slices.Equal(got, []string{"GET", "POST"}) {
		t.Errorf("Allow is %q", got)
	}
}

func TestErrorsAreShownWithoutTheirPrivateHalf(t *testing.T) {
	log := new(strings.Builder)
	d := newTestAPI(t, func(o *Options) { o.Log = logTo(log) })
	d.sessions.fail = fmt.Errorf("open a session: %w", problem.Wrap(errors.New("secret path"), problem.TooManySessions, "close one", "enough").With("open", 64))
	a := d.ask(t, "POST", "/v1/sessions", "{}")
	p := a.wantProblem(t, http.StatusTooManyRequests, problem.TooManySessions)
	if p.Detail != "enough" || p.Hint != "close one" || p.Details["open"] != 64.0 || strings.Contains(a.body, "secret") {
		t.Errorf("%s", a.body)
	}
	many := &problem.ValidationError{Code: problem.BadLimit, Hint: "look"}
	many.Add("ttl", "too long")
	d.sessions.fail = many.Err()
	p = d.ask(t, "POST", "/v1/sessions", "{}").wantProblem(t, http.StatusBadRequest, problem.BadLimit)
	if len(p.Errors) != 1 || p.Errors[0].Field != "ttl" || p.Details != nil {
		t.Errorf("%+v", p)
	}
	for code, want := range map[string]int{problem.Timeout: 0, problem.UpstreamUnreachable: 0, problem.Internal: 1} {
		before := strings.Count(log.String(), "level=ERROR")
		d.sessions.fail = problem.New(code, "", "what an agent brings about")
		d.ask(t, "POST", "/v1/sessions", "{}")
		if got := strings.Count(log.String(), "level=ERROR") - before; got != want {
			t.Errorf("%s: %d lines about failures, want %d", code, got, want)
		}
	}
	d.sessions.fail = errors.New("secret cause")
	a = d.ask(t, "GET", "/v1/sessions", "")
	a.wantProblem(t, http.StatusInternalServerError, problem.Internal)
	if strings.Contains(a.body, "secret") {
		t.Errorf("%s", a.body)
	}
}

func TestInfoWithoutAHostDaemon(t *testing.T) {
	d := newTestAPI(t, func(o *Options) {
		o.Host = func(context.Context) (HostInfo, error) { return HostInfo{}, errors.New("away") }
	})
	a := d.ask(t, "GET", "/v1/info", "")
	if a.StatusCode != http.StatusOK || strings.Contains(a.body, `"host"`) || !strings.Contains(a.body, `"max_sessions":7`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestDocumentDescribesBodiesErrorsAndTheKey(t *testing.T) {
	d := newTestAPI(t)
	var doc struct {
		Paths map[string]map[string]struct {
			Security    *[]map[string][]string `json:"security"`
			RequestBody *struct {
				Required bool
				Content  map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			} `json:"requestBody"`
			Responses map[string]struct{ Content map[string]any }
		}
		Components struct {
			Schemas         map[string]any
			SecuritySchemes map[string]struct{ Type, In, Name, Scheme string }
		}
	}
	if err := json.Unmarshal([]byte(d.ask(t, "GET", "/openapi.json", "").body), &doc); err != nil {
		t.Fatal(err)
	}
	if s := doc.Components.SecuritySchemes[bearerName]; s.Type != "http" || s.Scheme != "bearer" {
		t.Errorf("the key is described as %+v", s)
	}
	if s := doc.Components.SecuritySchemes[headerName]; s.In != "header" || s.Name != KeyHeader {
		t.Errorf("the key is described as %+v", s)
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if _, ok := op.Responses["default"].Content[problemType]; !ok {
				t.Errorf("%s %s does not describe its errors", method, path)
			}
			if free := op.Security != nil && len(*op.Security) == 0; free != (path == "/v1/health" || path == "/v1/ready") {
				t.Errorf("%s %s is described as free: %t", method, path, free)
			}
		}
	}
	for path, schema := range map[string]string{"/v1/sessions": "OpenRequest", "/v1/sessions/{id}/navigate": "Navigate", "/v1/sessions/{id}/act": "Act", "/v1/sessions/{id}/tokens": "TokenRequest"} {
		body := doc.Paths[path]["post"].RequestBody
		if body == nil || len(body.Content) != 1 || body.Content["application/json"].Schema.Ref != "#/components/schemas/"+schema ||
			doc.Components.Schemas[schema] == nil {
			t.Errorf("the body of %s is described as %+v", path, body)
		}
	}
}

func TestRequestsInFlightAreAnsweredWhenTheEndIsAskedFor(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.wait = make(chan struct{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- d.Serve(ctx, listener) }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	answered := make(chan error)
	go func() {
		request, err := http.NewRequest("POST", "http://"+listener.Addr().String()+"/v1/sessions", nil)
		if err != nil {
			answered <- err
			return
		}
		request.Header.Set("Authorization", bearer+" "+d.key)
		response, err := client.Do(request)
		if err == nil {
			err = response.Body.Close()
			if response.StatusCode != http.StatusCreated {
				err = fmt.Errorf("the answer is %s", response.Status)
			}
		}
		answered <- err
	}()
	testenv.Eventually(t, 5*time.Second, func() bool {
		d.sessions.mu.Lock()
		defer d.sessions.mu.Unlock()
		return len(d.sessions.calls) > 0
	}, "the request arrives")
	end()
	testenv.Eventually(t, 5*time.Second, func() bool {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, "new connections are refused")
	close(d.sessions.wait)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"ttl":"1m","limits":{"cpu":1.5}}`, `{"ttl":"1","ttl":"2"}`, `{"x":1}`, `{"grant":"v4.public.x"}`, "null", "{\n\"limits\":{\"tasks\":1e400}}", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := decode[session.OpenRequest](body)
		if err != nil {
			if problem.CodeOf(err) != problem.BadJSON {
				t.Errorf("%q: %v", body, err)
			}
			p, _ := problem.As(err)
			line, column := p.Details["line"].(int), p.Details["column"].(int)
			if line < 1 || column < 1 || line > strings.Count(string(body), "\n")+1 || column > len(body)+1 {
				t.Errorf("%q: line %d, column %d", body, line, column)
			}
			return
		}
		text, err := Encode(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode[session.OpenRequest](text)
		if err != nil || again.Template != got.Template || !again.Grant.Equal(got.Grant.Text) {
			t.Errorf("%q is read, written as %s, and then %v", body, text, err)
		}
	})
}

// A load balancer that asks is told why, and its clients as well.
func TestAControlPlaneThatDrainsIsNotReady(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.unready = problem.New(problem.NodeDraining, "ask another", "it drains")
	d.ask(t, "GET", "/v1/ready", "", anonymous).wantProblem(t, http.StatusServiceUnavailable, problem.NodeDraining)
	if a := d.ask(t, "GET", "/v1/health", "", anonymous); a.StatusCode != http.StatusOK {
		t.Errorf("it is not there either: %d", a.StatusCode)
	}
}
