package gateway

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// vetted asks once about a connection that jails make, whether anything may be done for it. Plain HTTP inside a tunnel is on
// a connection that was asked about.
func (g *Gateway) vetted(ctx context.Context, c *conn) *problem.Error {
	if c.vetted || c.tunnel != nil || c.caller == nil || c.caller.Vet == nil {
		return nil
	}
	if err := c.caller.Vet(ctx); err != nil {
		if p, ok := problem.As(err); ok {
			return p
		}
		return problem.Wrap(err, problem.Timeout, "One later retry is reasonable.", "the browser did not confirm its state in time")
	}
	c.vetted = true
	return nil
}

// handle is the first step of every request: it finds the caller.
func (g *Gateway) handle(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		panic(http.ErrAbortHandler) // not one of our connections
	}
	defer patient(c, r)()
	who := c.caller
	if who == nil {
		var done func()
		if who, r, done = g.introduce(c, r); who != nil {
			defer done()
			// The connection was made before anybody knew whose it is. The next one is bound to the jail from its beginning on.
			w.Header().Set("Connection", "close")
		}
	}
	if who == nil {
		if g.quotas.line("nobody", g.now()) {
			g.log.LogAttrs(r.Context(), slog.LevelInfo, "gateway decision",
				slog.String("caller", c.remote.Addr().String()), slog.Bool("allowed", false), slog.String("code", problem.UnknownCaller))
		}
		w.Header().Set("Connection", "close")
		refuse(w, r, problem.New(problem.UnknownCaller, "Only running jails may use the gateway.", "the address %s belongs to no jail", c.remote.Addr()))
		return
	}
	if !who.begin() {
		panic(http.ErrAbortHandler) // forgotten while the request arrived
	}
	defer who.work.Done()
	if c.full != nil {
		w.Header().Set("Connection", "close")
		refuse(w, r, c.full)
		return
	}
	ctx := r.Context()
	if refusal := g.requireValidAgent(ctx, c); refusal != nil {
		w.Header().Set("Connection", "close")
		refuse(w, r, refusal)
		return
	}
	refusal := g.vetted(ctx, c)
	if refusal != nil {
		w.Header().Set("Connection", "close")
	} else {
		refusal = g.requireMatchingToken(ctx, c, r)
	}
	if refusal != nil {
		if g.quotas.line(who.account(), g.now()) {
			g.log.LogAttrs(ctx, slog.LevelInfo, "gateway decision", slog.String("caller", c.remote.Addr().String()), slog.String("jail", who.Jail),
				slog.Bool("allowed", false), slog.String("code", refusal.Code))
			g.records.Refused(Decision{Time: g.now(), Source: who.addr, Jail: who.Jail, Session: who.Session, Tenant: who.Tenant, Agent: who.Agent,
				Actor: who.Actor, Surface: SurfaceForward, Method: r.Method[:min(len(r.Method), maxMethod)], Code: refusal.Code, Reason: refusal.Message})
		}
		refuse(w, r, refusal)
		return
	}

	switch {
	case g.isLocal(r, c):
		c.local.Store(true)
		defer c.local.Store(false)
		g.serveLocal(w, r, who)
	case r.Method == http.MethodConnect && c.tunnel == nil:
		g.connect(w, r, c)
	case c.tunnel != nil:
		g.forwardInner(w, r, c)
	case r.URL.IsAbs():
		to, err := hostport.FromURL(r.URL)
		g.forward(w, r, who, to, err)
	default:
		refuse(w, r, problem.New(problem.NotFound, "Use this address as an HTTP proxy: send CONNECT, or a request with an absolute URL.",
			"the gateway has nothing at this path"))
	}
}
