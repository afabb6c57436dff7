package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// poolCheck is how often the pool looks whether its key still holds, when nothing else happens.
	poolCheck = 30 * time.Second
	// poolPause is how long the pool waits after a failure, at first and at most. It is twice as long every time, until
	// there was none for poolPeace.
	poolPause, maxPoolPause, poolPeace = time.Second, time.Minute, 2 * time.Minute
	// poolQuiet is how long the pool waits before it fills up while it still has a member: a browser that starts beside the
	// one that was just taken takes the processor from its first page.
	poolQuiet = 400 * time.Millisecond
)

// pool keeps browsers that were started and not used yet. They run, and reach no network: the gateway is
// opened to a jail when a session takes it, with the session's policy.
//
// A jail is a tenant's from its first moment on, since what it takes of the host counts for that tenant. So each place of the pool
// is for one tenant: for those of the last sessions that could have had a member, as many as there are places.
//
// All members of a tenant have the key of its default request. When that changes, the old ones go. Within one process only a template
// can change, by being built again, and a session may have the old one for a moment: so it is enough to compare keys now and then.
// One goroutine, run, makes and ends members; others only take them.
type pool struct {
	service *Service
	wake    wake.Signal // holds at most one reason to look again

	mu     sync.Mutex
	ready  []*instance // oldest first
	making *making     // nil while none is being made
	usual  jailOptions // of the default request, of no tenant
	places []string    // the tenant that each place is for, latest first
}

// making is a member that is being made. A session that needs a browser now waits for it rather than for one that would
// start later and slow it down.
type making struct {
	key     string
	claimed bool
	result  chan *instance // gets one value when it was claimed: the member, or nil when there is none
}

func newPool(svc *Service) *pool {
	return &pool{service: svc, wake: wake.New(), places: slices.Repeat([]string{jail.DefaultTenant}, svc.WarmPool.Size)}
}

// note remembers the tenant of a session that is opened.
func (p *pool) note(sh jailOptions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tenant := sh.tenant
	if sh.tenant = ""; sh == p.usual && len(p.places) > 0 {
		p.places = append([]string{tenant}, p.places[:len(p.places)-1]...)
	}
}

// wanted are the places, and what the members of each tenant are made from.
func (p *pool) wanted(ctx context.Context) ([]string, map[string]jailSpec, error) {
	svc := p.service
	usual, err := svc.plan(OpenRequest{Browser: string(svc.WarmPool.Browser)})
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	p.usual = usual.shape
	places := slices.Clone(p.places)
	p.mu.Unlock()
	from := map[string]jailSpec{}
	for _, tenant := range places {
		if _, known := from[tenant]; known {
			continue
		}
		sh := usual.shape
		sh.tenant = tenant
		if from[tenant], err = svc.jailSpecOf(ctx, sh); err != nil {
			return nil, nil, err
		}
	}
	return places, from, nil
}

// poke makes the pool look at itself. It never waits.
func (p *pool) poke() { p.wake.Send() }

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// usable is how many members can be given to somebody.
func (p *pool) usable() (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.ready {
		if p.fresh(i) {
			count++
		}
	}
	return count
}

// take takes a browser of that shape, or nil. It belongs to the caller then.
func (p *pool) take(sh jailOptions) *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The oldest first: it is the next to be too old.
	for n, i := range p.ready {
		if i.shape == sh && p.fresh(i) {
			p.ready = slices.Delete(p.ready, n, n+1)
			return i
		}
	}
	return nil
}

// await waits for the member that is being made, when it has that key and no other call waits for it. It returns nil when
// there is none, or when ctx ends before there is.
func (p *pool) await(ctx context.Context, key string) *instance {
	p.mu.Lock()
	m := p.making
	if m == nil || m.claimed || m.key != key {
		p.mu.Unlock()
		return nil
	}
	m.claimed = true
	p.mu.Unlock()
	select {
	case i := <-m.result:
		return i
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case i := <-m.result: // it came at the same moment; the pool may not be looked after any more
		return i
	default:
		m.claimed = false
		return nil
	}
}

// fresh says whether a member may be given to somebody.
func (p *pool) fresh(i *instance) bool {
	return !i.gone() && p.service.Now().Sub(i.answered) < p.service.WarmPool.MaxAge
}

