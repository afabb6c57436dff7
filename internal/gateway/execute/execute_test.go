package execute

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = accesstest.Token

// fixture is an agent with one tool on api.example, and a secret for it.
type fixture struct {
	*accesstest.Fixture
	t       *testing.T
	handler *Handler
	seen    *accesstest.Seen
	server  *httptest.Server
}

func newFixture(t *testing.T, upstream http.HandlerFunc) *fixture {
	t.Helper()
	w := &fixture{Fixture: accesstest.New(t), t: t, seen: &accesstest.Seen{}}
	h, err := New(w.Options())
	if err != nil {
		t.Fatal(err)
	}
	h.views = w.View
	w.handler = h
	w.Upstream("api.example:80", w.seen.Handler(upstream))
	w.Secret("svc", token)
	w.Services["svc"] = service("svc", egress.Injection{Type: egress.InjectBearer})
	w.Tools["svc"] = w.Allow(w.Tool("http://api.example"))
	w.server = w.Serve(h)
	t.Cleanup(w.server.Client().CloseIdleConnections)
	return w
}

// service is one at api.example.
func service(name string, how egress.Injection) egress.Service {
	return egress.Service{Name: name, Upstream: egress.Upstream{BaseURL: "http://api.example"}, Inject: how}
}

// call sends a body and returns the answer.
func (w *fixture) call(body string, header ...string) (*http.Response, map[string]any) {
	w.t.Helper()
	resp, raw := w.raw(body, header...)
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		w.t.Fatalf("%s: %s", resp.Status, raw)
	}
	return resp, out
}

func (w *fixture) raw(body string, header ...string) (*http.Response, []byte) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.server.URL+"/v1/execute", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := w.server.Client().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if bytes.Contains(raw, []byte(token)) || strings.Contains(fmt.Sprint(resp.Header), token) {
		w.t.Errorf("the answer has the credential: %q %s", resp.Header, raw)
	}
	return resp, raw
}

// refused calls, and wants a refusal of the gateway's own.
func (w *fixture) refused(code, body string, header ...string) map[string]any {
	w.t.Helper()
	resp, out := w.call(body, header...)
	if out["code"] != code || resp.StatusCode == http.StatusOK || resp.Header.Get("Content-Type") != "application/problem+json" {
		w.t.Errorf("%.200s: %s %v, want %s", body, resp.Status, out, code)
	}
	return out
}

// answered calls, and wants an answer of the upstream's.
func (w *fixture) answered(body string, header ...string) map[string]any {
	w.t.Helper()
	resp, out := w.call(body, header...)
	if resp.StatusCode != http.StatusOK || out["status"] == nil || out["status"] != out["statusCode"] {
		w.t.Fatalf("%.200s: %s %v", body, resp.Status, out)
	}
	if resp.Header.Get("Clawjail-Refusal") != "" {
		w.t.Errorf("an answer looks like a refusal: %q", resp.Header)
	}
	return out
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, s)
	}
}

const plain = `{"service":"svc","url":"http://api.example/x"}`

