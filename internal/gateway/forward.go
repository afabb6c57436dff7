package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// forward passes one plain request on; err says why it has no target.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, who *caller, to hostport.Endpoint, err error) {
	path := sentPath(r.URL)
	x := g.newExchange(who, SurfaceForward, r.Method, path)
	x.Scheme = policy.HTTP
	if isWebSocket(r) {
		x.Scheme = policy.WS
	}
	defer func() { x.finish(context.WithoutCancel(r.Context())) }()
	ctx := r.Context()
	if err != nil {
		refuse(w, r, x.refused(ctx, badHost(err)))
		return
	}
	if s := r.URL.Scheme; s == "https" || s == "wss" {
		x.Host, x.Port = to.Host(), to.Port()
		refuse(w, r, x.refused(ctx, problem.New(string(policy.SchemeDenied),
			"Open a tunnel with CONNECT instead; most HTTP clients do so when https_proxy is set.", "the gateway does not open TLS itself")))
		return
	}
	// Their answers repeat the request, with the cookies in it that no script reads. Browsers send neither.
	if strings.EqualFold(r.Method, http.MethodTrace) || strings.EqualFold(r.Method, "TRACK") {
		x.Host, x.Port = to.Host(), to.Port()
		refuse(w, r, x.refused(ctx, problem.New(problem.MethodDenied, "Use another method; TRACE and TRACK are never sent.",
			"the gateway does not pass on %s", strings.ToUpper(r.Method))))
		return
	}
	x.permit = g.permit(who)
	if refusal := x.admit(ctx, to, path, x.Scheme); refusal != nil {
		refuse(w, r, x.refused(ctx, refusal))
		return
	}
	u, refusal := x.reach(ctx, to, "http", replayable(r))
	if refusal != nil {
		refuse(w, r, x.refused(ctx, refusal))
		return
	}
	hop := &hop{exchange: x, to: to, client: ctx, underway: underway{u: u}}
	c := ctx.Value(connKey{}).(*conn) // handle has looked
	c.hop = hop
	// A request that breaks off closes the connection; one that ends well leaves it for the next.
	defer func() {
		c.hop = nil
		if ctx.Err() != nil || !hop.ended || hop.late.Load() || x.status == http.StatusSwitchingProtocols {
			hop.current().close()
			return
		}
		who.idle.put(hop.current(), g.now())
	}()
	defer x.watch(g.limits.IdleTimeout, g.limits.Lifetime, func() {
		hop.late.Store(true)
		// Ends the reads and writes that it waits for.
		hop.close()
	})()
	g.proxy.ServeHTTP(finalOnly{w}, r)
	hop.ended = true // ServeHTTP panics when the answer broke off
}

// sentPath is the path that the host will see, with its escapes: of a URL without one it is "/" (RFC 9112 §3.2.1).
func sentPath(u *url.URL) string {
	if path := u.EscapedPath(); path != "" {
		return path
	}
	return "/"
}

// replayable says whether a request may be sent a second time when a connection turns out to be closed before anything
// came back (RFC 9110 §9.2.2).
func replayable(r *http.Request) bool {
	if hasBody(r) {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return !isWebSocket(r)
	}
	return false
}

func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// lastOfConnection says whether nothing may follow a request on its connection: many servers leave the body of a GET
// unread, and would take it for the next request, which no rule has seen.
func lastOfConnection(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return false
	}
	return hasBody(r)
}

// hop is the way of one forwarded request: where it goes, on which connection.
type hop struct {
	exchange *exchange
	to       hostport.Endpoint
	client   context.Context // ends when the client or its admission is gone
	ended    bool
	late     atomic.Bool // it was silent, or open, for too long, or a review has ended it
	underway
}

// hopOf is that of the request which the client's connection carries now.
func hopOf(ctx context.Context) *hop {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok || c.hop == nil {
		panic(http.ErrAbortHandler) // a request that did not come through forward
	}
	return c.hop
}

// roundTrip sends a request on the connection that was made for it.
func (h *hop) roundTrip(r *http.Request) (*http.Response, error) {
	u := h.current()
	resp, err := u.within(h.exchange.gateway.limits.IdleTimeout, r)
	if err == nil || !u.reused || !replayable(r) || r.Context().Err() != nil || h.late.Load() {
		return resp, err
	}
	// The server had closed the connection. A request that goes out a second time has a record of its own.
	next, refusal := h.exchange.again(r.Context(), h.to, u.key)
	if refusal != nil {
		return nil, errors.Join(err, refusal)
	}
	h.use(next)
	return next.within(h.exchange.gateway.limits.IdleTimeout, r)
}

