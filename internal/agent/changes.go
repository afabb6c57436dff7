package agent

import (
	"context"
	"sync"
)

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

// steps tells a listener of steps, in the order that they came and one at a time. The code that adds one does not wait until it is told:
// a slow listener holds up the end of its own call, and nothing else.
type steps struct {
	tell func(Step) // nil: there is no listener

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
