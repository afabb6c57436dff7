package toolserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// instance is one server of one tenant, whether it runs or not.
type instance struct {
	s      *Service
	key    instanceKey
	mark   string // of the declaration
	server config.MCPServer
	// slots bound the calls that are under way.
	slots chan struct{}
	// retired is closed when the instance is not to be used any more.
	retired chan struct{}
	retire1 sync.Once

	mu       sync.Mutex
	run      *run
	attempt  *attempt // a start that is under way
	starts   starts
	last     error // of the last start or run that went wrong; nil once one has gone well
	inUse    int
	lastUsed time.Time
	since    time.Time // of run
}

// attempt is a start that one or several callers wait for.
type attempt struct {
	done chan struct{}
	err  error // read after done
}

// retire ends the instance, without waiting for that.
func (i *instance) retire() { i.retire1.Do(func() { close(i.retired) }) }

func (i *instance) isRetired() bool {
	select {
	case <-i.retired:
		return true
	default:
		return false
	}
}

// acquire returns the running server, starting it where it does not run, until release.
func (i *instance) acquire(ctx context.Context, actor string) (r *run, release func(), err error) {
	for {
		i.mu.Lock()
		if r := i.run; r != nil {
			if r.alive() {
				i.inUse++
				i.mu.Unlock()
				return r, i.release, nil
			}
			i.mu.Unlock()
			// It is being found out why it has ended, and that decides about the next start.
			select {
			case <-r.settled:
				continue
			case <-ctx.Done():
				return nil, nil, context.Cause(ctx)
			}
		}
		a, err := i.begin(actor)
		i.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		select {
		case <-a.done:
			if a.err != nil {
				return nil, nil, a.err
			}
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

func (i *instance) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.inUse--
	i.lastUsed = i.s.o.Now()
}

// warm begins a start unless the server runs, and returns nil when there is nothing to wait for.
func (i *instance) warm(actor string) *attempt {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.run != nil {
		return nil
	}
	a, err := i.begin(actor)
	if err != nil {
		return nil // the next call says why
	}
	return a
}

// begin joins a start that is under way, or begins one. The lock is held.
func (i *instance) begin(actor string) (*attempt, error) {
	if i.attempt != nil {
		return i.attempt, nil
	}
	if i.isRetired() {
		return nil, problem.New(problem.Conflict, "try again", "the MCP server %s was changed meanwhile", i.key.name)
	}
	now := i.s.o.Now()
	i.starts.first, i.starts.window = i.s.pace.first, i.s.pace.window
	wait, paused := i.starts.next(now)
	if now.Before(paused) {
		return nil, i.paused(paused)
	}
	if !i.s.begin() {
		return nil, errClosing()
	}
	a := &attempt{done: make(chan struct{})}
	i.attempt = a
	go func() {
		defer i.s.tasks.Done()
		i.live(a, wait, actor)
	}()
	return a, nil
}

// paused is why the server is not started now. The lock is held.
func (i *instance) paused(until time.Time) error {
	why := "it cannot be started"
	if p, ok := problem.As(i.last); ok {
		why = p.Message
	}
	p := problem.New(problem.JailFailed, "it is tried again after "+until.UTC().Format(time.TimeOnly)+" UTC; an admin sees more with `clawjail mcp-server test "+i.key.name+"`",
		"the MCP server %s went wrong %d times within %s, and is left alone for a while; the last time: %s", i.key.name, crashesMost, i.s.pace.window, why)
	return p
}

// live is the life of one run: it starts the server, watches it, and returns when nothing of it is left.
func (i *instance) live(a *attempt, wait time.Duration, actor string) {
	ctx, cancel := context.WithCancel(i.s.ctx)
	defer cancel()
	stop := i.s.whenRetired(i, cancel)
	defer stop()
	r, list, err := i.startUp(ctx, wait, actor)
	i.mu.Lock()
	now := i.s.o.Now()
	i.attempt = nil
	if err != nil {
		a.err = err
		if ctx.Err() == nil {
			i.last = err
			i.starts.crashed(now)
		}
	} else {
		i.run, i.last, i.since, i.lastUsed = r, nil, now, now
	}
	i.mu.Unlock()
	if err == nil {
		i.s.learn(offerKey(i.key), i.mark, list)
	}
	close(a.done)
	if err != nil {
		i.s.o.Log.Warn("an MCP server did not start", "server", i.key.name, "tenant", i.key.tenant, "error", bare(err))
		return
	}
	defer r.leave()
	wanted := i.watch(ctx, r)
	var why error
	if !wanted {
		why = r.explain(ctx, errors.New("the connection ended"))
	}
	i.mu.Lock()
	if i.run == r {
		i.run = nil
	}
	if why != nil {
		i.last = why
		i.starts.crashed(i.s.o.Now())
	}
	i.mu.Unlock()
	r.why = why
	close(r.settled)
	if why != nil {
		i.s.o.Log.Warn("an MCP server ended", "server", i.key.name, "tenant", i.key.tenant, "jail", r.place.name, "error", bare(why))
	}
	i.finish(ctx, r)
}

// whenRetired ends a run with its instance. stop returns when nobody waits for that any more.
func (s *Service) whenRetired(i *instance, cancel func()) (stop func()) {
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-i.retired:
			cancel()
		case <-over:
		}
	}()
	return func() { close(over); <-gone }
}