// again ends the record of a request that did not get through, and begins anew with a connection of its own.
func (x *exchange) again(ctx context.Context, to hostport.Endpoint, key upstreamKey) (*upstream, *problem.Error) {
	x.record.End(Outcome{Code: problem.UpstreamUnreachable, Address: x.dialled, Took: x.gateway.now().Sub(x.Time), Reused: true})
	x.record = nil
	return x.connect(ctx, to, key)
}

// errHeaderTimeout is a server that did not answer in time.
var errHeaderTimeout = fmt.Errorf("no answer in time: %w", os.ErrDeadlineExceeded)

// within sends a request, and waits for the header of the answer at most so long.
func (u *upstream) within(wait time.Duration, r *http.Request) (*http.Response, error) {
	var late atomic.Bool
	timer := time.AfterFunc(wait, func() {
		late.Store(true)
		u.close()
	})
	defer timer.Stop()
	r.Close = r.Close || lastOfConnection(r)
	resp, err := u.RoundTrip(r)
	if err != nil {
		u.close()
		if late.Load() {
			return nil, errHeaderTimeout
		}
	}
	return resp, err
}

// newProxy makes the one reverse proxy.
func (g *Gateway) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     roundTripper(func(r *http.Request) (*http.Response, error) { return hopOf(r.Context()).roundTrip(r) }),
		FlushInterval: -1,
		BufferPool:    g.buffers,
		ErrorLog:      slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		ModifyResponse: func(resp *http.Response) error {
			hopOf(resp.Request.Context()).exchange.status = resp.StatusCode
			dropOwn(resp.Header)
			withoutOwnTrailers(resp)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			h := hopOf(r.Context())
			p := h.exchange.broken(err, h.late.Load() || r.Context().Err() != nil, h.client.Err() != nil)
			refuse(w, r, p)
		},
	}
}

// broken is a request that was allowed, and to which no usable answer came. The decision stands and is on record; only its
// outcome is bad.
func (x *exchange) broken(err error, ended, clientLeft bool) *problem.Error {
	if p := x.deniedSince(err); p != nil {
		return p
	}
	if x.Credential {
		err = quiet{err}
	}
	code := problem.UpstreamUnreachable
	var timeout net.Error
	switch {
	case clientLeft:
		code = problem.Canceled
	case errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) || ended:
		code = problem.Timeout
	}
	x.failure, x.err = code, err
	return problem.Wrap(err, code, "The gateway allowed the request; the fault is with the host. One later retry is reasonable.",
		"%s did not give a usable answer", x.Host).With("host", x.Host.String()).With("port", x.Port)
}

// dropOwn removes the headers from an upstream's answer that only this gateway may set.
func dropOwn(h http.Header) {
	for name := range h {
		if name == "Proxy-Status" || strings.HasPrefix(name, "Clawjail-") {
			delete(h, name)
		}
	}
}

// withoutOwnTrailers does the same with trailers, which are there when the body has ended.
func withoutOwnTrailers(resp *http.Response) {
	if len(resp.TransferEncoding) > 0 && resp.StatusCode != http.StatusSwitchingProtocols {
		dropOwn(resp.Trailer) // those that are announced
		resp.Body = &trailedBody{resp.Body, resp}
	}
}

// trailedBody is a body that trailers may follow.
type trailedBody struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader.
func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.drop()
	}
	return n, err
}

// Close implements io.Closer. It may bring the trailers of a body that was not read to its end.
func (b *trailedBody) Close() error {
	err := b.ReadCloser.Close()
	b.drop()
	return err
}

func (b *trailedBody) drop() {
	dropOwn(b.resp.Trailer)
	dropHops(b.resp.Trailer)
}

// rewrite makes the request that leaves. Hop-by-hop headers and the X-Forwarded
// family are gone already when it is called.
func rewrite(pr *httputil.ProxyRequest) {
	h := hopOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme = "http"
	out.URL.Host = h.to.String()
	out.URL.User = nil
	out.URL.Fragment, out.URL.RawFragment = "", ""
	// The query passes as it was written, also where Go could not parse it: the
	// gateway decides nothing by it.
	out.URL.RawQuery = pr.In.URL.RawQuery
	out.Host = h.to.HostHeader("http")
	for name := range out.Header {
		if strings.HasPrefix(name, "Proxy-") {
			delete(out.Header, name)
		}
	}
	out.Header.Del("Via")
	if !isWebSocket(pr.In) {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
}

// isWebSocket reports whether the request asks to become a WebSocket. No other
// change of protocol is passed on.
func isWebSocket(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Upgrade") &&
		len(r.Header["Upgrade"]) == 1 && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// finalOnly drops interim responses (1xx): they would carry an upstream's
// headers past the rules for final ones. Switching protocols is final.
type finalOnly struct{ http.ResponseWriter }

func (w finalOnly) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController flush and hijack.
func (w finalOnly) Unwrap() http.ResponseWriter { return w.ResponseWriter }
