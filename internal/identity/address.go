package identity

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ClientAddr is the address that a request comes from. When the connection comes from a trusted proxy, X-Forwarded-For
// is read from the right: each proxy appends who spoke to it, so the first address that is no trusted proxy is the
// client, and everything left of it is hearsay. A part that is no address ends the search at the proxy that wrote it.
// Without trusted proxies, and of a caller that is [Inside], the header means nothing. The result is not valid for a connection without an IP address.
func ClientAddr(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	from := canonical(peer.Addr())
	if networkOf(r.Context()).jail != "" {
		return from
	}
	said := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for n := len(said) - 1; n >= 0 && among(from, trusted); n-- {
		addr, ok := forwarded(strings.TrimSpace(said[n]))
		if !ok {
			break
		}
		from = addr
	}
	return from
}

// forwarded reads an address as proxies write it: some with a port.
func forwarded(text string) (netip.Addr, bool) {
	plain := text
	if inside, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inside, "]") {
		plain = strings.TrimSuffix(inside, "]")
	}
	if addr, err := netip.ParseAddr(plain); err == nil {
		return canonical(addr), true
	}
	if both, err := netip.ParseAddrPort(text); err == nil {
		return canonical(both.Addr()), true
	}
	return netip.Addr{}, false
}

// canonical is an address without the forms in which it can be written besides: mapped into IPv6, or with a zone.
func canonical(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

func among(addr netip.Addr, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
