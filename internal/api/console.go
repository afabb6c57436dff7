package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/problem"
)

// consolePath is where people are, below the root, which leads there.
const consolePath = "/console"

// ofConsole says whether a path is the console's.
func ofConsole(path string) bool {
	return path == "/" || path == consolePath || strings.HasPrefix(path, consolePath+"/")
}

// byConsole hands on what is for the console, if there is one. It knows people by their cookies, not by keys, and so says
// itself which pages may send it what. The host check is the same as everywhere: a page that gave its own name this
// server's address would be the console's own page otherwise. Bodies are the console's to bound, and take the time that files take.
func (a *API) byConsole(rest http.Handler) http.Handler {
	if a.Console == nil {
		return rest
	}
	console := a.patient(jarTimeout, a.ownHostOnly(a.streaming(a.Console)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ofConsole(r.URL.Path) {
			if a.Peers != nil && a.AgentNode != nil {
				r = a.mayForward(r)
			}
			console.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// ownHostOnly refuses requests for other hosts, of which a web page may have sent any.
func (a *API) ownHostOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !a.ownHost(r) {
			a.refuse(w, r, notThisHost(r))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func notThisHost(r *http.Request) error {
	return problem.New(problem.Forbidden, "use 127.0.0.1, the address of listen, or the name in public_url of the configuration", "the host %s is not this server", quote(r.Host))
}

// streaming lets the server end what lasts, which is WebSockets and streams of events: their contexts end with it. Serve waits
// for WebSockets too, which net/http does not.
func (a *API) streaming(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isSocket := socket.Asked(r.Header)
		aCall := r.Method == http.MethodPost && r.URL.Path == mcpPath // of MCP, whose answer may come as events
		if aCall || !isSocket && !strings.Contains(r.Header.Get("Accept"), eventsType) {
			next.ServeHTTP(w, r)
			return
		}
		if isSocket {
			a.sockets.Add(1)
			defer a.sockets.Done()
		}
		ctx, release := untilTheEnd(r.Context())
		defer release()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Ending is a context that ends when the server is to end, for what lasts longer than a request may. There is none for a
// request that came another way than through [API.Serve].
func Ending(ctx context.Context) (context.Context, bool) {
	ending, ok := ctx.Value(endingKey{}).(context.Context)
	return ending, ok
}
