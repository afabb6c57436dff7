package config

import (
	"net"
	"runtime"
	"strconv"
)

// validateRelay looks at how agents in containers reach the gateway.
func (g Gateway) validateRelay(v *validation) {
	oneOf(v, "gateway.placement", g.Placement, PlacementHost, PlacementContainer)
	switch a := g.Relay.Addr(); {
	case !g.Relay.IsValid() || g.Relay.Port() == 0:
		v.flaw("gateway.relay", "leave the key out for 127.0.0.1:18793", "is not an address and a port")
	case a.Zone() != "" || a.Is4In6():
		v.flaw("gateway.relay", "write a plain IPv4 or IPv6 address", "%s has a zone or is IPv4 written as IPv6", a)
	case !a.IsLoopback() && !a.IsPrivate():
		v.flaw("gateway.relay", "write a loopback or a private address, such as 10.215.0.1:18793",
			"%s is not this machine's alone, and what is relayed is not encrypted", a)
	case g.Placement == PlacementContainer && a.IsLoopback() && g.RelayTo == "" && runtime.GOOS == "linux":
		v.flaw("gateway.relay", "write a private address that this host does not have yet, such as 10.215.0.1:18793: the relay's own network "+
			"gets it. For an engine with a machine of its own (Docker Desktop) set gateway.relay_to: "+g.RelayTarget(),
			"containers of an engine on this kernel do not reach %s", a)
	}
	if g.RelayTo == "" {
		return
	}
	host, port, err := net.SplitHostPort(g.RelayTo)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil || n == 0 || !hostName(host) {
		v.flaw("gateway.relay_to", "write something like "+net.JoinHostPort(engineHost, "18793"), "%q is not a host and a port", g.RelayTo)
	}
}
