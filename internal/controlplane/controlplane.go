// Package controlplane puts the control plane together, the half of clawjail without privileges: it makes the services of the
// configuration, serves them, and ends them.
//
// What the operator can have got wrong is told before anything is waited for. Nobody is served before everything is there. At
// the end sessions, programs and MCP servers go while their way out is still there, and the audit log goes last.
package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/hostnet"
	"github.com/clawjail/clawjail/internal/gateway/ledger"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/metrics"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/toolserver"
)

const (
	// startLimit bounds the wait for the host daemon, which may be starting at the same moment, and for its bridge.
	startLimit = 10 * time.Second
	// endLimit bounds closing all sessions. The host daemon ends what is left after its own grace period.
	endLimit = 30 * time.Second
	// hostLimit bounds a question to the host daemon that somebody waits for.
	hostLimit = 2 * time.Second
)

// Options are what a control plane is made from.
type Options struct {
	Config  config.Config
	Version string
	Log     *slog.Logger
	Now     func() time.Time
	// Notify tells the service manager.
	Notify func(state string) error
	// Beside are what a test's control plane runs besides; the program has none.
	Beside []Beside
}

// Beside runs beside a control plane and with its gateway, until ctx ends; an error ends the control plane. A test's control
// plane admits jails of its own with one.
type Beside func(ctx context.Context, exit *gateway.Gateway) error

