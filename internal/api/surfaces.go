package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Surfaces are what the gateway does for agents with credentials that they do not have: execute, service routes, model
// endpoints. They find out by [gateway.CallerOf] who asks.
type Surfaces interface {
	http.Handler
	// Serves says whether a path is one of theirs.
	Serves(path string) bool
}

// bySurface hands on what is for the surfaces. Their bodies may take as long as they move: their readers bound that.
func (a *API) bySurface(surfaces, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.Surfaces != nil && a.Surfaces.Serves(r.URL.Path) {
			surfaces.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// outsideSurfaces serves them to agents that are in no jail. They are known by their tokens alone.
func (a *API) outsideSurfaces(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	token, _ := gateway.LocalToken(r)
	by, release, err := a.holder(ctx, r, token, cancel)
	if err != nil {
		a.turnAway(w, r, err)
		return
	}
	defer release()
	if by.Kind != identity.KindAgent || by.Scope != "" {
		a.turnAway(w, r, problem.New(problem.Unauthorized, "use an agent's token: clawjail agent create NAME", "only agents can use this route"))
		return
	}
	a.serveSurface(w, r.WithContext(gateway.WithCaller(ctx, gateway.Caller{Tenant: by.Tenant, Agent: by.ID, Actor: by.Actor()})))
}

// turnAway refuses a request whose body nobody reads: the server would wait for it.
func (a *API) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		if err := supported(http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Second))); err != nil {
			a.Log.Debug("bound the body of a request", "error", err) // the connection is gone
		}
	}
	if strings.HasPrefix(r.UserAgent(), "git/") {
		// It would ask for a password, and say that nobody is there to type one. This it shows.
		if p, ok := problem.As(err); ok {
			gateway.Refuse(w, r, problem.New(problem.Forbidden, p.Hint, "%s", p.Message))
			return
		}
	}
	a.unauthorized(w, r, err)
}

// insideSurfaces serves them to the agent of the jail that a request came from, which the gateway has found out by its
// address. A token is not needed; where one is presented, it must be the agent's.
func (a *API) insideSurfaces(w http.ResponseWriter, r *http.Request) {
	own := gateway.CallerOf(r.Context())
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	token, shown := gateway.LocalToken(r)
	if shown {
		by, release, err := a.holder(ctx, r, token, cancel)
		if err != nil {
			a.turnAway(w, r, err)
			return
		}
		defer release()
		if by.Kind != identity.KindAgent || by.ID != own.Agent || by.Scope != "" {
			a.turnAway(w, r, problem.New(problem.Unauthorized, "send the token in /run/hermit/token of this jail, or none",
				"the token does not belong to this jail's agent"))
			return
		}
	}
	if own.Agent != "" && !shown {
		// It ends with the agent all the same.
		release, err := a.Identity.WatchValidity(ctx, identity.OfJail(own.Agent, own.Tenant), cancel)
		if err != nil {
			a.turnAway(w, r, err)
			return
		}
		defer release()
	}
	if own.Agent == "" {
		a.turnAway(w, r, problem.New(problem.Unauthorized, "send it from the jail of an agent", "the request did not come from an agent's jail"))
		return
	}
	a.serveSurface(w, r.WithContext(ctx))
}

// metricsPath is where Prometheus asks.
const metricsPath = "/metrics"

// scrape answers it.
func (a *API) scrape(w http.ResponseWriter, r *http.Request) {
	if !a.OpenMetrics {
		if err := a.Identity.Authorize(r.Context(), caller(r.Context()), identity.MetricsRead, ""); err != nil {
			a.refuse(w, r, err)
			return
		}
	}
	a.Metrics.ServeHTTP(w, r)
}

func (a *API) serveSurface(w http.ResponseWriter, r *http.Request) {
	// These headers are for this server, and go no further.
	r = r.Clone(r.Context())
	if _, presented := gateway.LocalToken(r); presented {
		for _, name := range surfaceHeaders() {
			r.Header.Del(name)
		}
	}
	a.Surfaces.ServeHTTP(w, r)
}

// holder is whose token it is, for as long as it is good.
func (a *API) holder(ctx context.Context, r *http.Request, token string, cancel context.CancelCauseFunc) (identity.Principal, func(), error) {
	if token == "" {
		return identity.Principal{}, nil, problem.New(problem.Unauthorized, "send an agent's token, as Authorization: Bearer TOKEN, as the password of a user, or as X-Api-Key",
			"no token of an agent was sent")
	}
	by, err := a.Identity.Authenticate(ctx, token, identity.ClientAddr(r, a.BehindProxy))
	if err != nil {
		return identity.Principal{}, nil, err
	}
	release, err := a.Identity.Enter(ctx, heldFor(r, by), cancel)
	return by, release, err
}

// surfaceHeaders are where programs put the key that they were given for a server.
func surfaceHeaders() []string { return []string{"Authorization", "X-Api-Key"} }
