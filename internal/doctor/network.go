package doctor

import (
	"context"
	"errors"
	"io/fs"

	"github.com/clawjail/clawjail/internal/jail"
)

// subnet says which network the jails have or would get, and whether it is free.
func subnet(ctx context.Context, e *exam) Result {
	in, err := e.installed()
	var id jail.Installation
	configured := e.Config.Subnet
	switch {
	case err == nil:
		id = in.ID
		if configured.IsValid() && configured.Masked() != in.Subnet {
			return fails("the subnet is configured as %s, and this installation has %s", configured, in.Subnet).
				hint("remove subnet from the configuration; once no jails are left, the next start takes the configured one")
		}
		configured = in.Subnet
	case errors.Is(err, fs.ErrPermission):
		return skipped("which network is the jails' own, only root can read").hint("sudo clawjail doctor")
	case !errors.Is(err, fs.ErrNotExist):
		return e.failed(err)
	}
	got, err := e.Subnet(ctx, id, configured)
	if err != nil {
		return failed(err)
	}
	return fine("the jails' network %s overlaps nothing on this host", got).fact("subnet", got.String())
}

// errPort says that something else has the gateway's port.
var errPort = errors.New("the gateway's port is taken")

func gatewayPort(ctx context.Context, e *exam) Result {
	port := e.Config.Gateway.Port
	err := e.Port(ctx)
	if errors.Is(err, errPort) {
		return fails("a program of this host listens on port %d of all addresses, where the gateway would listen on one", port).
			fact("port", port).hint("see who it is: sudo ss -ltnp 'sport = :%d'; end it, or set gateway.port", port)
	}
	if err != nil {
		return failed(err)
	}
	return fine("port %d is free for the gateway", port).fact("port", port)
}

func network(ctx context.Context, e *exam) Result {
	facts, err := e.Network(ctx)
	if err != nil {
		r := failed(err)
		if r.Hint == "" {
			r = r.hint("the kernel needs bridges, veth and network namespaces")
		}
		return r
	}
	return fine("made a bridge and a slot with its own network namespace").facts(facts)
}

func element(ctx context.Context, e *exam) Result {
	facts, err := e.Element(ctx)
	switch {
	case errors.Is(err, errPort):
		return skipped("the gateway's port is taken; see the check gateway_port")
	case err != nil:
		r := failed(err)
		if r.Hint == "" {
			r = r.hint("the kernel needs nf_tables for the families inet and bridge, with reject (nft_reject_inet)")
		}
		return r
	}
	return fine("nftables took an address in and out of a table, and refused what was not in it at once").facts(facts)
}
