package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// permit compiles a policy.
func permit(t testing.TB, p policy.Policy) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// leading is a permit that leads a name to a server of the test.
func leading(t testing.TB, name string, s net.Addr) (*policy.Compiled, string) {
	t.Helper()
	at := s.(*net.TCPAddr)
	return permit(t, private(name, "127.0.0.1", uint16(at.Port))), (&net.TCPAddr{IP: at.IP, Port: at.Port}).String()
}

func port(s net.Addr) string {
	_, p, _ := net.SplitHostPort(s.String())
	return p
}

func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func finish(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAnErrandIsRecordedBeforeItIsDialled(t *testing.T) {
	w := newFixture(t)
	var seen http.Header
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		seen.Set("Host", r.Host)
		w.Header().Set("Proxy-Status", "forged")
		w.Header().Set("Clawjail-Refusal", "forged")
		w.Header().Set("Connection", "X-Nominated")
		w.Header().Set("X-Nominated", "1")
		io.WriteString(w, "hello")
	})
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	r := request(t, "POST", "http://API.corp.:"+port(s.Listener.Addr())+"/a%20b?q=1", "body")
	r.Header.Set("Connection", "X-Drop, Authorization")
	r.Header.Set("X-Drop", "1")
	r.Header.Set("X-Forwarded-For", "1.1.1.1")
	r.Header.Set("Proxy-Authorization", "Bearer x")
	injected := false
	resp, refusal := w.g.Send(t.Context(), OutboundRequest{
		Caller: Caller{Agent: "one", Tenant: "default", Actor: "agent:one"}, Surface: SurfaceService, Permit: always(may), Service: "corp", Credential: true,
		Inject: func(r *http.Request) error {
			if n := len(w.recorded()); n != 1 {
				t.Errorf("the credential is put in with %d records", n)
			}
			injected = true
			r.Header.Set("Authorization", "Bearer secret")
			return nil
		},
	}, r)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if len(w.ended()) != 0 {
		t.Error("the record has ended while the answer is read")
	}
	if got := finish(t, resp); got != "hello" || !injected {
		t.Errorf("%q", got)
	}
	if seen.Get("Authorization") != "Bearer secret" || seen.Get("X-Drop") != "" || seen.Get("X-Forwarded-For") != "" || seen.Get("Proxy-Authorization") != "" {
		t.Errorf("the upstream saw %v", seen)
	}
	if !strings.HasPrefix(seen.Get("Host"), "api.corp:") {
		t.Errorf("host %q", seen.Get("Host"))
	}
	if resp.Header.Get("Proxy-Status") != "" || resp.Header.Get("Clawjail-Refusal") != "" || resp.Header.Get("X-Nominated") != "" {
		t.Errorf("the upstream speaks for the gateway: %v", resp.Header)
	}
	d := w.recorded()[0]
	if d.Agent != "one" || d.Service != "corp" || !d.Credential || d.Path != "/a%20b" || d.Rule != "private" || !d.Allowed || d.Surface != SurfaceService {
		t.Errorf("%+v", d)
	}
	outcomes := w.ended()
	if len(outcomes) != 1 || outcomes[0].Status != 200 || outcomes[0].Code != "" || outcomes[0].BytesIn == 0 || outcomes[0].BytesOut == 0 {
		t.Errorf("%+v", outcomes)
	}
	if strings.Contains(w.logs.String(), "secret") || strings.Contains(w.logs.String(), "q=1") {
		t.Errorf("the log has what it must not:\n%s", w.logs)
	}
}