// Run runs a control plane until ctx ends. Then it closes every session, and returns when nothing of them is left.
func Run(ctx context.Context, o Options) (err error) {
	// First what the operator can have got wrong, so that it is told before anything is waited for.
	authorities, trusted, err := readAuthorities(o.Config.ExtraCA)
	if err != nil {
		return err
	}
	reach, err := reachOf(o.Config)
	if err != nil {
		return err
	}
	certificate, err := loadCertificate(o.Config.TLS)
	if err != nil {
		return err
	}
	if err := open.CheckURL(o.Config.Database.Reveal()); err != nil {
		return err
	}

	host := hostd.NewClient(hostd.SocketPath(o.Config), o.Log)
	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := host.Hold(starting); err != nil {
		return fmt.Errorf("reach the host daemon: %w", err)
	}
	defer host.Close()
	info, err := host.Info(starting)
	if err != nil {
		return fmt.Errorf("ask the host daemon what it is: %w", err)
	}
	// The host daemon makes the folders that the keys and the database are in.
	ring, err := openRing(ctx, o, host, info)
	if err != nil {
		return err
	}
	// Last of all, when nothing is left to be recorded.
	defer func() { err = errors.Join(err, ring.close(ctx)) }()

	apiListener, err := listenAPI(ctx, o, ring, certificate)
	if err != nil {
		return err
	}
	defer apiListener.Close() // closed already where it was served
	gatewayListener, err := listenGateway(starting, netip.AddrPortFrom(info.Gateway, o.Config.Gateway.Port))
	if err != nil {
		return err
	}
	defer gatewayListener.Close() // likewise
	relayKey, err := readRelayKey(o.Config)
	if err != nil {
		return err
	}

	reach.guard.Self = append(reach.guard.Self, o.Config.Listen)
	networks, err := hostnet.Open(o.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, networks.Close()) }()
	explains := &explained{clean: reach.policy}
	permits := new(lateAccounts)
	book, err := egress.Open(ctx, egress.Options{Store: ring.store, Identity: ring.identity, Audit: ring.log, Now: o.Now, Recheck: egressRecheck, Way: explains, Accounts: permits, Log: o.Log})
	if err != nil {
		return fmt.Errorf("read what was decided about the way out: %w", err)
	}
	defer book.Close()
	// What counts is asked for what is made later; nobody asks before everything is there.
	var sessions *session.Service
	var agents *agent.Service
	var servers *toolserver.Service
	counted := metrics.New(metrics.Options{Version: o.Version, Audit: ring.log.Status,
		Sessions: func() session.Status { return sessions.Status() }, States: func() map[session.State]int { return sessions.States() }})
	var inside http.Handler
	asked := decided{book}
	limits := gateway.DefaultLimits()
	limits.IdleTimeout = o.Config.Gateway.Silence
	exit, err := gateway.New(gateway.Config{
		Guard: reach.guard, Networks: networks.Now, Logger: o.Log, Now: o.Now, Limits: limits, Local: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inside.ServeHTTP(w, r) }), Records: ledger.New(ring.log),
		Policy: asked.policy, Used: asked.used, Ask: asked.ask, Rates: asked.rates, Keys: ring.identity, Observer: counted, Roots: trusted,
		Unknown: func(ctx context.Context, addr netip.Addr) bool { return agents.Unknown(ctx, addr) },
		Quotas:  o.Config.Quotas, Connections: connectionsOfAll(), Tenants: ring.identity.Counted,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exit.Close()) }()
	explains.Gateway = exit
	used := newSecretsUsed(ring.vault, o)
	surfaces, err := newSurfaces(exit, asked, ring, used, o)
	if err != nil {
		return err
	}

	sessions, err = session.New(session.Options{
		Driver: host, Gateway: way{exit}, Templates: installed{host}, Connect: session.Dialer(o.Config.Sessions.DialogWait),
		Sessions: o.Config.Sessions, Quotas: o.Config.Quotas, Limits: o.Config.Limits, WarmPool: o.Config.WarmPool,
		Proxy: "http://" + gatewayListener.Addr().String(), Policy: reach.policy, ExtraCA: authorities, Unsandboxed: info.Unsandboxed,
		Authority: ring.identity, Records: Records{ring.log},
		Accounts:   session.Accounts{Grants: ring.grants, Vault: ring.vault, Leases: ring.store, Node: ring.node, Logins: o.Config.Logins, Ask: book.AskForAccount},
		Recordings: filepath.Join(hostd.ControlDir(o.Config), "sessions"), Observe: countOpened(counted.Opened),
		Log: o.Log, Now: o.Now,
	})
	if err != nil {
		return err
	}
	accounts, err := credential.New(credential.Options{Vault: ring.vault, Grants: ring.grants, Keyring: ring.keyring, Identity: ring.identity,
		Audit: ring.log, Sessions: sessions, Now: o.Now, Log: o.Log})
	if err != nil {
		return errors.Join(err, endSessions(ctx, sessions))
	}
	permits.Service = accounts
	agents, err = newAgents(o, host, exit, book, accounts, ring, func(ctx context.Context) ([]string, error) { return servers.Names(ctx) },
		func() { servers.Changed() })
	if err != nil {
		return errors.Join(err, endSessions(ctx, sessions))
	}
	end := func() error { return errors.Join(endAgents(ctx, agents), endSessions(ctx, sessions)) }
	servers, err = newToolServers(o, host, host, exit, ring, "http://"+gatewayListener.Addr().String(), func(tenant, agentID string) []string {
		return append(agents.ServersOf(tenant, agentID), book.MCPServers(tenant, agentID)...)
	})
	if err != nil {
		return errors.Join(err, end())
	}
	bindSecrets(ctx, o, ring, book, servers)
	end = func() error {
		// Beside each other: each has its own time for it.
		var group errgroup.Group
		group.Go(func() error { return endAgents(ctx, agents) })
		group.Go(func() error { return endToolServers(ctx, servers) })
		return errors.Join(endSessions(ctx, sessions), group.Wait())
	}
	goals, err := newTasks(ring, sessions, surfaces, asked, o)
	if err != nil {
		return errors.Join(err, end())
	}
	tools, err := mcp.New(mcp.Options{
		Backend: ownBrowsers{sessions}, Access: book, Tasks: goals, Foreign: servers, Principal: api.Caller, Version: o.Version, Log: o.Log, Now: o.Now,
		Sessions: mcp.Bounds{TTL: o.Config.Sessions.TTL, MaxTTL: o.Config.Sessions.MaxTTL, Idle: o.Config.Sessions.Idle, Most: o.Config.Sessions.Max},
	})
	if err != nil {
		return errors.Join(err, end())
	}
	var signedIn api.SignIn // nil without a console
	if o.Config.Console.Enabled {
		signedIn = ring.signin
	}
	doing, err := newHealth(o, host, ring, certificate, healthParts{sessions: sessions, accounts: accounts, book: book, agents: agents,
		servers: servers, counted: counted, exit: exit, gateway: gatewayListener.Addr().String()})
	if err != nil {
		return errors.Join(err, end())
	}
	people, err := newConsole(o, ring, consoleParts{sessions: sessions, accounts: accounts, book: book, agents: agents, servers: servers, goals: goals, health: doing})
	if err != nil {
		return errors.Join(err, end())
	}
	door, err := api.New(api.Options{
		SignIn: signedIn, Console: people,
		Sessions: sessions, Identity: ring.identity, Credentials: accounts, Audit: ring.log, Rows: ring.store,
		Verify: ring.verify(hostd.CheckpointsPath(o.Config)), Version: o.Version, Listen: o.Config.Listen, OwnName: certificate.ownName,
		Quotas: o.Config.Quotas, Tenants: ring.tenants, BehindProxy: o.Config.BehindProxy, PublicName: publicName(o), PublicPath: config.PublicPath(o.Config.PublicURL), Log: o.Log, Now: o.Now, MCP: tools.Handler(),
		Agents: agents, Servers: servers, Tasks: goals, Egress: book, Status: doing, Surfaces: surfaces, Metrics: counted, OpenMetrics: o.Config.Metrics.Open,
		Host: func(ctx context.Context) (api.HostInfo, error) { return hostInfo(ctx, host) },
	})
	if err != nil {
		return errors.Join(err, end())
	}

	inside = door.Inside(func(ctx context.Context) string { return gateway.CallerOf(ctx).Agent }, gateway.OwnName)

	// The gateway serves until the sessions are closed: a page that is still loading then fails with its session, and
	// not because the way out went first.
	serving, stopGateway := context.WithCancel(context.WithoutCancel(ctx))
	defer stopGateway()
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return door.Serve(running, apiListener) })
	group.Go(func() error {
		if err := exit.Serve(serving, gatewayListener); err != nil {
			return err
		}
		if running.Err() == nil {
			return errors.New("the gateway stopped listening")
		}
		return nil
	})
	group.Go(func() error {
		ring.tidy(running, host, book, o.Now, o.Log)
		return nil
	})
	group.Go(func() error {
		used.run(running)
		return nil
	})
	group.Go(func() error {
		<-running.Done()
		defer stopGateway()
		return end()
	})
	group.Go(func() error { return agents.Follow(running) })
	group.Go(func() error {
		tellTenants(running, host, ring.identity.Counted, o.Log)
		return nil
	})
	group.Go(func() error {
		wayOfContainers(o, host, exit, relayKey).run(serving)
		return nil
	})
	for _, run := range o.Beside {
		group.Go(func() error { return run(running, exit) })
	}
	o.Log.Info("control plane is ready", "api", apiListener.Addr(), "gateway", gatewayListener.Addr(), "installation", info.Installation)
	if err := o.Notify("READY=1"); err != nil {
		o.Log.Warn("tell the service manager", "error", err)
	}
	err = group.Wait()
	o.Log.Info("control plane has ended")
	return err
}

