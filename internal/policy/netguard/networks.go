package netguard

import (
	"fmt"
	"net/netip"
	"slices"
)

// A prefix that is wider than these is no network that a host is part of: it is a way to everybody, such as the default
// route of a VPN or of a point-to-point line, and counts for nothing. The address of the other end still counts.
const (
	widest4 = 8
	widest6 = 16
)

// Networks are the networks that a host is part of, at one moment. They do not change.
//
// Nil stands for a host whose networks are not known: then no public address is known to be outside, and none is allowed.
type Networks struct{ own, near prefixes }

// NewNetworks makes them of the host's own addresses and of those that it reaches without a router.
func NewNetworks(own, near []netip.Prefix) *Networks {
	return &Networks{own: newPrefixes(own), near: newPrefixes(near)}
}

// Own says whether the host itself answers at an address: one of its own, or loopback.
func (n *Networks) Own(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsLoopback() || n != nil && n.own.contain(a)
}

// check returns nil when an address is neither the host's nor a neighbour's.
func (n *Networks) check(a netip.Addr) error {
	a = a.Unmap()
	switch {
	case n == nil:
		return fmt.Errorf("%s: %w", a, ErrUnknownNetworks)
	case n.own.contain(a):
		return fmt.Errorf("%s: %w", a, ErrHost)
	case n.near.contain(a):
		return fmt.Errorf("%s: %w", a, ErrNeighbour)
	}
	return nil
}

// prefixes are a set that is asked once for each length that occurs in it, however many there are.
type prefixes struct {
	set       map[netip.Prefix]struct{}
	four, six []int // lengths
}

func newPrefixes(list []netip.Prefix) prefixes {
	out := prefixes{set: make(map[netip.Prefix]struct{}, len(list))}
	for _, p := range list {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		lengths, widest := &out.six, widest6
		if p.Addr().Is4() {
			lengths, widest = &out.four, widest4
		}
		if !p.IsValid() || p.Bits() < widest {
			continue
		}
		out.set[netip.PrefixFrom(p.Addr().WithZone(""), p.Bits()).Masked()] = struct{}{}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	return out
}

// contain says whether one of them has the address, which is not IPv4 inside IPv6.
func (p prefixes) contain(a netip.Addr) bool {
	lengths := p.six
	if a.Is4() {
		lengths = p.four
	}
	for _, bits := range lengths {
		if around, err := a.Prefix(bits); err == nil {
			if _, found := p.set[around]; found {
				return true
			}
		}
	}
	return false
}
