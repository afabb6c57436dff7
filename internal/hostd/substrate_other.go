//go:build !linux && !freebsd

package hostd

import (
	"context"
	"net/netip"

	"github.com/clawjail/clawjail/internal/jail"
)

// ThisHost says, when it is asked, that there is no driver for this operating system.
func ThisHost() Substrate {
	return Substrate{
		FreeSubnet: func(context.Context, jail.Installation) (netip.Prefix, error) { return netip.Prefix{}, noDriver() },
		Assemble:   Assemble,
	}
}