// publicName is the host name in public_url.
func publicName(o Options) string {
	u, err := url.Parse(o.Config.PublicURL)
	if err != nil {
		return "" // the configuration has been validated
	}
	if u.Host == "" && len(o.Config.BehindProxy) > 0 {
		o.Log.Warn("behind_proxy is set without public_url: requests that name another host than this one are refused",
			"hint", "set public_url to the address that clients of the proxy use")
	}
	return u.Hostname()
}

func endSessions(ctx context.Context, sessions *session.Service) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	return sessions.Shutdown(ctx)
}

func hostInfo(ctx context.Context, host *hostd.Client) (api.HostInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	info, err := host.Info(ctx)
	return api.HostInfo{Installation: string(info.Installation), Subnet: info.Subnet.String(), Gateway: info.Gateway.String(), Jails: info.Jails}, err
}

// listenGateway listens on the bridge of the jails, which appears when the host daemon has made it.
func listenGateway(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	for {
		var l net.ListenConfig
		listener, err := l.Listen(ctx, "tcp4", at.String())
		if err == nil {
			return listener, nil
		}
		again := time.NewTimer(100 * time.Millisecond)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, problem.Wrap(err, problem.Conflict, "does something else listen there? `clawjail doctor` looks at the bridge; gateway.port sets another port",
				"the gateway cannot listen on %s", at)
		}
	}
}

func listenAPI(ctx context.Context, o Options, r *ring, c certificate) (net.Listener, error) {
	at := o.Config.Listen
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, problem.Wrap(err, problem.Conflict, "stop what uses it, or set listen in the configuration", "the API cannot listen on %s", at)
	}
	entrance := api.NewEntrance(listener, o.Config.Quotas, r.tenants)
	if c.leaf == nil {
		return entrance, nil
	}
	return tls.NewListener(entrance, &tls.Config{Certificates: []tls.Certificate{c.pair}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}}), nil
}

// certificate is the API's own, or none.
type certificate struct {
	pair tls.Certificate
	leaf *x509.Certificate
}

func loadCertificate(files config.TLS) (certificate, error) {
	if !files.Set() {
		return certificate{}, nil
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return certificate{}, problem.Wrap(err, problem.BadConfig, "check tls.cert and tls.key, and that the control plane's user can read both",
			"the certificate of the API cannot be used")
	}
	return certificate{pair: pair, leaf: pair.Leaf}, nil
}

// ownName reports whether a name is one of the certificate's.
func (c certificate) ownName(host string) bool {
	return c.leaf != nil && c.leaf.VerifyHostname(host) == nil
}

// readAuthorities reads the files of extra_ca, for browsers, and for the gateway, which trusts the system's authorities as well
// when it speaks TLS itself.
func readAuthorities(files []string) (all session.Certificates, pool *x509.CertPool, err error) {
	if pool, err = x509.SystemCertPool(); err != nil {
		return all, nil, fmt.Errorf("read the system's certificates: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return all, nil, problem.Wrap(err, problem.BadConfig, "correct extra_ca, and let the control plane's user read the file",
				"extra_ca: %s cannot be read", file)
		}
		one, err := session.ParseCertificates(file, text)
		if err != nil {
			return all, nil, err
		}
		if all, err = all.Add(one); err != nil {
			return all, nil, err
		}
		pool.AppendCertsFromPEM(text) // it is certificates and nothing else
	}
	return all, pool, nil
}
