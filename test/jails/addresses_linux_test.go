package jails

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/test/testkit"
)

// The addresses of this test. All of them are public by their number; what makes them inside is that the host has them,
// or is on their network. The last is behind a router, and outside.
const (
	ownFour      = "45.45.77.45"
	ownSix       = "2a01:4f8:77:1::1"
	neighbourSix = "2a01:4f8:77:1::2"
	tunnelHere   = "45.45.77.1"
	tunnelPeer   = "45.45.77.2"
	intoVPN      = "45.45.78.9"
	appearing    = "45.45.77.60"
	outsideFour  = "45.45.77.50"
	outsideSix   = "2a01:4f8:78::50"
)

// TestTheHostsOwnPublicAddressesAreInside has a browser ask for public addresses that are the host's and its neighbours',
// with a rule that allows each. A server answers at all of them, and at two that are behind a router.
func TestTheHostsOwnPublicAddressesAreInside(t *testing.T) {
	n := newNeighbourhood(t)
	b := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool + "behind_proxy: [10.250.77.2/32]\n"})
	text, err := os.ReadFile(b.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("listen: 127.0.0.1:"), []byte("listen: 0.0.0.0:"), 1)
	if err := os.WriteFile(b.ConfigFile, text, 0o644); err != nil {
		t.Fatal(err)
	}
	b.Up()
	session := b.Open(session.OpenRequest{})
	defer b.Close(session)
	allow := func(target, address string) (remove func()) {
		t.Helper()
		r := op.RuleRequest{Whose: op.Whose{AllTenants: true}, Action: policy.Allow, Target: strings.TrimSuffix(target, "/")}
		if address != "" {
			r.Address = netip.MustParseAddr(address)
		}
		rule, err := client.Call(t.Context(), b.API, op.AddRule(), op.NewRule{Body: op.With(r)})
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := client.Do(t.Context(), b.API, op.RemoveRule(), op.RuleNamed{ID: rule.ID}); err != nil {
				t.Error(err)
			}
		}
	}
	title := func(url string) string {
		t.Helper()
		p, err := b.API.Navigate(t.Context(), session, browser.Navigate{URL: url, TimeoutMS: 60000})
		if err != nil {
			t.Fatalf("navigate to %s: %v\nlog of the instance:\n%s", url, err, b.Log())
		}
		return p.Title
	}
	const reached, refused = "reached", "Refused by the gateway"
	for _, address := range []string{outsideFour, outsideSix, appearing} {
		url := n.url(address)
		defer allow(url, "")()
		if got := title(url); got != reached {
			t.Fatalf("%s is outside, and the browser sees %q: a refusal proves nothing\nlog of the instance:\n%s", address, got, b.Log())
		}
	}
	for _, address := range []string{ownFour, ownSix, neighbourSix, tunnelPeer, intoVPN} {
		url := n.url(address)
		remove := allow(url, "")
		if got := title(url); got != refused {
			t.Errorf("%s is inside, and the browser sees %q", address, got)
		}
		remove()
		// An operator opens a single one by a rule that says where it leads.
		remove = allow(url, address)
		if got := title(url); got != reached {
			t.Errorf("with a rule that leads to %s, the browser sees %q", address, got)
		}
		remove()
	}

	n.give(appearing)
	if got := title(n.url(appearing)); got != refused {
		t.Errorf("%s became the host's while the gateway runs, and the browser sees %q", appearing, got)
	}

	// The API listens at 0.0.0.0, so at every address of the host. No rule opens it.
	for _, address := range []string{ownFour, "127.0.0.1"} {
		url := "http://" + net.JoinHostPort(address, strconv.Itoa(int(b.Config.Listen.Port()))) + "/"
		resp, err := http.Get(url) //nolint:noctx // the host itself asks, and is answered
		if err != nil {
			t.Fatalf("the API does not answer the host at %s: %v", url, err)
		}
		_ = resp.Body.Close()
		remove := allow(url, address)
		if got := title(url); got != refused {
			t.Errorf("with a rule that leads to the API at %s, the browser sees %q", address, got)
		}
		remove()
	}
}

