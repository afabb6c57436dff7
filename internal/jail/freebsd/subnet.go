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
	"github.com/clawjail/clawjail/internal/problem"
)

// shortestRoute is the length in bits below which a route is a default route in disguise (0.0.0.0/1 of a VPN).
const shortestRoute = 8

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
	for _, c := range candidates {
		for _, r := range routes {
			if r.link == "cj"+string(id) && r.to == c.Masked() {
				return c.Masked(), nil
			}
		}
	}
	for _, c := range candidates {
		free := true
		for _, r := range routes {
			free = free && (r.to.Bits() < shortestRoute || !r.to.Overlaps(c))
		}
		if free {
			return c.Masked(), nil
		}
	}
	return netip.Prefix{}, problem.New(problem.BadConfig,
		"set `subnet` to a private IPv4 network between /16 and /24 that this host does not use",
		"all %d networks that jails could have overlap routes of this host", len(candidates))
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
