package hostd

import (
	"context"
	"net/netip"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// ThisHost is what this operating system contributes.
func ThisHost() Substrate {
	return Substrate{
		FreeSubnet: func(ctx context.Context, id jail.Installation) (netip.Prefix, error) {
			return linux.FreeSubnet(ctx, id, jail.DefaultSubnets())
		},
		CheckSubnet: linux.CheckSubnet,
		Assemble:    Assemble,
		Containers:  OpenContainers,
		Uninstall:   Uninstall,
	}
}