// neighbourhood is a network beside the host, with a server at every address of the test.
type neighbourhood struct {
	t    *testing.T
	link netlink.Link
	port int
}

func (n *neighbourhood) url(address string) string {
	return "http://" + net.JoinHostPort(address, strconv.Itoa(n.port)) + "/"
}

// give gives the host an address.
func (n *neighbourhood) give(address string) {
	n.t.Helper()
	a := netip.MustParseAddr(address)
	n.must(netlink.AddrAdd(n.link, &netlink.Addr{IPNet: network(netip.PrefixFrom(a, a.BitLen()))}))
}

func (n *neighbourhood) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// newNeighbourhood joins the host to an island. All that it adds to the host is on a link of its own, and goes with it.
func newNeighbourhood(t *testing.T) *neighbourhood {
	t.Helper()
	i := newIsland(t)
	n := &neighbourhood{t: t}
	name := fmt.Sprintf("cjt%d", os.Getpid()%100000)
	n.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "x"}))
	t.Cleanup(func() {
		if err := netlink.LinkDel(n.link); err != nil {
			t.Error(err)
		}
	})
	far, err := netlink.LinkByName(name + "x")
	n.must(err)
	n.link, err = netlink.LinkByName(name)
	n.must(err)
	var space *os.File
	i.in(func() { space, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())) })
	n.must(err)
	defer space.Close()
	n.must(netlink.LinkSetNsFd(far, int(space.Fd())))

	add := func(link netlink.Link, addresses ...string) error {
		for _, text := range addresses {
			p := netip.MustParsePrefix(text)
			a := &netlink.Addr{IPNet: network(p)}
			if p.Addr().Is6() {
				a.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, a); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	}
	i.in(func() {
		if far, err = netlink.LinkByName(name + "x"); err != nil {
			return
		}
		if err = netlink.LinkSetUp(far); err != nil {
			return
		}
		err = add(far, "10.250.77.2/30", neighbourSix+"/64", tunnelPeer+"/32", intoVPN+"/32", appearing+"/32", outsideFour+"/32", outsideSix+"/128")
	})
	n.must(err)
	n.must(netlink.LinkSetUp(n.link))
	n.must(add(n.link, "10.250.77.1/30", ownFour+"/32", ownSix+"/64", "fd00:77::1/64"))
	i.in(func() {
		if err = add(far, "fd00:77::2/64"); err == nil {
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Dst: network(netip.MustParsePrefix(tunnelHere + "/32"))})
		}
	})
	n.must(err)
	n.must(netlink.AddrAdd(n.link, &netlink.Addr{IPNet: network(netip.MustParsePrefix(tunnelHere + "/32")), Peer: network(netip.MustParsePrefix(tunnelPeer + "/32"))}))
	route := func(to, router string) {
		t.Helper()
		r := &netlink.Route{LinkIndex: n.link.Attrs().Index, Dst: network(netip.MustParsePrefix(to)), Gw: net.ParseIP(router)}
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
	}
	route("45.45.78.0/24", "") // as a VPN has it
	for _, to := range []string{outsideFour + "/32", appearing + "/32"} {
		route(to, "10.250.77.2")
	}
	route(outsideSix+"/128", "fd00:77::2")

	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>reached</title>")
	})
	here, err := net.Listen("tcp", "[::]:0") //nolint:noctx // as services of a host do
	n.must(err)
	n.port = here.Addr().(*net.TCPAddr).Port
	for _, l := range []net.Listener{here, i.listen(t, "[::]:"+strconv.Itoa(n.port))} {
		server := &http.Server{Handler: answer}
		go func() { _ = server.Serve(l) }() // ends with Close
		t.Cleanup(func() { _ = server.Close() })
	}
	return n
}
