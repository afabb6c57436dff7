package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/relay"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/provision"
	"github.com/clawjail/clawjail/internal/quota"
)

// containersEvery is how often the host daemon is asked whether there is a network of containers by now.
const containersEvery = time.Second

// newAgents makes the service of agents. servers names the MCP servers that there are, and changed hears that agents may use others.
func newAgents(o Options, host *hostd.Client, exit *gateway.Gateway, book *egress.Book, accounts *credential.Service, r *ring,
	servers func(context.Context) ([]string, error), changed func()) (*agent.Service, error) {
	return agent.New(agent.Options{
		Keeper: host, Driver: host, Composed: host.Composed, Gateway: exit, Identity: r.identity, Book: book, Accounts: accounts, Store: r.store, Audit: r.log,
		Agents: o.Config.Agents, Docker: o.Config.Docker, Default: DefaultDriver(o.Config.Agents.Driver), GatewayURL: gatewayOfJails(o.Config),
		Workspaces: workspacesOf(o.Config), AddedRoots: func() ([]string, error) { return hostd.PathsOfAddedRoots(o.Config) },
		Servers: servers, ServersChanged: changed, Quotas: o.Config.Quotas, MaxAgents: hostd.AgentJails,
		Disk: func() (int64, error) {
			size, _, err := quota.Disk(o.Config.DataDir)
			return size, err
		},
		Volumes: host.Volumes, Dir: filepath.Join(hostd.ControlDir(o.Config), "programs"), Log: o.Log, Now: o.Now,
	})
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
	return "http://" + net.JoinHostPort(provision.GatewayName, strconv.Itoa(int(c.Gateway.Port)))
}

// DefaultDriver makes the jails of agents that name neither template nor image.
func DefaultDriver(d config.AgentDriver) string {
	switch {
	case d == config.AgentDriverDocker, d == config.AgentDriverAuto && runtime.GOOS != "linux":
		return agent.DriverDocker
	}
	return agent.DriverLinux
}

// endAgents ends the programs that run for agents. Their jails run on.
func endAgents(ctx context.Context, agents *agent.Service) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	return agents.Close(ctx)
}

// readRelayKey reads what relays prove themselves with, where there is one; the host daemon has made it by now.
func readRelayKey(c config.Config) (key relay.Key, err error) {
	if c.Gateway.Placement == config.PlacementContainer {
		key, err = relay.ReadKey(hostd.RelayKeyPath(c))
	}
	return key, err
}

// wayOfContainers is where agents in containers reach the gateway: on their bridge, or where a relay brings their connections.
func wayOfContainers(o Options, host *hostd.Client, exit *gateway.Gateway, key relay.Key) containers {
	own := containers{port: o.Config.Gateway.Port, serve: exit.Serve, log: o.Log,
		gateway: func(ctx context.Context) (netip.Addr, error) { return containerGateway(ctx, host) }}
	if g := o.Config.Gateway; g.Placement == config.PlacementContainer {
		own.port = g.Relay.Port()
		own.gateway = func(context.Context) (netip.Addr, error) { return g.Relay.Addr(), nil }
		own.serve = func(ctx context.Context, l net.Listener) error {
			return exit.Serve(ctx, relay.Listen(l, key, g.Port, o.Log))
		}
	}
	return own
}

// containers is a gateway for agents in containers, which have a network of their own.
type containers struct {
	// gateway is where it is to listen; the zero Addr while there is no such network. With a relay it is where that comes to,
	// which may be the address of a network that is not there yet.
	gateway func(ctx context.Context) (netip.Addr, error)
	port    uint16
	// serve serves until ctx ends.
	serve func(ctx context.Context, l net.Listener) error
	log   *slog.Logger
}

// run serves wherever the network is, until ctx ends. The network appears with the first container, and can come back with
// another address. Without it nothing else is worse off, so nothing here is an error.
func (c containers) run(ctx context.Context) {
	every := time.NewTicker(containersEvery)
	defer every.Stop()
	var at netip.Addr
	stop := func() {}
	defer func() { stop() }()
	said := ""
	for {
		addr, err := c.gateway(ctx)
		if err == nil && addr != at {
			stop()
			at, stop = netip.Addr{}, func() {}
			if addr.IsValid() {
				if stop, err = c.listen(ctx, netip.AddrPortFrom(addr, c.port)); err == nil {
					at, said = addr, ""
					c.log.Info("the gateway listens for containers", "gateway", netip.AddrPortFrom(addr, c.port))
				} else {
					stop = func() {}
				}
			}
		}
		// What does not work is tried again, and told once.
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			c.log.Warn("the gateway cannot listen for containers yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// listen serves at an address until the answer is called, which returns when nothing is served any more.
func (c containers) listen(ctx context.Context, at netip.AddrPort) (stop func(), err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with ctx; the answer waits for it
		defer close(done)
		if err := c.serve(ctx, listener); err != nil {
			c.log.Warn("the gateway does not listen for containers any more", "error", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}, nil
}

// containerGateway asks the host daemon.
func containerGateway(ctx context.Context, host *hostd.Client) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	info, err := host.Info(ctx)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask the host daemon for the network of containers: %w", err)
	}
	return info.ContainerGateway, nil
}
