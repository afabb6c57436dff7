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
)

// FreeSubnet is the first candidate that overlaps no address and no route of this host that is not this installation's own. The
// network that its bridge has is returned before any other.
func FreeSubnet(ctx context.Context, id jail.Installation, candidates []netip.Prefix) (netip.Prefix, error) {
	used, own, err := networksInUse(ctx, id)
	if err != nil {
		return netip.Prefix{}, err
	}
	return jail.FreeSubnet(candidates, []netip.Prefix{own}, used)
}

// CheckSubnet is an error when a configured network overlaps an address or a route of this host that is not this
// installation's own.
func CheckSubnet(ctx context.Context, id jail.Installation, subnet netip.Prefix) error {
	used, _, err := networksInUse(ctx, id)
	if err != nil {
		return err
	}
	return jail.CheckSubnet(subnet, used)
}

// networksInUse lists the networks of all interfaces and of all routing tables, without those of the
// installation's own bridge, whose network it returns beside them.
func networksInUse(ctx context.Context, id jail.Installation) (used []jail.Occupied, own netip.Prefix, err error) {
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
		used = append(used, jail.Occupied{Network: p, How: "the address", Link: names[a.LinkIndex]})
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
		if !ok || jail.WideRoute(p) || names[r.LinkIndex] == bridgeName(id) {
			continue
		}
		used = append(used, jail.Occupied{Network: p, How: "the route to", Link: names[r.LinkIndex]})
	}
	return used, own, nil
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
