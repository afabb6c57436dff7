package agent

import (
	"context"
	"sync"
)

// changes lets those who change what is a tenant's do it one at a time, so that each finds the tenant as the one before has
// left it. Tenants do not wait for each other.
type changes struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is held by who changes something. It is there while somebody holds it or waits for it.
type turn struct {
	lock
	users int
}

func newChanges() changes { return changes{of: map[string]*turn{}} }

// begin waits until it is the caller's turn. end must be called, once.
func (c *changes) begin(ctx context.Context, tenant string) (end func(), err error) {
	c.mu.Lock()
	t := c.of[tenant]
	if t == nil {
		t = &turn{lock: newLock()}
		c.of[tenant] = t
	}
	t.users++
	c.mu.Unlock()
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(c.of, tenant)
		}
	}
	if err := t.lock.lock(ctx); err != nil {
		leave()
		return nil, err
	}
	return func() { t.unlock(); leave() }, nil
}

// lock is a mutex that can be waited for with a context.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

func (l lock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l lock) unlock() { <-l }

// steps tells somebody of steps, in the order that they came and one at a time. Who adds one does not wait until it is told: somebody
// who listens slowly holds up the end of their own call, and nothing else.
type steps struct {
	tell func(Step) // nil: nobody listens

	mu      sync.Mutex
	queue   []Step
	telling bool
	running sync.WaitGroup
}

func (s *steps) add(step Step) {
	if s.tell == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, step)
	if !s.telling {
		s.telling = true
		s.running.Go(s.run)
	}
}

func (s *steps) run() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.telling = false
			s.mu.Unlock()
			return
		}
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		s.tell(next)
	}
}

// wait returns when everything that was added is told.
func (s *steps) wait() { s.running.Wait() }
