package egress

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
)

// How many answers each agent, and each operator, may wait for at the same time.
const (
	maxWaitsOfAgent = 8
	maxWaitsOfOther = 32
)

// waiting counts who waits.
type waiting struct {
	mu sync.Mutex
	of map[string]int // by actor
}

// begin is false when somebody waits for as much as may be. Every true is followed by done.
func (w *waiting) begin(actor string) bool {
	limit := maxWaitsOfOther
	if strings.HasPrefix(actor, string(identity.KindAgent)+":") {
		limit = maxWaitsOfAgent
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[actor] >= limit {
		return false
	}
	if w.of == nil {
		w.of = map[string]int{}
	}
	w.of[actor]++
	return true
}

func (w *waiting) done(actor string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[actor]--; w.of[actor] <= 0 {
		delete(w.of, actor)
	}
}

// answered waits until a request for access is answered and the answer is in effect, or the time is over, and returns
// it as it is then. An actor that waits for as many as it may already does not wait.
func (b *Book) answered(ctx context.Context, actor string, a AccessRequest, wait time.Duration) (AccessRequest, error) {
	if wait <= 0 || a.state(b.o.Now()) != AccessPending || !b.waiting.begin(actor) {
		return a.shown(b.o.Now()), nil
	}
	defer b.waiting.done(actor)
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		s := b.state.Load()
		if i := s.items[a.ID]; i == nil || i.access == nil {
			// It is gone with its agent, or has expired and was removed.
			a.State = AccessExpired
			return a, nil
		} else if a = *i.access; a.state(b.o.Now()) != AccessPending && s.has(a.Made) {
			return a.shown(b.o.Now()), nil
		}
		select {
		case <-s.changed:
		case <-over.C:
			return a.shown(b.o.Now()), nil
		case <-ctx.Done():
			return a.shown(b.o.Now()), ctx.Err()
		case <-b.stopped:
			return a.shown(b.o.Now()), nil
		}
	}
}

// has says whether what an approval has made is there; another process may see the approval first.
func (s *state) has(made string) bool { return made == "" || s.items[made] != nil }
