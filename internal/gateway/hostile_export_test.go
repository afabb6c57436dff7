package gateway

import (
	"context"
	"net"
	"net/netip"
)

// DialWith has another function make connections, for tests outside of the package. It is called before Serve.
func (g *Gateway) DialWith(dial func(ctx context.Context, target netip.AddrPort, check func(netip.AddrPort) error) (net.Conn, error)) {
	g.dial = dial
}
