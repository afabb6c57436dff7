package identity

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What somebody may not do is on record: so many refusals of one principal at once, and then so many a second. What is left
// out is counted in the next one that is written.
const (
	refusalsAtOnce    = 1000
	refusalsPerSecond = 2
	// refusersMost is of how many principals is remembered when they were refused last.
	refusersMost = 4096
)

// refusals says which refusals are written down.
type refusals struct {
	mu sync.Mutex
	by map[string]*refuser
}

type refuser struct {
	limit   *rate.Limiter
	leftOut int
	last    time.Time
}

// write says whether one more refusal of a principal is written down, and how many before it were not.
func (r *refusals) write(actor string, now time.Time) (ok bool, leftOut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]*refuser{}
	}
	one := r.by[actor]
	if one == nil {
		if len(r.by) >= refusersMost {
			r.forget()
		}
		one = &refuser{limit: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce)}
		r.by[actor] = one
	}
	one.last = now
	if !one.limit.AllowN(now, 1) {
		one.leftOut++
		return false, 0
	}
	leftOut, one.leftOut = one.leftOut, 0
	return true, leftOut
}

// forget forgets who was refused longest ago. r.mu is held.
func (r *refusals) forget() {
	oldest := ""
	for actor, one := range r.by {
		if oldest == "" || one.last.Before(r.by[oldest].last) {
			oldest = actor
		}
	}
	delete(r.by, oldest)
}
