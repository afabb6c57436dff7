package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/testenv"
)

// inside calls f in a network namespace of its own, with loopback up. The thread ends with it.
func inside(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	testenv.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(os.NewSyscallError("unshare", err))
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Error(err)
			return
		}
		f(t)
	}()
	<-done
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
		runtime.Goexit()
	}
}

// link makes an interface that is up.
func link(t *testing.T, l netlink.Link) netlink.Link {
	t.Helper()
	must(t, netlink.LinkAdd(l))
	must(t, netlink.LinkSetUp(l))
	out, err := netlink.LinkByName(l.Attrs().Name)
	must(t, err)
	return out
}

// wire makes an interface whose other end is up in the same namespace.
func wire(t *testing.T, name string) netlink.Link {
	t.Helper()
	out := link(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-far"})
	far, err := netlink.LinkByName(name + "-far")
	must(t, err)
	must(t, netlink.LinkSetUp(far))
	return out
}

func network(text string) *net.IPNet {
	p := netip.MustParsePrefix(text)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func give(t *testing.T, l netlink.Link, address, peer string) {
	t.Helper()
	a := &netlink.Addr{IPNet: network(address), Flags: unix.IFA_F_NODAD}
	if peer != "" {
		a.Peer = network(peer)
	}
	must(t, netlink.AddrAdd(l, a))
}

func route(t *testing.T, l netlink.Link, to, router string, change func(*netlink.Route)) {
	t.Helper()
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: network(to)}
	if router != "" {
		r.Gw = net.ParseIP(router)
	}
	if change != nil {
		change(r)
	}
	must(t, netlink.RouteAdd(r))
}

func follow(t *testing.T) *Networks {
	t.Helper()
	n, err := Open(slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// verdict is what the guard says of an address: own, near, or outside.
func verdict(n *Networks, address string) string {
	err := netguard.Guard{Networks: n.Now()}.CheckPublic(netip.AddrPortFrom(netip.MustParseAddr(address), 443))
	switch {
	case err == nil:
		return "outside"
	case errors.Is(err, netguard.ErrHost):
		return "own"
	case errors.Is(err, netguard.ErrNeighbour):
		return "near"
	}
	return err.Error()
}

func expect(t *testing.T, n *Networks, want map[string]string) {
	t.Helper()
	for address, want := range want {
		if got := verdict(n, address); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
}

// TestEveryNetworkOfTheHostIsInside has one of each kind, and what lies just beside it.
func TestEveryNetworkOfTheHostIsInside(t *testing.T) {
	inside(t, func(t *testing.T) {
		lo, err := netlink.LinkByName("lo")
		must(t, err)
		lan, uplink := wire(t, "lan"), wire(t, "uplink")
		tunnel := link(t, &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tunnel"}, Mode: netlink.TUNTAP_MODE_TUN})
		n := follow(t)
		beside := map[string]string{
			"8.8.8.8": "outside", "2606:4700::1": "outside", "45.45.45.46": "outside", "2a01:4f8:dead:beee::1": "outside", "45.45.64.1": "outside",
			"45.45.46.3": "outside", "45.45.80.7": "outside", "2a01:4f8:aaaa::1": "outside", "200.1.1.1": "outside",
		}
		expect(t, n, beside)
		before := map[string]string{"45.45.45.45": "outside", "2a01:4f8:dead:beef::2": "outside", "45.45.50.7": "outside"}
		expect(t, n, before)

		give(t, lo, "45.45.45.45/32", "")
		give(t, lan, "2a01:4f8:dead:beef::1/64", "")
		give(t, lan, "45.45.44.10/24", "")
		give(t, uplink, "10.250.0.1/30", "")
		give(t, tunnel, "45.45.46.1/32", "45.45.46.2/32")
		route(t, tunnel, "45.45.48.0/20", "", nil)                                             // into a VPN
		route(t, tunnel, "2a01:4f8:feed::/48", "", func(r *netlink.Route) { r.Table = 51820 }) // in a table of its own
		route(t, tunnel, "0.0.0.0/1", "", nil)                                                 // a VPN for everything
		route(t, tunnel, "128.0.0.0/1", "", nil)
		route(t, uplink, "45.45.80.0/24", "10.250.0.2", nil) // behind a router
		route(t, uplink, "45.45.90.1/32", "", nil)           // a router that is itself no neighbour's
		route(t, uplink, "45.45.81.0/24", "45.45.90.2", func(r *netlink.Route) { r.Flags = int(netlink.FLAG_ONLINK) })
		route(t, lo, "45.45.99.0/24", "", func(r *netlink.Route) { r.Type, r.Table, r.Scope = unix.RTN_LOCAL, 255, netlink.SCOPE_HOST }) // all of it is the host's
		route(t, uplink, "45.45.82.0/24", "", func(r *netlink.Route) {
			r.MultiPath = []*netlink.NexthopInfo{{LinkIndex: uplink.Attrs().Index, Gw: net.ParseIP("10.250.0.2")}, {LinkIndex: lan.Attrs().Index}}
		})
		route(t, uplink, "45.45.83.0/24", "", func(r *netlink.Route) {
			r.MultiPath = []*netlink.NexthopInfo{{LinkIndex: uplink.Attrs().Index, Gw: net.ParseIP("10.250.0.2")}, {LinkIndex: lan.Attrs().Index, Gw: net.ParseIP("45.45.44.1")}}
		})

		expect(t, n, beside)
		expect(t, n, map[string]string{
			"45.45.45.45": "own", "::ffff:45.45.45.45": "own", "2a01:4f8:dead:beef::1": "own", "45.45.44.10": "own", "45.45.46.1": "own", "45.45.99.77": "own",
			"2a01:4f8:dead:beef::2": "near", "2a01:4f8:dead:beef:ffff::9": "near", "45.45.44.1": "near", "45.45.46.2": "near", "45.45.50.7": "near", "2a01:4f8:feed::9": "near",
			"45.45.90.1": "near", "45.45.90.2": "near", "45.45.82.5": "near",
			"45.45.81.5": "outside", "45.45.83.5": "outside",
		})

		// And what goes is outside again.
		must(t, netlink.AddrDel(lo, &netlink.Addr{IPNet: network("45.45.45.45/32")}))
		must(t, netlink.LinkDel(tunnel))
		expect(t, n, map[string]string{"45.45.45.45": "outside", "45.45.46.2": "outside", "45.45.50.7": "outside", "45.45.44.1": "near"})
	})
}

// TestNewsThatDoNotFitAreReadAnew makes more changes than the queue of news can hold.
func TestNewsThatDoNotFitAreReadAnew(t *testing.T) {
	inside(t, func(t *testing.T) {
		lan := wire(t, "lan")
		n := follow(t)
		must(t, unix.SetsockoptInt(n.kernel.(*rtnetlink).news, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
		for i := range 200 {
			give(t, lan, fmt.Sprintf("45.45.45.%d/32", i+1), "")
		}
		full := false
		for !full {
			_, _, err := unix.Recvfrom(n.kernel.(*rtnetlink).news, make([]byte, 1), unix.MSG_DONTWAIT|unix.MSG_PEEK)
			full = err == unix.ENOBUFS
			if err != nil && !full {
				t.Fatalf("the queue did not run over: %v", err)
			}
		}
		give(t, lan, "45.45.46.1/32", "")
		expect(t, n, map[string]string{"45.45.45.1": "own", "45.45.45.200": "own", "45.45.46.1": "own", "45.45.45.201": "outside"})
	})
}

// TestAKernelThatDoesNotAnswerLetsNobodyOut closes what the kernel is asked with.
func TestAKernelThatDoesNotAnswerLetsNobodyOut(t *testing.T) {
	inside(t, func(t *testing.T) {
		var log bytes.Buffer
		n, err := Open(slog.New(slog.NewTextHandler(&log, nil)))
		must(t, err)
		expect(t, n, map[string]string{"8.8.8.8": "outside"})
		must(t, n.kernel.close())
		for range 2 {
			if n.Now() != nil {
				t.Error("something is known although the kernel does not answer")
			}
		}
		if got := strings.Count(log.String(), "cannot be read"); got != 1 {
			t.Errorf("it is said %d times: %s", got, log.String())
		}
		must(t, n.Close())
		if n.Now() != nil {
			t.Error("something is known after the end")
		}
	})
}

// FuzzMessages reads what a kernel of another version may say: every message is understood or an error, and an address
// that it names is never lost.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{2, 32, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 45, 45, 45, 45})
	f.Add([]byte{2, 24, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 45, 45, 44, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var a, r found
		if a.address(slices.Clone(data)) == nil && len(a.own) > 0 && len(a.near) == 0 {
			t.Error("an address without a network")
		}
		_ = r.route(data) // it must not panic
		netguard.NewNetworks(slices.Concat(a.own, r.own), slices.Concat(a.near, r.near))
	})
}
