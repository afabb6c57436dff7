package access_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chromium is what a browser calls itself.
const chromium = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"

func TestAdmit(t *testing.T) {
	agent := gateway.Caller{Jail: "j", Tenant: "t", Agent: "a"}
	for _, test := range []struct {
		name   string
		caller gateway.Caller
		header http.Header
		code   string
	}{
		{"a program", agent, nil, ""},
		{"a page of this server", agent, http.Header{"Origin": {"http://gateway:3000"}, "Sec-Fetch-Site": {"same-origin"}}, ""},
		{"the address bar", agent, http.Header{"Sec-Fetch-Site": {"none"}}, ""},
		{"nobody", gateway.Caller{}, nil, problem.Unauthorized},
		{"the jail of a session", gateway.Caller{Jail: "j", Session: "s", Opener: "a"}, nil, problem.Unauthorized},
		{"another site", agent, http.Header{"Sec-Fetch-Site": {"cross-site"}}, problem.Forbidden},
		{"the same site", agent, http.Header{"Sec-Fetch-Site": {"same-site"}}, problem.Forbidden},
		{"two sites", agent, http.Header{"Sec-Fetch-Site": {"none", "cross-site"}}, problem.Forbidden},
		{"another origin", agent, http.Header{"Origin": {"http://evil.example"}}, problem.Forbidden},
		{"another port", agent, http.Header{"Origin": {"http://gateway:8000"}}, problem.Forbidden},
		{"a sandboxed page", agent, http.Header{"Origin": {"null"}}, problem.Forbidden},
		{"two origins", agent, http.Header{"Origin": {"http://gateway:3000", "http://evil.example"}}, problem.Forbidden},
		{"an origin of another scheme", agent, http.Header{"Origin": {"file://gateway:3000"}}, problem.Forbidden},
		// As browsers ask an address without TLS for a picture, for a document, and for a picture without saying from where.
		{"GET a picture of a page", agent, http.Header{"Referer": {"http://evil.example/"}, "User-Agent": {"x"}}, problem.Forbidden},
		{"GET a document", agent, http.Header{"Upgrade-Insecure-Requests": {"1"}, "User-Agent": {"x"}}, problem.Forbidden},
		{"GET a hidden picture", agent, http.Header{"User-Agent": {chromium}}, problem.Forbidden},
		{"HEAD a hidden picture", agent, http.Header{"User-Agent": {chromium}}, problem.Forbidden},
		{"GET a hidden picture with Firefox", agent, http.Header{"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}}, problem.Forbidden},
		{"GET with a token", gateway.Caller{Tenant: "t", Agent: "a"}, http.Header{"User-Agent": {chromium}}, ""},
		{"GET with curl", agent, http.Header{"User-Agent": {"curl/8.5.0"}, "Accept": {"*/*"}}, ""},
		{"GET with fetch of Node", agent, http.Header{"User-Agent": {"node"}, "Accept-Language": {"*"}, "Sec-Fetch-Mode": {"cors"}}, ""},
		{"GET with PowerShell", agent, http.Header{"User-Agent": {"Mozilla/5.0 (Windows NT 10.0; en-US) PowerShell/7.4"}}, ""},
		{"GET from here", agent, http.Header{"Referer": {"http://gateway:3000/svc/a/"}, "User-Agent": {"our-client/1"}}, ""},
		{"a message of a program like a browser", agent, http.Header{"User-Agent": {chromium}}, ""},
	} {
		method := http.MethodPost
		if verb, _, said := strings.Cut(test.name, " "); said && (verb == http.MethodGet || verb == http.MethodHead) {
			method = verb
		}
		r := httptest.NewRequest(method, "http://gateway:3000/", nil)
		r = r.WithContext(gateway.WithCaller(r.Context(), test.caller))
		if test.header != nil {
			r.Header = test.header
		}
		c, refusal := access.Admit(r)
		if code := codeOf(refusal); code != test.code || code == "" && c.Agent != "a" {
			t.Errorf("%s: %q %+v", test.name, code, c)
		}
	}
}

func codeOf(p *problem.Error) string {
	if p == nil {
		return ""
	}
	return p.Code
}

func TestErrorsOfTheVaultBecomeRefusals(t *testing.T) {
	w := accesstest.New(t)
	how := egress.Injection{Type: egress.InjectBearer}
	for name, test := range map[string]struct {
		err  error
		code string
	}{
		"not there": {problem.New(problem.NotFound, "", "no"), problem.CredentialMissing}, "damaged": {problem.New(problem.VaultRowDamaged, "", "no"), problem.VaultRowDamaged},
		"anything": {errors.New("disk on fire"), problem.Internal}, "late": {context.DeadlineExceeded, problem.Timeout},
	} {
		o := w.Options()
		o.Secrets = failing{test.err}
		c := access.NewCredential(o, w.Caller, "svc", how)
		r := httptest.NewRequest(http.MethodGet, "http://api.example/", nil)
		p, ok := problem.As(c.Into(t.Context())(r))
		if !ok || p.Code != test.code || c.Failure() == nil || c.Failure().Code != test.code || strings.Contains(p.Message, "fire") || r.Header.Get("Authorization") != "" {
			t.Errorf("%s: %v", name, p)
		}
	}
	if len(w.Used()) != 0 {
		t.Error("a secret that was not used is said to be")
	}
}

type failing struct{ err error }

func (f failing) UseSecret(context.Context, vault.SecretName, vault.Destination, func(secret.Value) error) error {
	return f.err
}

func TestValuesOfAllHopsAreRemembered(t *testing.T) {
	w := accesstest.New(t)
	c := access.NewCredential(w.Options(), w.Caller, "svc", egress.Injection{Type: egress.InjectBearer})
	for _, value := range []string{"first-value", "second-value", "second-value"} {
		w.Secret("svc", value)
		if err := c.Into(t.Context())(httptest.NewRequest(http.MethodGet, "http://api.example/", nil)); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.Values().Text("first-value, second-value"); got != "[redacted], [redacted]" {
		t.Error(got)
	}
	if access.NewCredential(w.Options(), w.Caller, "svc", egress.Injection{Type: egress.InjectNone}).Into(t.Context()) != nil {
		t.Error("none is injected")
	}
}

// past is a clock by which every deadline is over.
func past() time.Time { return time.Now().Add(-2 * access.Patience) }

func TestSilentClientsAreNotWaitedFor(t *testing.T) {
	result := make(chan error, 1)
	clock := past
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, done := access.Patient(w, r, clock)
		defer done()
		switch r.URL.Path {
		case "/read":
			_, err := io.ReadAll(r.Body)
			result <- err
		case "/write":
			// The server reads what is left of the body, in vain, then writes.
			_, err := out.Write([]byte("x"))
			result <- errors.Join(err, http.NewResponseController(out).Flush())
		}
	}))
	defer s.Close()
	for _, path := range []string{"/read", "/write"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		// The body that is announced never comes.
		if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", path, err)
		}
		c.Close()
	}
}

