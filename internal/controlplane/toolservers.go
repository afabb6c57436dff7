package controlplane

import (
	"context"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/toolserver"
	"github.com/clawjail/clawjail/internal/vault"
)

// newToolServers makes the service of MCP servers in jails. serversOf says what agents may use; keeper may be nil. What is
// returned is closed before the host daemon is let go.
func newToolServers(o Options, host *hostd.Client, keeper toolserver.Keeper, exit *gateway.Gateway, r *ring, proxy string,
	serversOf func(tenant, agentID string) []string) (*toolserver.Service, error) {
	return toolserver.New(toolserver.Options{
		Quotas: o.Config.Quotas, Tenants: r.identity.Counted,
		Driver: host, Keeper: keeper, Gateway: exit, Vault: r.vault, Store: r.store, Identity: r.identity, Audit: Records{r.log}.pending,
		Templates: func(ctx context.Context) ([]string, error) {
			all, err := host.Templates(ctx)
			names := make([]string, len(all))
			for n, t := range all {
				names[n] = t.Name
			}
			return names, err
		},
		ServersOf: serversOf, Servers: o.Config.MCPServers, Limits: o.Config.Agents.Limits, Proxy: proxy, Version: o.Version, Log: o.Log, Now: o.Now,
	})
}

// bindSecrets lets what operators have declared say where secrets go that were stored without an origin, and binds those that
// are there. One that cannot be bound is refused where it is used, so that it keeps nobody from starting.
func bindSecrets(ctx context.Context, o Options, r *ring, book *egress.Book, servers *toolserver.Service) {
	r.vault.BindBy(func(ctx context.Context, n vault.SecretName) ([]vault.Destination, error) {
		out, err := vault.ParseDestinations(book.Origins(n.Tenant, n.Agent, n.Service))
		if err != nil || n.Agent != "" {
			return out, err // servers have secrets of tenants
		}
		taken, err := servers.Takes(ctx, n.Tenant, n.Service)
		if taken {
			out = append(out, vault.InJail)
		}
		return out, err
	})
	if err := r.vault.BindDeclared(ctx); err != nil {
		o.Log.Warn("secrets could not be bound to where they go", "error", err)
	}
}

// endToolServers ends every server, within the time that sessions have for it too.
func endToolServers(ctx context.Context, servers *toolserver.Service) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	return servers.Close(ctx)
}
