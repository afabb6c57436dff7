package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/gateway/hostport"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// forward passes one plain request on; err says why it has no target.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, who *caller, to hostport.Endpoint, err error) {
	x := g.newExchange(who, SurfaceForward, r.Method)
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
	upstream, refusal := x.open(ctx, to, x.Scheme)
	if refusal != nil {
		refuse(w, r, x.refused(ctx, refusal))
		return
	}
	defer upstream.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := x.meter.watch(func() {
		cancel()
		// Ends reads and writes that the context does not reach.
		_ = upstream.Close()
	})
	defer stop()
	hop := &hop{exchange: x, to: to, conn: meteredConn{upstream, &x.meter}, client: r.Context()}
	g.proxy.ServeHTTP(finalOnly{w}, r.WithContext(context.WithValue(ctx, hopKey{}, hop)))
}

// hop is the way of one forwarded request: where it goes, on which connection.
type hop struct {
	exchange *exchange
	to       hostport.Endpoint
	conn     net.Conn
	client   context.Context // ends when the client or its admission is gone
	used     atomic.Bool
}

type hopKey struct{}

func hopOf(ctx context.Context) *hop {
	h, ok := ctx.Value(hopKey{}).(*hop)
	if !ok {
		panic(http.ErrAbortHandler) // a request that did not come through forward
	}
	return h
}

var errHopUsed = errors.New("a second connection for one request")

// newProxy makes the one reverse proxy. Its transport cannot dial: it gets the
// connection that was made for the request, and never keeps it for another.
func (g *Gateway) newProxy() *httputil.ReverseProxy {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: &http.Transport{
			Proxy: nil,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				h := hopOf(ctx)
				if h.used.Swap(true) {
					return nil, errHopUsed
				}
				return h.conn, nil
			},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			ResponseHeaderTimeout:  g.limits.HeaderTimeout,
			MaxResponseHeaderBytes: int64(g.limits.HeaderBytes) * 4,
			Protocols:              &protocols,
		},
		FlushInterval: -1,
		BufferPool:    g.buffers,
		ErrorLog:      slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		// Proxy-Status is how this gateway speaks; nobody else speaks for it.
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("Proxy-Status")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			h := hopOf(r.Context())
			x, code := h.exchange, problem.UpstreamUnreachable
			var timeout net.Error
			switch {
			case h.client.Err() != nil:
				code = problem.Canceled
			case errors.As(err, &timeout) && timeout.Timeout() || r.Context().Err() != nil:
				code = problem.Timeout
			}
			p := problem.Wrap(err, code, "The gateway allowed the request; the fault is with the host. One later retry is reasonable.",
				"%s did not give a usable answer", x.Host)
			// The decision to allow stands and is on record; only its outcome is bad.
			x.Code, x.err = p.Code, err
			refuse(w, r, p.With("host", x.Host.String()).With("port", x.Port))
		},
	}
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
