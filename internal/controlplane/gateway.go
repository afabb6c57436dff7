package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/auditlog"
	"github.com/clawjail/clawjail/internal/gateway/execute"
	"github.com/clawjail/clawjail/internal/gateway/llm"
	"github.com/clawjail/clawjail/internal/gateway/service"
	"github.com/clawjail/clawjail/internal/metrics"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// egressRecheck is how soon decisions of another control plane on the same database are known here.
const egressRecheck = 2 * time.Second

func (p *plane) listenGateway(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	p.gatewayListener, err = listenAt(ctx, net.ListenConfig{}, netip.AddrPortFrom(p.info.Gateway, p.Config.Gateway.Port))
	return err
}

// listenAt listens on the bridge of the jails. It waits for its address, which is there once the host daemon has made the bridge.
func listenAt(ctx context.Context, l net.ListenConfig, at netip.AddrPort) (net.Listener, error) {
	for {
		listener, err := l.Listen(ctx, "tcp4", at.String())
		switch {
		case err == nil:
			return listener, nil
		case errors.Is(ctx.Err(), context.Canceled):
			return nil, ctx.Err()
		case !errors.Is(err, unix.EADDRNOTAVAIL), ctx.Err() != nil:
			return nil, problem.Wrap(err, problem.Conflict, "see whether something else listens there; `clawjail doctor` checks the bridge, and gateway.port sets another port",
				"the gateway cannot listen on %s", at)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (p *plane) openBook(ctx context.Context) (err error) {
	p.book, err = egress.Open(ctx, egress.Options{Store: p.store, Identity: p.identity, Audit: p.audit, Now: p.Now, Recheck: egressRecheck, Way: &p.gateway, Accounts: &p.accounts, Log: p.Log})
	if err != nil {
		return fmt.Errorf("read what was decided about the way out: %w", err)
	}
	return nil
}

// makeGateway builds the gateway and its metrics. Their closures over parts that are built later are not called until all are there.
func (p *plane) makeGateway(context.Context) (err error) {
	p.metrics = metrics.New(metrics.Options{Version: p.Version, Audit: p.audit.Status,
		Sessions: func() session.Status { return p.sessions.Status() }, States: func() map[session.State]int { return p.sessions.States() }})
	limits := gateway.DefaultLimits()
	limits.IdleTimeout = p.Config.Gateway.Silence
	p.gateway.Gateway, err = gateway.New(gateway.Config{
		Guard: netguard.Guard{Self: []netip.AddrPort{p.Config.Listen}}, Networks: p.networks.Now, Logger: p.Log, Now: p.Now, Limits: limits,
		Local: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.inside.ServeHTTP(w, r) }), Records: auditlog.New(p.audit),
		Policy: p.policy, Used: p.ruleUsed, Ask: p.ask, Rates: p.rates, Keys: p.identity, Observer: p.metrics, Roots: p.roots,
		Unknown: func(ctx context.Context, addr netip.Addr) bool { return p.agents.Unknown(ctx, addr) },
		Quotas:  p.Config.Quotas, Connections: connectionsOfAll(), Tenants: p.identity.Counted,
	})
	return err
}

func (p *plane) serveGateway(ctx context.Context) error {
	err := p.gateway.Serve(ctx, p.gatewayListener)
	if err == nil && ctx.Err() == nil {
		err = errors.New("the gateway stopped listening")
	}
	return err
}

// connectionsOfAll is how many connections all jails together may have open: half of the descriptors, two for each.
func connectionsOfAll() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return gateway.DefaultConnections
	}
	return int(min(max(uint64(files.Max)/4, 64), gateway.DefaultConnections))
}

// sessionGateway adapts gateway.Gateway to session.Gateway and egress.Way.
type sessionGateway struct {
	*gateway.Gateway
	clean policy.Policy
}

// Admit implements session.Gateway.
func (g *sessionGateway) Admit(addr netip.Addr, who session.Caller) error {
	return g.Gateway.Admit(addr, gateway.Caller{Jail: string(who.Jail), Session: who.Session, Tenant: who.Tenant, Opener: who.Opener,
		Actor: who.Actor, Policy: who.Policy, Confined: who.Confined, Vet: who.Vet})
}

