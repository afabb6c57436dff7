package service

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = accesstest.Token

// fixture is an agent with the service svc at http://api.example/base.
type fixture struct {
	*accesstest.Fixture
	t       *testing.T
	handler *Handler
	seen    *accesstest.Seen
	server  *httptest.Server
	client  *http.Client
	logs    *testenv.Buffer
}

func bareFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{Fixture: accesstest.New(t), t: t, seen: &accesstest.Seen{}, logs: &testenv.Buffer{}}
	o := w.Options()
	o.Log = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.views = w.View
	w.handler = h
	w.server = w.Serve(h)
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		if strings.Contains(w.logs.String(), token) || strings.Contains(w.logs.String(), url.QueryEscape(token)) {
			t.Errorf("the log has the credential: %s", w.logs)
		}
	})
	return w
}

func newFixture(t *testing.T, how egress.Injection, upstream http.HandlerFunc) *fixture {
	t.Helper()
	w := bareFixture(t)
	w.Upstream("api.example:80", w.seen.Handler(upstream))
	w.Secret("svc", token)
	w.service("svc", "http://api.example/base", how)
	return w
}

func (w *fixture) service(name, base string, how egress.Injection, methods ...string) {
	w.Services[name] = egress.Service{Name: name, Upstream: egress.Upstream{BaseURL: base}, Inject: how}
	w.Permits[name] = w.Allow(w.Tool(strings.TrimSuffix(base, "/")+"/**", methods...))
}

var bearer = egress.Injection{Type: egress.InjectBearer}

func (w *fixture) do(method, path string, body io.Reader, header ...string) (*http.Response, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if all := fmt.Sprint(resp.Header, resp.Trailer, string(raw)); strings.Contains(all, token) || strings.Contains(all, url.QueryEscape(token)) {
		w.t.Errorf("the answer has the credential: %s", all)
	}
	return resp, string(raw)
}

func (w *fixture) refused(code, method, path string, header ...string) map[string]any {
	w.t.Helper()
	resp, body := w.do(method, path, nil, header...)
	var out map[string]any
	if err := json.Unmarshal([]byte(body), &out); err != nil || out["code"] != code || resp.Header.Get("Content-Type") != "application/problem+json" {
		w.t.Errorf("%s %s: %s %s, want %s", method, path, resp.Status, body, code)
	}
	return out
}

func TestOnlyTheJailOfAnAgentMayUseServices(t *testing.T) {
	w := newFixture(t, bearer, nil)
	w.do("GET", "/svc/svc/x", nil)
	w.refused(problem.Forbidden, "GET", "/svc/svc/x", "Sec-Fetch-Site", "cross-site")
	w.refused(problem.Forbidden, "GET", "/svc/svc/x", "Origin", "http://evil.example")
	w.refused(problem.Forbidden, "GET", "/svc/svc/x", "Origin", "null")
	w.Refuse = problem.New(problem.RateLimited, "", "too many")
	w.refused(problem.RateLimited, "GET", "/svc/svc/x")
	w.Refuse = nil
	w.Caller.Agent = ""
	w.refused(problem.Unauthorized, "GET", "/svc/svc/x")
	if n := len(w.seen.All()); n != 1 {
		t.Errorf("%d requests left", n)
	}
}

