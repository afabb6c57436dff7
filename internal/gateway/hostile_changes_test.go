package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
)

// changing is a policy that operators change while the gateway runs.
func changing(t *testing.T, first policy.Policy) (o option, change func(policy.Policy)) {
	t.Helper()
	var now atomic.Pointer[policy.Compiled]
	change = func(p policy.Policy) {
		t.Helper()
		c, err := policy.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		now.Store(c)
	}
	change(first)
	return func(c *Config) { c.Policy = func(Caller) *policy.Compiled { return now.Load() } }, change
}

func denied(host string) policy.Rule {
	// Names are unique in a policy.
	return policy.Rule{Name: "added-later-" + host, Action: policy.Deny, Host: policy.MustParsePattern(host), Ports: policy.AnyPort()}
}

// A rule that denies counts for the next request of open connections, and cuts tunnels that carry TLS, in which the gateway does not see
// requests. Connections to other hosts go on.
func TestRegressionARuleTakesEffectOnWhatRuns(t *testing.T) {
	o, change := changing(t, policy.PublicWeb())
	w := newFixture(t, o, withLimits(func(l *Limits) { l.FirstBytesTimeout = time.Second }))
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	echoes := server(t, echo)
	w.public("tunnel.example", "93.184.216.36", echoes.Addr())
	w.public("other.example", "93.184.216.37", echoes.Addr())
	w.admit(jailA, policy.Only())
	get := "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"
	inner := "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"

	ask := func(c io.Writer, from *bufio.Reader, request string) (int, string, error) {
		if _, err := io.WriteString(c, request); err != nil {
			return 0, "", err
		}
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			return 0, "", err
		}
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text), err
	}
	kept := w.dial(jailA)
	fromKept := bufio.NewReader(kept)
	tunnel, fromTunnel := w.connect(jailA, "example.com:80")
	cut, fromCut := w.connect(jailA, "tunnel.example:443")
	stays, fromStays := w.connect(jailA, "other.example:443")
	unused, fromUnused := w.connect(jailA, "tunnel.example:443")
	carries := func(c io.Writer, from *bufio.Reader, name string) error {
		hello := clientHello(t, name)
		if _, err := c.Write(hello); err != nil {
			return err
		}
		_, err := io.ReadFull(from, make([]byte, len(hello)))
		return err
	}
	if code, text, err := ask(kept, fromKept, get); code != 200 {
		t.Fatal(code, text, err)
	}
	if code, text, err := ask(tunnel, fromTunnel, inner); code != 200 {
		t.Fatal(code, text, err)
	}
	if err := errors.Join(carries(cut, fromCut, "tunnel.example"), carries(stays, fromStays, "other.example")); err != nil {
		t.Fatal(err)
	}

	change(policy.PublicWeb(denied("example.com"), denied("tunnel.example")))
	for name, try := range map[string]func() (int, string, error){
		"a kept connection": func() (int, string, error) { return ask(kept, fromKept, get) },
		"a new tunnel": func() (int, string, error) {
			resp, text := w.raw(jailA, "CONNECT tunnel.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
			return resp.StatusCode, text, nil
		},
	} {
		if code, text, err := try(); code != 403 || !strings.Contains(text, "added-later") {
			t.Errorf("%s: %d %s %v", name, code, text, err)
		}
	}
	if code, text, err := ask(tunnel, fromTunnel, inner); err == nil && code != 403 {
		t.Errorf("within a tunnel: %d %s", code, text)
	}
	for name, from := range map[string]*bufio.Reader{"a tunnel that carries TLS": fromCut, "a tunnel that carries nothing yet": fromUnused} {
		if n, err := io.Copy(io.Discard, from); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s stays: %d bytes, %v", name, n, err)
		}
	}
	if err := carries(unused, fromUnused, "tunnel.example"); err == nil {
		t.Error("the tunnel that was not used carries something")
	}
	if err := carries(stays, fromStays, "other.example"); err != nil {
		t.Errorf("another tunnel: %v", err)
	}
	change(policy.PublicWeb())
	if code, text, err := ask(kept, fromKept, get); code != 200 {
		t.Errorf("without the rule: %d %s %v", code, text, err)
	}
}

