package gateway

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// ownNames are what the gateway is called inside a jail.
func ownNames() []string { return []string{"gateway", "hermit_shell"} }

// OwnName reports whether a host name is one that the gateway has inside a jail.
func OwnName(host string) bool { return slices.Contains(ownNames(), strings.ToLower(host)) }

// jailKey is under what it has the jail that the gateway has admitted.
type jailKey struct{}

// callerKey is under what the context of a request to the gateway itself has its caller.
type callerKey struct{}

// CallerOf is the jail that a request to the gateway itself came from; the zero Caller when it came from none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// isLocal says whether a request is for the gateway itself: one without an address of its own, or one that a client
// sent through the proxy because it was told to send everything there.
func (g *Gateway) isLocal(r *http.Request, c *conn) bool {
	if g.local == nil || c.caller.Agent == "" || r.Method == http.MethodConnect || c.tunnel != nil {
		// A session's jail has no key: a page that asks there is told nothing at all.
		return false
	}
	if !r.URL.IsAbs() {
		return true
	}
	own := c.listener.own
	host, port, err := net.SplitHostPort(r.URL.Host)
	return err == nil && r.URL.Scheme == "http" && port == strconv.Itoa(int(c.listener.port)) && (OwnName(host) || host == own.Addr().String())
}

// serveLocal answers a request to the gateway itself. Connections that are open for an agent end with its jail's admission.
func (g *Gateway) serveLocal(w http.ResponseWriter, r *http.Request, who *caller) {
	who.requests.Add(1)
	who.last.Store(int64(g.now().Sub(g.start)))
	r = r.WithContext(context.WithValue(WithCaller(r.Context(), who.Caller), jailKey{}, who))
	r.URL.Scheme, r.URL.Host = "", ""
	g.local.ServeHTTP(w, r)
}