func TestARequestGoesToTheService(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("X-Answer", "yes")
		rw.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(rw, "hello")
	})
	resp, body := w.do("POST", "/svc/svc/a/b%20c/?q=1&r=a%2Fb;x", strings.NewReader("data"), "X-Mine", "a", "Content-Type", "text/x")
	got := w.seen.Last(t)
	if got.Method != "POST" || got.Target != "/base/a/b%20c/?q=1&r=a%2Fb;x" || got.Host != "api.example" || got.Body != "data" {
		t.Errorf("%+v", got)
	}
	if h := got.Header; h.Get("Authorization") != "Bearer "+token || h.Get("X-Mine") != "a" || h.Get("Content-Type") != "text/x" || h.Get("X-Forwarded-For") != "" {
		t.Errorf("%q", h)
	}
	if resp.StatusCode != 201 || body != "hello" || resp.Header.Get("X-Answer") != "yes" || resp.Header.Get("Clawjail-Refusal") != "" {
		t.Errorf("%s %q %q", resp.Status, resp.Header, body)
	}
	if e := w.Sent()[0]; e.Surface != gateway.SurfaceService || !e.Credential || e.Service != "svc" {
		t.Errorf("%+v", e)
	}
	for path, target := range map[string]string{"/svc/svc": "/base", "/svc/svc/": "/base/", "/svc/svc?x": "/base?x"} {
		w.do("GET", path, nil)
		if got := w.seen.Last(t); got.Target != target {
			t.Errorf("%s: %s", path, got.Target)
		}
	}
	w.service("root", "http://api.example", egress.Injection{Type: egress.InjectNone})
	for path, target := range map[string]string{"/svc/root": "/", "/svc/root/": "/", "/svc/root/a": "/a"} {
		w.do("GET", path, nil)
		if got := w.seen.Last(t); got.Target != target || got.Header.Get("Authorization") != "" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

func TestTheServiceSaysWhatIsAllowed(t *testing.T) {
	w := newFixture(t, bearer, nil)
	w.Permits["svc"] = w.Allow(w.Tool("http://api.example/base/open/**", "GET", "HEAD"))
	w.do("GET", "/svc/svc/open/x", nil)
	if out := w.refused(problem.MethodDenied, "POST", "/svc/svc/open/x"); !strings.Contains(out["detail"].(string), "/svc/svc/open/x") {
		t.Errorf("%v", out)
	}
	w.refused(problem.PathDenied, "GET", "/svc/svc/shut/x")
	w.refused(problem.PathDenied, "GET", "/svc/svc/openx")
	w.Permits["svc"] = nil
	w.refused(problem.HostDenied, "GET", "/svc/svc/open/x")
	for _, path := range []string{"/svc/other/x", "/svc/", "/svc", "/svc/SVC/x", "/svc/%73vc%2f/x", "/x", "/svc//x", "/svc/../svc/svc/x"} {
		w.refused(problem.ServiceUnknown, "GET", path)
	}
	if n := len(w.seen.All()); n != 1 {
		t.Errorf("%d requests left", n)
	}
}

func TestPathsThatCanBeReadInTwoWaysAreRefused(t *testing.T) {
	w := newFixture(t, bearer, nil)
	for _, rest := range []string{"/../x", "/a/..", "/a/%2e%2e/b", "/.", "//", "/a//b", "/a%2fb", "/a%5cb", "/a%252fb", "/a%00b", "/a/..;/b", "/%2e%2e%2fadmin"} {
		for _, base := range []string{"http://api.example/base", "http://api.example"} {
			w.service("svc", base, bearer)
			conn := w.raw("GET /svc/svc" + rest + " HTTP/1.1\r\nHost: gateway\r\n\r\n")
			if code := conn.Header.Get("Content-Type"); conn.StatusCode != http.StatusForbidden || code != "application/problem+json" {
				t.Errorf("%s: %s", rest, conn.Status)
			}
		}
	}
	if n := len(w.Sent()); n != 0 {
		t.Errorf("%d requests left", n)
	}
	// A path that is read in one way only passes.
	if conn := w.raw("GET /svc/svc/a%20b/c HTTP/1.1\r\nHost: gateway\r\n\r\n"); conn.StatusCode != http.StatusOK || len(w.Sent()) != 1 {
		t.Errorf("a plain path: %s, %d requests left", conn.Status, len(w.Sent()))
	}
}

// raw sends bytes and reads one answer.
func (w *fixture) raw(text string) *http.Response {
	w.t.Helper()
	c, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatalf("%q: %v", text, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp
}

func TestTheClientsOwnCredentialsStayHere(t *testing.T) {
	for name, how := range map[string]egress.Injection{
		"bearer": bearer, "basic": {Type: egress.InjectBasic, User: "x-access-token"}, "header": {Type: egress.InjectHeader, Name: "X-Api-Key"}, "query": {Type: egress.InjectQuery, Name: "key"},
		"none": {Type: egress.InjectNone},
	} {
		w := newFixture(t, how, nil)
		w.do("GET", "/svc/svc/x?a=1&key=mine&k%65y=mine", nil, "Authorization", "Bearer mine", "Proxy-Authorization", "Bearer mine", "Cookie", "a=mine", "X-Api-Key", "mine", "X_Api_Key", "mine",
			"Private-Token", "mine", "Referer", w.server.URL+"/?mine", "Connection", "Authorization, X-Api-Key, X-Named", "X-Named", "mine", "X-Forwarded-For", "mine", "Forwarded", "mine", "TE", "trailers")
		got := w.seen.Last(t)
		if strings.Contains(fmt.Sprint(got.Header), "mine") {
			t.Errorf("%s: %q", name, got.Header)
		}
		switch name {
		case "bearer":
			if got.Header.Get("Authorization") != "Bearer "+token {
				t.Errorf("%q", got.Header)
			}
		case "basic":
			if got.Header.Get("Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("x-access-token:"+token)) {
				t.Errorf("%q", got.Header)
			}
		case "header":
			if got.Header.Get("X-Api-Key") != token {
				t.Errorf("%q", got.Header)
			}
		case "query":
			if got.Target != "/base/x?a=1&key="+url.QueryEscape(token) {
				t.Errorf("%s", got.Target)
			}
		case "none":
			if got.Header.Get("Authorization") != "" || w.Sent()[0].Credential {
				t.Errorf("%q", got.Header)
			}
		}
	}
}

func TestTwoLengthsAreOneRequest(t *testing.T) {
	w := newFixture(t, bearer, nil)
	inner := "GET /base/smuggled HTTP/1.1\r\nHost: api.example\r\n\r\n"
	w.raw("POST /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" +
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(inner), inner))
	for _, bad := range []string{
		"POST /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"POST /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"POST /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"GET /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nHost: other\r\n\r\n",
		"GET /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nX-A : b\r\n\r\n",
	} {
		if resp := w.raw(bad); resp.StatusCode < 400 {
			t.Errorf("%q: %s", bad, resp.Status)
		}
	}
	all := w.seen.All()
	if len(all) != 1 || all[0].Target != "/base/x" || all[0].Body != inner || all[0].Header.Get("Content-Length") != "" {
		t.Errorf("%+v", all)
	}
}

func TestTrailersOfRequestsAreNotPassedOn(t *testing.T) {
	var trailer http.Header
	w := newFixture(t, bearer, func(_ http.ResponseWriter, r *http.Request) { trailer = r.Trailer })
	w.raw("POST /svc/svc/x HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n1\r\nx\r\n0\r\nAuthorization: Bearer mine\r\n\r\n")
	if got := w.seen.Last(t); got.Header.Get("Authorization") != "Bearer "+token || len(trailer) != 0 {
		t.Errorf("%+v %q", got, trailer)
	}
}

func TestLocationsInTheServiceStayInIt(t *testing.T) {
	var location string
	w := newFixture(t, bearer, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", location)
		rw.Header().Set("Content-Location", location)
		rw.WriteHeader(http.StatusFound)
	})
	for _, test := range [][2]string{
		{"/base/y", "/svc/svc/y"}, {"/base/y?q=1#f", "/svc/svc/y?q=1#f"}, {"http://api.example/base/y", "/svc/svc/y"}, {"http://API.example:80/base/a%20b", "/svc/svc/a%20b"}, {"y", "/svc/svc/a/y"}, {"../y", "/svc/svc/y"},
		{"?q=2", "/svc/svc/a/b?q=2"}, {"//api.example/base", "/svc/svc"}, {"/base", "/svc/svc"}, {"/base/", "/svc/svc/"},
		// Not in the service: as they are, but never relative to the gateway.
		{"/login", "http://api.example/login"}, {"/basement", "http://api.example/basement"}, {"../../x", "http://api.example/x"}, {"https://api.example/base/y", "https://api.example/base/y"},
		{"http://other.example/base/y", "http://other.example/base/y"}, {"http://api.example:81/base/y", "http://api.example:81/base/y"}, {"/svc/other/x", "http://api.example/svc/other/x"}, {"/v1/execute", "http://api.example/v1/execute"},
		{"/base/../svc/x", "http://api.example/svc/x"}, {"mailto:a@b", "mailto:a@b"},
	} {
		location = test[0]
		resp, _ := w.do("GET", "/svc/svc/a/b", nil)
		if resp.StatusCode != 302 || resp.Header.Get("Location") != test[1] || resp.Header.Get("Content-Location") != test[1] {
			t.Errorf("%s: %s %q, want %q", test[0], resp.Status, resp.Header, test[1])
		}
	}
	for _, to := range []string{"http://gateway:3000/v1/execute", "//hermit_shell:3000/svc/other/x", w.server.URL + "/svc/other/x", "http://GATEWAY/x"} {
		location = to
		w.refused(problem.UpstreamFailed, "GET", "/svc/svc/a/b")
	}
}

