package controlplane

import (
	"context"
	"net"
	"runtime"
	"slices"
	"strconv"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/vault"
)

// makeAgents makes the service of agents. It asks the MCP servers, which are made after it, which there are, and tells them when
// agents may use others.
func (p *plane) makeAgents(context.Context) (err error) {
	p.agents, err = agent.New(agent.Options{
		Keeper: p.host, Driver: p.host, Composed: p.host.Composed, Gateway: p.gateway.Gateway, Identity: p.identity, Book: p.book, Accounts: p.accounts.Service, Store: p.store, Audit: p.audit,
		Node: p.node, Nodes: p.otherNodes(), Takers: p.takers(), Agents: p.Config.Agents, Docker: p.Config.Docker, Default: DefaultDriver(p.Config.Agents.Driver), GatewayURL: gatewayOfJails(p.Config),
		Workspaces: workspacesOf(p.Config), AddedRoots: func() ([]string, error) { return hostd.PathsOfAddedRoots(p.Config) },
		Servers:        func(ctx context.Context, tenant string) ([]string, error) { return p.servers.Names(ctx, tenant) },
		ServersChanged: func() { p.servers.Changed() }, Quotas: p.Config.Quotas, MaxAgents: hostd.AgentJails,
		Disk: func() (int64, error) {
			size, _, err := quota.Disk(p.Config.DataDir)
			return size, err
		},
		Volumes: p.host.Volumes, Dir: p.own("programs"), Log: p.Log, Now: p.Now,
	})
	return err
}

// workspacesOf is the folder that is one of the workspace_roots by default, where it is one.
func workspacesOf(c config.Config) string {
	if !slices.Contains(c.Agents.WorkspaceRoots, c.Workspaces()) {
		return ""
	}
	return c.Workspaces()
}

// gatewayOfJails is the gateway as agents' jails and containers see it, by the name that is part of their contract.
func gatewayOfJails(c config.Config) string {
	return "http://" + net.JoinHostPort(agentenv.GatewayName, strconv.Itoa(int(c.Gateway.Port)))
}

// DefaultDriver makes the jails of agents that name neither template nor image.
func DefaultDriver(d config.AgentDriver) string {
	if d == config.AgentDriverDocker || d == config.AgentDriverAuto && runtime.GOOS != "linux" {
		return agent.DriverDocker
	}
	return agent.DriverLinux
}

// makeServers makes the service of MCP servers in jails, and binds secrets to where they go.
func (p *plane) makeServers(ctx context.Context) (err error) {
	p.servers, err = mcpserver.New(mcpserver.Options{
		Quotas: p.Config.Quotas, Tenants: p.identity.Counted,
		Driver: p.host, Keeper: p.host, Gateway: p.gateway.Gateway, Vault: p.vault, Store: p.store, Identity: p.identity, Audit: p.audit,
		Templates: func(ctx context.Context) ([]string, error) {
			all, err := p.host.Templates(ctx)
			names := make([]string, len(all))
			for n, t := range all {
				names[n] = t.Name
			}
			return names, err
		},
		ServersOf: func(tenant, agentID string) []string {
			return append(p.agents.ServersOf(tenant, agentID), p.book.MCPServers(tenant, agentID)...)
		},
		Servers: p.Config.MCPServers, Limits: p.Config.Agents.Limits, Proxy: p.proxy(), Version: p.Version, Log: p.Log, Now: p.Now,
	})
	if err == nil {
		p.bindSecrets(ctx)
	}
	return err
}

// bindSecrets lets what operators have declared say where secrets go that were stored without an origin, and binds those that
// are there. One that cannot be bound is refused where it is used, and does not keep the control plane from starting.
func (p *plane) bindSecrets(ctx context.Context) {
	p.vault.BindBy(func(ctx context.Context, n vault.SecretName) ([]vault.Destination, error) {
		out, err := vault.ParseDestinations(p.book.Origins(n.Tenant, n.Agent, n.Service))
		if err != nil || n.Agent != "" {
			return out, err // servers have secrets of tenants
		}
		taken, err := p.servers.Takes(ctx, n.Tenant, n.Service)
		if taken {
			out = append(out, vault.InJail)
		}
		return out, err
	})
	if err := p.vault.BindDeclared(ctx); err != nil {
		p.Log.Warn("secrets could not be bound to where they go", "error", err)
	}
}
