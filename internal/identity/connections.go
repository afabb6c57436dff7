package identity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/quota"
)

// WatchValidity registers something that is open for a principal: a connection, a stream, a session. cancel is called once
// when the principal's key is not good any more, with the reason as its cause, from another goroutine; it must not
// block. The holder calls release when the thing has ended by itself; release may be called more than once.
//
// WatchValidity fails when the key is not good already: it may have been revoked since it was looked at. cancel is not called
// then.
func (s *Service) WatchValidity(ctx context.Context, p Principal, cancel context.CancelCauseFunc) (release func(), err error) {
	// First registered and then looked up, while a revocation is first known and then cuts: whichever comes first,
	// one of the two sees the other.
	held := s.connections.hold(p, cancel)
	expires, reason, err := s.standing(ctx, p)
	if err == nil && reason != "" {
		err = notGood()
	}
	if err != nil {
		if !s.connections.release(held) {
			err = errors.Join(err, errCut) // cancel was called, or is being called
		}
		return nil, fmt.Errorf("hold a connection: %w", err)
	}
	s.connections.expire(p.TokenID, expires)
	return func() { s.connections.release(held) }, nil
}

// Enter is WatchValidity for a request or a stream, which counts against the limits of its tenant and agent while it is open. The code
// is rate_limited when it is one too many.
func (s *Service) Enter(ctx context.Context, p Principal, cancel context.CancelCauseFunc) (release func(), err error) {
	of := quota.Holder{Tenant: p.Tenant, Agent: p.AgentID()}
	leave, err := s.gate.Enter(of)
	if err != nil {
		return nil, err
	}
	Arrived(ctx, of)
	letGo, err := s.WatchValidity(ctx, p, cancel)
	if err != nil {
		leave()
		return nil, err
	}
	return func() {
		letGo()
		leave()
	}, nil
}

type arrivalKey struct{}

// WithArrival makes a context for a request. [Service.Enter] calls arrived with the holder of the request, for the code that
// counts what requests hold before a face knows the caller.
func WithArrival(ctx context.Context, arrived func(by quota.Holder)) context.Context {
	return context.WithValue(ctx, arrivalKey{}, arrived)
}

// Arrived names the holder of a request that does not pass through [Service.Enter].
func Arrived(ctx context.Context, of quota.Holder) {
	if arrived, ok := ctx.Value(arrivalKey{}).(func(quota.Holder)); ok {
		arrived(of)
	}
}

// Held is how much is open: of all, of a tenant and of an agent.
func (s *Service) Held(asks quota.Holder) []quota.Amount { return s.gate.Amounts(asks) }

// errCut is what is joined to an error of WatchValidity's when the connection was cut in the same moment.
var errCut = errors.New("it was cut at the same moment")

// Look has what is held compared with the store soon. It does not wait for that.
func (s *Service) Look() { s.connections.look.Send() }

// LookAtGuesses has wrong keys that other processes were given counted soon. It does not wait for that.
func (s *Service) LookAtGuesses() { s.rateLimiter.share.Send() }

// Open is how many connections are held.
func (s *Service) Open() int { return s.connections.count() }

// checker says how a principal is doing; see [Service.standing].
type checker func(ctx context.Context, p Principal) (expires time.Time, reason string, err error)

// connections are the open ones, each with its principal. One goroutine ends those that have expired, and another compares with the store.
type connections struct {
	now     func() time.Time
	recheck time.Duration
	check   checker
	changed wake.Signal // an expiry may be earlier than the goroutine thinks
	look    wake.Signal // for a comparison with the store

	mu   sync.Mutex
	last uint64
	open map[uint64]*connection
}

type connection struct {
	principal Principal // its ExpiresAt is kept up to date
	cancel    context.CancelCauseFunc
}

func newConnections(now func() time.Time, recheck time.Duration, check checker) *connections {
	return &connections{now: now, recheck: recheck, check: check, changed: wake.New(), look: wake.New(), open: map[uint64]*connection{}}
}

func (c *connections) hold(p Principal, cancel context.CancelCauseFunc) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.open[c.last] = &connection{p, cancel}
	if !p.ExpiresAt.IsZero() {
		c.changed.Send()
	}
	return c.last
}

// release reports whether the connection was held until now.
func (c *connections) release(held uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.open[held]
	delete(c.open, held)
	return ok
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// cut ends what matches, and says how much that was.
func (c *connections) cut(match func(Principal) bool) int {
	c.mu.Lock()
	var cancels []context.CancelCauseFunc
	for id, open := range c.open {
		if match(open.principal) {
			cancels = append(cancels, open.cancel)
			delete(c.open, id)
		}
	}
	c.mu.Unlock()
	for _, cancel := range cancels {
		cancel(notGood())
	}
	return len(cancels)
}

// expire shortens the life of a key's connections. Nothing lengthens it: a life that was read before a rotation must
// not undo what the rotation has said. A zero time is no end.
func (c *connections) expire(token string, at time.Time) {
	if at.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, open := range c.open {
		p := &open.principal
		if p.TokenID == token && !p.OutlivesRotation && (p.ExpiresAt.IsZero() || at.Before(p.ExpiresAt)) {
			p.ExpiresAt = at
			c.changed.Send()
		}
	}
}

// run ends connections whose key expires or that the store says are over, until the context ends. Known ends do not wait for a
// store that does not answer.
func (c *connections) run(ctx context.Context) {
	var comparing sync.WaitGroup
	defer comparing.Wait()
	comparing.Go(func() { every(ctx, c.recheck, c.look, c.compare) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-timer.C:
		}
		timer.Stop()
		if next := c.endExpired(); !next.IsZero() {
			timer.Reset(min(Left(next, c.now()), LookAgain))
		}
	}
}

// endExpired ends what has expired, and says when something will next.
func (c *connections) endExpired() (next time.Time) {
	now := c.now()
	c.cut(func(p Principal) bool { return !p.ExpiresAt.IsZero() && Left(p.ExpiresAt, now) <= 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, open := range c.open {
		if at := open.principal.ExpiresAt; !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// every does something again and again until the context ends, and at once when it is woken.
func every(ctx context.Context, pause time.Duration, woken <-chan struct{}, do func(context.Context)) {
	again := time.NewTicker(pause)
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-woken:
		case <-ctx.Done():
			return
		}
		do(ctx)
	}
}

// compare looks up the keys of all connections. Another process may have revoked a key, or shortened its life. A store
// that does not answer ends nothing, and is asked again.
func (c *connections) compare(ctx context.Context) {
	c.mu.Lock()
	principals := make(map[string]Principal, len(c.open))
	for _, open := range c.open {
		principals[open.principal.TokenID] = open.principal
	}
	c.mu.Unlock()
	for token, p := range principals {
		asking, cancel := context.WithTimeout(ctx, answerTime)
		expires, reason, err := c.check(asking, p)
		over := asking.Err() != nil
		cancel()
		switch {
		case err != nil && over:
			return // the others would wait as long
		case err != nil:
		case reason != "":
			// A connection that outlives a rotation has an end of its own, when the token has one.
			c.cut(func(p Principal) bool { return p.TokenID == token && !(p.OutlivesRotation && reason == reasonExpired) })
		default:
			c.expire(token, expires)
		}
	}
}
