package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Jails are told apart by address, so each test jail has a loopback address.
const (
	jailA    = "127.0.0.2"
	jailB    = "127.0.0.3"
	stranger = "127.0.0.4"
)

// alone is a host that is part of no network but loopback.
func alone() *netguard.Networks { return netguard.NewNetworks(nil, nil) }

const patience = 10 * time.Second

// names is a resolver with fixed answers. A name with several answer sets gives
// the next one at each question, as a rebinding name server does.
type names struct {
	mu      sync.Mutex
	answers map[string][][]string
	asked   []string
	err     error
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	if n.err != nil {
		return nil, n.err
	}
	sets := n.answers[strings.TrimSuffix(host, ".")]
	if len(sets) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, Server: "10.0.0.53:53", IsNotFound: true}
	}
	if len(sets) > 1 {
		n.answers[strings.TrimSuffix(host, ".")] = sets[1:]
	}
	var addrs []netip.Addr
	for _, s := range sets[0] {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs, nil
}

func (n *names) questions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.asked...)
}

// fixture is a gateway with everything around it under the test's control. What
// it dials goes to the listener that stands for that address.
type fixture struct {
	t       *testing.T
	g       *Gateway
	addr    string
	names   *names
	logs    *testenv.Buffer
	stop    context.CancelFunc
	served  chan error
	recErr  atomic.Pointer[error]
	mu      sync.Mutex
	events  []string // "record …" and "dial …", in order
	records []Decision
	// outcomes are those of the records, nil for what has none yet.
	outcomes []*Outcome
	routes   map[netip.AddrPort]string
}

// book is the fixture's audit log.
type book fixture

// Begin implements Records.
func (b *book) Begin(_ context.Context, d Decision) (Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.recErr.Load(); p != nil {
		return nil, *p
	}
	b.note(d)
	return &entry{b, len(b.records) - 1}, nil
}

// Refused implements Records.
func (b *book) Refused(d Decision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(d)
}

func (b *book) note(d Decision) {
	b.records = append(b.records, d)
	b.outcomes = append(b.outcomes, nil)
	b.events = append(b.events, fmt.Sprintf("record %s:%d %v", d.Host, d.Port, d.Allowed))
}

// entry is one record of the book.
type entry struct {
	b *book
	n int
}

// End implements Record.
func (p *entry) End(o Outcome) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.b.outcomes[p.n] != nil {
		p.b.t.Errorf("record %d has two outcomes", p.n)
	}
	p.b.outcomes[p.n] = &o
}

type option func(*Config)

func withLimits(change func(*Limits)) option { return func(c *Config) { change(&c.Limits) } }

// private is a policy that leads a name to an address of the operator's network.
func private(host, address string, ports ...uint16) policy.Policy {
	return policy.Only(policy.Rule{Name: "private", Action: policy.Allow, Host: policy.MustParsePattern(host), Ports: policy.Ports(ports...),
		Address: netip.MustParseAddr(address)})
}

func newFixture(t *testing.T, options ...option) *fixture {
	t.Helper()
	ln := listenOn(t, "127.0.0.1:0")
	return newFixtureOn(t, ln, options...)
}

func newFixtureOn(t *testing.T, ln net.Listener, options ...option) *fixture {
	t.Helper()
	w := &fixture{t: t, names: &names{answers: map[string][][]string{}}, routes: map[netip.AddrPort]string{}, logs: &testenv.Buffer{}, addr: ln.Addr().String(), served: make(chan error, 1)}
	c := Config{
		Resolver: w.names,
		Logger:   slog.New(slog.NewJSONHandler(w.logs, nil)),
		Limits:   DefaultLimits(),
		Records:  (*book)(w),
		Networks: alone,
	}
	for _, o := range options {
		o(&c)
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	real := g.dial
	g.dial = func(ctx context.Context, target netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, error) {
		w.mu.Lock()
		w.events = append(w.events, "dial "+target.String())
		route, ok := w.routes[target]
		w.mu.Unlock()
		if !ok {
			return real(ctx, target, check)
		}
		if err := check(target); err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", route)
	}
	w.g = g
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	go func() { w.served <- g.Serve(ctx, ln) }()
	testenv.Eventually(t, patience, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.listeners) == 1 }, "the gateway does not serve")
	t.Cleanup(func() {
		cancel()
		if err := g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-w.served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n := g.buffers.lent.Load(); n != 0 {
			t.Errorf("%d buffers were not given back", n)
		}
	})
	return w
}

