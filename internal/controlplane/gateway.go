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
	"github.com/clawjail/clawjail/internal/gateway/door"
	"github.com/clawjail/clawjail/internal/gateway/execute"
	"github.com/clawjail/clawjail/internal/gateway/ledger"
	"github.com/clawjail/clawjail/internal/gateway/llm"
	"github.com/clawjail/clawjail/internal/gateway/service"
	"github.com/clawjail/clawjail/internal/metrics"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// egressRecheck is how soon what another control plane on the same database decided is known here.
const egressRecheck = 2 * time.Second

func (p *plane) listenGateway(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	p.gatewayListener, err = listenAt(ctx, netip.AddrPortFrom(p.info.Gateway, p.Config.Gateway.Port))
	return err
}

// listenAt listens on the bridge of the jails, which appears when the host daemon has made it.
func listenAt(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
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

func (p *plane) openBook(ctx context.Context) (err error) {
	p.book, err = egress.Open(ctx, egress.Options{Store: p.store, Identity: p.identity, Audit: p.audit, Now: p.Now, Recheck: egressRecheck, Way: &p.gateway, Accounts: &p.accounts, Log: p.Log})
	if err != nil {
		return fmt.Errorf("read what was decided about the way out: %w", err)
	}
	return nil
}

// makeGateway makes it with what counts. Both ask what is made later; nobody asks them before everything is there.
func (p *plane) makeGateway(context.Context) (err error) {
	p.metrics = metrics.New(metrics.Options{Version: p.Version, Audit: p.audit.Status,
		Sessions: func() session.Status { return p.sessions.Status() }, States: func() map[session.State]int { return p.sessions.States() }})
	limits := gateway.DefaultLimits()
	limits.IdleTimeout = p.Config.Gateway.Silence
	p.gateway.Gateway, err = gateway.New(gateway.Config{
		Guard: netguard.Guard{Self: []netip.AddrPort{p.Config.Listen}}, Networks: p.networks.Now, Logger: p.Log, Now: p.Now, Limits: limits,
		Local: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.inside.ServeHTTP(w, r) }), Records: ledger.New(p.audit),
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

// connectionsOfAll is how many connections jails may have open: each takes two descriptors, and half of them are for the rest.
func connectionsOfAll() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return gateway.DefaultConnections
	}
	return int(min(max(uint64(files.Max)/4, 64), gateway.DefaultConnections))
}

// way is the gateway as sessions and explanations see it. It is made after the book of what operators decided, and before
// anybody asks.
type way struct {
	*gateway.Gateway
	clean policy.Policy
}

// Admit implements session.Gateway.
func (w *way) Admit(addr netip.Addr, who session.Caller) error {
	return w.Gateway.Admit(addr, gateway.Caller{Jail: string(who.Jail), Session: who.Session, Tenant: who.Tenant, Opener: who.Opener,
		Actor: who.Actor, Policy: who.Policy, Confined: who.Confined, Vet: who.Vet})
}

// LastActivity implements session.Gateway.
func (w *way) LastActivity(addr netip.Addr) time.Time {
	// An address that is not admitted did nothing, and its zero Activity says so.
	a, _ := w.Gateway.Activity(addr)
	return a.Last
}

// CallerIn implements egress.Way.
func (w *way) CallerIn(session string) (egress.Who, bool) {
	c, found := w.Gateway.CallerIn(session)
	return door.Who(c), found
}

// Clean implements egress.Way.
func (w *way) Clean() policy.Policy { return w.clean }

// view is what operators decided for a caller.
func (p *plane) view(c gateway.Caller) *egress.View { return p.book.View(door.Who(c)) }

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
	return p.book.Hold(ctx, door.Who(c), target)
}

// surfaces are what the gateway itself answers to agents, besides the API. Paths are not made canonical on the way: what
// can be read in two ways is refused by who reads it.
type surfaces struct {
	execute, service, llm http.Handler
	models                []string // the paths of llm; one that ends in a slash stands for everything below it
}

// of is who serves a path, or nil.
func (s surfaces) of(path string) http.Handler {
	switch {
	case path == "/v1/execute":
		return s.execute
	case strings.HasPrefix(path, "/svc/"):
		return s.service
	}
	for _, route := range s.models {
		if path == route || strings.HasSuffix(route, "/") && strings.HasPrefix(path, route) {
			return s.llm
		}
	}
	return nil
}

// Serves implements api.Surfaces.
func (s surfaces) Serves(path string) bool { return s.of(path) != nil }

// ServeHTTP implements http.Handler.
func (s surfaces) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := s.of(r.URL.Path); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	http.NotFound(w, r)
}

func (p *plane) makeSurfaces(context.Context) error {
	p.used = make(chan vault.SecretName, 256)
	run, err := execute.New(execute.Options{Quotas: p.Config.Quotas, Tenants: p.identity.Counted, Gateway: p.gateway.Gateway, Views: p.view, Secrets: p.vault, Used: p.note, Log: p.Log, Now: p.Now})
	if err != nil {
		return err
	}
	routes, err := service.New(service.Options{Gateway: p.gateway.Gateway, Views: p.view, Secrets: p.vault, Used: p.note, Log: p.Log, Now: p.Now})
	if err != nil {
		return err
	}
	models, err := llm.New(llm.Options{Quotas: p.Config.Quotas, Tenants: p.identity.Counted, Gateway: p.gateway.Gateway, Views: p.view, Book: p.book, Secrets: p.vault, Used: p.note, Log: p.Log, Now: p.Now})
	if err != nil {
		return err
	}
	p.surfaces = surfaces{
		execute: p.gateway.Watched(gateway.SurfaceExecute, run), service: p.gateway.Watched(gateway.SurfaceService, routes),
		llm: p.gateway.Watched(gateway.SurfaceLLM, models), models: llm.Routes(),
	}
	return nil
}

// note takes the name of a secret that was used. When too many come at once, some are left out: they will come again.
func (p *plane) note(n vault.SecretName) {
	select {
	case p.used <- n:
	default:
	}
}

// markUsed says of secrets that they were used, for people who want to know which still are: each at most once a minute, and by
// itself, so that no request waits for it.
func (p *plane) markUsed(ctx context.Context) error {
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
