package identity

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/store"
)

// endTime is how long an ending may take. A database that has gone away is noticed before.
const endTime = 30 * time.Second

// ToTheEnd is a context for an ending: what was asked for is done also when who asked has left meanwhile.
func ToTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), endTime)
}

// revocations are those of keys, operators and agents that the database does not have yet: while they are being written, and
// after they could not be. They hold at once, because cutting off must not wait for a disk that is full.
type revocations struct {
	mu  sync.Mutex
	ids map[string]*revocation

	turn chan struct{} // holds a token while one is written again, or taken back
}

func newRevocations() *revocations {
	return &revocations{ids: map[string]*revocation{}, turn: make(chan struct{}, 1)}
}

// revocation is one of them.
type revocation struct {
	intent audit.Intent
	write  func(context.Context) error
	failed bool // it could not be written
}

func (r *revocations) set(id string, one *revocation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[id] = one
}

// done forgets what the database says, or what was taken back.
func (r *revocations) done(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ids, id)
}

func (r *revocations) failed(one *revocation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.failed = true
}

// inTurn calls do while no other revocation is written again.
func (r *revocations) inTurn(ctx context.Context, do func() error) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	return do()
}

// unwritten are those that could not be written.
func (r *revocations) unwritten() map[string]*revocation {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := maps.Clone(r.ids)
	maps.DeleteFunc(out, func(_ string, one *revocation) bool { return !one.failed })
	return out
}

// has reports whether a principal, or its key, was cut off.
func (r *revocations) has(p Principal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ids[p.ID] != nil || r.ids[p.TokenID] != nil
}

// cutOff ends everything that matches, at once and whether that can be written or not. A caller whose end could not be written is
// refused by this process all the same, which writes it when it can be.
func (s *Service) cutOff(ctx context.Context, i audit.Intent, id string, match func(Principal) bool, write func(context.Context) error) error {
	one := &revocation{intent: i, write: write}
	s.revocations.set(id, one)
	s.connections.cut(match)
	return s.Ending(i, func() error {
		err := write(ctx)
		if err != nil {
			s.revocations.failed(one)
			return err
		}
		s.revocations.done(id)
		return nil
	})
}

// writeRevocations writes those that could not be written before. Each caller was told so at that time.
func (s *Service) writeRevocations(ctx context.Context) {
	for id := range s.revocations.unwritten() {
		err := s.revocations.inTurn(ctx, func() error { return s.writeAgain(ctx, id) })
		if errors.Is(err, context.DeadlineExceeded) {
			return // the others would wait as long
		}
	}
}

func (s *Service) writeAgain(ctx context.Context, id string) error {
	one := s.revocations.unwritten()[id]
	if one == nil {
		return nil // it was taken back in the meantime
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := one.write(ctx); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	s.revocations.done(id)
	s.o.Audit.BeginEnding(one.intent).End(audit.Outcome{Result: audit.OK}) // the first try has its intent before the act
	return nil
}