// Whoever may say what a service does to answers may use its secret, and is not to see it.
func TestNoServiceShowsItsCredential(t *testing.T) {
	for _, how := range []egress.Injection{bearer, {Type: egress.InjectQuery, Name: "q"}, {Type: egress.InjectHeader, Name: "X-Key"}, {Type: egress.InjectNone}} {
		w := newFixture(t, how, func(rw http.ResponseWriter, r *http.Request) {
			sent := r.Header.Get("Authorization") + r.URL.Query().Get("q") + r.Header.Get("X-Key")
			rw.Header().Set("Link", "<?q="+sent+">")
			_, _ = io.WriteString(rw, "nothing is found for "+sent)
		})
		s := w.Services["svc"]
		s.Scrub = egress.ScrubOff
		w.Services["svc"] = s
		resp, body := w.do("GET", "/svc/svc/search", nil, "Range", "bytes=5-") // it looks for the token itself
		shown, none := strings.Contains(body, "[redacted]") && strings.Contains(resp.Header.Get("Link"), "[redacted]"), how.Type == egress.InjectNone
		if shown == none {
			t.Errorf("%s: %q %q", how.Type, body, resp.Header)
		}
		if part := w.seen.Last(t).Header.Get("Range") != ""; part != none {
			t.Errorf("%s: a part is asked for: %v", how.Type, part)
		}
	}
}

