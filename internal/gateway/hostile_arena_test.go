package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/testenv"
)

// arena is a gateway for fuzzing: one process makes it once, and connections need no port of the machine. The Internet
// is a function in it that notes what it is asked for. wait is how long anything is waited for.
type arena struct {
	g    *Gateway
	who  *caller
	logs *testenv.Buffer

	mu      sync.Mutex // guards what follows
	begun   map[netip.AddrPort]int
	targets []string // request lines that the host saw
	wrong   []string // what must not have happened
	serving sync.WaitGroup
}

// brief is for arenas in which it makes no difference that something ends too soon.
const brief = 20 * time.Millisecond

// jailOfArena is not dialled and nobody is there: connections are made by hand.
const jailOfArena = "127.0.0.9"

func newArena(t testing.TB, p policy.Policy, wait time.Duration) *arena {
	t.Helper()
	a := &arena{begun: map[netip.AddrPort]int{}, logs: &testenv.Buffer{}}
	limits := DefaultLimits()
	limits.HeaderTimeout, limits.BodyTimeout, limits.FirstBytesTimeout, limits.IdleTimeout = wait, wait, wait, wait
	g, err := New(Config{Networks: alone, Resolver: a, Records: a, Limits: limits, Rates: func(Caller) Rates {
		return Rates{Proxy: 1 << 30, Execute: 1, Service: 1, LLM: 1, Tunnels: 1 << 20}
	}, Logger: slog.New(slog.NewTextHandler(onlyTrouble{a.logs}, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	a.g = g
	g.dial = a.dial
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background(), ln) }()
	testenv.Eventually(t, patience, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.listeners) == 1 }, "the gateway does not serve")
	addr := netip.MustParseAddr(jailOfArena)
	if err := g.Admit(addr, Caller{Jail: "arena", Session: "s", Policy: p}); err != nil {
		t.Fatal(err)
	}
	a.who = g.callers[addr]
	t.Cleanup(func() {
		err := errors.Join(g.Close(), <-served)
		a.serving.Wait()
		if err != nil || g.buffers.lent.Load() != 0 {
			t.Errorf("close: %v, %d buffers were not given back", err, g.buffers.lent.Load())
		}
	})
	return a
}

// onlyTrouble keeps what the HTTP server says when a handler fails.
type onlyTrouble struct{ to io.Writer }

func (o onlyTrouble) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "panic serving") {
		return o.to.Write(p)
	}
	return len(p), nil
}

// LookupNetIP implements Resolver: names that begin with "in" lead inside, all others outside.
func (a *arena) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if strings.HasPrefix(host, "in") {
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	}
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

// Begin implements Records.
func (a *arena) Begin(_ context.Context, d Decision) (Record, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, target := range d.Targets {
		a.begun[target]++
	}
	if !d.Allowed {
		a.wrong = append(a.wrong, "an intent of what is refused: "+d.Host.String())
	}
	return a, nil
}

// Refused implements Records.
func (a *arena) Refused(Decision) {}

// End implements Record.
func (a *arena) End(Outcome) {}

func (a *arena) dial(_ context.Context, target netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, error) {
	a.mu.Lock()
	if target.Addr() != netip.MustParseAddr("93.184.216.34") {
		a.wrong = append(a.wrong, target.String()+" is inside, and was dialled")
	}
	if a.begun[target]--; a.begun[target] < 0 {
		a.wrong = append(a.wrong, target.String()+" was dialled, and is not on record")
	}
	a.mu.Unlock()
	if err := check(target); err != nil {
		return nil, err
	}
	near, far, err := pair()
	if err != nil {
		return nil, err
	}
	a.serving.Go(func() { a.host(far) })
	return near, nil
}

// host is a server outside. It answers what it can read, and notes it.
func (a *arena) host(c *net.UnixConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	from := bufio.NewReader(c)
	for {
		head, err := from.Peek(1)
		if err != nil || head[0] < 'A' || head[0] > 'Z' {
			return
		}
		r, err := http.ReadRequest(from)
		if err != nil {
			return
		}
		a.mu.Lock()
		a.targets = append(a.targets, r.Host+" "+r.RequestURI)
		a.mu.Unlock()
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return
		}
	}
}

// pair is a connection of which both ends are here.
func pair() (near, far *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1], nil
}

// open is a connection of the jail's.
func (a *arena) open(t testing.TB) *net.UnixConn {
	t.Helper()
	near, far, err := pair()
	if err == nil {
		err = near.SetDeadline(time.Now().Add(patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{Conn: far, caller: a.who, remote: netip.AddrPortFrom(a.who.addr, 1), patience: a.g.limits.IdleTimeout, bodies: a.g.limits.BodyTimeout}
	a.who.add(c)
	if !a.g.tunnels.offer(c) {
		t.Fatal("the gateway is closed")
	}
	return near
}

// send sends bytes from the jail, and returns all that comes back. With hurry it says at once that nothing follows.
func (a *arena) send(t testing.TB, bytes []byte, hurry bool) []byte {
	t.Helper()
	c := a.open(t)
	defer c.Close()
	if !hurry {
		bytes = append(append([]byte(nil), bytes...), last...)
	}
	var writing sync.WaitGroup
	writing.Go(func() {
		// The gateway does not read on after a refusal.
		_, _ = c.Write(bytes)
		if hurry {
			_ = c.CloseWrite()
		}
	})
	defer writing.Wait()
	all, err := io.ReadAll(io.LimitReader(c, 1<<20))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q: the answer does not end: %.300q", bytes, all)
	}
	_ = c.Close()
	return all
}

// verdict fails for what must not have happened, and returns what the host has seen since the last time.
func (a *arena) verdict(t testing.TB) []string {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, what := range a.wrong {
		t.Error(what)
	}
	if text := a.logs.String(); text != "" {
		t.Errorf("a handler panicked: %.2000s", text)
	}
	seen := a.targets
	a.wrong, a.targets = nil, nil
	return seen
}