func TestOptionsSayWhatIsMissing(t *testing.T) {
	_, err := New(Options{})
	for _, name := range []string{"gateway", "views", "secrets", "log", "clock"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyTheJailOfAnAgentMayExecute(t *testing.T) {
	w := newFixture(t, text("hello"))
	w.answered(plain)
	w.answered(plain, "Origin", w.server.URL, "Sec-Fetch-Site", "same-origin")
	w.refused(problem.Forbidden, plain, "Sec-Fetch-Site", "cross-site")
	w.refused(problem.Forbidden, plain, "Sec-Fetch-Site", "same-site")
	w.refused(problem.Forbidden, plain, "Origin", "http://evil.example")
	w.refused(problem.Forbidden, plain, "Origin", "null")
	w.Caller.Agent = ""
	w.Caller.Session = "s1"
	w.refused(problem.Unauthorized, plain)
	if n := len(w.seen.All()); n != 2 {
		t.Errorf("the upstream saw %d requests", n)
	}
}

func TestARequestHappens(t *testing.T) {
	w := newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("X-Answer", "yes")
		rw.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(rw, `{"n": 12345678901234567890, "a": [1]}`)
	})
	out := w.answered(`{"service":"svc","url":"http://api.example/x?q=1","method":"post","headers":{"X-Mine":"a","X-Two":["b","c"]},"body":{"k":[1,2]}}`)
	got := w.seen.Last(t)
	if got.Method != "POST" || got.Target != "/x?q=1" || got.Host != "api.example" || got.Body != `{"k":[1,2]}` || got.Length != 11 {
		t.Errorf("%+v", got)
	}
	if h := got.Header; h.Get("Authorization") != "Bearer "+token || h.Get("X-Mine") != "a" || !slices.Equal(h.Values("X-Two"), []string{"b", "c"}) ||
		h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "clawjail" || h.Get("Accept-Encoding") != "identity" {
		t.Errorf("%q", h)
	}
	body, _ := out["body"].(map[string]any)
	headers, _ := out["headers"].(map[string]any)
	if out["status"] != 201.0 || body == nil || headers["X-Answer"] != "yes" || out["url"] != "http://api.example/x?q=1" || out["redirects"] != 0.0 {
		t.Errorf("%v", out)
	}
	if used := w.Used(); len(used) != 1 || used[0].Service != "svc" || used[0].Agent != "agent-1" {
		t.Errorf("used %v", used)
	}
	if e := w.Sent()[0]; e.Surface != gateway.SurfaceExecute || !e.Credential || e.Service != "svc" || e.Caller.Agent != "agent-1" || e.Lifetime != longestTime {
		t.Errorf("%+v", e)
	}
	// A number that does not fit into 64 bits is passed on as it was written.
	if _, raw := w.raw(plain); !bytes.Contains(raw, []byte("12345678901234567890")) {
		t.Errorf("%s", raw)
	}
}

func TestBodiesAreSentAsTheyAreMeant(t *testing.T) {
	w := newFixture(t, text("ok"))
	for _, test := range []struct{ given, sent, kind string }{
		{`"plain text"`, "plain text", "text/plain; charset=utf-8"}, {`""`, "", "text/plain; charset=utf-8"}, {`[1, 2]`, "[1, 2]", "application/json"},
		{`5`, "5", "application/json"}, {`true`, "true", "application/json"}, {`null`, "", ""},
	} {
		w.answered(`{"service":"svc","url":"http://api.example/","method":"PUT","body":` + test.given + `}`)
		if got := w.seen.Last(t); got.Body != test.sent || got.Header.Get("Content-Type") != test.kind {
			t.Errorf("%s: %q as %q", test.given, got.Body, got.Header.Get("Content-Type"))
		}
	}
	w.answered(`{"service":"svc","url":"http://api.example/","method":"PUT","headers":{"content-type":"application/x-www-form-urlencoded"},"body":"a=b"}`)
	if got := w.seen.Last(t); got.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		t.Errorf("%q", got.Header)
	}
}

func TestStatusOfTheUpstreamAndOfTheGatewayAreNeverConfused(t *testing.T) {
	for _, status := range []int{200, 204, 304, 400, 401, 403, 404, 407, 413, 429, 500, 502, 503, 504} {
		w := newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Clawjail-Refusal", "tool_denied")
			rw.Header().Set("Proxy-Status", "clawjail; error=http_request_denied")
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.WriteHeader(status)
			if status != 204 && status != 304 {
				_, _ = io.WriteString(rw, `{"code":"tool_denied"}`)
			}
		})
		resp, out := w.call(plain)
		if resp.StatusCode != 200 || out["status"] != float64(status) || out["code"] != nil || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%d: %s %v", status, resp.Status, out)
		}
		if resp.Header.Get("Clawjail-Refusal") != "" || resp.Header.Get("Proxy-Status") != "" {
			t.Errorf("%d: forged headers arrive: %q", status, resp.Header)
		}
		if h, _ := out["headers"].(map[string]any); h["Clawjail-Refusal"] != nil || h["Proxy-Status"] != nil {
			t.Errorf("%d: forged headers arrive: %v", status, h)
		}
	}
}