// run keeps the pool full until the service stops, and empties it then.
func (p *pool) run() {
	svc := p.service
	ctx := svc.background
	defer p.removeUnless(func(*instance) bool { return false })
	if svc.WarmPool.Size == 0 {
		return
	}
	pause, failed, missing := time.Duration(0), time.Time{}, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		more, err := p.tend(ctx)
		if ctx.Err() != nil {
			return
		}
		next := poolCheck
		wasMissing := missing
		missing = problem.CodeOf(err) == problem.TemplateMissing
		switch {
		case missing:
			// It may be being built, and status says that it is missing.
			if !wasMissing {
				svc.Log.Info("the warm pool waits until its template is built", "error", err)
			}
		case err != nil:
			// Said again with every try, which are rarer and rarer.
			if svc.Now().Sub(failed) > poolPeace {
				pause = 0
			}
			failed = svc.Now()
			pause = min(max(poolPause, 2*pause), maxPoolPause)
			next = pause
			svc.Log.Warn("fill the warm pool", "error", err, "next_try", pause)
		case more:
			next = 0
		default:
			if age := p.oldest(); age > 0 {
				next = min(next, age)
			}
		}
		timer.Reset(next)
		quiet := false
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				waiting = false
			case <-p.wake:
				switch {
				case err != nil: // after a failure, only time helps
				case p.usable() == 0:
					waiting = false
				case !quiet:
					quiet = true
					timer.Reset(min(next, poolQuiet))
				}
			}
		}
	}
}

// oldest says when the oldest member will be too old, zero when there is none.
func (p *pool) oldest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return 0
	}
	return max(time.Millisecond, p.service.WarmPool.MaxAge-p.service.Now().Sub(p.ready[0].answered))
}

// tend removes what should not be in the pool, and adds one member when one is missing. It reports whether there is
// more to do.
func (p *pool) tend(ctx context.Context) (more bool, err error) {
	svc := p.service
	places, from, err := p.wanted(ctx)
	if err != nil {
		// Without a template that is there, what was made from it is of no use.
		p.removeUnless(p.fresh)
		return false, err
	}
	var died error
	free := map[string]int{}
	for _, tenant := range places {
		free[tenant]++
	}
	p.removeUnless(func(i *instance) bool {
		if i.gone() {
			died = errors.Join(died, fmt.Errorf("the warm browser of %s ended by itself%s", i.name(), lastWords(i)))
			return false
		}
		of := i.shape.tenant
		if free[of] == 0 || i.key != from[of].key || !p.fresh(i) {
			return false
		}
		free[of]--
		return true
	})
	if died != nil {
		// One that dies as soon as it runs would otherwise be made again and again, as fast as this machine can.
		return false, died
	}
	next := slices.IndexFunc(places, func(tenant string) bool { return free[tenant] > 0 })
	if next < 0 || svc.busy() {
		return false, nil
	}
	if err := p.add(ctx, from[places[next]]); err != nil {
		return false, err
	}
	return true, nil
}

// busy says whether somebody waits for a browser right now. One that starts beside it would make that slower;
// the opening pokes the pool when it is over.
func (svc *Service) busy() bool {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	for _, s := range svc.sessions {
		if s.starting {
			return true
		}
	}
	return false
}

func (p *pool) add(ctx context.Context, b jailSpec) error {
	m := &making{key: b.key, result: make(chan *instance, 1)}
	p.mu.Lock()
	p.making = m
	p.mu.Unlock()
	i, err := p.make(ctx, b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making = nil
	switch {
	case m.claimed:
		m.result <- i // there is room for one
	case i != nil:
		p.ready = append(p.ready, i)
	}
	return err
}

func (p *pool) make(ctx context.Context, b jailSpec) (*instance, error) {
	svc := p.service
	i, err := svc.create(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("make a warm browser: %w", err)
	}
	if err := svc.dial(ctx, i); err != nil {
		p.end(i)
		return nil, fmt.Errorf("start a warm browser: %w", err)
	}
	svc.tasks.Go(func() { // ends with the browser, which every owner of an instance ends
		<-i.browser.Done()
		p.poke()
	})
	return i, nil
}

// removeUnless ends the members that keep does not want.
func (p *pool) removeUnless(keep func(*instance) bool) {
	p.mu.Lock()
	var out []*instance
	p.ready = slices.DeleteFunc(p.ready, func(i *instance) bool {
		if keep(i) {
			return false
		}
		out = append(out, i)
		return true
	})
	p.mu.Unlock()
	var ending sync.WaitGroup
	for _, i := range out {
		ending.Go(func() { p.end(i) })
	}
	ending.Wait()
}

func (p *pool) end(i *instance) {
	if err := p.service.destroy(p.service.background, i); err != nil {
		p.service.Log.Error("remove a warm browser", "jail", i.name(), "error", err)
	}
}
