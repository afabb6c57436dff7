package quota

import (
	"context"
	"math"
	"slices"
	"sync"
)

// Turns bounds how many callers work at a time. Callers that have to wait are let in by turns of tenants: a tenant with a hundred of
// them does not make the one of another wait for all of them. Its methods may be called at the same time.
type Turns struct {
	limit int
	share func(whole int64) int64

	mu      sync.Mutex
	working map[string]int // by tenant, as is latest: the number of the last who was let in
	latest  map[string]uint64
	let     uint64 // how many were ever let in
	count   int    // how many work
	waiting []*waiter
}

// waiter is somebody who waits. come is closed when they may work.
type waiter struct {
	tenant string
	come   chan struct{}
}

// NewTurns makes turns for limit callers at a time. share is how many of them may be of one tenant, and is asked each time; nil is all.
func NewTurns(limit int, share func(whole int64) int64) *Turns {
	if share == nil {
		share = func(whole int64) int64 { return whole }
	}
	return &Turns{limit: limit, share: share, working: map[string]int{}, latest: map[string]uint64{}}
}

// TurnsOfTenants makes turns in which every tenant has up to each callers at work. Tenants do not wait for each other.
func TurnsOfTenants(each int) *Turns {
	return NewTurns(math.MaxInt, func(int64) int64 { return int64(each) })
}

// Waiter is a caller that waits for its turn, or works. It must call Leave, also when it has not waited until the end.
type Waiter struct {
	// Come is closed when it is the caller's turn.
	Come  <-chan struct{}
	Leave func()
}

// Wait asks for a turn. It does not wait for it.
func (t *Turns) Wait(tenant string) Waiter {
	w := &waiter{tenant: tenant, come: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = append(t.waiting, w)
	t.letIn()
	return Waiter{Come: w.come, Leave: sync.OnceFunc(func() { t.leave(w) })}
}

// Enter waits for a turn. leave must be called when the work is done.
func (t *Turns) Enter(ctx context.Context, tenant string) (leave func(), err error) {
	w := t.Wait(tenant)
	select {
	case <-w.Come:
		return w.Leave, nil
	case <-ctx.Done():
		w.Leave()
		return nil, context.Cause(ctx)
	}
}

func (t *Turns) leave(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting, w); at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
	} else {
		t.count--
		if t.working[w.tenant]--; t.working[w.tenant] == 0 {
			delete(t.working, w.tenant)
		}
		t.letIn()
	}
	if t.working[w.tenant] == 0 && !slices.ContainsFunc(t.waiting, func(o *waiter) bool { return o.tenant == w.tenant }) {
		delete(t.latest, w.tenant)
	}
}

// letIn lets in callers while there is room. The next one is of the tenant that has the fewest at work and, where several have, of
// the one whose last turn is the longest ago; of that tenant the first that came is let in.
func (t *Turns) letIn() {
	for t.count < t.limit {
		limit := max(1, int(t.share(int64(t.limit))))
		var next *waiter
		for _, w := range t.waiting {
			n := t.working[w.tenant]
			if n >= limit {
				continue
			}
			if next == nil || n < t.working[next.tenant] || n == t.working[next.tenant] && t.latest[w.tenant] < t.latest[next.tenant] {
				next = w
			}
		}
		if next == nil {
			return
		}
		at := slices.Index(t.waiting, next)
		t.waiting = slices.Delete(t.waiting, at, at+1)
		t.count++
		t.let++
		t.working[next.tenant]++
		t.latest[next.tenant] = t.let
		close(next.come)
	}
}
