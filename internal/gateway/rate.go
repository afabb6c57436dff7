package gateway

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/problem"
)

// Rates are how much a caller may ask for. All are required.
type Rates struct {
	// Proxy, Execute, Service and LLM are requests per minute on each surface; a whole minute's may come at once.
	Proxy, Execute, Service, LLM int
	// Tunnels is how many may be open at the same time.
	Tunnels int
}

// DefaultRates returns the rates of callers for which no others are set.
func DefaultRates() Rates {
	return Rates{Proxy: 3000, Execute: 60, Service: 600, LLM: 120, Tunnels: 128}
}

// Validate reports everything that is wrong with the rates at once.
func (r Rates) Validate() error {
	var errs []error
	for _, n := range []struct {
		name  string
		value int
	}{{"proxy", r.Proxy}, {"execute", r.Execute}, {"service", r.Service}, {"llm", r.LLM}, {"tunnels", r.Tunnels}} {
		if n.value <= 0 {
			errs = append(errs, fmt.Errorf("rate %s: %d is not positive", n.name, n.value))
		}
	}
	return errors.Join(errs...)
}

func (r Rates) of(s Surface) int {
	switch s {
	case SurfaceExecute:
		return r.Execute
	case SurfaceService:
		return r.Service
	case SurfaceLLM:
		return r.LLM
	default:
		return r.Proxy
	}
}

// usage is what one caller has asked for lately.
type usage struct {
	buckets map[Surface]*rate.Limiter
	lines   *rate.Limiter
	tunnels int
	last    time.Time
}

// quotas counts the use of callers by their identity: an agent has one count, however many jails it has.
type quotas struct {
	mu    sync.Mutex // guards what follows
	users map[string]*usage
	swept time.Time
}

// forgetAfter is how long the count of a silent caller is kept. Every bucket is full again after a minute.
const forgetAfter = 2 * time.Minute

func (c Caller) account() string {
	if c.Agent != "" {
		return "agent " + c.Agent
	}
	return "jail " + c.Jail
}

// bucketOf are the surfaces that share a rate.
func bucketOf(s Surface) Surface {
	if s == SurfaceConnect {
		return SurfaceForward
	}
	return s
}

func (q *quotas) user(account string, now time.Time) *usage {
	if now.Sub(q.swept) > forgetAfter {
		q.swept = now
		for name, u := range q.users {
			if u.tunnels == 0 && now.Sub(u.last) > forgetAfter {
				delete(q.users, name)
			}
		}
	}
	u := q.users[account]
	if u == nil {
		u = &usage{buckets: make(map[Surface]*rate.Limiter)}
		if q.users == nil {
			q.users = make(map[string]*usage)
		}
		q.users[account] = u
	}
	u.last = now
	return u
}

// take takes one request, or says how long to wait for one.
func (q *quotas) take(account string, s Surface, perMinute int, now time.Time) (wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.user(account, now)
	limit := rate.Limit(float64(perMinute) / 60)
	bucket := u.buckets[bucketOf(s)]
	if bucket == nil {
		bucket = rate.NewLimiter(limit, perMinute)
		u.buckets[bucketOf(s)] = bucket
	}
	if bucket.Limit() != limit || bucket.Burst() != perMinute {
		bucket.SetLimitAt(now, limit)
		bucket.SetBurstAt(now, perMinute)
	}
	reserved := bucket.ReserveN(now, 1)
	if wait = reserved.DelayFrom(now); wait > 0 {
		reserved.CancelAt(now)
	}
	return wait
}

// Events that no rate bounds are logged so often: linesAtOnce, and then one a second.
const linesAtOnce = 60

// line says whether something is worth a line in the log that somebody can do as often as he likes: to be refused because
// it is too often, or because its caller is unknown.
func (q *quotas) line(account string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.user(account, now)
	if u.lines == nil {
		u.lines = rate.NewLimiter(1, linesAtOnce)
	}
	return u.lines.AllowN(now, 1)
}

// tunnel takes one of the tunnels that may be open; every true is followed by endTunnel.
func (q *quotas) tunnel(account string, limit int, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.user(account, now)
	if u.tunnels >= limit {
		return false
	}
	u.tunnels++
	return true
}

func (q *quotas) endTunnel(account string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.users[account]; u != nil {
		u.tunnels--
		u.last = now
	}
}

// Take takes one request of a surface from the caller's rate. The code is rate_limited, with the detail retry_after in
// seconds, when none is left.
func (g *Gateway) Take(c Caller, s Surface) *problem.Error {
	perMinute := g.rates(c).of(s)
	wait := g.quotas.take(c.account(), s, perMinute, g.now())
	if wait <= 0 {
		return nil
	}
	return problem.New(problem.RateLimited, "Wait as long as Retry-After says before the next request; more of them sooner will not help.",
		"more than %d requests a minute on the surface %s", perMinute, s).With(problem.RetryAfter, int64(math.Ceil(wait.Seconds())))
}