func TestBodiesArriveAsJSONTextOrBase64(t *testing.T) {
	for _, test := range []struct {
		kind, sent string
		want       any
		base64     bool
	}{
		{"application/json", `{"a":1}`, map[string]any{"a": 1.0}, false}, {"application/vnd.github+json; charset=utf-8", `[1]`, []any{1.0}, false},
		{"application/json", `{"a":1,"a":2}`, `{"a":1,"a":2}`, false}, {"application/json", `{"a":`, `{"a":`, false}, {"application/json", ``, ``, false},
		{"text/plain", `{"a":1}`, `{"a":1}`, false}, {"", "x", "x", false}, {"image/png", "\x89PNG\xff", base64.StdEncoding.EncodeToString([]byte("\x89PNG\xff")), true},
	} {
		w := newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["Content-Type"] = []string{test.kind}
			_, _ = io.WriteString(rw, test.sent)
		})
		out := w.answered(plain)
		if fmt.Sprint(out["body"]) != fmt.Sprint(test.want) || (out["body_base64"] == true) != test.base64 {
			t.Errorf("%s %q: %v", test.kind, test.sent, out)
		}
	}
}

func TestTheAllowlistDecides(t *testing.T) {
	w := newFixture(t, text("ok"))
	w.Upstream("other.example:80", w.seen.Handler(text("ok")))
	w.Upstream("api.example:8080", w.seen.Handler(text("ok")))
	for _, test := range []struct {
		name    string
		tools   []policy.Rule
		method  string
		url     string
		allowed bool
	}{
		{"exact", []policy.Rule{w.Tool("http://api.example/a/b", "GET")}, "GET", "http://api.example/a/b", true},
		{"lower case method", []policy.Rule{w.Tool("http://api.example/a/b", "GET")}, "get", "http://api.example/a/b", true},
		{"another method", []policy.Rule{w.Tool("http://api.example/a/b", "GET")}, "POST", "http://api.example/a/b", false},
		{"longer path", []policy.Rule{w.Tool("http://api.example/a/b", "GET")}, "GET", "http://api.example/a/b/c", false},
		{"path as a prefix of a name", []policy.Rule{w.Tool("http://api.example/a/b", "GET")}, "GET", "http://api.example/a/bc", false},
		{"pattern", []policy.Rule{w.Tool("http://api.example/a/*/c", "GET")}, "GET", "http://api.example/a/x/c", true},
		{"pattern is one segment", []policy.Rule{w.Tool("http://api.example/a/*/c", "GET")}, "GET", "http://api.example/a/x/y/c", false},
		{"tail", []policy.Rule{w.Tool("http://api.example/a/**", "GET")}, "GET", "http://api.example/a/x/y", true},
		{"the pattern's URL within another URL", []policy.Rule{w.Tool("http://api.example/a", "GET")}, "GET", "http://other.example/api.example/a", false},
		{"host as a part of a name", []policy.Rule{w.Tool("http://api.example", "GET")}, "GET", "http://api.example.other.example/", false},
		{"another scheme", []policy.Rule{w.Tool("http://api.example", "GET")}, "GET", "https://api.example/", false},
		{"another port", []policy.Rule{w.Tool("http://api.example", "GET")}, "GET", "http://api.example:8080/", false},
		{"the dot is no wildcard", []policy.Rule{w.Tool("http://api.example", "GET")}, "GET", "http://apixexample/", false},
		{"second tool", []policy.Rule{w.Tool("http://other.example", "GET"), w.Tool("http://api.example", "DELETE")}, "DELETE", "http://api.example/q", true},
		{"empty list", []policy.Rule{}, "GET", "http://api.example/", false},
		{"no list", nil, "GET", "http://api.example/", false},
	} {
		w.Tools["svc"] = nil
		if test.tools != nil {
			w.Tools["svc"] = w.Allow(test.tools...)
		}
		before := len(w.seen.All())
		body := fmt.Sprintf(`{"service":"svc","url":%q,"method":%q}`, test.url, test.method)
		resp, out := w.call(body)
		if got := resp.StatusCode == 200; got != test.allowed || !got && out["code"] != problem.ToolDenied {
			t.Errorf("%s: %s %v", test.name, resp.Status, out)
		}
		if after := len(w.seen.All()); (after > before) != test.allowed {
			t.Errorf("%s: the upstream saw %d requests", test.name, after-before)
		}
	}
}

