package gateway

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
)

const (
	// askPatience bounds one question about an address, and is how long nothing more is asked about it.
	askPatience = 2 * time.Second
	// maxAsked bounds the addresses whose answers are remembered.
	maxAsked = 1024
)

// unknownCallers asks about addresses that are not admitted: about each once at a time, and not again for [askPatience].
type unknownCallers struct {
	ask func(ctx context.Context, addr netip.Addr) bool
	now func() time.Time

	mu    sync.Mutex // guards what follows
	asked map[netip.Addr]*question
}

// question is one that was asked. known is set when done is closed.
type question struct {
	at    time.Time
	done  chan struct{}
	known bool
}

func newUnknownCallers(ask func(context.Context, netip.Addr) bool, now func() time.Time) *unknownCallers {
	return &unknownCallers{ask: ask, now: now, asked: map[netip.Addr]*question{}}
}

// knows says whether an address is admitted by now.
func (s *unknownCallers) knows(ctx context.Context, addr netip.Addr) bool {
	s.mu.Lock()
	now := s.now()
	q := s.asked[addr]
	if q != nil && (!q.over() || now.Sub(q.at) < askPatience && !now.Before(q.at)) {
		s.mu.Unlock()
		select {
		case <-q.done:
			return q.known
		case <-ctx.Done():
			return false
		}
	}
	if len(s.asked) >= maxAsked {
		for other, old := range s.asked {
			if old.over() {
				delete(s.asked, other)
			}
		}
	}
	if len(s.asked) >= maxAsked {
		s.mu.Unlock()
		return false
	}
	q = &question{at: now, done: make(chan struct{})}
	s.asked[addr] = q
	s.mu.Unlock()
	// The one that asks does so for all that wait: it does not end with its own connection.
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), askPatience)
	defer cancel()
	defer close(q.done)
	q.known = s.ask(within, addr)
	return q.known
}

func (q *question) over() bool {
	return wake.Closed(q.done)
}

// introduce binds a stranger's connection to the caller that its address turns out to be. The request goes on with the
// context that it has then, and done gives that back. It changes nothing for an unknown address.
func (g *Gateway) introduce(c *conn, r *http.Request) (who *caller, _ *http.Request, done func()) {
	if g.unknownCallers == nil || c.tunnel != nil || c.listener == nil || !g.unknownCallers.knows(r.Context(), c.remote.Addr()) || !g.bind(c) {
		return nil, r, nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(c.caller.ctx, cancel)
	return c.caller, r.WithContext(ctx), func() {
		stop()
		cancel()
	}
}

// bind takes a stranger's connection into its caller's books, under the locks that an accepted one is bound under. One that
// was closed meanwhile, as those of an address are that is forgotten, stays unbound.
func (g *Gateway) bind(c *conn) bool {
	l := c.listener
	g.mu.Lock()
	defer g.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	who := g.callers[c.remote.Addr()]
	if _, open := l.conns[c]; !open || l.closed || who == nil || c.caller != nil {
		return false
	}
	if !g.place(c, who) {
		return false
	}
	c.mu.Lock()
	c.caller = who
	c.mu.Unlock()
	l.unknown--
	return true
}

// boundTo is the caller of a connection, for others than those who serve it.
func (c *conn) boundTo() *caller {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caller
}
