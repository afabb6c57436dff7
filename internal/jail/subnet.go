package jail

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/clawjail/clawjail/internal/problem"
)

// shortestRoute is the length in bits below which a route is a default route in disguise (0.0.0.0/1 and 128.0.0.0/1 of a
// VPN, for example) and does not say that its addresses are in use.
const shortestRoute = 8

// Occupied is a network that a host uses, and how.
type Occupied struct {
	Network netip.Prefix
	How     string // "the address", "the route to"
	Link    string // empty when it has none
}

func (o Occupied) String() string {
	if o.Link == "" {
		return fmt.Sprintf("%s %s", o.How, o.Network)
	}
	return fmt.Sprintf("%s %s on %s", o.How, o.Network, o.Link)
}

// WideRoute reports whether a route is so wide that it does not mean that its addresses are in use.
func WideRoute(to netip.Prefix) bool { return to.Bits() < shortestRoute }

// FreeSubnet is the first candidate that overlaps nothing of what a host uses beside the installation's own networks. One of
// those is returned before any other.
func FreeSubnet(candidates, own []netip.Prefix, used []Occupied) (netip.Prefix, error) {
	var free []netip.Prefix
	for _, c := range candidates {
		if overlapping(c, used) == nil {
			free = append(free, c.Masked())
		}
	}
	if at := slices.IndexFunc(free, func(p netip.Prefix) bool { return slices.Contains(own, p) }); at >= 0 {
		return free[at], nil
	}
	if len(free) > 0 {
		return free[0], nil
	}
	return netip.Prefix{}, problem.New(problem.BadConfig,
		"set `subnet` to a private IPv4 network between /16 and /24 that this host does not use",
		"all %d networks that jails could have overlap addresses or routes of this host", len(candidates))
}

// CheckSubnet is an error when a configured network overlaps something of what a host uses.
func CheckSubnet(subnet netip.Prefix, used []Occupied) error {
	if o := overlapping(subnet, used); o != nil {
		return problem.New(problem.BadConfig, "leave `subnet` out to get a free one, or choose another network",
			"the jails' network %s overlaps %s of this host", subnet, o)
	}
	return nil
}

func overlapping(p netip.Prefix, used []Occupied) *Occupied {
	for i := range used {
		if used[i].Network.Overlaps(p) {
			return &used[i]
		}
	}
	return nil
}
