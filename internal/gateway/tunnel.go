package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// inner marks a connection as plain HTTP found in a tunnel to an endpoint.
type inner struct {
	to   hostport.Endpoint
	done chan struct{} // closed when the HTTP server is finished with it
}

// connect opens a tunnel.
func (g *Gateway) connect(w http.ResponseWriter, r *http.Request, c *conn) {
	x := g.newExchange(c.caller, SurfaceConnect, policy.Connect, "")
	x.Scheme = policy.HTTPS
	t := &tunnel{exchange: x, conn: c, ended: make(chan struct{})}
	x.tunnel = t
	opened := false
	defer func() {
		if !opened {
			t.end()
		}
	}()
	ctx := r.Context()
	// The request target as it was written; r.Host has been through a URL parser.
	var err error
	if t.to, err = hostport.ParseAuthority(r.RequestURI); err != nil {
		refuse(w, r, x.refused(ctx, badHost(err)))
		return
	}
	if refusal := t.open(ctx); refusal != nil {
		refuse(w, r, x.refused(ctx, refusal))
		return
	}
	c.patience, c.bodies = 0, 0
	client, early, err := hijack(w)
	if err != nil {
		x.err = fmt.Errorf("take over the connection: %w", err)
		return
	}
	t.client, t.early = client, early
	if !c.caller.begin() {
		return // forgotten in between, and its connection is closed
	}
	opened = true
	// In a goroutine of its own, so that what the HTTP server keeps for a request can go: a silent tunnel costs little.
	go func() {
		defer c.caller.work.Done()
		defer t.end()
		t.run(c.caller.ctx)
	}()
}

// tunnel is what a CONNECT request has opened.
type tunnel struct {
	*exchange
	conn             *conn
	to               hostport.Endpoint
	counted          bool
	client, upstream net.Conn
	early            []byte
	ended            chan struct{} // closed when it is not counted any more
}

// open takes it as far as a connection to the host.
func (t *tunnel) open(ctx context.Context) *problem.Error {
	g := t.gateway
	t.permit = g.permit(t.who)
	if refusal := t.admit(ctx, t.to, "", policy.HTTPS, policy.HTTP, policy.WS); refusal != nil {
		return refusal
	}
	limit := g.rates(t.who.Caller).Tunnels
	t.counted = g.quotas.tunnel(t.who.account(), limit, g.now())
	if !t.counted && g.makeRoom(ctx, t.who.account()) {
		t.counted = g.quotas.tunnel(t.who.account(), limit, g.now())
	}
	if !t.counted {
		return problem.New(problem.RateLimited, "Close tunnels that are not needed, then retry.", "more than %d tunnels are open", limit).
			With(problem.RetryAfter, int64(1))
	}
	g.observer.Tunnels(1)
	var refusal *problem.Error
	t.upstream, refusal = t.exchange.open(ctx, t.to)
	return refusal
}

// end gives everything back, however far the tunnel got.
func (t *tunnel) end() {
	for _, c := range []net.Conn{t.client, t.upstream} {
		if c != nil {
			_ = c.Close() // whatever it says, nothing more is expected of it
		}
	}
	if t.counted {
		t.gateway.quotas.endTunnel(t.who.account(), t.gateway.now())
		t.gateway.observer.Tunnels(-1)
	}
	close(t.ended)
	t.finish(context.Background())
}

// run carries the tunnel until it is over. ctx ends with its caller; then the client's connection is closed, and this closes
// the other side.
func (t *tunnel) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = t.upstream.Close() })
	defer stop()
	if _, err := io.WriteString(t.client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		t.err = fmt.Errorf("answer the client: %w", err)
		return
	}
	early := t.early
	t.early = nil
	if t.opaque = t.decide(t.permit, t.Scheme).Opaque; t.opaque {
		t.err = t.splice(t.client, t.upstream, early)
		return
	}
	t.inspect(ctx, t.conn, t.client, t.upstream, early, t.to)
}

