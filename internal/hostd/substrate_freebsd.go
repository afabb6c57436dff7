package hostd

import (
	"context"
	"net/netip"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/freebsd"
)

// ThisHost is what this operating system contributes. There are no containers.
func ThisHost() Substrate {
	return Substrate{
		FreeSubnet: func(ctx context.Context, id jail.Installation) (netip.Prefix, error) {
			return freebsd.FreeSubnet(ctx, hostcmd.Runner{}, id, jail.DefaultSubnets())
		},
		CheckSubnet: func(ctx context.Context, id jail.Installation, subnet netip.Prefix) error {
			return freebsd.CheckSubnet(ctx, hostcmd.Runner{}, id, subnet)
		},
		Assemble:  Assemble,
		Uninstall: Uninstall,
	}
}
