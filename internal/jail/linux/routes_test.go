//go:build linux

package linux

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestDefaultSubnetsAreUsableAndApart(t *testing.T) {
	t.Parallel()
	all := jail.DefaultSubnets()
	for i, p := range all {
		if _, err := jail.NewPool(p, 1); err != nil || p != p.Masked() || !p.Addr().IsPrivate() {
			t.Errorf("%s: %v", p, err)
		}
		for _, other := range all[:i] {
			if p.Overlaps(other) {
				t.Errorf("%s overlaps %s", p, other)
			}
		}
	}
}

func TestSubnetThatTheHostUsesIsNotTaken(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	used := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "vpn"}}
	noError(t, netlink.LinkAdd(used))
	addr, err := netlink.ParseAddr("10.1.2.3/24")
	noError(t, err)
	noError(t, netlink.AddrAdd(used, addr))
	noError(t, netlink.LinkSetUp(used))
	index := used.Index
	for _, r := range []netlink.Route{
		{LinkIndex: index, Dst: hostNet(netip.MustParseAddr("10.3.5.5")), Table: 52}, // a table of its own
		{Type: unix.RTN_BLACKHOLE, Dst: netlinkNet(t, "10.4.0.0/16")},
		{LinkIndex: index, Dst: netlinkNet(t, "0.0.0.0/1")}, // half a default route uses nothing
		{LinkIndex: index, Dst: netlinkNet(t, "0.0.0.0/0")},
	} {
		noError(t, netlink.RouteAdd(&r))
	}
	candidates := prefixes("10.1.0.0/20", "10.3.0.0/20", "10.4.16.0/20", "10.5.0.0/20", "10.6.0.0/20")
	got, err := FreeSubnet(t.Context(), "test", candidates)
	if err != nil || got != candidates[3] {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := FreeSubnet(t.Context(), "test", candidates[:3]); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("with no free candidate: %v", err)
	}
	for subnet, because := range map[string]string{
		"10.1.0.0/20": "the address 10.1.2.0/24 on vpn",
		"10.3.0.0/20": "the route to 10.3.5.5/32 on vpn",
		"10.4.0.0/20": "the route to 10.4.0.0/16",
	} {
		pool, err := jail.NewPool(netip.MustParsePrefix(subnet), 1)
		noError(t, err)
		_, err = OpenNetwork(t.Context(), NetworkConfig{Installation: "test", Pool: pool, RunDir: t.TempDir()})
		p, ok := problem.As(err)
		if !ok || p.Code != problem.BadConfig || p.Hint == "" || !strings.Contains(err.Error(), because) {
			t.Errorf("%s: %v, want %q", subnet, err, because)
		}
		if _, err := netlink.LinkByName(bridgeName("test")); err == nil {
			t.Error("a bridge was made nevertheless")
		}
	}

	// Who only ends jails is not refused, and takes no address of others.
	pool, err := jail.NewPool(netip.MustParsePrefix("10.1.0.0/20"), 1)
	noError(t, err)
	ending, err := OpenNetwork(t.Context(), NetworkConfig{Installation: "ends", Pool: pool, RunDir: t.TempDir(), Ending: true})
	if err != nil {
		t.Fatal(err)
	}
	noError(t, ending.Close(t.Context()))
	bridge, err := netlink.LinkByName(bridgeName("ends"))
	if err != nil {
		t.Fatal(err)
	}
	if addrs, err := netlink.AddrList(bridge, netlink.FAMILY_V4); err != nil || len(addrs) > 0 {
		t.Errorf("the bridge has %v, %v", addrs, err)
	}

	// An installation keeps the network that it has, wherever that stands in the list.
	install(t, "test", "10.6.0.0/20", 0)
	if got, err := FreeSubnet(t.Context(), "test", candidates); err != nil || got != candidates[4] {
		t.Errorf("with a bridge of its own: %s, %v", got, err)
	}
	noError(t, CheckSubnet(t.Context(), "test", candidates[4]))
	later := netlink.Route{LinkIndex: index, Dst: hostNet(netip.MustParseAddr("10.6.7.7"))}
	noError(t, netlink.RouteAdd(&later))
	if got, err := FreeSubnet(t.Context(), "test", candidates); err != nil || got != candidates[3] {
		t.Errorf("when something else has a part of its own network: %s, %v", got, err)
	}
	noError(t, netlink.RouteDel(&later))
	if err := CheckSubnet(t.Context(), "othr", candidates[4]); err == nil {
		t.Error("another installation may have the same subnet")
	}
}

func netlinkNet(t *testing.T, s string) *net.IPNet {
	t.Helper()
	n, err := netlink.ParseIPNet(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