// hijack takes the connection from the HTTP server, with what it has read ahead.
func hijack(w http.ResponseWriter) (net.Conn, []byte, error) {
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	early, err := buffered.Reader.Peek(buffered.Reader.Buffered())
	if err == nil {
		err = client.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return client, bytes.Clone(early), nil
}

// inspect reads the first bytes of a tunnel and lets it go on only as what was
// allowed: TLS for the host that was asked for, or plain HTTP.
func (x *exchange) inspect(ctx context.Context, c *conn, client, upstream net.Conn, early []byte, to hostport.Endpoint) {
	first, hello, err := x.firstBytes(client, early)
	switch {
	case errors.Is(err, io.EOF) && len(first) == 0:
		return // opened and left
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.refused(ctx, problem.Wrap(err, codeProtocolDenied, opaqueHint, "the tunnel to %s stayed without TLS or HTTP for too long", to))
		return
	case err != nil && hello.kind == undecided:
		x.err = fmt.Errorf("read the first bytes of the tunnel: %w", err)
		return
	}
	switch hello.kind {
	case isTLS:
		refusal := x.judgeTLS(to, hello)
		if refusal != nil {
			x.refused(ctx, refusal)
			x.alert(client)
			return
		}
		x.err = x.splice(client, upstream, first)
	case isHTTP:
		// Each request inside is decided by itself, on a connection of its own.
		_ = upstream.Close() // nothing was sent on it
		x.Scheme = policy.HTTP
		x.serveInner(c, client, first, to)
	default:
		x.refused(ctx, problem.Wrap(hello.err, codeProtocolDenied, opaqueHint, "the tunnel to %s carries neither TLS nor HTTP", to))
	}
}

const opaqueHint = "Do not retry: other protocols need a rule that allows them for this host and port. Ask the operator for one if the task needs it."

// judgeTLS decides about a tunnel whose ClientHello is known.
func (x *exchange) judgeTLS(to hostport.Endpoint, hello opening) *problem.Error {
	if d := x.decide(x.permit, policy.HTTPS); !d.Allowed {
		return problem.New(string(d.Code), d.Hint, "%s", d.Reason)
	}
	x.Scheme = policy.HTTPS
	if hello.serverName == "" && to.Host().IsAddr() {
		return nil // RFC 6066 §3: there is no server name for an address
	}
	named, err := hostport.ParseHost(hello.serverName)
	if err == nil && named == to.Host() {
		return nil
	}
	return problem.Wrap(err, problem.SNIMismatch,
		"Do not retry: the TLS server name must be the host of the CONNECT request. Connect to the host that is meant.",
		"the tunnel was opened for %s, and its TLS server name is %.100q", to.Host(), hello.serverName)
}

// alert tells a TLS client that it was refused (RFC 8446 §6.2, access_denied);
// otherwise it would take the refusal for a fault of the network.
func (x *exchange) alert(client net.Conn) {
	// It is a courtesy; the tunnel ends either way.
	_, _ = client.Write([]byte{21, 3, 3, 0, 2, 2, 49})
}

// firstBytes reads until it is clear what the tunnel carries.
func (x *exchange) firstBytes(client net.Conn, early []byte) ([]byte, opening, error) {
	if err := client.SetReadDeadline(x.gateway.now().Add(x.gateway.limits.FirstBytesTimeout)); err != nil {
		return nil, opening{}, err
	}
	data := early
	buf := x.gateway.buffers.Get()
	defer x.gateway.buffers.Put(buf)
	for {
		if o := classify(data); o.kind != undecided {
			return data, o, client.SetReadDeadline(time.Time{})
		}
		n, err := client.Read(buf[:maxOpening])
		data = append(data, buf[:n]...)
		if err != nil && n == 0 {
			return data, opening{}, err
		}
	}
}

// splice sends what was read already, then moves bytes both ways to the end.
func (x *exchange) splice(client, upstream net.Conn, first []byte) error {
	// From here on nothing in the tunnel is decided, so the tunnel itself is, again and again.
	defer x.watch(x.gateway.limits.IdleTimeout, x.gateway.limits.Lifetime, func() {
		// Reads and writes on both end now, also when closing returns an error.
		_ = client.Close()
		_ = upstream.Close()
	})()
	if len(first) > 0 {
		n, err := upstream.Write(first)
		x.meter.sent(n)
		if err != nil {
			return fmt.Errorf("send the first bytes: %w", err)
		}
	}
	return relay(client, upstream, &x.meter, x.gateway.buffers)
}

// serveInner has the HTTP server read requests out of the tunnel, and returns
// when the tunnel is over.
func (x *exchange) serveInner(c *conn, client net.Conn, first []byte, to hostport.Endpoint) {
	tunnel := &inner{to: to, done: make(chan struct{})}
	replayed := &conn{
		Conn:   &replayConn{Conn: client, first: first},
		caller: c.caller, remote: c.remote, tunnel: tunnel, patience: x.gateway.limits.IdleTimeout, bodies: x.gateway.limits.BodyTimeout,
	}
	if !x.gateway.tunnels.offer(replayed) {
		return // the gateway is being closed
	}
	<-tunnel.done
}

// replayConn reads what was peeked before it reads on.
type replayConn struct {
	net.Conn
	first []byte
}

func (c *replayConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// CloseWrite ends the sending half.
func (c *replayConn) CloseWrite() error { return closeWrite(c.Conn) }

// forwardInner passes on a request that came through a tunnel. It must be for
// the tunnel's host, whatever it says.
func (g *Gateway) forwardInner(w http.ResponseWriter, r *http.Request, c *conn) {
	to := c.tunnel.to
	named, err := hostport.ParseHostHeader(r.Host, 80)
	if err == nil && named == to && r.Method != http.MethodConnect && (r.URL.IsAbs() || r.URL.Path != "") {
		g.forward(w, r, c.caller, to, nil)
		return
	}
	x := g.newExchange(c.caller, SurfaceForward, r.Method, r.URL.EscapedPath())
	x.Scheme, x.Host, x.Port = policy.HTTP, to.Host(), to.Port()
	w.Header().Set("Connection", "close")
	refuse(w, r, x.refused(r.Context(), problem.Wrap(err, codeHostMismatch,
		"Do not retry: requests in a tunnel must be for the host of the CONNECT request.",
		"the tunnel was opened for %s, and the request in it is for %.100q", to, r.Host)))
	x.finish(context.WithoutCancel(r.Context()))
}
