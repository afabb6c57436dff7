package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
)

// Caller is a jail as the gateway knows it.
type Caller struct {
	// Jail is the jail's name; Session is the session that it belongs to, if any.
	Jail    string
	Session string
	// Tenant is whose jail it is.
	Tenant string
	// Agent is the id of the agent whose jail it is; empty for the jail of a session.
	Agent string
	// Opener is the id of the agent that opened the session; empty when no agent did.
	Opener string
	// Actor is the principal that is responsible for the jail, as the audit log names it: agent:ID, operator:ID, admin.
	Actor string
	// Policy is what the jail may reach before anything that operators decided later: the public web for a clean session, the
	// grant's domains for one with accounts, nothing for an agent.
	Policy policy.Policy
	// Confined says that rules may only take away from Policy: it is that of a session with accounts.
	Confined bool
	// Vet is asked for each new connection, when its first request has arrived and before anything is done for it. An error
	// refuses the request and closes the connection. It may be nil.
	Vet func(ctx context.Context) error
	// Keyed says that the address alone proves nothing, as that of a container which clawjail did not make: each connection has
	// to present the token of Agent before anything is done for it.
	Keyed bool
}

// Errors of Admit.
var (
	ErrAdmitted = errors.New("address is already admitted")
	ErrClosed   = errors.New("gateway is closed")
)

// caller is an admitted address. A new one is made at every admission and the
// old one never comes back, so what hangs on it cannot be inherited.
type caller struct {
	Caller
	addr   netip.Addr
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // requests and tunnels under way

	base *policy.Compiled // of Caller.Policy
	idle upstreams        // connections that wait for the next request

	requests, bytesOut, bytesIn atomic.Int64
	last                        atomic.Int64 // nanoseconds after the gateway's start

	mu    sync.Mutex // guards what follows
	gone  bool
	conns map[*conn]struct{}
	hosts hosts
	// refusals are the newest; see refusals.go.
	refusals []refusedWay
}

// Admit lets an address use the gateway as that caller. The address must not be
// admitted; one that was forgotten starts anew. The policy is copied.
func (g *Gateway) Admit(addr netip.Addr, c Caller) error {
	addr = addr.Unmap()
	var errs []error
	if !addr.IsValid() || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
		errs = append(errs, fmt.Errorf("address %s cannot be a jail's", addr))
	}
	if c.Jail == "" {
		errs = append(errs, errors.New("jail has no name"))
	}
	base, err := policy.Compile(c.Policy)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("admit %s: %w", addr, err)
	}
	c.Policy = c.Policy.Clone()
	who := &caller{Caller: c, addr: addr, base: base, conns: make(map[*conn]struct{})}
	who.last.Store(int64(g.now().Sub(g.start)))

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("admit %s: %w", addr, ErrClosed)
	}
	if _, taken := g.callers[addr]; taken {
		return fmt.Errorf("admit %s: %w", addr, ErrAdmitted)
	}
	who.ctx, who.cancel = context.WithCancel(context.Background())
	g.callers[addr] = who
	return nil
}

// Forget withdraws an admission and closes every connection of that address:
// tunnels, requests under way, idle ones, and those that the kernel has accepted
// but the gateway has not seen yet. It returns when they are closed; the next
// jail that is admitted at the address inherits nothing.
//
// Where a jail is named, only its admission is withdrawn: another one may have got
// the address since that jail ended. Without a name any admission is withdrawn.
//
// An error means that the last part could not be proven; the address is then cut
// off, and cannot be admitted again until a further Forget returns nil. An
// address that is not admitted is no error.
func (g *Gateway) Forget(addr netip.Addr, jail string) error {
	addr = addr.Unmap()
	g.mu.Lock()
	who := g.callers[addr]
	listeners := make([]*listener, 0, len(g.listeners))
	for l := range g.listeners {
		listeners = append(listeners, l)
	}
	g.mu.Unlock()
	if who != nil && jail != "" && who.Jail != jail {
		return nil
	}
	if who != nil {
		// The entry stays until the end: it keeps the address from being
		// admitted again, and closes what comes out of the kernel's queue.
		who.cut()
		who.work.Wait()
		var errs []error
		for _, l := range listeners {
			if err := l.drain(); err != nil {
				errs = append(errs, fmt.Errorf("forget %s: %w", addr, err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		g.mu.Lock()
		if g.callers[addr] == who {
			delete(g.callers, addr)
		}
		g.mu.Unlock()
	}
	for _, l := range listeners {
		l.closeStrangers(addr)
	}
	return nil
}

// CallerIn is the jail that is admitted for a session, while one is.
func (g *Gateway) CallerIn(session string) (Caller, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, who := range g.callers {
		if session != "" && who.Session == session {
			return who.Caller, true
		}
	}
	return Caller{}, false
}

// Activity is what a caller has done since it was admitted. Bytes are counted
// as they move, seen from the jail: out is what it sent.
type Activity struct {
	// Last is when a request began or a byte moved; the admission before that.
	Last     time.Time
	Requests int64
	BytesOut int64
	BytesIn  int64
	// Open is the number of open connections.
	Open int
}

// at is the caller that is admitted at an address; nil when there is none.
func (g *Gateway) at(addr netip.Addr) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.callers[addr.Unmap()]
}

// Activity reports on an admitted address.
func (g *Gateway) Activity(addr netip.Addr) (Activity, bool) {
	who := g.at(addr)
	if who == nil {
		return Activity{}, false
	}
	who.mu.Lock()
	open, gone := len(who.conns), who.gone
	who.mu.Unlock()
	if gone {
		return Activity{}, false
	}
	return Activity{
		Last:     g.start.Add(time.Duration(who.last.Load())),
		Requests: who.requests.Load(),
		BytesOut: who.bytesOut.Load(),
		BytesIn:  who.bytesIn.Load(),
		Open:     open,
	}, true
}

// begin registers a request; it is false when the caller has been forgotten.
// Every true is followed by work.Done.
func (c *caller) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.work.Add(1)
	return true
}

// add registers a connection and returns how many there are; 0 when the caller
// has been forgotten.
func (c *caller) add(conn *conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return 0
	}
	c.conns[conn] = struct{}{}
	return len(c.conns)
}

func (c *caller) remove(conn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

// cut closes everything the caller has open and lets nothing new begin.
func (c *caller) cut() {
	c.mu.Lock()
	c.gone = true
	conns := make([]*conn, 0, len(c.conns))
	for conn := range c.conns {
		conns = append(conns, conn)
	}
	c.mu.Unlock()
	// The connections go first: requests that are interrupted then have no client to answer.
	for _, conn := range conns {
		// A connection that does not close cleanly is closed all the same.
		_ = conn.Close()
	}
	c.cancel()
	c.idle.close()
}

// permit is what decides about a caller's proxy requests now.
func (g *Gateway) permit(who *caller) *policy.Compiled {
	if g.policy == nil {
		return who.base
	}
	return g.policy(who.Caller)
}
