//go:build linux || freebsd

package doctor

import (
	"context"
	"net/netip"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/freebsd"
)

// freebsdSubnet finds the network of a FreeBSD host's jails by its routes.
func freebsdSubnet(run hostcmd.Runner) func(context.Context, jail.Installation, netip.Prefix) (netip.Prefix, error) {
	return func(ctx context.Context, id jail.Installation, configured netip.Prefix) (netip.Prefix, error) {
		candidates := jail.DefaultSubnets()
		if configured.IsValid() {
			candidates = []netip.Prefix{configured}
		}
		return freebsd.FreeSubnet(ctx, run, id, candidates)
	}
}
