// Package netguard decides which IP addresses the gateway may dial for a jail.
//
// [Check] accepts the public Internet and nothing else: IPv4 without the IANA
// special-purpose registry, IPv6 inside 2000::/3 without its special ranges.
// IPv4 addresses that are carried inside IPv6 are unwrapped (::ffff:a.b.c.d) or
// refused (all other forms), and addresses with a zone are refused, because
// prefix comparisons never match them.
//
// A [Guard] adds what an installation knows: the networks of its host, whose
// addresses are inside also where they are public, and its own sockets, which no
// jail reaches through it. Private destinations are rules of package policy that
// name an address; [CheckPrivate] says which may be. Cloud metadata addresses stay
// closed even to them.
//
// The package does no I/O. A caller resolves once, passes every answer to
// [Guard.Targets], and dials one of the addresses that it returns; it never
// dials by name.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Reasons for which an address is refused. Test with errors.Is.
var (
	ErrInvalid   = errors.New("not an IP address")
	ErrZone      = errors.New("address has a zone")
	ErrNotPublic = errors.New("address is not on the public Internet")
	ErrMetadata  = errors.New("address is a cloud metadata service")
	ErrUnusable  = errors.New("address cannot be a destination")
	ErrSelf      = errors.New("address belongs to clawjail itself")
	ErrHost      = errors.New("address is one of this host's own")
	ErrNeighbour = errors.New("address is on a network that this host is part of")
	ErrNoAnswer  = errors.New("no addresses to check")

	ErrUnknownNetworks = errors.New("nobody knows which networks this host is part of")
)

// Check returns nil when a is an address on the public Internet.
func Check(a netip.Addr) error {
	a, err := plain(a)
	if err != nil {
		return err
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return fmt.Errorf("%s: %w: outside 2000::/3 (RFC 4291)", a, ErrNotPublic)
	}
	if what, found := find(specialRanges, a); found {
		return fmt.Errorf("%s: %w: %s", a, ErrNotPublic, what)
	}
	if isatap(a) {
		return fmt.Errorf("%s: %w: %s", a, ErrNotPublic, whyISATAP)
	}
	return nil
}

const whyISATAP = "IPv4 inside IPv6, ISATAP (RFC 5214)"

// isatap says whether the last half of an address is an IPv4 address with ISATAP's mark before it. Any prefix may be in
// front of it, so it is no row of the table.
func isatap(a netip.Addr) bool {
	b := a.As16()
	return a.Is6() && b[8]&^3 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// plain refuses what is no address or has a zone, and unwraps ::ffff:a.b.c.d.
func plain(a netip.Addr) (netip.Addr, error) {
	switch {
	case !a.IsValid():
		return netip.Addr{}, ErrInvalid
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%s: %w", a, ErrZone)
	}
	return a.Unmap(), nil
}

// CheckPrivate returns nil when a may be the address of a private destination: any
// address of one machine, loopback included, except metadata services.
func CheckPrivate(a netip.Addr) error {
	a, err := plain(a)
	if err != nil {
		return err
	}
	if what, found := find(metadataRanges, a); found {
		return fmt.Errorf("%s: %w: %s", a, ErrMetadata, what)
	}
	if what, found := find(unusableRanges, a); found {
		return fmt.Errorf("%s: %w: %s", a, ErrUnusable, what)
	}
	if compatible.Contains(a) && a != netip.IPv6Loopback() {
		return fmt.Errorf("%s: %w: IPv4 inside IPv6 (RFC 4291)", a, ErrUnusable)
	}
	if isatap(a) {
		return fmt.Errorf("%s: %w: %s", a, ErrUnusable, whyISATAP)
	}
	return nil
}

// Guard is Check together with what one installation knows.
type Guard struct {
	// Self lists the installation's own sockets. Port 0 stands for all ports of
	// the address, and an unspecified address for all that the host has, which
	// are any at all while they are not known. They are closed also to private
	// destinations.
	Self []netip.AddrPort
	// Networks are those of the host. Nil closes every public address.
	Networks *Networks
}

// Clone returns a copy that shares nothing with g that can change.
func (g Guard) Clone() Guard { return Guard{Self: slices.Clone(g.Self), Networks: g.Networks} }

// Validate reports everything that is wrong with the guard at once.
func (g Guard) Validate() error {
	var errs []error
	for i, s := range g.Self {
		if !s.Addr().IsValid() || s.Addr().Zone() != "" {
			errs = append(errs, fmt.Errorf("own socket %d (%s): %w", i+1, s, ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// CheckPublic returns nil when a request that is not for a private destination
// may dial that socket.
func (g Guard) CheckPublic(ap netip.AddrPort) error {
	if err := Check(ap.Addr()); err != nil {
		return err
	}
	if err := g.checkSelf(ap); err != nil {
		return err
	}
	return g.Networks.check(ap.Addr())
}

// CheckDestination returns nil when a request for a private destination may
// dial that socket.
func (g Guard) CheckDestination(ap netip.AddrPort) error {
	if err := CheckPrivate(ap.Addr()); err != nil {
		return err
	}
	return g.checkSelf(ap)
}

func (g Guard) checkSelf(ap netip.AddrPort) error {
	for _, s := range g.Self {
		if (s.Port() == 0 || s.Port() == ap.Port()) && g.listensAt(s.Addr().Unmap(), ap.Addr().Unmap()) {
			return fmt.Errorf("%s: %w", ap, ErrSelf)
		}
	}
	return nil
}

// listensAt says whether a socket that is bound to own answers at an address.
func (g Guard) listensAt(own, a netip.Addr) bool {
	return own == a || own.IsUnspecified() && (g.Networks == nil || g.Networks.Own(a))
}

// Targets turns the answers of a resolver into sockets to dial, in their order
// and without repetition. One bad answer refuses all of them: a name that leads
// to a public and to a private address is not half trustworthy.
func (g Guard) Targets(answers []netip.Addr, port uint16) ([]netip.AddrPort, error) {
	if len(answers) == 0 {
		return nil, ErrNoAnswer
	}
	targets := make([]netip.AddrPort, 0, len(answers))
	for _, a := range answers {
		// Checked before it is unwrapped, because unwrapping loses a zone.
		if err := g.CheckPublic(netip.AddrPortFrom(a, port)); err != nil {
			return nil, err
		}
		ap := netip.AddrPortFrom(a.Unmap(), port)
		if !slices.Contains(targets, ap) {
			targets = append(targets, ap)
		}
	}
	return targets, nil
}