func TestTheCredentialOfAQueryIsInNoAddress(t *testing.T) {
	for _, setting := range []egress.Scrub{egress.ScrubRedact, egress.ScrubOff} {
		w := newFixture(t, egress.Injection{Type: egress.InjectQuery, Name: "key"}, func(rw http.ResponseWriter, r *http.Request) {
			to := "/base/y?"
			if r.URL.Path == "/base/away" {
				to = "http://other.example/?"
			}
			http.Redirect(rw, r, to+r.URL.RawQuery, http.StatusFound)
		})
		s := w.Services["svc"]
		s.Scrub = setting
		w.Services["svc"] = s
		for path, want := range map[string]string{"/svc/svc/x?a=1": "/svc/svc/y?a=1", "/svc/svc/away?a=1": "http://other.example/?a=1"} {
			resp, _ := w.do("GET", path, nil)
			if got := resp.Header.Get("Location"); got != want {
				t.Errorf("%s: %q", setting, got)
			}
		}
		if got := w.seen.Last(t); got.Query(t).Get("key") != token {
			t.Errorf("%s", got.Target)
		}
	}
}

func TestAnswersLoseWhatIsNotForTheTool(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		for _, name := range []string{"Set-Cookie", "Proxy-Status", "Clawjail-Refusal", "Clawjail-Upstream-Status", "Clear-Site-Data", "X-Kept"} {
			h.Set(name, "x")
		}
		h.Set("X-Echo", r.Header.Get("Authorization"))
		_, _ = io.WriteString(rw, "you sent "+r.Header.Get("Authorization"))
	})
	resp, body := w.do("GET", "/svc/svc/x", nil)
	for _, name := range []string{"Set-Cookie", "Proxy-Status", "Clawjail-Refusal", "Clawjail-Upstream-Status", "Clear-Site-Data"} {
		if resp.Header.Get(name) != "" {
			t.Errorf("%s arrives", name)
		}
	}
	if h := resp.Header; h.Get("X-Kept") != "x" || h.Get("X-Echo") != "Bearer [redacted]" || h.Get("Content-Security-Policy") != "sandbox" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%q", h)
	}
	if body != "you sent Bearer [redacted]" {
		t.Errorf("%q", body)
	}
	s := w.Services["svc"]
	s.Scrub = egress.ScrubBlock
	w.Services["svc"] = s
	w.refused(problem.ResponseBlocked, "GET", "/svc/svc/x")
}

