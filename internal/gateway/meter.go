package gateway

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// meter counts the bytes of one exchange, seen from the jail, and remembers when
// the last one moved.
type meter struct {
	gateway  *Gateway
	who      *caller
	out, in  atomic.Int64
	lastMove atomic.Int64 // nanoseconds after the gateway's start
}

func (m *meter) touch() {
	now := int64(m.gateway.now().Sub(m.gateway.start))
	m.lastMove.Store(now)
	m.who.last.Store(now)
}

func (m *meter) sent(n int) {
	if n > 0 {
		m.out.Add(int64(n))
		m.who.bytesOut.Add(int64(n))
		m.touch()
	}
}

func (m *meter) received(n int) {
	if n > 0 {
		m.in.Add(int64(n))
		m.who.bytesIn.Add(int64(n))
		m.touch()
	}
}

// meteredConn counts what passes through an upstream connection.
type meteredConn struct {
	net.Conn
	meter *meter
}

func (c meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.meter.received(n)
	return n, err
}

func (c meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.meter.sent(n)
	return n, err
}

// CloseWrite ends the sending half.
func (c meteredConn) CloseWrite() error { return closeWrite(c.Conn) }

// watch calls end once nothing has moved for the idle time, or the lifetime is
// over. stop ends the watching; end is not called after stop has returned.
func (m *meter) watch(end func()) (stop func()) {
	limits := m.gateway.limits
	born := m.gateway.now().Sub(m.gateway.start)
	var (
		mu      sync.Mutex
		stopped bool
		timer   *time.Timer
	)
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		now := m.gateway.now().Sub(m.gateway.start)
		left := min(limits.IdleTimeout-(now-time.Duration(m.lastMove.Load())), limits.Lifetime-(now-born))
		if left <= 0 {
			stopped = true
			end()
			return
		}
		timer.Reset(left)
	}
	mu.Lock()
	timer = time.AfterFunc(min(limits.IdleTimeout, limits.Lifetime), look)
	mu.Unlock()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// finish writes the one line that tells the whole exchange.
func (x *exchange) finish(ctx context.Context) {
	attrs := []slog.Attr{
		slog.String("caller", x.Source.String()),
		slog.String("jail", x.Jail),
		slog.String("session", x.Session),
		slog.String("surface", string(x.Surface)),
		slog.String("scheme", string(x.Scheme)),
		slog.String("method", x.Method),
		slog.String("host", x.Host.String()),
		slog.Int("port", int(x.Port)),
		slog.String("rule", x.Rule),
		slog.Bool("allowed", x.Allowed),
		slog.Int64("bytes_out", x.meter.out.Load()),
		slog.Int64("bytes_in", x.meter.in.Load()),
		slog.Int64("ms", x.gateway.now().Sub(x.Time).Milliseconds()),
	}
	if x.dialled.IsValid() {
		attrs = append(attrs, slog.String("address", x.dialled.String()))
	}
	if x.Code != "" {
		attrs = append(attrs, slog.String("code", x.Code))
	}
	if x.err != nil {
		attrs = append(attrs, slog.String("error", x.err.Error()))
	}
	x.gateway.log.LogAttrs(ctx, slog.LevelInfo, "gateway decision", attrs...)
}
