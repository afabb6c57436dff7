package gateway

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/clawjail/clawjail/internal/problem"
)

// watch is what a surface does for one request.
type watch struct {
	gateway *Gateway
	surface Surface
	request *http.Request
	// decided says that the request is on record.
	decided atomic.Bool
}

type watchKey struct{}

// Watched is a surface whose own refusals are events, as those of Send are: an unknown service, a request that cannot be
// read, a rate, a budget. The surface answers with [Refuse], or tells [NoteRefusal].
func (g *Gateway) Watched(s Surface, surface http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &watch{gateway: g, surface: s, request: r}
		surface.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), watchKey{}, o)))
	})
}

// onRecord says that the request of a surface is on record.
func onRecord(ctx context.Context) {
	if o, ok := ctx.Value(watchKey{}).(*watch); ok {
		o.decided.Store(true)
	}
}

// NoteRefusal writes down that a surface refused a request, unless the request is on record already.
func NoteRefusal(ctx context.Context, p *problem.Error) {
	o, ok := ctx.Value(watchKey{}).(*watch)
	if !ok || o.decided.Swap(true) {
		return
	}
	g := o.gateway
	switch p.Code {
	case problem.Unauthorized, problem.Forbidden, problem.Unsupported, problem.NotFound, problem.BadRequest:
		// Some of these come before the rate, and somebody could fill the audit log with them.
		if !g.quotas.line(CallerOf(ctx).account(), g.now()) {
			return
		}
	}
	x := g.newExchange(g.errandCaller(ctx, CallerOf(ctx)), o.surface, o.request.Method, o.request.URL.EscapedPath())
	x.refused(ctx, p)
	x.finish(context.WithoutCancel(ctx))
}
