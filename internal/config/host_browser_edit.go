package config

import "net/netip"

// ParseListen reads an address and a port, as the keys called listen have them. Empty is none.
func ParseListen(text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	return parseListen(text)
}
