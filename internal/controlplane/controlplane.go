// Package controlplane puts the control plane together, the half of clawjail without privileges: it makes the services of the
// configuration, serves them, and ends them.
//
// Mistakes of the operator are told before anything is waited for. No client is served before everything is there. At
// the end sessions, programs and MCP servers go while their way out is still there, and the audit log goes last.
package controlplane

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/keypair"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/hostnet"
	"github.com/clawjail/clawjail/internal/gateway/relay"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/metrics"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/task"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	// startLimit bounds making one part. A schema that is brought up to date can take long.
	startLimit = 5 * time.Minute
	// endLimit bounds ending one. The host daemon ends what is left of sessions after its own grace period.
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
type Beside func(ctx context.Context, gateway *gateway.Gateway) error

// plane is a control plane, in the order in which it is made.
type plane struct {
	Options
	authorities session.Certificates
	roots       *x509.CertPool
	certificate *keypair.Pair // of the API; nil when there is none

	host *hostd.Client
	info hostd.Info

	node    string
	nodeRun string // see [store.Node]
	// nodeLook is for what another control plane wants of this one, and goneLook for one that is gone.
	nodeLook, goneLook wake.Signal

	nodes *peer.Nodes
	// nodesSecret is the one by which nodes know each other, and peers are the others; nil with a database of this node alone.
	nodesSecret secret.Value
	peers       *peer.Peers
	key         *checkpoint.Key
	store       store.Store
	audit       *audit.Log
	vault       *vault.Vault
	keyring     *grant.Keyring
	grants      *grant.Issuer
	identity    *identity.Service
	// counts is identity once it is open: the log is open before it.
	counts atomic.Pointer[identity.Service]
	signin *signin.Service

	apiListener, gatewayListener net.Listener
	peerListener                 net.Listener // nil without node_listen

	networks    *hostnet.Networks
	book        *egress.Book
	metrics     *metrics.Metrics
	gateway     sessionGateway
	relayKey    relay.Key
	used        chan vault.SecretName // whose use is not written to the database yet
	agentRoutes agentRoutes

	sessions *session.Service
	accounts lateAccounts
	agents   *agent.Service
	servers  *mcpserver.Service
	tasks    *task.Service
	health   *health.Service
	console  http.Handler // nil without one
	api      *api.API
	inside   http.Handler
}

// part is one of what a control plane is made of. run and end may be nil.
type part struct {
	name string
	// start makes it. No client is served before everything is made.
	start func(*plane, context.Context) error
	// run does what it does by itself until its context ends: when the end is asked for or, of the wayOut, when all work has
	// ended. A page that is still loading fails with its session so, and not because the way out went first.
	run    func(*plane, context.Context) error
	wayOut bool
	// end ends it. Parts with work of users end first and together, when the end is asked for: each has its own time
	// for it. The others end when nothing runs any more, the last first.
	end  func(*plane, context.Context) error
	work bool
}