func TestWhatNoToolAllowsIsNeitherLookedUpNorResolved(t *testing.T) {
	w := newFixture(t, text("ok"))
	for _, body := range []string{
		`{"service":"svc","url":"http://127.0.0.1/"}`, `{"service":"svc","url":"http://localhost/"}`, `{"service":"svc","url":"http://db.internal/"}`,
		`{"url":"http://api.example/"}`, `{"service":"svc","url":"http://unlisted.example/"}`,
	} {
		w.refused(problem.ToolDenied, body)
	}
	w.refused(problem.ServiceUnknown, `{"service":"other","url":"http://api.example/"}`)
	for _, step := range w.Steps() {
		if strings.HasPrefix(step, "resolve") || strings.HasPrefix(step, "secret") {
			t.Errorf("%s before a decision", step)
		}
	}
	w.answered(plain)
	steps := w.Steps()
	want := []string{"take", "decide http://api.example/x", "resolve api.example:80", "secret svc"}
	if got := steps[len(steps)-4:]; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestARuleThatDeniesIsNamed(t *testing.T) {
	w := newFixture(t, text("ok"))
	deny := w.Tool("api.example")
	deny.Name, deny.Action = "never-api", policy.Deny
	w.Tools["svc"] = w.Allow(deny, w.Tool("http://api.example"))
	if out := w.refused(problem.HostDenied, plain); out["rule"] != "never-api" {
		t.Errorf("%v", out)
	}
}

func TestCredentialMissing(t *testing.T) {
	w := newFixture(t, text("ok"))
	clear(w.Secrets)
	out := w.refused(problem.CredentialMissing, plain)
	if !strings.Contains(out["hint"].(string), "secret set svc") {
		t.Errorf("%v", out)
	}
	if len(w.seen.All()) != 0 || len(w.Used()) != 0 {
		t.Error("a request left without its credential")
	}
	w.Secret("svc", "short")
	w.refused(problem.BadSecret, plain)
	w.Secret("svc", "12345678\r\nX-Evil: 1")
	w.refused(problem.BadSecret, plain)
	if len(w.seen.All()) != 0 {
		t.Error("a request left without its credential")
	}
}

func TestOfUpstreamsThatFail(t *testing.T) {
	w := newFixture(t, nil)
	w.Tools["svc"] = w.Allow(w.Tool("http://*.example"))
	w.refused(problem.UpstreamUnreachable, `{"service":"svc","url":"http://gone.example/"}`)
	w.Upstream("broken.example:80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(rw, "half")
	}))
	w.refused(problem.UpstreamFailed, `{"service":"svc","url":"http://broken.example/"}`)
	w.Fail = problem.New(problem.AddressDenied, "no", "inside").With("rule", "tool x")
	w.refused(problem.AddressDenied, plain)
}

func TestTheRateIsTheSurfaces(t *testing.T) {
	w := newFixture(t, text("ok"))
	w.Refuse = problem.New(problem.RateLimited, "wait", "too many").With("retry_after", 7)
	w.refused(problem.RateLimited, plain)
	if len(w.seen.All()) != 0 {
		t.Error("a request left")
	}
}

