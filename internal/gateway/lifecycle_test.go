package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/testenv"
)

// closedSoon fails unless the connection ends without a byte.
func closedSoon(t *testing.T, what string, r io.Reader) {
	t.Helper()
	if n, err := r.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("%s is still open", what)
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Errorf("%s is still open after %s", what, patience)
	}
}

func TestForgetClosesEverythingOfThatAddressAndNothingElse(t *testing.T) {
	w := newFixture(t)
	w.public("tunnel.example", "93.184.216.1", server(t, echo).Addr())
	began, finish := make(chan struct{}, 10), make(chan struct{})
	s := web(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			began <- struct{}{}
			select {
			case <-finish:
			case <-r.Context().Done():
			}
		}
	})
	defer close(finish)
	w.public("web.example", "93.184.216.2", s.Listener.Addr())
	p := policy.PublicWeb(policy.Rule{Name: "raw", Action: policy.Allow, Host: policy.MustParsePattern("tunnel.example"), Ports: policy.Ports(443), Opaque: true})
	w.admit(jailA, p)
	w.admit(jailB, p)

	_, tunnel := w.connect(jailA, "tunnel.example:443")
	undecidedTunnel, _ := w.connect(jailA, "web.example:443")
	innerTunnel, innerReader := w.connect(jailA, "web.example:80")
	io.WriteString(innerTunnel, "GET / HTTP/1.1\r\nHost: web.example\r\n\r\n")
	if _, err := http.ReadResponse(innerReader, nil); err != nil {
		t.Fatal(err)
	}
	idle := w.dial(jailA)
	io.WriteString(idle, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
	idleReader := bufio.NewReader(idle)
	if resp, err := http.ReadResponse(idleReader, nil); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	busy := w.dial(jailA)
	io.WriteString(busy, "GET http://web.example/wait HTTP/1.1\r\nHost: web.example\r\n\r\n")
	<-began
	fresh := w.dial(jailA)
	neighbour, neighbourReader := w.connect(jailB, "tunnel.example:443")

	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]io.Reader{
		"tunnel": tunnel, "tunnel without first bytes": undecidedTunnel, "plain HTTP in a tunnel": innerReader,
		"idle connection": idleReader, "request under way": busy, "unused connection": fresh,
	} {
		closedSoon(t, what, r)
	}
	io.WriteString(neighbour, "x")
	if b, err := neighbourReader.ReadByte(); err != nil || b != 'x' {
		t.Errorf("the neighbour's tunnel: %v", err)
	}
	if _, ok := w.g.Activity(mustAddr(jailA)); ok {
		t.Error("a forgotten address has activity")
	}
	resp, _ := w.raw(jailA, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
	if resp.StatusCode != 403 {
		t.Errorf("after Forget: %s", resp.Status)
	}
	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestForgetOfAnEarlierJailLeavesTheOneThatHasItsAddress(t *testing.T) {
	w := newFixture(t)
	w.admit(jailA, policy.PublicWeb())
	for _, c := range []struct {
		jail  string
		stays bool
	}{{"earlier", true}, {"b" + jailA, false}} {
		if err := w.g.Forget(mustAddr(jailA), c.jail); err != nil {
			t.Fatal(err)
		}
		if _, admitted := w.g.Activity(mustAddr(jailA)); admitted != c.stays {
			t.Errorf("after %s is forgotten the one that is there is admitted: %v", c.jail, admitted)
		}
	}
}

func TestAReusedAddressInheritsNothing(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("a.example", "93.184.216.1", s.Listener.Addr())
	w.admit(jailA, webOnly("a.example", 80))
	old := w.dial(jailA)
	io.WriteString(old, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
	oldReader := bufio.NewReader(old)
	if resp, err := http.ReadResponse(oldReader, nil); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	if err := w.g.Admit(mustAddr(jailA), Caller{Jail: "x", Policy: policy.PublicWeb()}); !errors.Is(err, ErrAdmitted) {
		t.Errorf("admitted twice: %v", err)
	}
	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	w.admit(jailA, webOnly("b.example", 80))
	io.WriteString(old, "GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n")
	closedSoon(t, "the old jail's connection", oldReader)
	resp, _ := w.raw(jailA, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
	if resp.StatusCode != 403 {
		t.Errorf("the old jail's policy still applies: %s", resp.Status)
	}
	a, ok := w.g.Activity(mustAddr(jailA))
	if !ok || a.Requests != 1 || a.BytesIn != 0 || a.BytesOut != 0 {
		t.Errorf("%+v", a)
	}
}

// gatedListener accepts only while its gate is open.
type gatedListener struct {
	net.Listener
	gate chan struct{}
}

func (g *gatedListener) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err == nil {
		<-g.gate
	}
	return c, err
}

// A busy machine may leave a dead jail's connection in the kernel's queue; it
// must not come out as the next jail's.
func TestForgetWaitsForConnectionsThatAreNotYetAccepted(t *testing.T) {
	needLoopbacks(t)
	gate := make(chan struct{})
	w := newFixtureOn(t, &gatedListener{listenOn(t, "127.0.0.1:0"), gate})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	w.public("example.com", "93.184.216.34", untouched(t))
	w.admit(jailA, policy.PublicWeb())
	var queued []*net.TCPConn
	for range 3 {
		c := w.dial(jailA)
		io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
		queued = append(queued, c, w.dial(jailA)) // the second one says nothing
	}
	forgotten := make(chan error, 1)
	go func() { forgotten <- w.g.Forget(mustAddr(jailA), "") }()
	// While the queue stands, the address is not free.
	testenv.Eventually(t, patience, func() bool { _, ok := w.g.Activity(mustAddr(jailA)); return !ok }, "Forget did not begin")
	select {
	case err := <-forgotten:
		t.Fatalf("Forget returned (%v) with connections in the queue", err)
	default:
	}
	if err := w.g.Admit(mustAddr(jailA), Caller{Jail: "next", Policy: policy.PublicWeb()}); !errors.Is(err, ErrAdmitted) {
		t.Fatalf("admitted with connections in the queue: %v", err)
	}
	open()
	if err := <-forgotten; err != nil {
		t.Fatal(err)
	}
	w.admit(jailA, policy.PublicWeb())
	for _, c := range queued {
		closedSoon(t, "a queued connection", c)
	}
	if a, _ := w.g.Activity(mustAddr(jailA)); a.Requests != 0 {
		t.Errorf("the next jail has %d requests that it did not make", a.Requests)
	}
}

func TestForgetEndsRequestsBeforeTheyAreDialledAndWaitsForThem(t *testing.T) {
	for _, request := range []string{
		"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		// The body is owed: the server does not notice that the client has gone.
		"POST http://example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
	} {
		asked, ended, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
		w := newFixture(t, func(c *Config) {
			c.Limits.ResolveTimeout = time.Hour
			c.Resolver = resolverFunc(func(ctx context.Context) ([]netip.Addr, error) {
				close(asked)
				<-ctx.Done()
				close(ended)
				<-release
				return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
			})
		})
		w.public("example.com", "93.184.216.34", untouched(t))
		w.admit(jailA, policy.PublicWeb())
		c := w.dial(jailA)
		io.WriteString(c, request)
		<-asked
		forgotten := make(chan error, 1)
		go func() { forgotten <- w.g.Forget(mustAddr(jailA), "") }()
		select {
		case <-ended:
		case <-time.After(patience):
			close(release)
			t.Fatalf("%.20q goes on after Forget", request)
		}
		// Long enough for a Forget that waits for nothing to return.
		for range 5 {
			w.admit(jailB, policy.PublicWeb())
			if err := w.g.Forget(mustAddr(jailB), ""); err != nil {
				t.Error(err)
			}
		}
		select {
		case err := <-forgotten:
			t.Errorf("%.20q is still at work and Forget has returned: %v", request, err)
			forgotten <- err
		default:
		}
		close(release)
		if err := <-forgotten; err != nil {
			t.Fatal(err)
		}
		closedSoon(t, "the request", c)
	}
}

type resolverFunc func(context.Context) ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	return f(ctx)
}

func TestAConnectionMadeBeforeAdmissionStaysAStranger(t *testing.T) {
	w := newFixture(t)
	needLoopbacks(t)
	early := w.dial(jailA)
	w.raw(jailA, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") // the accept loop has passed early
	w.admit(jailA, policy.PublicWeb())
	io.WriteString(early, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(early), nil); err != nil || resp.StatusCode != 403 {
		t.Errorf("%v %v", resp, err)
	}
	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	silent := w.dial(jailA)
	w.raw(jailA, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") // the accept loop has passed silent
	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	closedSoon(t, "a stranger's connection from a forgotten address", silent)
}

func TestStrangersCannotHoldManyConnections(t *testing.T) {
	w := newFixture(t)
	needLoopbacks(t)
	for range maxUnadmitted {
		w.dial(stranger)
	}
	closedSoon(t, "one stranger too many", w.dial(stranger))
	// While Forget looks for its own connection, that one is not kept out.
	w.g.mu.Lock()
	var l *listener
	for l = range w.g.listeners {
	}
	w.g.mu.Unlock()
	l.mu.Lock()
	l.draining++
	l.mu.Unlock()
	w.dial(stranger)
	testenv.Eventually(t, patience, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.unknown == maxUnadmitted+1 }, "Forget's connection is kept out")
}

func TestAdmitRefusesWhatCannotBeAJail(t *testing.T) {
	w := newFixture(t)
	good := Caller{Jail: "b1", Policy: policy.PublicWeb()}
	for _, a := range []netip.Addr{{}, netip.IPv4Unspecified(), mustAddr("224.0.0.1"), mustAddr("fe80::1%eth0")} {
		if err := w.g.Admit(a, good); err == nil {
			t.Errorf("%s admitted", a)
		}
	}
	if err := w.g.Admit(mustAddr(jailA), Caller{}); err == nil || !strings.Contains(err.Error(), "no name") || !strings.Contains(err.Error(), "default action") {
		t.Errorf("empty caller: %v", err)
	}
	if err := w.g.Admit(mustAddr("::ffff:"+jailA), good); err != nil {
		t.Error(err)
	}
	if _, ok := w.g.Activity(mustAddr(jailA)); !ok {
		t.Error("a mapped address is another address")
	}
	good.Policy.Rules[0].Action = policy.Deny // the caller's own copy
	if err := w.g.Close(); err != nil {
		t.Error(err)
	}
	if err := w.g.Admit(mustAddr(jailB), Caller{Jail: "b2", Policy: policy.PublicWeb()}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestThePolicyCannotBeChangedAfterAdmission(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("a.example", "93.184.216.1", s.Listener.Addr())
	p := webOnly("b.example", 80)
	w.admit(jailA, p)
	p.Rules[0].Host = policy.AnyHost()
	if resp, _ := w.raw(jailA, "GET http://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 403 {
		t.Error(resp.Status)
	}
}

func TestActivityFollowsTheBytes(t *testing.T) {
	var mu sync.Mutex
	clock := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { mu.Lock(); defer mu.Unlock(); return clock }
	forward := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); clock = clock.Add(d) }
	w := newFixture(t, func(c *Config) { c.Now = now })
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	start := now()
	if a, ok := w.g.Activity(mustAddr(jailA)); !ok || !a.Last.Equal(start) {
		t.Errorf("%+v %v", a, ok)
	}
	forward(time.Second)
	c, br := w.connect(jailA, "example.com:443")
	if a, _ := w.g.Activity(mustAddr(jailA)); !a.Last.Equal(start.Add(time.Second)) || a.Requests != 1 || a.Open != 1 {
		t.Errorf("after a request: %+v", a)
	}
	forward(time.Second)
	io.WriteString(c, "abc")
	if _, err := br.ReadByte(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		a, _ := w.g.Activity(mustAddr(jailA))
		return a.Last.Equal(start.Add(2*time.Second)) && a.BytesOut == 3 && a.BytesIn == 3
	}, "bytes are counted while the tunnel is open")
	c.Close()
	testenv.Eventually(t, patience, func() bool { a, _ := w.g.Activity(mustAddr(jailA)); return a.Open == 0 }, "closed connections are counted as open")
}

func TestServeEndsWithItsContextAndTakesItsConnectionsAlong(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	_, first := w.connect(jailA, "example.com:443")

	second := listenOn(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.g.Serve(ctx, second) }()
	firstAddr := w.addr
	w.addr = second.Addr().String()
	c, br := w.connect(jailA, "example.com:443")
	w.addr = firstAddr

	w.stop()
	closedSoon(t, "a tunnel of the ended listener", first)
	io.WriteString(c, "x")
	if b, err := br.ReadByte(); err != nil || b != 'x' {
		t.Errorf("a tunnel of the other listener: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	closedSoon(t, "a tunnel of the second listener", br)
	if err := w.g.Forget(mustAddr(jailA), ""); err != nil {
		t.Errorf("forget without listeners: %v", err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	_, tunnel := w.connect(jailA, "example.com:443")
	idle := w.dial(jailA)
	strange := w.dial(stranger)
	for range 2 {
		if err := w.g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for what, r := range map[string]io.Reader{"tunnel": tunnel, "idle connection": idle, "stranger": strange} {
		closedSoon(t, what, r)
	}
	ln := listenOn(t, "127.0.0.1:0")
	if err := w.g.Serve(context.Background(), ln); err == nil {
		t.Error("a closed gateway serves")
	}
}

func TestManyAtOnce(t *testing.T) {
	w := newFixture(t)
	needLoopbacks(t)
	s := web(t, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.URL.Path) })
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	var wg sync.WaitGroup
	for i := range 8 {
		from := fmt.Sprintf("127.0.1.%d", i+1)
		wg.Go(func() {
			for range 5 {
				if err := w.g.Admit(mustAddr(from), Caller{Jail: from, Policy: policy.PublicWeb()}); err != nil {
					t.Error(err)
					return
				}
				client := w.client(from)
				resp, err := client.Get("http://example.com/" + from)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(body) != "/"+from {
					t.Errorf("%q %v", body, err)
				}
				if err := w.g.Forget(mustAddr(from), ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