func TestErrandsThatAreRefusedSendNothing(t *testing.T) {
	w := newFixture(t)
	victim := untouched(t)
	p := port(victim)
	w.names.answers["inside.example"] = [][]string{{"127.0.0.1"}}
	w.names.answers["mixed.example"] = [][]string{{"93.184.216.34", "10.0.0.1"}}
	all := policy.Rule{Name: "all", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.AnyPort()}
	literal := policy.Rule{Name: "literal", Action: policy.Allow, Host: policy.MustParsePattern("127.0.0.1"), Ports: policy.AnyPort()}
	metadata := policy.Rule{Name: "metadata", Action: policy.Allow, Host: policy.MustParsePattern("meta.example"), Ports: policy.Ports(80), Address: netip.MustParseAddr("169.254.169.254")}
	open := permit(t, policy.Only(metadata, all, literal))
	for _, c := range []struct {
		name, url string
		may       *policy.Compiled
		code      string
	}{
		{"no permit", "http://a.example/", nil, problem.HostDenied},
		{"another host", "http://a.example/", permit(t, webOnly("b.example", 80)), problem.HostDenied},
		{"an address", "http://127.0.0.1:" + p + "/", open, problem.AddressDenied},
		{"a private name", "http://inside.example:" + p + "/", open, problem.AddressDenied},
		{"one private answer", "https://mixed.example:" + p + "/", open, problem.AddressDenied},
		{"metadata, although a rule says so", "http://meta.example/", open, problem.AddressDenied},
		{"no name", "http://nowhere.example/", open, problem.DNSFailed},
		{"a user name", "http://a@b.example/", open, problem.BadHost},
		{"another scheme", "ftp://b.example/", open, problem.BadHost},
		{"a WebSocket", "ws://b.example/", open, problem.BadHost},
		{"no host", "http:///x", open, problem.BadHost},
	} {
		r := request(t, "GET", c.url, "")
		_, refusal := w.g.Send(t.Context(), OutboundRequest{Caller: Caller{Agent: "one"}, Surface: SurfaceExecute, Permit: always(c.may),
			Inject: func(*http.Request) error { t.Errorf("%s: the credential was put in", c.name); return nil }}, r)
		if refusal == nil || refusal.Code != c.code || refusal.Hint == "" {
			t.Errorf("%s: %v", c.name, refusal)
		}
	}
	for _, e := range w.happened() {
		if strings.HasPrefix(e, "dial ") {
			t.Error(e)
		}
	}
	full := errors.New("disk full")
	w.recErr.Store(&full)
	s := web(t, func(http.ResponseWriter, *http.Request) { t.Error("sent without a record") })
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	_, refusal := w.g.Send(t.Context(), OutboundRequest{Surface: SurfaceLLM, Permit: always(may)}, request(t, "GET", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
	if refusal == nil || refusal.Code != problem.AuditUnavailable {
		t.Errorf("%v", refusal)
	}
}

func TestAnErrandSpeaksTLSWithTrustedServersOnly(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.ServerName) }))
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for name, c := range map[string]struct {
		config func(*Config)
		code   string
	}{
		"trusted":     {func(c *Config) { c.Roots = roots }, ""},
		"not trusted": {func(*Config) {}, problem.UpstreamFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, c.config)
			may, _ := leading(t, "example.com", s.Listener.Addr()) // a name of the test certificate
			resp, refusal := w.g.Send(t.Context(), OutboundRequest{Surface: SurfaceService, Permit: always(may),
				Inject: func(*http.Request) error {
					if c.code != "" {
						t.Error("the credential was put in for a server that is not trusted")
					}
					return nil
				}}, request(t, "GET", "https://example.com:"+port(s.Listener.Addr())+"/", ""))
			if c.code != "" {
				if refusal == nil || refusal.Code != c.code {
					t.Fatalf("%v", refusal)
				}
				return
			}
			if refusal != nil {
				t.Fatal(refusal)
			}
			if got := finish(t, resp); got != "example.com" {
				t.Errorf("server name %q", got)
			}
		})
	}
}

// jailed is a context as a request from a jail has it.
func (w *fixture) jailed(addr string) context.Context {
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	who := w.g.callers[netip.MustParseAddr(addr)]
	return context.WithValue(WithCaller(w.t.Context(), who.Caller), jailKey{}, who)
}

