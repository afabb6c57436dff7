package api

import (
	linked "container/list"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/quota"
)

// Bounds of connections, of which each takes a descriptor.
const (
	// maxUnauthenticated is how many may be open that have shown no key, and maxUnauthenticatedOfOne how many of one address. One more
	// closes the oldest of the address that has most, or of its own.
	maxUnauthenticated      = 1024
	maxUnauthenticatedOfOne = 128
	// maxKept is how many of those that have shown a key are kept for the next request. A request on one more is answered,
	// and its connection closed.
	maxKept = 4096
)

// Entrance is a listener that callers without a key cannot fill, nor one tenant for the others. It is put beneath TLS.
type Entrance struct {
	net.Listener
	kept         *quota.Gate
	limit, ofOne int

	mu              sync.Mutex
	unauthenticated map[netip.Addr]*linked.List // of *clientConn, oldest first
	count           int
}

// NewEntrance makes one. Quotas and Tenants divide what is kept; see [quota.GateOptions].
func NewEntrance(l net.Listener, q config.Quotas, tenants func() int) *Entrance {
	return &Entrance{Listener: l, limit: maxUnauthenticated, ofOne: maxUnauthenticatedOfOne, unauthenticated: map[netip.Addr]*linked.List{},
		kept: quota.NewGate(quota.GateOptions{Kind: quota.KeptConnections(), Whole: maxKept, Quotas: q, Tenants: tenants})}
}

// Accept implements net.Listener.
func (e *Entrance) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &clientConn{Conn: c, entrance: e}
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		v.from = at.Addr().Unmap().WithZone("")
		if v.from.Is6() { // a host has a whole network of addresses there
			v.from = netip.PrefixFrom(v.from, 64).Masked().Addr()
		}
	}
	if leaves := e.enter(v); leaves != nil {
		_ = leaves.Close() // no caller waits for its error
	}
	return v, nil
}

// enter counts a connection that has shown no key, and says which one has to leave for it.
func (e *Entrance) enter(v *clientConn) (leaves *clientConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	mine := e.unauthenticated[v.from]
	if mine == nil {
		mine = linked.New()
		e.unauthenticated[v.from] = mine
	}
	switch {
	case mine.Len() >= e.ofOne:
		leaves = mine.Front().Value.(*clientConn)
	case e.count >= e.limit:
		crowd := mine
		for _, all := range e.unauthenticated {
			if all.Len() > crowd.Len() {
				crowd = all
			}
		}
		if crowd.Len() > 0 {
			leaves = crowd.Front().Value.(*clientConn)
		}
	}
	if leaves != nil {
		e.forget(leaves)
	}
	// It may have been the last one of this address.
	if e.unauthenticated[v.from] == nil {
		e.unauthenticated[v.from] = mine
	}
	v.place = mine.PushBack(v)
	e.count++
	return leaves
}

// forget counts a connection no more. e.mu is held.
func (e *Entrance) forget(v *clientConn) {
	if v.place == nil {
		return
	}
	all := e.unauthenticated[v.from]
	all.Remove(v.place)
	v.place = nil
	e.count--
	if all.Len() == 0 {
		delete(e.unauthenticated, v.from)
	}
}

// clientConn is a connection.
type clientConn struct {
	net.Conn
	entrance *Entrance
	from     netip.Addr
	place    *linked.Element // among the unauthenticated of its address; guarded by entrance.mu

	mu     sync.Mutex
	leave  func() // gives its place among those that are kept back
	closed bool
}

// known says that a request on the connection has shown a key, and whether the connection may be kept.
func (v *clientConn) known(by quota.Holder) bool {
	v.entrance.mu.Lock()
	v.entrance.forget(v)
	v.entrance.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.leave != nil || v.closed {
		return true
	}
	leave, err := v.entrance.kept.Enter(by)
	if err != nil {
		return false
	}
	v.leave = leave
	return true
}

// Close implements net.Conn.
func (v *clientConn) Close() error {
	v.entrance.mu.Lock()
	v.entrance.forget(v)
	v.entrance.mu.Unlock()
	v.mu.Lock()
	v.closed = true
	leave := v.leave
	v.leave = nil
	v.mu.Unlock()
	if leave != nil {
		leave()
	}
	return v.Conn.Close()
}

// CloseWrite ends the sending half, where the connection has halves.
func (v *clientConn) CloseWrite() error {
	if half, ok := v.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type clientConnKey struct{}

// withClientConn puts a connection into the context of its requests.
func withClientConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if v, ok := c.(*clientConn); ok {
		return context.WithValue(ctx, clientConnKey{}, v)
	}
	return ctx
}

// clientConnOf is the connection of a request; nil when there is no entrance in front.
func clientConnOf(ctx context.Context) *clientConn {
	v, _ := ctx.Value(clientConnKey{}).(*clientConn)
	return v
}
