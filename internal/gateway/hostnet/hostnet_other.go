//go:build !linux

package hostnet

import (
	"fmt"
	"net"
	"net/netip"
)

// interfaces asks for the addresses of the interfaces each time. Routes are not looked at: what is behind a point-to-point
// line counts as far as the prefix of its address goes.
type interfaces struct{}

func openKernel() (kernel, error) { return interfaces{}, nil }

func (interfaces) changed() (bool, error) { return true, nil }

func (interfaces) close() error { return nil }

// list reads the addresses of all interfaces.
func (interfaces) list() (own, near []netip.Prefix, err error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil, fmt.Errorf("read the networks of this host: %w", err)
	}
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, nil, fmt.Errorf("read the networks of this host: %w", err)
		}
		own, near = append(own, single(prefix.Addr())), append(near, prefix)
	}
	return own, near, nil
}
