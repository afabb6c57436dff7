package signin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
)

// watchEvery is how often what is held is compared with the store, in which another process may have ended it.
const watchEvery = 5 * time.Second

// WatchValidity is [identity.Service.Enter] for a sign-in: cancel is called when the sign-in ends too. It counts as use.
// When WatchValidity fails, cancel may have been called.
func (s *Service) WatchValidity(ctx context.Context, by identity.Principal, in SignIn, cancel context.CancelCauseFunc) (release func(), err error) {
	var once sync.Once
	end := func(cause error) { once.Do(func() { cancel(cause) }) }
	// First registered and then looked up, while End is first known and then cuts: one of the two sees the other.
	number := s.held.add(in.ID, end)
	letGo, err := s.o.Identity.Enter(ctx, by, end)
	if err != nil {
		s.held.remove(number)
		return nil, err
	}
	row, err := s.o.Store.SignIn(ctx, in.ID)
	if err == nil && s.over(row) || notThere(err) {
		err = notSignedIn()
	}
	if err != nil {
		letGo()
		s.held.remove(number)
		return nil, fmt.Errorf("hold a connection: %w", err)
	}
	timer := time.AfterFunc(s.end(row).Sub(s.o.Now()), func() { end(notSignedIn()) })
	return func() {
		timer.Stop()
		letGo()
		s.held.remove(number)
	}, nil
}

// Look has what is held compared with the store soon. It does not wait for that.
func (s *Service) Look() { s.look.Send() }

// watch compares what is held with the store until the context ends, and writes what was ended and could not be written. A store
// that does not answer in time ends nothing: it will be asked again.
func (s *Service) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.look:
		}
		for _, id := range s.held.ids() {
			if !s.compare(ctx, id) {
				break // the others would wait as long
			}
		}
		for _, id := range s.uses.unwritten() {
			if !s.writeEnd(ctx, id) {
				break
			}
		}
	}
}

// writeEnd removes one that was ended, and reports whether the store could do so in time.
func (s *Service) writeEnd(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	if err := s.o.Store.DeleteSignIn(ctx, id); err == nil || notThere(err) {
		s.uses.drop(id)
	}
	return ctx.Err() == nil
}

// compare ends what is held with a sign-in that is over, and reports whether the store could say so in time.
func (s *Service) compare(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	row, err := s.o.Store.SignIn(ctx, id)
	switch {
	case notThere(err):
		s.held.cut(id)
	case err != nil:
	case s.over(row) || s.use(ctx, row) != nil:
		s.held.cut(id)
	}
	return ctx.Err() == nil
}

// held are what is open, and with which sign-in.
type held struct {
	mu   sync.Mutex
	open map[uint64]holding
	last uint64
}

type holding struct {
	signIn string
	cancel context.CancelCauseFunc
}

func (h *held) add(signIn string, cancel context.CancelCauseFunc) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = map[uint64]holding{}
	}
	h.last++
	h.open[h.last] = holding{signIn, cancel}
	return h.last
}

func (h *held) remove(number uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, number)
}

// cut ends what is open with a sign-in.
func (h *held) cut(signIn string) {
	h.mu.Lock()
	var cancels []context.CancelCauseFunc
	for number, one := range h.open {
		if one.signIn == signIn {
			cancels = append(cancels, one.cancel)
			delete(h.open, number)
		}
	}
	h.mu.Unlock()
	for _, cancel := range cancels {
		cancel(notSignedIn())
	}
}

// ids are the sign-ins with which something is open.
func (h *held) ids() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[string]bool{}
	for _, one := range h.open {
		if !seen[one.signIn] {
			seen[one.signIn] = true
			all = append(all, one.signIn)
		}
	}
	return all
}