// LastActivity implements session.Gateway.
func (g *sessionGateway) LastActivity(addr netip.Addr) time.Time {
	// An address that is not admitted has the zero Activity.
	a, _ := g.Gateway.Activity(addr)
	return a.Last
}

// CallerIn implements egress.Way.
func (g *sessionGateway) CallerIn(session string) (egress.Who, bool) {
	c, found := g.Gateway.CallerIn(session)
	return access.Who(c), found
}

// Clean implements egress.Way.
func (g *sessionGateway) Clean() policy.Policy { return g.clean }

// view is what operators decided for a caller.
func (p *plane) view(c gateway.Caller) *egress.EffectivePolicy { return p.book.View(access.Who(c)) }

// policy implements gateway.Config.Policy.
func (p *plane) policy(c gateway.Caller) *policy.Compiled { return p.view(c).Proxy() }

// rates implements gateway.Config.Rates.
func (p *plane) rates(c gateway.Caller) gateway.Rates {
	r := p.view(c).Settings().Rates
	return gateway.Rates{Proxy: r.Proxy, Execute: r.Execute, Service: r.Service, LLM: r.LLM, Tunnels: r.Tunnels}
}

// ruleUsed implements gateway.Config.Used.
func (p *plane) ruleUsed(ctx context.Context, rule string) (ok, once bool) {
	return p.book.Used(ctx, rule), egress.ForOneUse(rule)
}

// ask implements gateway.Config.Ask.
func (p *plane) ask(ctx context.Context, c gateway.Caller, target string) bool {
	if p.view(c).Hold() <= 0 {
		return false
	}
	return p.book.Hold(ctx, access.Who(c), target)
}

// agentRoutes routes requests of agents to execute, services and models. Paths are not cleaned here; each handler refuses
// ambiguous ones.
type agentRoutes struct {
	execute, services, models http.Handler
	modelPaths                []string // one that ends in a slash stands for everything below it
}

// handlerFor returns the handler of a path, or nil.
func (a agentRoutes) handlerFor(path string) http.Handler {
	switch {
	case path == "/v1/execute":
		return a.execute
	case strings.HasPrefix(path, service.Prefix):
		return a.services
	}
	for _, route := range a.modelPaths {
		if path == route || strings.HasSuffix(route, "/") && strings.HasPrefix(path, route) {
			return a.models
		}
	}
	return nil
}

// Serves implements api.Surfaces.
func (a agentRoutes) Serves(path string) bool { return a.handlerFor(path) != nil }

// ServeHTTP implements http.Handler.
func (a agentRoutes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := a.handlerFor(r.URL.Path); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	http.NotFound(w, r)
}

func (p *plane) makeAgentRoutes(context.Context) error {
	p.used = make(chan vault.SecretName, 256)
	common := access.Options{Gateway: p.gateway.Gateway, Views: p.view, Secrets: p.vault, Used: p.noteUse, Log: p.Log, Now: p.Now,
		Quotas: p.Config.Quotas, Tenants: p.identity.Counted}
	executing, err := execute.New(common)
	if err != nil {
		return err
	}
	services, err := service.New(common)
	if err != nil {
		return err
	}
	models, err := llm.New(llm.Options{Options: common, Book: p.book})
	if err != nil {
		return err
	}
	p.agentRoutes = agentRoutes{
		execute: p.gateway.Watched(gateway.SurfaceExecute, executing), services: p.gateway.Watched(gateway.SurfaceService, services),
		models: p.gateway.Watched(gateway.SurfaceLLM, models), modelPaths: llm.Routes(),
	}
	return nil
}

// noteUse hands the name of a used secret to recordUse. When too many come at once, some are left out: they will come again.
func (p *plane) noteUse(n vault.SecretName) {
	select {
	case p.used <- n:
	default:
	}
}

// recordUse updates the last-used time of secrets, at most once a minute each, outside of requests.
func (p *plane) recordUse(ctx context.Context) error {
	known := make(map[vault.SecretName]time.Time)
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-p.used:
			now := p.Now()
			if now.Sub(known[n]) < time.Minute {
				continue
			}
			if len(known) > 10_000 {
				clear(known)
			}
			known[n] = now
			if err := p.vault.MarkUsed(ctx, n, now); err != nil && ctx.Err() == nil {
				p.Log.Warn("say that a secret was used", "service", n.Service, "error", err)
			}
		}
	}
}
