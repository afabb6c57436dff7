package netguard

import (
	"errors"
	"net/netip"
	"testing"
)

func prefixesOf(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestWhatTheHostIsPartOfIsInside has every kind of network, and beside each an address that is just outside.
func TestWhatTheHostIsPartOfIsInside(t *testing.T) {
	g := Guard{Networks: NewNetworks(
		prefixesOf("45.45.45.45/32", "2a01:4f8:dead:beef::1/128", "::ffff:45.45.44.1/128", "45.45.43.0/24"),
		prefixesOf("45.45.46.2/32", "45.45.48.0/20", "17.0.0.0/8", "2a01:4f8:dead:beef::1/64", "2a02::/16", "45.45.60.7/24"))}
	for text, want := range map[string]error{
		"45.45.45.45": ErrHost, "::ffff:45.45.45.45": ErrHost, "2a01:4f8:dead:beef::1": ErrHost, "45.45.44.1": ErrHost, "45.45.43.9": ErrHost,
		"45.45.46.2": ErrNeighbour, "45.45.48.0": ErrNeighbour, "45.45.63.255": ErrNeighbour, "17.255.0.1": ErrNeighbour,
		"2a01:4f8:dead:beef:ffff:ffff:ffff:ffff": ErrNeighbour, "2a02:ffff::1": ErrNeighbour, "45.45.60.200": ErrNeighbour,
		"45.45.45.44": nil, "45.45.45.46": nil, "45.45.46.1": nil, "45.45.47.255": nil, "45.45.64.0": nil, "18.0.0.1": nil, "45.45.44.2": nil,
		"2a01:4f8:dead:bef0::1": nil, "2a01:4f8:dead:beee::1": nil, "2a03::1": nil, "2a01:4f8:dead:beee:ffff::1": nil,
	} {
		a := netip.MustParseAddr(text)
		if err := g.CheckPublic(netip.AddrPortFrom(a, 443)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
		if _, err := g.Targets([]netip.Addr{netip.MustParseAddr("8.8.8.8"), a}, 443); !errors.Is(err, want) {
			t.Errorf("%s as the second of two answers: %v, want %v", text, err, want)
		}
		// An operator may open it by a rule that names it.
		if err := g.CheckDestination(netip.AddrPortFrom(a, 443)); err != nil {
			t.Errorf("%s as a private destination: %v", text, err)
		}
	}
}

// The default route of a VPN must not make the whole Internet inside, nor its halves.
func TestAWayToEverybodyIsNoNetwork(t *testing.T) {
	wide := []string{"0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "8.0.0.0/7", "::/0", "2000::/3", "2a00::/15"}
	g := Guard{Networks: NewNetworks(prefixesOf(wide...), prefixesOf(wide...))}
	for _, s := range []string{"8.8.8.8", "9.9.9.9", "200.1.1.1", "2606:4700::1", "2a01::1"} {
		if err := g.CheckPublic(netip.AddrPortFrom(netip.MustParseAddr(s), 443)); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, narrow := range []string{"8.0.0.0/8", "2a00::/16"} {
		p := netip.MustParsePrefix(narrow)
		if err := (Guard{Networks: NewNetworks(nil, []netip.Prefix{p})}).CheckPublic(netip.AddrPortFrom(p.Addr().Next(), 443)); !errors.Is(err, ErrNeighbour) {
			t.Errorf("%s: %v", narrow, err)
		}
	}
}

func TestWithoutKnownNetworksNothingIsOutside(t *testing.T) {
	for _, s := range []string{"8.8.8.8", "2606:4700::1"} {
		ap := netip.AddrPortFrom(netip.MustParseAddr(s), 443)
		if err := (Guard{}).CheckPublic(ap); !errors.Is(err, ErrUnknownNetworks) {
			t.Errorf("%s: %v", s, err)
		}
		if err := alone().CheckPublic(ap); err != nil {
			t.Errorf("%s, when they are known: %v", s, err)
		}
	}
}

// A socket that is bound to no address in particular answers at all that the host has.
func TestAWildcardSocketIsAtEveryAddressOfTheHost(t *testing.T) {
	known := NewNetworks(prefixesOf("45.45.45.45/32", "10.0.0.5/32", "2a01:4f8::1/128"), prefixesOf("10.0.0.0/8"))
	for _, wildcard := range []string{"0.0.0.0:443", "[::]:443"} {
		g := Guard{Self: []netip.AddrPort{netip.MustParseAddrPort(wildcard)}, Networks: known}
		for in, self := range map[string]bool{
			"45.45.45.45:443": true, "10.0.0.5:443": true, "[2a01:4f8::1]:443": true, "127.0.0.1:443": true, "127.1.2.3:443": true, "[::1]:443": true, "[::ffff:10.0.0.5]:443": true,
			"45.45.45.45:80": false, "10.0.0.6:443": false, "127.0.0.1:80": false,
		} {
			if err := g.CheckDestination(netip.MustParseAddrPort(in)); errors.Is(err, ErrSelf) != self {
				t.Errorf("%s, to %s: %v", wildcard, in, err)
			}
		}
		g.Networks = nil
		if err := g.CheckDestination(netip.MustParseAddrPort("10.0.0.6:443")); !errors.Is(err, ErrSelf) {
			t.Errorf("%s, when nobody knows the host's addresses: %v", wildcard, err)
		}
	}
}
