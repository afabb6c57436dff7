package cli

import (
	"context"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// newToolServers makes the service of MCP servers in jails. serversOf says what agents may use; keeper may be nil. What is
// returned is closed before the host daemon is let go.
func newToolServers(o serveOptions, host *hostd.Client, keeper toolserver.Keeper, exit *gateway.Gateway, r *ring, proxy string,
	serversOf func(tenant, agentID string) []string) (*toolserver.Service, error) {
	return toolserver.New(toolserver.Options{
		Driver: host, Keeper: keeper, Gateway: exit, Vault: r.vault, Store: r.store, Identity: r.identity,
		Audit: func(ctx context.Context, in audit.Intent) (func(audit.Outcome), error) {
			pending, err := r.log.Begin(ctx, in)
			if err != nil {
				return nil, err
			}
			return pending.End, nil
		},
		ServersOf: serversOf, Servers: o.config.MCPServers, Limits: o.config.Agents.Limits, Proxy: proxy, Version: o.version, Log: o.log, Now: o.now,
	})
}

// endToolServers ends every server, within the time that sessions have for it too.
func endToolServers(ctx context.Context, servers *toolserver.Service) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	return servers.Close(ctx)
}
