package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// maxUnadmitted bounds the open connections of addresses that are not admitted,
// per listener. They only ever get a refusal.
const maxUnadmitted = 64

// drainTimeout is how long Forget waits for an accept loop to catch up.
const drainTimeout = 2 * time.Second

// conn is a client's connection, bound to its caller when it is accepted. The
// binding never changes, but that of a stranger, once, when [Config.Unknown] says
// whose address it is: see introduce.
type conn struct {
	net.Conn
	caller   *caller // nil for a stranger; see boundTo
	remote   netip.AddrPort
	full     *problem.Error // there is one connection too many: it is told so, and closed
	tunnel   *inner         // set when the connection is plain HTTP inside a tunnel
	listener *listener
	once     sync.Once
	closeErr error
	// patience bounds the wait for a peer that does not read an answer, bodies that for one that does not send a body.
	// They are 0 in a tunnel, which has limits of its own.
	patience, bodies time.Duration
	// writeUntil is the deadline of writing, in nanoseconds of Unix time.
	writeUntil atomic.Int64

	// held says that the agent's standing is watched, and token is the hash of the one that is. Requests of a connection
	// come one after the other, so only one goroutine uses them.
	held  bool
	token [32]byte
	// vetted says that the caller was asked about the connection.
	vetted bool
	// local says that the request is for the gateway itself.
	local atomic.Bool
	// hop is the way of the request that is being forwarded.
	hop *hop

	mu     sync.Mutex // guards what follows
	closed bool
	ends   [holds]func() // give back what is held for the connection
}

// The things that are held for a connection, one of each.
const (
	holdsAgent = iota
	holdsToken
	holdsContext
	holdsPlace
	holds
)

// keep takes what gives back something that is held, and calls it when the connection closes, or when another one takes
// its place.
func (c *conn) keep(what int, end func()) {
	c.mu.Lock()
	if !c.closed {
		end, c.ends[what] = c.ends[what], end
	}
	c.mu.Unlock()
	if end != nil {
		end()
	}
}

// Close closes the connection and takes it out of the books.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.closeErr = c.Conn.Close()
		// Out of the listener's books first: a stranger's connection that is not in them is not bound to anybody any more.
		if c.listener != nil {
			c.listener.remove(c)
		}
		if who := c.boundTo(); who != nil && c.tunnel == nil {
			who.remove(c)
		}
		if c.tunnel != nil {
			close(c.tunnel.done)
		}
		c.mu.Lock()
		c.closed = true
		ends := c.ends
		c.mu.Unlock()
		for _, end := range ends {
			if end != nil {
				end()
			}
		}
	})
	return c.closeErr
}

// CloseWrite ends the sending half, where the connection has halves.
func (c *conn) CloseWrite() error { return closeWrite(c.Conn) }

type connKey struct{}

// withConn makes the context of a connection's requests. Work for a caller ends with its admission, not only with its
// connection.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	c, ok := nc.(*conn)
	if !ok || c.caller == nil {
		return context.WithValue(ctx, connKey{}, nc)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.caller.ctx, cancel)
	c.keep(holdsContext, func() {
		stop()
		cancel()
	})
	return context.WithValue(ctx, connKey{}, nc)
}

// listener hands connections to the HTTP server and keeps the books on them.
type listener struct {
	net.Listener
	gateway *Gateway
	own     netip.AddrPort
	port    uint16 // at which jails reach it
	once    sync.Once

	mu       sync.Mutex // guards what follows
	closed   bool
	conns    map[*conn]struct{}
	unknown  int
	draining int
	awaited  map[netip.AddrPort]chan struct{}
}

// relayed is a listener of connections that somebody else brings, such as package relay's: jails reach it at another port,
// and nobody gets through who only dials.
type relayed interface {
	Front() uint16
	Probe(ctx context.Context) (net.Conn, error)
}

func newListener(g *Gateway, ln net.Listener, own netip.AddrPort) *listener {
	port := own.Port()
	if r, ok := ln.(relayed); ok {
		port = r.Front()
	}
	return &listener{
		Listener: ln,
		gateway:  g,
		own:      own,
		port:     port,
		conns:    make(map[*conn]struct{}),
		awaited:  make(map[netip.AddrPort]chan struct{}),
	}
}

