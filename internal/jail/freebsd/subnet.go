//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// FreeSubnet is the first candidate that overlaps no route of this host, and so no address of it, that is not this
// installation's own. A network that its bridge has is returned before any other.
func FreeSubnet(ctx context.Context, run hostcmd.Runner, id jail.Installation, candidates []netip.Prefix) (netip.Prefix, error) {
	used, own, err := networksInUse(ctx, run, id)
	if err != nil {
		return netip.Prefix{}, err
	}
	return jail.FreeSubnet(candidates, own, used)
}

// CheckSubnet is an error when a configured network overlaps a route of this host that is not this installation's own.
func CheckSubnet(ctx context.Context, run hostcmd.Runner, id jail.Installation, subnet netip.Prefix) error {
	used, _, err := networksInUse(ctx, run, id)
	if err != nil {
		return err
	}
	return jail.CheckSubnet(subnet, used)
}

// networksInUse lists the networks of all routes without those of the installation's own bridge, whose networks it returns beside
// them. An address of the bridge has a route by lo0 as well.
func networksInUse(ctx context.Context, run hostcmd.Runner, id jail.Installation) (used []jail.Occupied, own []netip.Prefix, err error) {
	text, err := run.Run(ctx, "netstat", "-rn", "-f", "inet")
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	routes, err := parseRoutes(text)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.link == "cj"+string(id) {
			own = append(own, r.to)
		}
	}
	for _, r := range routes {
		ownAddress := r.link == "lo0" && r.to.IsSingleIP() && slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(r.to.Addr()) })
		if !ownAddress && r.link != "cj"+string(id) && !jail.WideRoute(r.to) {
			used = append(used, jail.Occupied{Network: r.to, How: "the route to", Link: r.link})
		}
	}
	return used, own, nil
}

type route struct {
	to   netip.Prefix
	link string
}

// parseRoutes reads what netstat(1) prints below the line of headers: Destination Gateway Flags Netif Expire.
func parseRoutes(text string) ([]route, error) {
	var out []route
	begun := false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) > 0 && f[0] == "Destination":
			begun = true
			continue
		case !begun || len(f) < 4 || f[0] == "default":
			continue
		}
		to, err := netip.ParsePrefix(f[0])
		if err != nil {
			addr, err := netip.ParseAddr(f[0])
			if err != nil {
				return nil, fmt.Errorf("netstat says %q", line)
			}
			to = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, route{to.Masked(), f[3]})
	}
	if !begun {
		return nil, errors.New("netstat printed no routes")
	}
	return out, nil
}
