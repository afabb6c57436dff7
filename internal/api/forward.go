package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Peers are the other control planes of the database. *peer.Peers is one.
type Peers interface {
	// Owner is the node that has a session, or had it; empty when that is this one, or nobody knows. The code is node_lost when it is
	// gone, and node_unreachable when it cannot be asked.
	Owner(ctx context.Context, session string) (node string, err error)
	// RoundTripper sends requests to https://NODE/.
	http.RoundTripper
}

// clientHeader has in it what a control plane says of a request that it forwards, and holderHeader what it hears of it: whose the
// request is.
const (
	clientHeader = "Clawjail-Client"
	holderHeader = "Clawjail-Holder"
)

// connection is what the connection of a request's client was, which is not the one that the request is forwarded on.
type connection struct {
	From string         `json:"from"`
	To   netip.AddrPort `json:"to"`
	TLS  bool           `json:"tls"`
}

// sessionOf is the session that a request names by its path, of the API or of the console, or the MCP session that its header does;
// empty when it names none.
func sessionOf(r *http.Request) string {
	if r.URL.Path == mcpPath {
		return r.Header.Get("Mcp-Session-Id")
	}
	for _, of := range []string{"/v1/sessions/", consolePath + "/sessions/", consolePath + "/refresh/"} {
		if rest, is := strings.CutPrefix(r.URL.EscapedPath(), of); is && cleanPath(r) {
			id, _, _ := strings.Cut(rest, "/")
			id, err := url.PathUnescape(id)
			if err != nil {
				return ""
			}
			return id
		}
	}
	return ""
}

// forwarder sends requests to the control plane of [ownerKey].
func (a *API) forwarder() http.Handler {
	return a.streaming(&httputil.ReverseProxy{
		Transport: a.Peers,
		Rewrite: func(p *httputil.ProxyRequest) {
			node, _ := p.In.Context().Value(ownerKey{}).(string)
			p.Out.URL.Scheme, p.Out.URL.Host = "https", node
			p.Out.Host, p.Out.URL.RawQuery = p.In.Host, p.In.URL.RawQuery
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} { // of proxies in front of both
				if said := p.In.Header[name]; said != nil {
					p.Out.Header[name] = said
				}
			}
			said := connection{From: p.In.RemoteAddr, TLS: p.In.TLS != nil}
			if to, ok := p.In.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
				said.To = to.AddrPort()
			}
			text, err := json.Marshal(said)
			if err != nil {
				text = nil // and is refused there
			}
			p.Out.Header.Set(clientHeader, string(text))
		},
		ModifyResponse: func(answer *http.Response) error {
			var of quota.Holder
			if text := answer.Header.Get(holderHeader); json.Unmarshal([]byte(text), &of) == nil {
				identity.Arrived(answer.Request.Context(), of)
			}
			answer.Header.Del(holderHeader)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if _, ok := problem.As(err); !ok { // the client has gone, or its body ended too soon
				err = problem.Wrap(err, problem.NodeUnreachable, "try again", "the request could not be forwarded")
			}
			failed, _ := r.Context().Value(failedKey{}).(func(error))
			switch {
			case failed != nil:
				failed(err)
			case r.URL.Path == mcpPath && problem.CodeOf(err) == problem.NodeLost:
				a.refuse(w, r, problem.Wrap(err, problem.NotFound, "initialize again, without Mcp-Session-Id", "the MCP session has ended with its control plane"))
			default:
				a.refuse(w, r, err)
			}
		},
		FlushInterval: -1,
	})
}

// byOwner forwards requests for a session to the control plane that has it. That one asks whose key it is, and answers.
func (a *API) byOwner(here http.Handler) http.Handler {
	if a.Peers == nil {
		return here
	}
	away := a.patient(jarTimeout, a.away)
	fromProgram, fromPerson := a.guard(away), a.ownHostOnly(away)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == mcpPath {
			r = a.mayForward(r)
		}
		id := sessionOf(r)
		if id == "" || identity.IsForwarded(r.Context()) {
			here.ServeHTTP(w, r)
			return
		}
		node, err := a.Peers.Owner(r.Context(), id)
		if node == "" && err == nil {
			here.ServeHTTP(w, r)
			return
		}
		to := fromProgram
		switch {
		case ofConsole(r.URL.Path) && err != nil:
			to = here // which says that there is no such session
		case r.URL.Path == mcpPath && problem.CodeOf(err) == problem.NodeLost:
			to = here // as above, and the client begins another one
		case ofConsole(r.URL.Path):
			to = fromPerson
		case err != nil:
			to = a.patient(bodyTimeout, a.guard(a.authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.refuse(w, r, err) }))))
		}
		if body, ok := r.Body.(*meteredBody); ok && node != "" {
			r.Body = body.ReadCloser // it is in the memory of the other control plane, which counts it
		}
		to.ServeHTTP(w, withOwner(r, node))
	})
}

