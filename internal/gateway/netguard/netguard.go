// Package netguard decides which IP addresses the gateway may dial for a jail.
//
// [Check] accepts the public Internet and nothing else: IPv4 without the IANA
// special-purpose registry, IPv6 inside 2000::/3 without its special ranges.
// IPv4 addresses that are carried inside IPv6 are unwrapped (::ffff:a.b.c.d) or
// refused (all other forms), and addresses with a zone are refused, because
// prefix comparisons never match them.
//
// A [Guard] adds what an installation knows: private destinations that its
// configuration names, which need no DNS, and the gateway's own sockets, which
// nobody reaches through it. Cloud metadata addresses stay closed even to the
// configuration.
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

	"github.com/clawjail/clawjail/internal/gateway/hostport"
)

// Reasons for which an address is refused. Test with errors.Is.
var (
	ErrInvalid   = errors.New("not an IP address")
	ErrZone      = errors.New("address has a zone")
	ErrNotPublic = errors.New("address is not on the public Internet")
	ErrMetadata  = errors.New("address is a cloud metadata service")
	ErrUnusable  = errors.New("address cannot be a destination")
	ErrSelf      = errors.New("address belongs to clawjail itself")
	ErrNoAnswer  = errors.New("no addresses to check")
)

// Check returns nil when a is an address on the public Internet.
func Check(a netip.Addr) error {
	a, err := plain(a)
	if err != nil {
		return err
	}
	if a.Is6() && !globalUnicast().Contains(a) {
		return fmt.Errorf("%s: %w: outside 2000::/3 (RFC 4291)", a, ErrNotPublic)
	}
	if what, found := find(specialTable(), a); found {
		return fmt.Errorf("%s: %w: %s", a, ErrNotPublic, what)
	}
	return nil
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

// Destination is a private destination that the configuration allows: requests
// for Host on one of Ports go to Address, without DNS.
type Destination struct {
	Host    hostport.Host
	Address netip.Addr
	Ports   []uint16
}

// CheckPrivate returns nil when a may be the address of a [Destination]: any
// address of one machine, loopback included, except metadata services.
func CheckPrivate(a netip.Addr) error {
	a, err := plain(a)
	if err != nil {
		return err
	}
	if what, found := find(metadataTable(), a); found {
		return fmt.Errorf("%s: %w: %s", a, ErrMetadata, what)
	}
	if what, found := find(unusableTable(), a); found {
		return fmt.Errorf("%s: %w: %s", a, ErrUnusable, what)
	}
	if compatible().Contains(a) && a != netip.IPv6Loopback() {
		return fmt.Errorf("%s: %w: IPv4 inside IPv6 (RFC 4291)", a, ErrUnusable)
	}
	return nil
}

// Guard is Check together with what one installation knows.
type Guard struct {
	// Private lists the destinations that are allowed although they may not be
	// public. A host may stand in several entries with different ports.
	Private []Destination
	// Self lists the installation's own sockets. Port 0 stands for all ports of
	// the address. Self wins over Private.
	Self []netip.AddrPort
}

// Clone returns a copy that shares nothing with g.
func (g Guard) Clone() Guard {
	g.Self = slices.Clone(g.Self)
	g.Private = slices.Clone(g.Private)
	for i := range g.Private {
		g.Private[i].Ports = slices.Clone(g.Private[i].Ports)
	}
	return g
}

// Validate reports everything that is wrong with the guard at once.
func (g Guard) Validate() error {
	var errs []error
	seen := make(map[hostport.Endpoint]bool)
	for i, d := range g.Private {
		fail := func(err error) {
			errs = append(errs, fmt.Errorf("private destination %d (%s): %w", i+1, d.Host, err))
		}
		if d.Host.IsZero() {
			fail(errors.New("host is missing"))
		}
		if err := CheckPrivate(d.Address); err != nil {
			fail(err)
		} else if d.Host.IsAddr() && d.Host.Addr() != d.Address.Unmap() {
			fail(fmt.Errorf("host is one address and the destination %s another", d.Address))
		}
		if len(d.Ports) == 0 {
			fail(errors.New("ports are missing"))
		}
		for _, port := range d.Ports {
			e, err := hostport.NewEndpoint(d.Host, port)
			if err != nil {
				fail(fmt.Errorf("port %d: %w", port, err))
			} else if seen[e] {
				fail(fmt.Errorf("port %d is listed twice for this host", port))
			}
			seen[e] = true
		}
	}
	for i, s := range g.Self {
		if !s.Addr().IsValid() || s.Addr().Zone() != "" {
			errs = append(errs, fmt.Errorf("own socket %d (%s): %w", i+1, s, ErrInvalid))
		}
	}
	return errors.Join(errs...)
}

// Lookup returns the address of a private destination for that host and port.
// Such a request is not resolved.
func (g Guard) Lookup(e hostport.Endpoint) (netip.AddrPort, bool) {
	for _, d := range g.Private {
		if d.Host == e.Host() && slices.Contains(d.Ports, e.Port()) && e.Port() != 0 {
			return netip.AddrPortFrom(d.Address.Unmap(), e.Port()), true
		}
	}
	return netip.AddrPort{}, false
}

// CheckPublic returns nil when a request that is not for a private destination
// may dial that socket.
func (g Guard) CheckPublic(ap netip.AddrPort) error {
	if err := Check(ap.Addr()); err != nil {
		return err
	}
	return g.checkSelf(ap)
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
		if s.Addr().Unmap() == ap.Addr().Unmap() && (s.Port() == 0 || s.Port() == ap.Port()) {
			return fmt.Errorf("%s: %w", ap, ErrSelf)
		}
	}
	return nil
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
