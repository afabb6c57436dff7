package api

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// mcpPath is where MCP clients connect.
const mcpPath = "/mcp"

// Caller is who sent a request that the API hands on, to MCP. It is the zero principal for a request of nobody's.
func Caller(ctx context.Context) identity.Principal { return caller(ctx) }

// Inside is the part of the API that agents have in their jails, through the gateway: sessions with their DevTools
// endpoints, requests for access, and MCP. agentOf says whose jail a request came from, by its address. Address and
// token must agree: an agent's token is good in its own jail only, and no other key is good in any. ownName says which host names the server
// has there, beside its address.
func (a *API) Inside(agentOf func(context.Context) string, ownName func(host string) bool) http.Handler {
	next := a.authenticate(a.fromOwnJail(agentOf, a.bounded(a.mux, a.mux)))
	rest := a.metered(a.patient(bodyTimeout, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		switch {
		case !insideHost(r, ownName):
			a.refuse(w, r, problem.New(problem.Forbidden, "use http://gateway:3000", "the host %s is not this server", quote(r.Host)))
		case !sameOrigin(r):
			a.refuse(w, r, problem.New(problem.Forbidden, "call the API from a program, not from a web page", "requests of other web pages are refused"))
		case !insidePath(r.URL.Path):
			a.refuse(w, r, problem.New(problem.NotFound, "an agent has /mcp, /v1/sessions, /v1/tasks, /v1/access-requests, /v1/execute and /svc here; for the rest of the web, use this address as an HTTP proxy",
				"the gateway has nothing at %s", quote(r.URL.Path)))
		default:
			next.ServeHTTP(w, r)
		}
	})))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(identity.Inside(r.Context(), gateway.CallerOf(r.Context()).Jail))
		if a.Surfaces != nil && a.Surfaces.Serves(r.URL.Path) && insideHost(r, ownName) && sameOrigin(r) {
			a.insideSurfaces(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// insidePath says whether agents have a path in their jails.
func insidePath(path string) bool {
	for _, part := range []string{mcpPath, "/v1/sessions", "/v1/access-requests"} {
		if path == part || strings.HasPrefix(path, part+"/") {
			return true
		}
	}
	return path == "/v1/health" || path == "/v1/tasks"
}

func insideHost(r *http.Request, ownName func(string) bool) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap() == local(r) || ownName(host)
}

// fromOwnJail lets the requests of an agent pass that come from its own jail.
func (a *API) fromOwnJail(agentOf func(context.Context) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by := caller(r.Context())
		if agent := agentOf(r.Context()); !open(r) && (agent == "" || by.Kind != identity.KindAgent || by.ID != agent) {
			// Which of the two is wrong is nobody's business there.
			a.unauthorized(w, r, problem.New(problem.Unauthorized, "send the token in /run/hermit/token of this jail", "the token does not belong to this jail's agent"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