// Accept returns the next connection that is worth an answer.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.welcome(nc); c != nil {
			return c, nil
		}
		// The connection has no reader, so an error of closing does not matter.
		_ = nc.Close()
	}
}

// welcome binds a connection to its caller; nil means that it is to be closed.
func (l *listener) welcome(nc net.Conn) *conn {
	tcp, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	remote := unmapped(tcp)
	c := &conn{Conn: nc, remote: remote, listener: l, patience: l.gateway.limits.IdleTimeout, bodies: l.gateway.limits.BodyTimeout}

	// The gateway's lock is held to the end: Forget must find every connection
	// that saw the admission, either in the books or not bound to it.
	l.gateway.mu.Lock()
	defer l.gateway.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if reached, ok := l.awaited[remote]; ok {
		delete(l.awaited, remote)
		close(reached)
		return nil
	}
	if who := l.gateway.callers[remote.Addr()]; who != nil {
		if !l.gateway.place(c, who) {
			return nil
		}
		c.caller = who
	} else {
		if l.unknown >= maxUnadmitted && l.draining == 0 {
			return nil
		}
		l.unknown++
	}
	l.conns[c] = struct{}{}
	return c
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.conns[c]; !ok {
		return
	}
	delete(l.conns, c)
	if c.caller == nil {
		l.unknown--
	}
}

// Close stops accepting. The HTTP server calls it too.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		err = l.Listener.Close()
	})
	return err
}

// shut closes the listener and every connection that came through it.
func (l *listener) shut() {
	// The accept loop ends with the listener, whatever closing it says.
	_ = l.Close()
	l.closeWhere(func(*conn) bool { return true })
}

// closeStrangers closes the connections of an address that is not admitted.
func (l *listener) closeStrangers(addr netip.Addr) {
	l.closeWhere(func(c *conn) bool { return c.caller == nil && c.remote.Addr() == addr })
}

func (l *listener) closeWhere(match func(*conn) bool) {
	l.mu.Lock()
	var conns []*conn
	for c := range l.conns {
		if match(c) {
			conns = append(conns, c)
		}
	}
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // closed is closed
	}
}

// drain returns when every connection that the kernel had established before
// has been accepted. The kernel hands connections over in the order in which
// they were established, so drain makes one of its own and waits until it comes
// out. Without this, a request that a dead jail left in the queue could be
// counted as the next jail's.
func (l *listener) drain() error {
	l.mu.Lock()
	l.draining++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.draining--
		l.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	probe, err := l.probe(ctx)
	if err != nil {
		if l.isClosed() {
			return nil // what was queued went with the listener
		}
		return fmt.Errorf("look for connections not yet accepted: %w", err)
	}
	defer probe.Close()
	local, ok := probe.LocalAddr().(*net.TCPAddr)
	if !ok {
		return errors.New("look for connections not yet accepted: not a TCP address")
	}
	reached := l.await(unmapped(local))
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-reached:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("look for connections not yet accepted: %w", ctx.Err())
		case <-ticker.C:
			if l.isClosed() {
				return nil
			}
		}
	}
}

func (l *listener) probe(ctx context.Context) (net.Conn, error) {
	if r, ok := l.Listener.(relayed); ok {
		return r.Probe(ctx)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
}

// await returns a channel that is closed when the connection from that address
// has been accepted, which may already be so.
func (l *listener) await(remote netip.AddrPort) <-chan struct{} {
	reached := make(chan struct{})
	l.mu.Lock()
	var found *conn
	for c := range l.conns {
		if c.remote == remote {
			found = c
		}
	}
	if found == nil {
		l.awaited[remote] = reached
	}
	l.mu.Unlock()
	if found != nil {
		_ = found.Close() // our own, and empty
		close(reached)
	}
	return reached
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func unmapped(a *net.TCPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// handoff is a listener without a socket: tunnels that turn out to carry plain
// HTTP go through it to the HTTP server.
type handoff struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandoff() *handoff {
	return &handoff{conns: make(chan net.Conn), done: make(chan struct{})}
}

// offer gives a connection to the server; false when the server is closed.
func (h *handoff) offer(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.done:
		return false
	}
}

// Accept implements net.Listener.
func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements net.Listener. The address is never dialled.
func (h *handoff) Addr() net.Addr { return &net.TCPAddr{} }