// parts is everything that a control plane is made of, in the order in which it is made.
var parts = []part{
	{name: "settings", start: (*plane).readSettings},
	{name: "host daemon", start: (*plane).holdHost, run: (*plane).tellTenants, end: func(p *plane, _ context.Context) error { p.host.Close(); return nil }},
	{name: "database", start: (*plane).openStore, end: func(p *plane, _ context.Context) error { return p.store.Close() }},
	{name: "node", wayOut: true, start: (*plane).startNode, run: (*plane).keepNode, end: (*plane).endNode},
	{name: "audit log", start: (*plane).openAudit, run: (*plane).tidy, end: (*plane).closeAudit},
	{name: "vault", start: (*plane).openVault},
	{name: "grants", start: (*plane).openGrants},
	{name: "identity", start: (*plane).openIdentity, end: func(p *plane, _ context.Context) error { p.identity.Close(); return nil }},
	{name: "sign-ins", start: (*plane).openSignIns, end: func(p *plane, _ context.Context) error { p.signin.Close(); return nil }},
	// Where they were served, the listeners are closed already.
	{name: "listener of the API", start: (*plane).listenAPI, end: func(p *plane, _ context.Context) error { _ = p.apiListener.Close(); return nil }},
	{name: "other nodes", start: (*plane).openPeers, end: (*plane).closePeers},
	{name: "listener of the gateway", start: (*plane).listenGateway, end: func(p *plane, _ context.Context) error { _ = p.gatewayListener.Close(); return nil }},
	{name: "networks", start: func(p *plane, _ context.Context) (err error) { p.networks, err = hostnet.Open(p.Log); return err },
		end: func(p *plane, _ context.Context) error { return p.networks.Close() }},
	{name: "rules", start: (*plane).openBook, end: func(p *plane, _ context.Context) error { p.book.Close(); return nil }},
	{name: "gateway", wayOut: true, start: (*plane).makeGateway, run: (*plane).serveGateway, end: func(p *plane, _ context.Context) error { return p.gateway.Close() }},
	{name: "gateway for containers", wayOut: true, start: (*plane).readRelayKey, run: (*plane).serveContainers},
	{name: "surfaces", start: (*plane).makeAgentRoutes, run: (*plane).recordUse},
	{name: "sessions", work: true, start: (*plane).makeSessions, end: func(p *plane, ctx context.Context) error { return p.sessions.Shutdown(ctx) }},
	{name: "accounts", start: (*plane).makeAccounts},
	// Their jails run on; what ends are the programs that run for agents.
	{name: "agents", work: true, start: (*plane).makeAgents, run: func(p *plane, ctx context.Context) error { return p.agents.Follow(ctx) },
		end: func(p *plane, ctx context.Context) error { return p.agents.Close(ctx) }},
	{name: "MCP servers", work: true, start: (*plane).makeServers, end: func(p *plane, ctx context.Context) error { return p.servers.Close(ctx) }},
	{name: "tasks", start: (*plane).makeTasks},
	{name: "health", start: (*plane).makeHealth},
	{name: "console", start: (*plane).makeConsole},
	{name: "API", start: (*plane).makeAPI, run: (*plane).serveAPI},
	{name: "API for other nodes", start: nothing, run: (*plane).servePeers},
	{name: "changes of other nodes", start: nothing, run: (*plane).followStore},
}

// nothing is the start of a part that only runs.
func nothing(*plane, context.Context) error { return nil }

// Run runs a control plane until ctx ends. Then it closes every session, and returns when nothing of them is left.
func Run(ctx context.Context, o Options) error {
	all := slices.Clone(parts)
	for _, run := range o.Beside {
		all = append(all, part{name: "beside", start: nothing,
			run: func(p *plane, ctx context.Context) error { return run(ctx, p.gateway.Gateway) }})
	}
	return live(ctx, &plane{Options: o, nodeLook: wake.New(), goneLook: wake.New()}, all)
}

// live makes the parts, runs them until ctx ends or one of them fails, and ends those that were made.
func live(ctx context.Context, p *plane, parts []part) error {
	for n, each := range parts {
		starting, cancel := context.WithTimeout(ctx, startLimit)
		err := each.start(p, starting)
		cancel()
		if err != nil {
			return errors.Join(err, end(ctx, p, parts[:n], true), end(ctx, p, parts[:n], false))
		}
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, running := errgroup.WithContext(ctx)
	for _, each := range parts {
		until := running
		if each.wayOut {
			until = serving
		}
		if each.run != nil {
			group.Go(func() error { return each.run(p, until) })
		}
	}
	var ended error
	group.Go(func() error {
		<-running.Done()
		defer stop()
		ended = end(ctx, p, parts, true)
		return nil
	})
	err := group.Wait()
	p.Log.Info("control plane has ended")
	return errors.Join(err, ended, end(ctx, p, parts, false))
}

// end ends the parts that are work, all at once, or those that are not, the last first.
func end(ctx context.Context, p *plane, parts []part, work bool) error {
	var ending sync.WaitGroup
	errs := make([]error, len(parts))
	for n, each := range slices.Backward(parts) {
		if each.end == nil || each.work != work {
			continue
		}
		ending.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
			defer cancel()
			if err := each.end(p, ctx); err != nil {
				errs[n] = fmt.Errorf("end %s: %w", each.name, err)
			}
		})
		if !work {
			ending.Wait()
		}
	}
	ending.Wait()
	return errors.Join(errs...)
}