func withOwner(r *http.Request, node string) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), ownerKey{}, node))
}

// ofJails are the paths below that of an agent which are about its jail.
var ofJails = map[string]bool{"restart": true, "tokens": true, "log": true, "events": true, "stdin": true, "webhook": true, "attach": true, "processes": true}

// byAgent forwards requests about an agent's jail to the control plane that has it. That one asks once more whose key it is.
func (a *API) byAgent(here http.Handler) http.Handler {
	if a.Peers == nil || a.AgentNode == nil {
		return here
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, is := strings.CutPrefix(r.URL.Path, "/v1/agents/")
		name, below, _ := strings.Cut(rest, "/")
		below, _, _ = strings.Cut(below, "/")
		itself := below == "" && (r.Method == http.MethodGet || r.Method == http.MethodDelete) // no agent is meant by POST /v1/agents/sync
		if !is || !itself && !ofJails[below] || identity.IsForwarded(r.Context()) {
			here.ServeHTTP(w, r)
			return
		}
		node, err := a.AgentNode(r.Context(), caller(r.Context()).TenantOr(r.URL.Query().Get("tenant")), name)
		switch {
		case err != nil:
			a.refuse(w, r, err)
		case node != "":
			a.away.ServeHTTP(w, withOwner(r, node))
		default:
			here.ServeHTTP(w, r)
		}
	})
}

// awayKey is under what a request has the API that forwards it, where what it is about is not known by its address.
type awayKey struct{}

func (a *API) mayForward(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), awayKey{}, a))
}

// ElsewhereOf is who answers a request of the console about an agent: the control plane that has its jail. It is nil where this one does.
func ElsewhereOf(r *http.Request, tenant, name string) (http.Handler, error) {
	return elsewhere(r, func(a *API) (string, error) { return a.AgentNode(r.Context(), tenant, name) })
}

// ElsewhereOfSignIn is who answers a request of the console that ends a sign-in, by the code of a link or what a passkey was asked: the control
// plane that has begun it. It is nil where this one has.
func ElsewhereOfSignIn(r *http.Request, begun string) (http.Handler, error) {
	return elsewhere(r, func(a *API) (string, error) { return a.Peers.Owner(r.Context(), begun) })
}

func elsewhere(r *http.Request, nodeOf func(*API) (string, error)) (http.Handler, error) {
	a, _ := r.Context().Value(awayKey{}).(*API)
	if a == nil || identity.IsForwarded(r.Context()) {
		return nil, nil
	}
	node, err := nodeOf(a)
	if err != nil || node == "" {
		return nil, err
	}
	return a.awayTo(node), nil
}

// ElsewhereOfSession is who answers a request of MCP about a browser session: the control plane that has it. It is nil where this one does. The
// request may have been forwarded for its MCP session. An error that keeps it from being answered goes to failed, and not to the client.
func ElsewhereOfSession(r *http.Request, id string, failed func(error)) (http.Handler, error) {
	a, _ := r.Context().Value(awayKey{}).(*API)
	if a == nil {
		return nil, nil
	}
	node, err := a.Peers.Owner(r.Context(), id)
	if err != nil || node == "" {
		return nil, err
	}
	to := a.awayTo(node)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), failedKey{}, failed)))
	}), nil
}

// failedKey is under what a request's context has who is told that it could not be forwarded.
type failedKey struct{}

// awayTo sends requests to another control plane.
func (a *API) awayTo(node string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.away.ServeHTTP(w, withOwner(r, node)) })
}

// ownerKey is under what a request's context has the node that it is forwarded to.
type ownerKey struct{}

// ServePeers answers other control planes, which reach handler and nothing else. It ends as Serve does.
func (a *API) ServePeers(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return a.serve(ctx, listener, handler)
}

// Forwarded serves a request of another control plane as if its client had connected here.
func (a *API) Forwarded(w http.ResponseWriter, r *http.Request) {
	var said connection
	if err := json.Unmarshal([]byte(r.Header.Get(clientHeader)), &said); err != nil {
		a.refuse(w, r, problem.New(problem.BadRequest, "send it to the address of listen", "only other control planes send requests here"))
		return
	}
	from := ""
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		from = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	ctx := identity.Forwarded(r.Context(), from)
	if said.To.IsValid() {
		ctx = context.WithValue(ctx, http.LocalAddrContextKey, net.TCPAddrFromAddrPort(said.To))
	}
	r = r.Clone(ctx)
	r.Header.Del(clientHeader)
	r.RemoteAddr, r.TLS = said.From, nil
	if said.TLS {
		r.TLS = &tls.ConnectionState{}
	}
	a.inner.ServeHTTP(w, r)
}