func TestFailuresHaveTheirOwnCodes(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/upgrade" {
			conn, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			conn.Close()
		}
	})
	w.refused(problem.UpstreamFailed, "GET", "/svc/svc/upgrade")
	w.refused(problem.Unsupported, "GET", "/svc/svc/x", "Connection", "Upgrade", "Upgrade", "websocket")
	w.refused(problem.Unsupported, "GET", "/svc/svc/x", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c")
	w.refused(problem.MethodDenied, "TRACE", "/svc/svc/x")
	clear(w.Secrets)
	w.refused(problem.CredentialMissing, "GET", "/svc/svc/x")
	w.Secret("svc", "12345678\r\nX-Evil: 1")
	w.refused(problem.BadSecret, "GET", "/svc/svc/x")
	w.Secret("svc", token)
	w.service("gone", "http://gone.example/", bearer)
	w.Secret("gone", token)
	w.refused(problem.UpstreamUnreachable, "GET", "/svc/gone/x")
	for _, base := range []string{"", "api.example", "http://u:p@api.example/", "http://api.example/a/../b", "ftp://api.example/"} {
		w.Services["bad"] = egress.Service{Name: "bad", Upstream: egress.Upstream{BaseURL: base}, Inject: bearer}
		w.refused(problem.UpstreamFailed, "GET", "/svc/bad/x")
	}
	w.Services["bad"] = egress.Service{Name: "bad", Upstream: egress.Upstream{BaseURL: "http://api.example/"}}
	w.refused(problem.UpstreamFailed, "GET", "/svc/bad/x")
	deny := w.Tool("api.example")
	deny.Name, deny.Action = "never-api", policy.Deny
	w.Permits["svc"] = w.Allow(deny)
	if out := w.refused(problem.HostDenied, "GET", "/svc/svc/x"); out["rule"] != "never-api" {
		t.Errorf("%v", out)
	}
	if n := len(w.seen.All()); n != 1 {
		t.Errorf("%d requests left", n)
	}
}

func TestHeadAndStatusWithoutBody(t *testing.T) {
	w := newFixture(t, bearer, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/none":
			rw.WriteHeader(http.StatusNoContent)
		case "/base/same":
			rw.WriteHeader(http.StatusNotModified)
		default:
			rw.Header().Set("Content-Length", "12345")
		}
	})
	if resp, body := w.do("HEAD", "/svc/svc/x", nil); resp.StatusCode != 200 || body != "" || w.seen.Last(t).Method != "HEAD" {
		t.Errorf("%s %q", resp.Status, body)
	}
	if resp, body := w.do("GET", "/svc/svc/none", nil); resp.StatusCode != 204 || body != "" {
		t.Errorf("%s %q", resp.Status, body)
	}
	if resp, body := w.do("GET", "/svc/svc/same", nil); resp.StatusCode != 304 || body != "" {
		t.Errorf("%s %q", resp.Status, body)
	}
}

func FuzzAim(f *testing.F) {
	for _, s := range [][2]string{{"/a/b", "q=1"}, {"", ""}, {"/", "a b"}, {"/..", ""}, {"/%2e", "%"}, {"/a;b", "é"}, {"/a%20b", "\r\n"}} {
		f.Add(s[0], s[1])
	}
	base := &url.URL{Scheme: "http", Host: "api.example", Path: "/base"}
	f.Fuzz(func(t *testing.T, rest, query string) {
		if rest != "" && rest[0] != '/' {
			return // as split cuts it
		}
		x := &request{base: base, service: egress.Service{Name: "svc", Inject: bearer}}
		if x.setURL(rest, query) != nil {
			return
		}
		if path := x.url.EscapedPath(); policy.Ambiguous(path) || path != "/base" && !strings.HasPrefix(path, "/base/") || x.url.Host != "api.example" {
			t.Fatalf("%q leads to %s", rest, x.url)
		}
		if strings.ContainsFunc(x.url.RequestURI(), func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			t.Fatalf("%q may not stand in a request line", x.url.RequestURI())
		}
		// A redirect to the same place is rewritten to an address that leads to the same place.
		back, err := x.forTool(x.url.String())
		if err != nil {
			t.Fatal(err)
		}
		again, err := url.ParseRequestURI(back)
		if err != nil {
			t.Fatal(err)
		}
		name, rest2, ok := splitPath(again.EscapedPath())
		y := &request{base: base, service: x.service}
		if !ok || name != "svc" || y.setURL(rest2, again.RawQuery) != nil || y.url.String() != x.url.String() {
			t.Fatalf("%s came back as %s", x.url, back)
		}
	})
}