// Isolation that is silently not applied has been the most frequent failure of such programs. A part that is missing here is
// either an error at the start, or denies.
func TestRegressionWhatIsMissingDenies(t *testing.T) {
	complete := func() Config { return Config{Records: (*book)(&fixture{}), Networks: alone, Limits: DefaultLimits()} }
	if g, err := New(complete()); err != nil {
		t.Fatal(err)
	} else if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	for name, breaks := range map[string]func(*Config){
		"no records":      func(c *Config) { c.Records = nil },
		"no networks":     func(c *Config) { c.Networks = nil },
		"no limits":       func(c *Config) { c.Limits = Limits{} },
		"no lifetime":     func(c *Config) { c.Limits.Lifetime = 0 },
		"negative limits": func(c *Config) { c.Limits.ConnectionsPerCaller = -1 },
		"a broken guard":  func(c *Config) { c.Guard.Self = []netip.AddrPort{{}} },
	} {
		c := complete()
		breaks(&c)
		if g, err := New(c); err == nil {
			t.Errorf("%s: there is a gateway", name)
			_ = g.Close()
		}
	}
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	for name, test := range map[string]struct {
		change option
		header string
		code   string
		status int
	}{
		"all is there":                  {func(*Config) {}, "", "", 404},
		"nobody knows the networks":     {func(c *Config) { c.Networks = func() *netguard.Networks { return nil } }, "", problem.AddressDenied, 403},
		"nobody knows the policy":       {func(c *Config) { c.Policy = func(Caller) *policy.Compiled { return nil } }, "", problem.HostDenied, 403},
		"an empty policy":               {func(c *Config) { c.Policy = func(Caller) *policy.Compiled { return new(policy.Compiled) } }, "", problem.HostDenied, 403},
		"nobody knows the rates":        {func(c *Config) { c.Rates = func(Caller) Rates { return Rates{} } }, "", problem.RateLimited, 429},
		"nobody knows tokens":           {func(*Config) {}, "Proxy-Authorization: Bearer x\r\n", problem.TokenMismatch, 407},
		"the log cannot be written":     {func(c *Config) { c.Records = full{} }, "", problem.AuditUnavailable, 503},
		"the rule has been used up":     {func(c *Config) { c.Used = func(context.Context, string) (bool, bool) { return false, false } }, "", problem.HostDenied, 403},
		"the name server does not work": {func(c *Config) { c.Resolver = &names{err: errors.New("no answer")} }, "", problem.DNSFailed, 502},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, test.change)
			w.public("example.com", "93.184.216.34", s.Listener.Addr())
			w.admit(jailA, policy.PublicWeb())
			for _, request := range []string{"GET http://example.com/ HTTP/1.1\r\nHost: x\r\n" + test.header + "\r\n", "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n" + test.header + "\r\n"} {
				c := w.dial(jailA)
				fmt.Fprint(c, request)
				method, _, _ := strings.Cut(request, " ")
				resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
				if test.code == "" && method == http.MethodConnect {
					if resp.StatusCode != 200 {
						t.Errorf("%s: %s", request, resp.Status)
					}
					continue
				}
				if resp.Header.Get("Clawjail-Refusal") != test.code || resp.StatusCode != test.status {
					t.Errorf("%.20q: %s %q", request, resp.Status, resp.Header)
				}
			}
			for _, event := range w.happened() {
				if test.code != "" && strings.HasPrefix(event, "dial") {
					t.Errorf("%s", event)
				}
			}
		})
	}
}

// full is a log that cannot be written.
type full struct{}

func (full) Begin(context.Context, Decision) (Record, error) { return nil, errors.New("disk full") }
func (full) Refused(Decision)                                {}

// Report mode is for rules: addresses, schemes and spellings are enforced all the same.
func TestRegressionReportModeOpensNothingInside(t *testing.T) {
	report := policy.Only()
	report.Mode = policy.Report
	w := newFixture(t)
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.names.answers["inside.example"] = [][]string{{"10.0.0.1"}}
	w.admit(jailA, report)
	if resp, _ := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 200 {
		t.Errorf("in report mode: %s", resp.Status)
	}
	before := len(w.happened())
	for _, request := range []string{
		"GET http://inside.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT inside.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://169.254.169.254/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://127.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET https://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		if resp, text := w.raw(jailA, request); resp.StatusCode < 400 {
			t.Errorf("%q: %s %s", request, resp.Status, text)
		}
	}
	for _, event := range w.happened()[before:] {
		if strings.HasPrefix(event, "dial") {
			t.Error(event)
		}
	}
}

// Trailers of answers to what the gateway sends by itself are no more believed than those that it forwards.
func TestTrailersOfErrandsAreNotTheGateways(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Clawjail-Refusal, X-Fine\r\n\r\n2\r\nok\r\n0\r\n"+
		"Clawjail-Refusal: host_denied\r\nProxy-Status: x\r\nTransfer-Encoding: gzip\r\nX-Fine: 1\r\n\r\n", headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	permit, err := policy.Compile(policy.PublicWeb())
	if err != nil {
		t.Fatal(err)
	}
	for _, whole := range []bool{true, false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, refusal := w.g.Send(t.Context(), OutboundRequest{Caller: Caller{Jail: "j", Agent: "a"}, Surface: SurfaceExecute, Permit: always(permit)}, r)
		if refusal != nil {
			t.Fatal(refusal)
		}
		if _, announced := resp.Trailer["Clawjail-Refusal"]; announced {
			t.Error("it is announced")
		}
		if whole {
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "ok" || resp.Trailer.Get("X-Fine") != "1" {
				t.Errorf("%q %v %v", text, err, resp.Trailer)
			}
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		for name := range resp.Trailer {
			if name != "X-Fine" {
				t.Errorf("%s came through", name)
			}
		}
	}
}

// Of a URL without a path the host sees "/", and so that is what rules about paths and the records are about.
func TestAURLWithoutAPathHasTheRootPath(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.Only(policy.Rule{Name: "root", Action: policy.Allow, Host: policy.MustParsePattern("example.com"), Ports: policy.Ports(80), Path: policy.MustParsePath("/")}))
	for _, target := range []string{"http://example.com", "http://example.com?q", "http://example.com/"} {
		if resp, text := w.raw(jailA, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 200 {
			t.Errorf("%s: %s %s", target, resp.Status, text)
		}
	}
	for _, d := range w.recorded() {
		if d.Path != "/" {
			t.Errorf("the record has the path %q", d.Path)
		}
	}
	if resp, _ := w.raw(jailA, "GET http://example.com/x HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 403 {
		t.Errorf("another path: %s", resp.Status)
	}
}
