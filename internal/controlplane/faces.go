package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
)

func (p *plane) listenAPI(ctx context.Context) error {
	at := p.Config.Listen
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return problem.Wrap(err, problem.Conflict, "stop what uses it, or set listen in the configuration", "the API cannot listen on %s", at)
	}
	p.apiListener = api.NewEntrance(listener, p.Config.Quotas, p.tenants)
	if p.certificate != nil {
		p.apiListener = tls.NewListener(p.apiListener, p.certificate.Config())
	}
	return nil
}

func (p *plane) makeHealth(context.Context) (err error) {
	out := health.Options{
		Sessions: p.sessions, Identity: p.identity, Accounts: p.accounts.Service, Requests: p.book, Agents: p.agents, Divided: p.Config.Quotas,
		Held: []quota.Look{quota.Always(p.sessions.Held), quota.Always(p.audit.Held), quota.Always(p.identity.Held), quota.Always(p.gateway.Held), p.agents.Held,
			quota.Always(p.servers.Held), p.memoryOfJails, p.vault.Held},
		Machine: health.NewWatch(p.host, p.Config.DataDir, p.Now, p.Log).Look,
		Audit:   p.audit.Status, Certificate: p.certificate, Checkpoints: hostd.CheckpointsPath(p.Config), Database: p.store, DatabaseKind: "postgresql",
		Gateway: p.metrics.Gateway, GatewayAt: p.gatewayListener.Addr().String(), API: p.Config.Listen.String(), Version: p.Version, Node: p.node, Log: p.Log, Now: p.Now,
	}
	if p.Config.Database == "" {
		out.DatabaseKind, out.DatabaseDir = "embedded", hostd.DatabaseDir(p.Config)
	}
	p.nodes = &peer.Nodes{Self: p.node, Store: p.store, Identity: p.identity, Audit: p.audit, Changed: p.sessions.Drain, Leaving: p.agents.Leaving,
		Sessions: func(ctx context.Context, by identity.Principal) ([]session.Session, error) {
			return p.allSessions().List(ctx, by, "", false)
		}}
	out.Nodes = p.nodes.Known
	p.health, err = health.New(out)
	return err
}

// makeConsole makes the web console, where the configuration has one.
func (p *plane) makeConsole(context.Context) error {
	if !p.Config.Console.Enabled {
		return nil
	}
	c, err := console.New(console.Options{
		Sessions: knownSessions{p.allSessions()}, Identity: p.identity, Credentials: p.accounts.Service, Egress: p.book, Agents: p.agents, Servers: p.servers, Tasks: p.tasks,
		Audit: p.audit, Rows: p.store, Verify: p.verify, SignIn: p.signin,
		Health: p.health, Config: p.Config, BehindProxy: p.Config.BehindProxy, Version: p.Version,
		Log: p.Log, Now: p.Now,
	})
	if err != nil {
		return fmt.Errorf("make the console: %w", err)
	}
	p.console = c
	return nil
}

// makeAPI makes the API with MCP, and what of both is open to jails through the gateway.
func (p *plane) makeAPI(context.Context) error {
	tools, err := mcp.New(mcp.Options{
		Backend: browsers{knownSessions{p.allSessions()}}, Tag: store.NodeTag(p.node), Elsewhere: api.ElsewhereOfSession, Access: p.book, Tasks: p.tasks, Foreign: p.servers, Principal: api.Caller, Version: p.Version, Log: p.Log, Now: p.Now,
		Sessions: mcp.Bounds{TTL: p.Config.Sessions.TTL, MaxTTL: p.Config.Sessions.MaxTTL, Idle: p.Config.Sessions.Idle, Max: p.Config.Sessions.Max},
	})
	if err != nil {
		return err
	}
	o := api.Options{
		Console: p.console, Sessions: p.allSessions(), Identity: p.identity, Credentials: p.accounts.Service, Audit: p.audit, Rows: p.store,
		Verify: p.verify, Version: p.Version, Listen: p.Config.Listen, OwnName: p.ownName,
		Quotas: p.Config.Quotas, Tenants: p.tenants, BehindProxy: p.Config.BehindProxy, PublicName: p.publicName(), PublicPath: config.PublicPath(p.Config.PublicURL), PublicURL: p.Config.PublicURL, Log: p.Log, Now: p.Now, MCP: tools.Handler(),
		Agents: p.agents, Servers: p.servers, Tasks: p.tasks, Egress: p.book, Status: p.health, Nodes: p.nodes, Surfaces: p.agentRoutes, Metrics: p.metrics, OpenMetrics: p.Config.Metrics.Open,
		Host: p.hostInfo,
	}
	if p.console != nil {
		o.SignIn = p.signin
	}
	if p.peers != nil {
		o.Peers, o.AgentNode = p.peers, p.agents.NodeOf
	}
	if p.api, err = api.New(o); err != nil {
		return err
	}
	p.inside = p.api.Inside(func(ctx context.Context) string { return gateway.CallerOf(ctx).Agent }, gateway.OwnName)
	return nil
}

// serveAPI says that everything is there, and serves.
func (p *plane) serveAPI(ctx context.Context) error {
	p.Log.Info("control plane is ready", "api", p.apiListener.Addr(), "gateway", p.gatewayListener.Addr(), "installation", p.info.Installation)
	if err := p.Notify("READY=1"); err != nil {
		p.Log.Warn("tell the service manager", "error", err)
	}
	return p.api.Serve(ctx, p.apiListener)
}

// ownName reports whether a name is one of the certificate's.
func (p *plane) ownName(host string) bool {
	leaf := p.certificate.Leaf()
	return leaf != nil && leaf.VerifyHostname(host) == nil
}

// publicName is the host name in public_url.
func (p *plane) publicName() string {
	u, err := url.Parse(p.Config.PublicURL)
	if err != nil {
		return "" // the configuration has been validated
	}
	if u.Host == "" && len(p.Config.BehindProxy) > 0 {
		p.Log.Warn("behind_proxy is set without public_url: requests that name another host than this one are refused",
			"hint", "set public_url to the address that clients of the proxy use")
	}
	return u.Hostname()
}
