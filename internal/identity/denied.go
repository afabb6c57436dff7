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

// denied are keys, operators and agents that were cut off, as long as the database does not say so: while it is being
// written, and after it could not be. Cutting off must not wait for a disk that is full.
type denied struct {
	mu  sync.Mutex
	ids map[string]*denial

	turn chan struct{} // of who writes what could not be written, or takes it back
}

func newDenied() *denied { return &denied{ids: map[string]*denial{}, turn: make(chan struct{}, 1)} }

// denial is a revocation that is to be written.
type denial struct {
	intent audit.Intent
	write  func(context.Context) error
	failed bool // it could not be
}

func (d *denied) set(id string, one *denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids[id] = one
}

// done forgets what the database says, or what was taken back.
func (d *denied) done(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ids, id)
}

func (d *denied) failed(one *denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one.failed = true
}

// inTurn does something while nobody else writes what could not be written.
func (d *denied) inTurn(ctx context.Context, do func() error) error {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.turn }()
	return do()
}

// unwritten are those that could not be written.
func (d *denied) unwritten() map[string]*denial {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := maps.Clone(d.ids)
	maps.DeleteFunc(out, func(_ string, one *denial) bool { return !one.failed })
	return out
}

// has says whether a principal, or its key, was cut off.
func (d *denied) has(p Principal) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ids[p.ID] != nil || d.ids[p.TokenID] != nil
}

// cutOff ends everything that matches, at once and whether that can be written or not. A caller whose end could not be written is
// refused by this process all the same, which writes it when it can be.
func (s *Service) cutOff(ctx context.Context, i audit.Intent, id string, match func(Principal) bool, write func(context.Context) error) error {
	one := &denial{intent: i, write: write}
	s.denied.set(id, one)
	s.connections.cut(match)
	return s.Ending(i, func() error {
		err := write(ctx)
		if err != nil {
			s.denied.failed(one)
			return err
		}
		s.denied.done(id)
		return nil
	})
}

// writeDenied writes what could not be written before. Whoever revoked it was told that it was not.
func (s *Service) writeDenied(ctx context.Context) {
	for id := range s.denied.unwritten() {
		err := s.denied.inTurn(ctx, func() error { return s.writeAgain(ctx, id) })
		if errors.Is(err, context.DeadlineExceeded) {
			return // the others would wait as long
		}
	}
}

func (s *Service) writeAgain(ctx context.Context, id string) error {
	one := s.denied.unwritten()[id]
	if one == nil {
		return nil // it was taken back in the meantime
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := one.write(ctx); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	s.denied.done(id)
	s.o.Audit.BeginEnding(one.intent).End(audit.Outcome{Result: audit.OK}) // the first try has its intent before the act
	return nil
}
