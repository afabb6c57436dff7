package controlplane

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/door"
	"github.com/clawjail/clawjail/internal/gateway/execute"
	"github.com/clawjail/clawjail/internal/gateway/llm"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/gateway/service"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
	"github.com/clawjail/clawjail/internal/vault"
)

// decided is the book of what operators decided, as the gateway asks it.
type decided struct{ book *egress.Book }

func (d decided) view(c gateway.Caller) *egress.View { return d.book.View(door.Who(c)) }

// explained is the gateway as explanations ask it. The gateway is made after the book, and before anybody asks.
type explained struct {
	*gateway.Gateway
	clean policy.Policy
}

// CallerIn implements egress.Way.
func (e *explained) CallerIn(session string) (egress.Who, bool) {
	c, found := e.Gateway.CallerIn(session)
	return door.Who(c), found
}

// Clean implements egress.Way.
func (e *explained) Clean() policy.Policy { return e.clean }

// policy implements gateway.Config.Policy.
func (d decided) policy(c gateway.Caller) *policy.Compiled { return d.view(c).Proxy() }

// rates implements gateway.Config.Rates.
func (d decided) rates(c gateway.Caller) gateway.Rates {
	r := d.view(c).Settings().Rates
	return gateway.Rates{Proxy: r.Proxy, Execute: r.Execute, Service: r.Service, LLM: r.LLM, Tunnels: r.Tunnels}
}

// used implements gateway.Config.Used.
func (d decided) used(ctx context.Context, rule string) (ok, once bool) {
	return d.book.Used(ctx, rule), egress.ForOneUse(rule)
}

// ask implements gateway.Config.Ask.
func (d decided) ask(ctx context.Context, c gateway.Caller, target string) bool {
	if d.view(c).Hold() <= 0 {
		return false
	}
	return d.book.Hold(ctx, door.Who(c), target)
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

func newSurfaces(exit *gateway.Gateway, d decided, keys *ring, used *secretsUsed, o Options) (surfaces, error) {
	run, err := execute.New(execute.Options{Quotas: o.Config.Quotas, Tenants: keys.identity.Counted, Gateway: exit, Views: d.view, Secrets: keys.vault, Used: used.note, Log: o.Log, Now: o.Now})
	if err != nil {
		return surfaces{}, err
	}
	routes, err := service.New(service.Options{Gateway: exit, Views: d.view, Secrets: keys.vault, Used: used.note, Log: o.Log, Now: o.Now})
	if err != nil {
		return surfaces{}, err
	}
	models, err := llm.New(llm.Options{Quotas: o.Config.Quotas, Tenants: keys.identity.Counted, Gateway: exit, Views: d.view, Book: d.book, Secrets: keys.vault, Used: used.note, Log: o.Log, Now: o.Now})
	if err != nil {
		return surfaces{}, err
	}
	return surfaces{
		execute: exit.Watched(gateway.SurfaceExecute, run), service: exit.Watched(gateway.SurfaceService, routes),
		llm: exit.Watched(gateway.SurfaceLLM, models), models: llm.Routes(),
	}, nil
}

// newTasks makes what reaches goals: with the models of the gateway, as agents outside of all jails have them.
func newTasks(keys *ring, sessions *session.Service, s surfaces, d decided, o Options) (*task.Service, error) {
	return task.New(task.Options{Sessions: sessions, Identity: keys.identity, Models: s.llm, Views: d.view, Audit: Records{keys.log}.pending, Log: o.Log})
}

// secretsUsed says of secrets that they were used, for people who want to know which still are: each at most once a minute,
// and by itself, so that no request waits for it.
type secretsUsed struct {
	vault *vault.Vault
	log   *slog.Logger
	now   func() time.Time
	news  chan vault.SecretName
}

func newSecretsUsed(v *vault.Vault, o Options) *secretsUsed {
	return &secretsUsed{vault: v, log: o.Log, now: o.Now, news: make(chan vault.SecretName, 256)}
}

// note takes a name. When too many come at once, some are left out: they will come again.
func (s *secretsUsed) note(n vault.SecretName) {
	select {
	case s.news <- n:
	default:
	}
}

func (s *secretsUsed) run(ctx context.Context) {
	known := make(map[vault.SecretName]time.Time)
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-s.news:
			now := s.now()
			if now.Sub(known[n]) < time.Minute {
				continue
			}
			if len(known) > 10_000 {
				clear(known)
			}
			known[n] = now
			if err := s.vault.MarkUsed(ctx, n, now); err != nil && ctx.Err() == nil {
				s.log.Warn("say that a secret was used", "service", n.Service, "error", err)
			}
		}
	}
}

// countOpened counts sessions.
func countOpened(count func(code string, warm bool, t session.Timing)) func(session.Session, error) {
	return func(s session.Session, err error) { count(problem.CodeOf(err), s.Warm, s.Timing) }
}

// egressRecheck is how soon what another control plane on the same database decided is known here.
const egressRecheck = 2 * time.Second

// connectionsOfAll is how many connections jails may have open: each takes two descriptors, and half of them are for the rest.
func connectionsOfAll() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return gateway.DefaultConnections
	}
	return int(min(max(uint64(files.Max)/4, 64), gateway.DefaultConnections))
}
