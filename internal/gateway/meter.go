package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
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

// meteredConn counts what passes through an upstream connection, for the request that has it now.
type meteredConn struct {
	net.Conn
	meter atomic.Pointer[meter]
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if m := c.meter.Load(); m != nil {
		m.received(n)
	}
	return n, err
}

func (c *meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if m := c.meter.Load(); m != nil {
		m.sent(n)
	}
	return n, err
}

// CloseWrite ends the sending half.
func (c *meteredConn) CloseWrite() error { return closeWrite(c.Conn) }

// watch calls end once, when nothing has moved for the idle time, the lifetime is over, or the exchange is cut. stop ends the
// watching; end is not called after stop has returned.
func (x *exchange) watch(idle, lifetime time.Duration, end func()) (stop func()) {
	g := x.gateway
	born := g.now().Sub(g.start)
	var timer *time.Timer
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endNow = end
	timer = time.AfterFunc(min(idle, lifetime), func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		now := g.now().Sub(g.start)
		left := min(idle-(now-time.Duration(x.meter.lastMove.Load())), lifetime-(now-born))
		switch {
		case x.endNow == nil:
		case left > 0:
			timer.Reset(left)
		default:
			x.endNow()
			x.endNow = nil
		}
	})
	g.underWay.Store(x, nil)
	return func() {
		g.underWay.Delete(x)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.endNow = nil
		timer.Stop()
	}
}

// cut ends an exchange that is under way, whose outcome says why.
func (x *exchange) cut(why policy.Decision) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.endNow != nil {
		x.denied.Store(&why)
		x.endNow()
		x.endNow = nil
	}
}

// finish ends the record, and writes the one line that tells the whole exchange. It may be called again.
func (x *exchange) finish(ctx context.Context) {
	if x.finished.Swap(true) {
		return
	}
	code := x.failure
	if d := x.denied.Load(); d != nil {
		code, x.err = string(d.Code), errors.New(d.Reason)
	}
	if !x.Allowed {
		code = x.Code
	}
	out := Outcome{
		Code: code, Status: x.status, Address: x.dialled, BytesOut: x.meter.out.Load(), BytesIn: x.meter.in.Load(),
		Took: x.gateway.now().Sub(x.Time), Reused: x.reused,
	}
	if x.record != nil {
		x.record.End(out)
		x.gateway.observer.Ended(x.Decision, out)
	}
	if code == problem.RateLimited && !x.gateway.quotas.line(x.who.account(), x.gateway.now()) {
		return
	}
	source := "" // an agent outside of all jails
	if x.Source.IsValid() {
		source = x.Source.String()
	}
	if !x.gateway.log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	attrs := []slog.Attr{
		slog.String("caller", source),
		slog.String("jail", x.Jail),
		slog.String("session", x.Session),
		slog.String("surface", string(x.Surface)),
		slog.String("scheme", string(x.Scheme)),
		slog.String("method", x.Method),
		slog.String("host", x.Host.String()),
		slog.Int("port", int(x.Port)),
		slog.String("rule", x.Rule),
		slog.Bool("allowed", x.Allowed),
		slog.Int64("bytes_out", out.BytesOut),
		slog.Int64("bytes_in", out.BytesIn),
		slog.Int64("ms", out.Took.Milliseconds()),
	}
	if x.Agent != "" {
		attrs = append(attrs, slog.String("agent", x.Agent))
	}
	if x.Service != "" {
		attrs = append(attrs, slog.String("service", x.Service))
	}
	if x.Reported {
		attrs = append(attrs, slog.Bool("reported", true))
	}
	if x.status != 0 {
		attrs = append(attrs, slog.Int("status", x.status))
	}
	if x.dialled.IsValid() {
		attrs = append(attrs, slog.String("address", x.dialled.String()))
	}
	if code == "" {
		code = x.Code // what would have happened, where nothing is enforced
	}
	if code != "" {
		attrs = append(attrs, slog.String("code", code))
	}
	if x.err != nil {
		attrs = append(attrs, slog.String("error", x.err.Error()))
	}
	x.gateway.log.LogAttrs(ctx, slog.LevelInfo, "gateway decision", attrs...)
}