func TestAConnectionIsAsBeforeAfterwards(t *testing.T) {
	// Deadlines that the first request leaves behind would end the second one.
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			control := http.NewResponseController(w)
			_, done := access.Patient(w, r, time.Now)
			_ = control.SetWriteDeadline(past())
			done()
			return
		}
		_, _ = io.WriteString(w, "second")
	}))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reader := bufio.NewReader(c)
	for _, path := range []string{"/first", "/second"} {
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || path == "/second" && string(body) != "second" {
			t.Errorf("%s: %q %v", path, body, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, text := range []string{
		"http://api.example/a?b=c d#e", "https://[::1]:8443/", "HTTP://API.example.:80", "http://аpi.example/%2e", "http://a@b/", "http://a/%", "http:a", "http://①②⑦.0.0.1/", "http://h/a;b?c;d", "http://h//", "//h/x", "http://h?é",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, refusal := access.Target(text)
		if refusal != nil {
			return
		}
		to, err := hostport.FromURL(u)
		if err != nil || u.Host != to.HostHeader(u.Scheme) || policy.Ambiguous(u.EscapedPath()) || u.User != nil || u.Fragment != "" {
			t.Fatalf("%q: %s %v", text, u, err)
		}
		if strings.ContainsFunc(u.RequestURI(), func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			t.Fatalf("%q: %q may not stand in a request line", text, u.RequestURI())
		}
		again, refusal := access.Target(u.String())
		if refusal != nil || again.String() != u.String() || !access.SameOrigin(u, again) {
			t.Fatalf("%q: %s is not the same when it is read again: %v", text, u, refusal)
		}
		if std, err := url.Parse(u.String()); err != nil || std.Host != u.Host || std.EscapedPath() != u.EscapedPath() {
			t.Fatalf("%q: %s is another URL to other readers", text, u)
		}
	})
}