func listenOn(t *testing.T, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// needLoopbacks skips where 127.0.0.2 and its like are not loopback addresses.
func needLoopbacks(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", jailA+":0")
	if err != nil {
		testenv.Missing(t, "second loopback address "+jailA, "add it to the loopback interface")
	}
	ln.Close()
}

// admit lets an address in.
func (w *fixture) admit(addr string, p policy.Policy) {
	w.t.Helper()
	needLoopbacks(w.t)
	if err := w.g.Admit(netip.MustParseAddr(addr), Caller{Jail: "b" + addr, Session: "s" + addr, Policy: p}); err != nil {
		w.t.Fatal(err)
	}
}

// public gives a name a public address and has connections to it end at target.
func (w *fixture) public(name, address string, target net.Addr) {
	w.names.mu.Lock()
	w.names.answers[name] = [][]string{{address}}
	w.names.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, port := range []uint16{80, 443, 8080, 22} {
		w.routes[netip.AddrPortFrom(netip.MustParseAddr(address), port)] = target.String()
	}
}

func (w *fixture) happened() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.events...)
}

func (w *fixture) recorded() []Decision {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Decision(nil), w.records...)
}

// ended are the outcomes that are written.
func (w *fixture) ended() (all []Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.outcomes {
		if o != nil {
			all = append(all, *o)
		}
	}
	return all
}

// dial opens a raw connection to the gateway from a jail's address.
func (w *fixture) dial(from string) *net.TCPConn {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	c, err := d.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// client is an HTTP client in a jail, set up to use the gateway as its proxy.
func (w *fixture) client(from string) *http.Client {
	proxy := &url.URL{Scheme: "http", Host: w.addr}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	tr := &http.Transport{Proxy: http.ProxyURL(proxy), DialContext: d.DialContext, DisableCompression: true}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// raw sends bytes from a jail and reads one response.
func (w *fixture) raw(from, request string) (*http.Response, string) {
	w.t.Helper()
	c := w.dial(from)
	if _, err := io.WriteString(c, request); err != nil {
		w.t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("response to %.80q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(body)
}

// refusal checks that a response is a problem and returns its code and the rest.
func refusal(t *testing.T, resp *http.Response, body string) (string, map[string]any) {
	t.Helper()
	if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("status %s, content type %q: %s", resp.Status, ct, body)
	}
	var p map[string]any
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatal(err)
	}
	if p["hint"] == "" || p["detail"] == "" || p["status"] != float64(resp.StatusCode) {
		t.Errorf("incomplete problem: %s", body)
	}
	code, _ := p["code"].(string)
	if !strings.Contains(resp.Header.Get("Proxy-Status"), code) {
		t.Errorf("Proxy-Status %q does not name %q", resp.Header.Get("Proxy-Status"), code)
	}
	return code, p
}

// untouched is a listener that must not see a connection.
func untouched(t *testing.T) *net.TCPAddr {
	t.Helper()
	ln := listenOn(t, "127.0.0.1:0").(*net.TCPListener)
	var touched atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := ln.Accept(); err == nil {
			touched.Store(true)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
		if touched.Load() {
			t.Error("a listener that nobody may reach was reached")
		}
	})
	return ln.Addr().(*net.TCPAddr)
}

// web starts an HTTP server outside.
func web(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// always is a permit that does not change.
func always(p *policy.Compiled) func() *policy.Compiled { return func() *policy.Compiled { return p } }

func webOnly(host string, ports ...uint16) policy.Policy {
	return policy.Only(policy.Rule{Name: "test", Action: policy.Allow, Host: policy.MustParsePattern(host), Ports: policy.Ports(ports...)})
}
