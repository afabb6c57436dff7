package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/gateway/netguard"
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

func TestDialAnyTriesTheNextAddress(t *testing.T) {
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
