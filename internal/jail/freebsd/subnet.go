//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// FreeSubnet is the first candidate that overlaps no route of this host, and so no address of it. A network that this
// installation's bridge has already is returned before any other.
func FreeSubnet(ctx context.Context, run hostcmd.Runner, id jail.Installation, candidates []netip.Prefix) (netip.Prefix, error) {
	text, err := run.Run(ctx, "netstat", "-rn", "-f", "inet")
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	routes, err := parseRoutes(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	var own []netip.Prefix
	var used []jail.Occupied
	for _, r := range routes {
		if r.link == "cj"+string(id) {
			own = append(own, r.to)
		}
		if !jail.WideRoute(r.to) {
			used = append(used, jail.Occupied{Network: r.to, How: "the route to", Link: r.link})
		}
	}
	return jail.FreeSubnet(candidates, own, used)
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