func TestErrandsUseConnectionsAgainWithARecordEach(t *testing.T) {
	w := newFixture(t)
	var connections atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	w.admitAgent(jailA, "one", policy.Only())
	for n := range 3 {
		resp, refusal := w.g.Send(w.jailed(jailA), OutboundRequest{Caller: Caller{Agent: "one", Jail: "a" + jailA}, Surface: SurfaceLLM, Permit: always(may)},
			request(t, "POST", "http://api.corp:"+port(s.Listener.Addr())+"/", "x"))
		if refusal != nil {
			t.Fatal(n, refusal)
		}
		finish(t, resp)
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if n, m := len(w.recorded()), len(w.ended()); n != 3 || m != 3 {
		t.Errorf("%d intents, %d outcomes", n, m)
	}
	// The server closes what waits; the next request finds out, and gets through with a record of its own.
	s.CloseClientConnections()
	resp, refusal := w.g.Send(w.jailed(jailA), OutboundRequest{Caller: Caller{Agent: "one", Jail: "a" + jailA}, Surface: SurfaceLLM, Permit: always(may)},
		request(t, "GET", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
	if refusal != nil {
		t.Fatal(refusal)
	}
	finish(t, resp)
	// An agent outside of all jails keeps nothing.
	before := connections.Load()
	for range 2 {
		resp, refusal := w.g.Send(t.Context(), OutboundRequest{Caller: Caller{Agent: "two"}, Surface: SurfaceLLM, Permit: always(may)},
			request(t, "GET", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
		if refusal != nil {
			t.Fatal(refusal)
		}
		finish(t, resp)
	}
	if n := connections.Load() - before; n != 2 {
		t.Errorf("%d connections of an agent outside", n)
	}
}

// TestRequestsSeenAreNeverMoreThanIntents has a server that takes requests and answers none.
func TestRequestsSeenAreNeverMoreThanIntents(t *testing.T) {
	w := newFixture(t)
	var seen atomic.Int64
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1)%2 == 0 {
			panic(http.ErrAbortHandler) // the connection breaks off when it is used again
		}
	})
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	w.admitAgent(jailA, "one", policy.Only())
	for range 10 {
		resp, refusal := w.g.Send(w.jailed(jailA), OutboundRequest{Caller: Caller{Agent: "one", Jail: "a" + jailA}, Surface: SurfaceLLM, Permit: always(may)},
			request(t, "GET", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
		if refusal == nil {
			finish(t, resp)
		}
	}
	// Ten that came first, and at least one that was sent again over a new connection.
	if n := int64(len(w.recorded())); n < seen.Load() || seen.Load() <= 10 {
		t.Errorf("the server saw %d requests, and %d are on record", seen.Load(), n)
	}
}

func TestErrandsEndWhenTheyAreLateOrSilent(t *testing.T) {
	var release chan struct{}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		errand OutboundRequest
		code   string // of a refusal; otherwise the body breaks off
	}{
		"no header": {func(http.ResponseWriter, *http.Request) { <-release }, OutboundRequest{HeaderTimeout: 200 * time.Millisecond}, problem.Timeout},
		"silence": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "begin")
			http.NewResponseController(w).Flush()
			<-release
		}, OutboundRequest{IdleTimeout: 500 * time.Millisecond}, ""},
		"age": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				io.WriteString(w, "more")
				http.NewResponseController(w).Flush()
				select {
				case <-release:
					return
				case <-r.Context().Done():
				case <-time.After(time.Millisecond):
				}
			}
		}, OutboundRequest{Lifetime: time.Second}, ""}, // in which its header comes
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			release = make(chan struct{})
			s := web(t, c.serve)
			t.Cleanup(func() { close(release) }) // before the server is closed
			may, _ := leading(t, "api.corp", s.Listener.Addr())
			c.errand.Permit, c.errand.Surface = always(may), SurfaceLLM
			resp, refusal := w.g.Send(t.Context(), c.errand, request(t, "GET", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
			if c.code != "" {
				if refusal == nil || refusal.Code != c.code {
					t.Fatalf("%v", refusal)
				}
				if o := w.ended(); len(o) != 1 || o[0].Code != c.code {
					t.Errorf("%+v", o)
				}
				return
			}
			if refusal != nil {
				t.Fatal(refusal)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Error("the answer ends as if it were whole")
			}
			resp.Body.Close()
		})
	}
}