func TestOneAgentHasABoundedNumberUnderWay(t *testing.T) {
	entered, release := make(chan struct{}, atOnce), make(chan struct{})
	w := newFixture(t, func(http.ResponseWriter, *http.Request) { entered <- struct{}{}; <-release })
	done := make(chan int, atOnce)
	for range atOnce {
		go func() {
			resp, err := http.Post(w.server.URL, "application/json", strings.NewReader(plain))
			if err != nil {
				done <- 0
				return
			}
			resp.Body.Close()
			done <- resp.StatusCode
		}()
	}
	for range atOnce {
		<-entered
	}
	w.refused(problem.RateLimited, plain)
	close(release)
	for range atOnce {
		if status := <-done; status != 200 {
			t.Errorf("status %d", status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	go func() { <-entered }()
	w.answered(plain)
	if len(w.handler.under) != 0 {
		t.Errorf("%v", w.handler.under)
	}
}

func TestTheTimeCoversTheBody(t *testing.T) {
	for name, upstream := range map[string]http.HandlerFunc{
		"header": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"body": func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(rw, "begins")
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		},
	} {
		w := newFixture(t, upstream)
		w.handler.limit = 50 * time.Millisecond
		w.refused(problem.Timeout, plain)
		w.handler.limit = longestTime
		w.refused(problem.Timeout, `{"service":"svc","url":"http://api.example/","timeout":"50ms"}`)
		w.refused(problem.Timeout, `{"service":"svc","url":"http://api.example/","timeout":0.05}`)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	w := newFixture(t, text("ok"))
	for _, bad := range []string{`"31s"`, `0`, `-1`, `"0s"`, `30.1`, `1e300`, `"x"`, `true`, `[]`} {
		w.refused(problem.BadLimit, `{"service":"svc","url":"http://api.example/","timeout":`+bad+`}`)
	}
	w.answered(`{"service":"svc","url":"http://api.example/","timeout":30}`)
}

func TestAnswersThatAreTooLargeAreRefusedAndNotCut(t *testing.T) {
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for _, declared := range []bool{true, false} {
		for _, over := range []int{0, 1} {
			w := newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
				if declared {
					rw.Header().Set("Content-Length", fmt.Sprint(largestAnswer+over))
				}
				for range largestAnswer >> 20 {
					_, _ = rw.Write(chunk)
				}
				_, _ = rw.Write(chunk[:over])
			})
			if over == 1 {
				w.refused(problem.TooLarge, plain)
			} else if out := w.answered(plain); len(out["body"].(string)) != largestAnswer {
				t.Errorf("%d bytes", len(out["body"].(string)))
			}
		}
	}
}

func TestRequestsThatAreTooLargeAreRefused(t *testing.T) {
	w := newFixture(t, text("ok"))
	large := `{"service":"svc","url":"http://api.example/","body":"` + strings.Repeat("x", largestRequest) + `"}`
	w.refused(problem.TooLarge, large)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL, struct{ io.Reader }{strings.NewReader(large)})
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked: %s", resp.Status)
	}
	if len(w.seen.All()) != 0 {
		t.Error("a request left")
	}
}

func TestStreamsArriveAsTheyAreSent(t *testing.T) {
	next := make(chan struct{})
	w := newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		rw.Header().Set("Clawjail-Refusal", "x")
		rw.Header().Set("Set-Cookie", "a=b")
		rw.WriteHeader(http.StatusAccepted)
		for i := range 3 {
			_, _ = fmt.Fprintf(rw, "data: %d\n\n", i)
			_ = http.NewResponseController(rw).Flush()
			<-next
		}
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL, strings.NewReader(`{"service":"svc","url":"http://api.example/","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if h := resp.Header; resp.StatusCode != 200 || h.Get("Clawjail-Upstream-Status") != "202" || h.Get("Content-Type") != "text/event-stream" ||
		h.Get("Clawjail-Refusal") != "" || h.Get("Set-Cookie") != "" || h.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("%s %q", resp.Status, h)
	}
	buffer := make([]byte, 100)
	for i := range 3 {
		n, err := io.ReadAtLeast(resp.Body, buffer, 9)
		if err != nil || string(buffer[:n]) != fmt.Sprintf("data: %d\n\n", i) {
			t.Fatalf("event %d: %q %v", i, buffer[:n], err)
		}
		next <- struct{}{} // the next one is sent when this one has arrived
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q %v", rest, err)
	}
}

func TestAStreamThatBreaksOffIsNoShortSuccess(t *testing.T) {
	w := newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "begins")
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL, strings.NewReader(`{"service":"svc","url":"http://api.example/","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.server.Client().Do(r)
	if err != nil {
		return // broken before the header
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%s %q", resp.Status, body)
	}
}

func TestAStreamHasALargestSizeAndIsNoShortSuccess(t *testing.T) {
	w := newFixture(t, text(strings.Repeat("x", 1000)))
	for limit, whole := range map[int]bool{1000: true, 999: false} {
		w.handler.stream = limit
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL, strings.NewReader(`{"service":"svc","url":"http://api.example/","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := w.server.Client().Do(r)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if (err == nil) != whole {
			t.Errorf("%d: %v", limit, err)
		}
	}
}

func TestTheContextOfTheClientEndsTheRequest(t *testing.T) {
	gone := make(chan struct{})
	entered := make(chan struct{})
	w := newFixture(t, func(_ http.ResponseWriter, r *http.Request) { close(entered); <-r.Context().Done(); close(gone) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.server.URL, strings.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if resp, err := w.server.Client().Do(r); err == nil {
		resp.Body.Close()
		t.Error("an answer")
	}
	<-gone
}
