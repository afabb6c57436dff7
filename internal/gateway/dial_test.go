package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func yes(netip.AddrPort) error { return nil }

func TestTheDialerAsksAgainBeforeItConnects(t *testing.T) {
	victim := untouched(t).AddrPort()
	_, err := dialChecked(t.Context(), victim, func(ap netip.AddrPort) error { return netguard.Check(ap.Addr()) })
	if !errors.Is(err, netguard.ErrNotPublic) {
		t.Errorf("%v", err)
	}
	if err := confirm(netip.MustParseAddrPort("93.184.216.34:80"), "127.0.0.1:80", yes); !errors.Is(err, errOtherAddress) {
		t.Errorf("another address: %v", err)
	}
	for _, s := range []string{"[::1%lo]:80", "localhost:80", ""} {
		if err := confirm(netip.MustParseAddrPort("[::1]:80"), s, yes); !errors.Is(err, errOtherAddress) {
			t.Errorf("%q: %v", s, err)
		}
	}
	ln := listenOn(t, "127.0.0.1:0")
	c, err := dialChecked(t.Context(), ln.Addr().(*net.TCPAddr).AddrPort(), yes)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestDialAnyTriesTheNextAddress(t *testing.T) { synctest.Test(t, testDialAny) }

// testDialAny runs in a time of its own: a busy host must not make the next attempt and the end of the context fall together.
func testDialAny(t *testing.T) {
	good, bad, slow := netip.MustParseAddrPort("8.8.8.8:1"), netip.MustParseAddrPort("9.9.9.9:1"), netip.MustParseAddrPort("1.1.1.1:1")
	broken := errors.New("broken")
	dial := func(ctx context.Context, target netip.AddrPort, _ func(netip.AddrPort) error) (net.Conn, error) {
		switch target {
		case good:
			c, other := net.Pipe()
			other.Close()
			return c, nil
		case slow:
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, broken
	}
	for _, targets := range [][]netip.AddrPort{{good}, {bad, good}, {slow, good}, {bad, slow, good}, {good, slow}} {
		c, target, err := dialAny(t.Context(), dial, targets, yes)
		if err != nil || target != good {
			t.Fatalf("%v: %v %v", targets, target, err)
		}
		c.Close()
	}
	if _, _, err := dialAny(t.Context(), dial, []netip.AddrPort{bad, bad}, yes); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if _, _, err := dialAny(t.Context(), dial, nil, yes); err == nil {
		t.Error("no targets, no error")
	}
	// Two that connect at the same moment: the one that is not used is closed.
	var closed atomic.Int32
	both := make(chan struct{})
	var arrived atomic.Int32
	race := func(context.Context, netip.AddrPort, func(netip.AddrPort) error) (net.Conn, error) {
		if arrived.Add(1) == 2 {
			close(both)
		}
		<-both
		return countedClose{n: &closed}, nil
	}
	if _, _, err := dialAny(t.Context(), race, []netip.AddrPort{good, slow}, yes); err != nil || closed.Load() != 1 {
		t.Errorf("%d of two connections closed, %v", closed.Load(), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if c, _, err := dialAny(ctx, dial, []netip.AddrPort{slow, good}, yes); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v %v", c, err)
	}
}

// countedClose is a connection that can only be closed.
type countedClose struct {
	net.Conn
	n *atomic.Int32
}

func (c countedClose) Close() error { c.n.Add(1); return nil }

// An explanation gets the answer that a request would get, and nothing is sent for it.
func TestReachSaysWhatARequestWouldBeTold(t *testing.T) {
	w := newFixture(t)
	w.names.answers["open.example"] = [][]string{{"93.184.216.34"}}
	w.names.answers["inside.example"] = [][]string{{"10.0.0.7"}}
	for _, tt := range []struct {
		host, private string
		lookup        bool
		code          string
	}{
		{"open.example", "", true, ""}, {"inside.example", "", true, problem.AddressDenied}, {"inside.example", "", false, ""},
		{"none.example", "", true, problem.DNSFailed}, {"10.0.0.7", "", false, problem.AddressDenied}, {"93.184.216.34", "", false, ""},
		{"inside.example", "10.0.0.7", false, ""}, {"inside.example", "169.254.169.254", false, problem.AddressDenied},
	} {
		to, err := hostport.NewEndpoint(hostport.MustParseHost(tt.host), 443)
		if err != nil {
			t.Fatal(err)
		}
		var private netip.Addr
		if tt.private != "" {
			private = netip.MustParseAddr(tt.private)
		}
		code := ""
		if refusal := w.g.Reach(t.Context(), to, private, tt.lookup); refusal != nil {
			code = refusal.Code
		}
		if code != tt.code {
			t.Errorf("%+v: %q", tt, code)
		}
	}
	if events := w.happened(); len(events) > 0 {
		t.Errorf("it was recorded or dialled: %v", events)
	}
}

func TestTheCallerInASession(t *testing.T) {
	w := newFixture(t)
	for addr, session := range map[string]string{jailA: "s_1", jailB: ""} {
		if err := w.g.Admit(netip.MustParseAddr(addr), Caller{Jail: addr, Session: session, Tenant: "acme", Confined: true, Policy: policy.Only()}); err != nil {
			t.Fatal(err)
		}
	}
	if c, found := w.g.CallerIn("s_1"); !found || c.Jail != jailA || !c.Confined {
		t.Errorf("%+v, %t", c, found)
	}
	for _, session := range []string{"", "s_2"} {
		if c, found := w.g.CallerIn(session); found {
			t.Errorf("%q: %+v", session, c)
		}
	}
	if err := w.g.Forget(netip.MustParseAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	if _, found := w.g.CallerIn("s_1"); found {
		t.Error("it is there after its end")
	}
}
