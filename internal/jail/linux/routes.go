//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// shortestRoute is the length in bits below which a route is a default route in disguise (0.0.0.0/1 and
// 128.0.0.0/1 of a VPN, for example) and does not say that its addresses are in use.
const shortestRoute = 8

// FreeSubnet is the first candidate that overlaps no address and no route of this host. A network that this
// installation's bridge has already is returned before any other.
func FreeSubnet(ctx context.Context, id jail.Installation, candidates []netip.Prefix) (netip.Prefix, error) {
	uses, own, err := networksInUse(ctx, id)
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, c := range candidates {
		if c.Masked() == own {
			return own, nil
		}
	}
	for _, c := range candidates {
		if overlapping(c, uses) == nil {
			return c.Masked(), nil
		}
	}
	return netip.Prefix{}, problem.New(problem.BadConfig,
		"set `subnet` to a private IPv4 network between /16 and /24 that this host does not use",
		"all %d networks that jails could have overlap addresses or routes of this host", len(candidates))
}

// CheckSubnet is an error when a configured network overlaps an address or a route of this host that is not this
// installation's own.
func CheckSubnet(ctx context.Context, id jail.Installation, subnet netip.Prefix) error {
	uses, _, err := networksInUse(ctx, id)
	if err != nil {
		return err
	}
	if u := overlapping(subnet, uses); u != nil {
		return problem.New(problem.BadConfig,
			"leave `subnet` out to get a free one, or choose another network",
			"the jails' network %s overlaps %s of this host", subnet, u)
	}
	return nil
}

// networkUse is a network that the host uses, and how.
type networkUse struct {
	network netip.Prefix
	how     string // "the address", "the route to"
	link    string
}

func (u networkUse) String() string {
	if u.link == "" {
		return fmt.Sprintf("%s %s", u.how, u.network)
	}
	return fmt.Sprintf("%s %s on %s", u.how, u.network, u.link)
}

func overlapping(p netip.Prefix, uses []networkUse) *networkUse {
	for i := range uses {
		if uses[i].network.Overlaps(p) {
			return &uses[i]
		}
	}
	return nil
}

// networksInUse lists the networks of all interfaces and of all routing tables, without those of the
// installation's own bridge, whose network it returns beside them.
func networksInUse(ctx context.Context, id jail.Installation) (uses []networkUse, own netip.Prefix, err error) {
	if err := ctx.Err(); err != nil {
		return nil, own, err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, own, fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()
	links, err := dump(host.LinkList)
	if err != nil {
		return nil, own, fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return host.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, own, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		p, ok := prefixOf(a.IPNet)
		if !ok {
			continue
		}
		if names[a.LinkIndex] == bridgeName(id) {
			own = p
			continue
		}
		uses = append(uses, networkUse{p, "the address", names[a.LinkIndex]})
	}
	routes, err := dump(func() ([]netlink.Route, error) {
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return host.RouteListFiltered(netlink.FAMILY_V4, all, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, own, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		p, ok := prefixOf(r.Dst)
		if !ok || p.Bits() < shortestRoute || names[r.LinkIndex] == bridgeName(id) {
			continue
		}
		uses = append(uses, networkUse{p, "the route to", names[r.LinkIndex]})
	}
	return uses, own, nil
}

// prefixOf is the network of an address of the netlink library; nil stands for the default route.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits).Masked(), true
}

// dumpTries is how often a listing is asked for again when the kernel says that it changed while it was read.
const dumpTries = 10

// dump makes a listing of the kernel's complete.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries {
			return all, err
		}
	}
}