// finish ends the jail of a run.
func (i *instance) finish(ctx context.Context, r *run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.s.pace.destroy)
	defer cancel()
	if err := r.end(ctx); err != nil {
		i.s.o.Log.Error("the jail of an MCP server may be left; the host daemon ends it", "server", i.key.name, "jail", r.place.name, "error", err)
	}
}

// startUp starts the server after a pause, and asks for its tools.
func (i *instance) startUp(ctx context.Context, wait time.Duration, actor string) (_ *run, _ *catalog, err error) {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil, errClosing()
		}
	}
	leave, err := i.s.running.Enter(quota.Holder{Tenant: i.key.tenant})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	end, err := i.s.o.Audit(ctx, audit.Intent{Action: "mcp_server.start", Tenant: i.key.tenant, Actor: actor, Target: i.key.name})
	if err != nil {
		return nil, nil, err
	}
	outcome := audit.Outcome{Result: audit.Failed}
	defer func() { end(outcome) }()
	r, err := i.s.start(ctx, i.server, i.key.tenant)
	if err != nil {
		return nil, nil, err
	}
	outcome.Jail = string(r.place.name)
	began := i.s.o.Now()
	list, err := r.list(ctx)
	if err != nil {
		err = r.explain(ctx, err)
		i.finish(ctx, r)
		return nil, nil, err
	}
	r.took.List, r.leave = i.s.o.Now().Sub(began), leave
	outcome.Result = audit.OK
	return r, list, nil
}

// watch returns when a run is over: true when it was wanted, because nobody uses it or clawjail ends, false when the server
// ended or does not answer any more.
func (i *instance) watch(ctx context.Context, r *run) (wanted bool) {
	ping := time.NewTicker(i.s.pace.ping)
	defer ping.Stop()
	idle := time.NewTimer(i.server.Idle)
	defer idle.Stop()
	var again <-chan time.Time // when the list may be asked for
	for {
		select {
		case <-ctx.Done():
			return true
		case <-r.ended:
			return false
		case <-idle.C:
			left := i.unused()
			if left <= 0 {
				return true
			}
			idle.Reset(left)
		case <-ping.C:
			if i.busy() {
				continue // a server that works need not answer at once; its calls have a time of their own
			}
			if !r.probe(ctx) && ctx.Err() == nil {
				return false
			}
		case <-r.changed:
			again = time.After(i.s.pace.listGap)
		case <-again:
			again = nil
			list, err := r.list(ctx)
			if err != nil {
				continue // what is known stays; a server that is gone is seen above
			}
			i.s.learn(offerKey(i.key), i.mark, list)
		}
	}
}

func (i *instance) busy() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.inUse > 0
}

// unused says how long the server may still stay. When that is not at all, nobody gets it any more.
func (i *instance) unused() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.inUse > 0 {
		return i.server.Idle
	}
	left := i.server.Idle - i.s.o.Now().Sub(i.lastUsed)
	if left <= 0 {
		i.run = nil
	}
	return left
}

// bare is an error for the log, without what the server printed.
func bare(err error) string {
	if p, ok := problem.As(err); ok {
		return p.Message
	}
	return err.Error()
}
