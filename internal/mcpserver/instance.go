package mcpserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// instance is one server as one caller has it, whether it runs or not. The service's lock guards what changes of it.
type instance struct {
	s      *Service
	key    instanceKey
	server config.MCPServer
	offer  *offer
	// owner is whose it is: it ends when they may use nothing any more. It is the zero Principal where the server is shared.
	owner identity.Principal
	// retired is closed when the instance is not to be used any more.
	retired chan struct{}
	retire1 sync.Once

	run      *run
	attempt  *attempt // a start that is under way
	own      trouble  // of runs that somebody has called
	calls    int      // under way, or waiting for a start
	lastUsed time.Time
	since    time.Time // of run
}

// instanceKey identifies an instance: the server, and its owner.
type instanceKey struct {
	offerKey
	owner string // as records name it; empty where the server is shared
}

// trouble is what went wrong lately.
type trouble struct {
	starts starts
	last   error // of the last start or run that went wrong; nil once one has gone well
}

func (t *trouble) add(err error, now time.Time) {
	t.last = err
	t.starts.crashed(now)
}

// attempt is a start that one or several callers wait for.
type attempt struct {
	done chan struct{}
	err  error // read after done
}

func keyOf(server config.MCPServer, tenant string, by identity.Principal) instanceKey {
	key := instanceKey{offerKey: offerKey{tenant, server.Name}}
	if !server.Shared {
		key.owner = by.Actor()
	}
	return key
}

// instanceOf finds the instance of a server for a caller, or makes one. One that was made of another declaration is ended. The lock
// is held.
func (s *Service) instanceOf(server config.MCPServer, tenant string, by identity.Principal) *instance {
	o, key := s.offerOf(server, tenant), keyOf(server, tenant, by)
	if server.Shared {
		by = identity.Principal{}
	}
	if i := s.instances[key]; i != nil {
		if i.offer == o {
			return i
		}
		i.retire()
	}
	for _, other := range s.instances {
		other.forget() // those whose crashes are long ago
	}
	i := &instance{s: s, key: key, server: server, offer: o, owner: by, retired: make(chan struct{})}
	s.instances[key] = i
	return i
}

// forget removes an instance of which nothing is known that matters. The lock is held.
func (i *instance) forget() {
	if i.run == nil && i.attempt == nil && i.calls == 0 && i.own.starts.quiet(i.s.o.Now()) && i.s.instances[i.key] == i {
		delete(i.s.instances, i.key)
	}
}

// retire ends the instance, without waiting for that. The lock is held.
func (i *instance) retire() {
	if i.run != nil {
		i.run.ending = true
	}
	i.retire1.Do(func() { close(i.retired) })
}

func (i *instance) isRetired() bool {
	return wake.Closed(i.retired)
}

// take lets one more call have its instance, until release.
func (s *Service) take(server config.MCPServer, changes int, tenant string, by identity.Principal) (i *instance, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stand(changes); err != nil {
		return nil, nil, err
	}
	i = s.instanceOf(server, tenant, by)
	if i.calls >= callsOfServer {
		return nil, nil, problem.New(problem.RateLimited, "try again in a moment", "%d calls to the MCP server %s are under way", callsOfServer, server.Name)
	}
	i.calls++
	return i, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		i.calls--
		i.lastUsed = s.o.Now()
		i.forget()
	}, nil
}

// acquire returns the running server, starting it where it does not run. The caller has taken the instance.
func (i *instance) acquire(ctx context.Context, actor string) (*run, error) {
	for {
		i.s.mu.Lock()
		if r := i.run; r != nil {
			if r.alive() {
				r.used = true
				i.s.mu.Unlock()
				return r, nil
			}
			i.s.mu.Unlock()
			// It is being found out why it has ended, and that decides about the next start.
			select {
			case <-r.settled:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		a, err := i.begin(actor)
		i.s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ask begins to find out what a server offers, of which that is not known, and returns nil when there is nothing to wait for. Where
// it is being started for somebody, that will do.
func (s *Service) ask(server config.MCPServer, changes int, tenant string, by identity.Principal) (*attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stand(changes); err != nil {
		return nil, err
	}
	o := s.offerOf(server, tenant)
	if o.known != nil {
		return nil, nil
	}
	for _, i := range s.instances {
		if i.offer == o && i.attempt != nil {
			return i.attempt, nil
		}
	}
	i := s.instanceOf(server, tenant, by)
	if i.run != nil {
		return nil, nil
	}
	a, err := i.begin(by.Actor())
	if err != nil {
		i.forget()
		return nil, nil // the next call says why
	}
	return a, nil
}

// begin joins a start that is under way, or begins one. The lock is held.
func (i *instance) begin(actor string) (*attempt, error) {
	if i.attempt != nil {
		return i.attempt, nil
	}
	if i.isRetired() {
		return nil, i.changed()
	}
	now := i.s.o.Now()
	wait := time.Duration(0)
	for _, t := range []*trouble{&i.own, &i.offer.trouble} {
		t.starts.first, t.starts.window = i.s.pace.first, i.s.pace.window
		more, paused := t.starts.next(now)
		if now.Before(paused) {
			return nil, i.paused(t.last, paused)
		}
		wait = max(wait, more)
	}
	if i.s.closed {
		return nil, errClosing()
	}
	i.s.tasks.Add(1)
	a := &attempt{done: make(chan struct{})}
	i.attempt = a
	go func() {
		defer i.s.tasks.Done()
		i.live(a, wait, actor)
	}()
	return a, nil
}

// paused is why the server is not started now.
func (i *instance) paused(last error, until time.Time) error {
	why := "it cannot be started"
	if p, ok := problem.As(last); ok {
		why = p.Message
	}
	return problem.New(problem.JailFailed, "it is tried again after "+until.UTC().Format(time.TimeOnly)+" UTC; an admin sees more with `clawjail mcp-server test "+i.key.name+"`",
		"the MCP server %s failed %d times within %s, and is not started again for a while; the last time: %s", i.key.name, maxCrashes, i.s.pace.window, why)
}

// live is the life of one run: it starts the server, watches it, and returns when nothing of it is left.
func (i *instance) live(a *attempt, wait time.Duration, actor string) {
	ctx, cancel := context.WithCancelCause(i.s.ctx)
	defer cancel(nil)
	stop := i.s.whenRetired(i, cancel)
	defer stop()
	r, list, begun, err := i.startUp(ctx, cancel, wait, actor)
	i.s.mu.Lock()
	now := i.s.o.Now()
	i.attempt = nil
	if err != nil {
		a.err = err
		if ctx.Err() == nil && begun {
			// No call was made yet: the failure is no caller's fault, and it will not be better for another one.
			i.offer.add(err, now)
		}
		i.forget()
	} else {
		i.run, i.own.last, i.offer.last, i.since, i.lastUsed = r, nil, nil, now, now
		i.s.runs[r] = i.key.tenant
	}
	i.s.mu.Unlock()
	if err == nil {
		i.s.learn(i.key.offerKey, i.offer, list)
	}
	close(a.done)
	if err != nil {
		i.s.o.Log.Warn("an MCP server did not start", "server", i.key.name, "tenant", i.key.tenant, "for", i.key.owner, "error", bare(err))
		return
	}
	defer i.leave(r)
	wanted := i.watch(ctx, r)
	var why error
	if !wanted {
		why = r.explain(ctx, errors.New("the connection ended"))
	}
	i.s.mu.Lock()
	if i.run == r {
		i.run = nil
	}
	r.ending = true
	if r.lists != nil {
		i.s.announce(i.key.tenant) // what it offered its owner goes with it
	}
	if why != nil && ctx.Err() == nil { // the end of its owner, of the server's description or of clawjail is no failure of the server
		now := i.s.o.Now()
		i.offer.last = why
		if r.used {
			i.own.add(why, now)
		} else {
			i.offer.add(why, now)
		}
	}
	i.s.mu.Unlock()
	r.why = why
	close(r.settled)
	if why != nil {
		i.s.o.Log.Warn("an MCP server ended", "server", i.key.name, "tenant", i.key.tenant, "for", i.key.owner, "jail", r.process.name, "error", bare(why))
	}
	i.finish(ctx, r)
}

// leave gives the place of a run back, when nothing of it is left.
func (i *instance) leave(r *run) {
	r.leave()
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	delete(i.s.runs, r)
	close(r.gone)
	i.forget()
}

// changed is what a caller of an instance is told when the server has another description since.
func (i *instance) changed() error {
	return problem.New(problem.Conflict, "try again", "the MCP server %s was changed meanwhile", i.key.name)
}

// whenRetired ends a run with its instance. stop returns when its goroutine has ended.
func (s *Service) whenRetired(i *instance, cancel context.CancelCauseFunc) (stop func()) {
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-i.retired:
			cancel(i.changed())
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
		i.s.o.Log.Error("the jail of an MCP server may be left; the host daemon ends it", "server", i.key.name, "jail", r.process.name, "error", err)
	}
}

// startUp starts the server after a pause, and asks for its tools. begun says whether the server had its chance. cancel is called when
// its owner may not use anything any more.
func (i *instance) startUp(ctx context.Context, cancel context.CancelCauseFunc, wait time.Duration, actor string) (_ *run, _ *catalog, begun bool, err error) {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil, false, context.Cause(ctx)
		}
	}
	release, err := i.s.hold(ctx, i.key.tenant, i.owner, cancel)
	if err != nil {
		return nil, nil, false, err
	}
	leave, err := i.s.enterPlace(ctx, i.key.tenant)
	if err != nil {
		release()
		return nil, nil, false, err
	}
	defer func() {
		if err != nil {
			leave()
			release()
		}
	}()
	pending, err := i.s.o.Audit.Begin(ctx, audit.Intent{Action: "mcp_server.start", Tenant: i.key.tenant, Actor: actor, Target: i.key.name})
	if err != nil {
		return nil, nil, false, err
	}
	outcome := audit.Outcome{Result: audit.Failed} // of what panics
	defer func() { pending.End(outcome) }()
	r, list, err := i.listed(ctx)
	outcome = audit.OutcomeOf(err, nil)
	if r != nil {
		outcome.Jail = string(r.process.name)
	}
	if err != nil {
		return nil, nil, true, err
	}
	r.leave = func() { leave(); release() }
	return r, list, true, nil
}

// listed starts the server and asks for its tools. With an error, what is left of a server that was started is returned.
func (i *instance) listed(ctx context.Context) (*run, *catalog, error) {
	r, err := i.s.start(ctx, i.server, i.key.tenant)
	if err != nil {
		return nil, nil, err
	}
	began := i.s.o.Now()
	list, err := i.list(ctx, r, i.s.pace.soon)
	if err != nil {
		err = r.explain(ctx, err)
		i.finish(ctx, r)
		return r, nil, err
	}
	r.took.List = i.s.o.Now().Sub(began)
	return r, list, nil
}

// hold ends what is done for an owner when they may not do anything any more, until release.
func (s *Service) hold(ctx context.Context, tenant string, owner identity.Principal, cancel context.CancelCauseFunc) (release func(), err error) {
	switch owner.Kind {
	case "":
		return func() {}, nil // shared
	case identity.KindAgent:
		// With the agent, and not with one of its keys.
		owner = identity.OfJail(owner.ID, tenant)
	default:
		owner.ExpiresAt = time.Time{} // what is known of the key now counts, and not what was when the instance was made
	}
	return s.o.Identity.WatchValidity(ctx, owner, cancel)
}

// watch returns when a run is over: true when it was wanted, because it is idle, it is old or clawjail ends, false when the server
// ended or does not answer any more.
func (i *instance) watch(ctx context.Context, r *run) (wanted bool) {
	ping := time.NewTicker(i.s.pace.ping)
	defer ping.Stop()
	idle := time.NewTimer(i.server.Idle)
	defer idle.Stop()
	old := time.NewTimer(i.s.pace.life)
	defer old.Stop()
	var again <-chan time.Time // when the list may be asked for
	for {
		select {
		case <-ctx.Done():
			return true
		case <-r.unwanted:
			return true
		case <-r.ended:
			return false
		case <-old.C:
			return true
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
			list, err := i.list(ctx, r, i.s.pace.list)
			if err != nil {
				continue // what is known stays; a server that is gone is seen above
			}
			i.learnMore(r, list)
		}
	}
}

// list asks a run for what it offers. A list other than the tools' that does not come within a moment is asked for again later.
func (i *instance) list(ctx context.Context, r *run, patience time.Duration) (*catalog, error) {
	i.s.mu.Lock()
	known := i.offer.known
	if r.lists != nil {
		known = r.lists
	}
	i.s.mu.Unlock()
	list, missing, err := r.list(ctx, known, patience)
	switch {
	case err != nil || missing == nil:
	case patience < r.pace.list:
		r.askAgain()
	default:
		i.s.o.Log.Warn("an MCP server does not list what it offers", "server", i.key.name, "tenant", i.key.tenant, "for", i.key.owner, "error", visible(missing.Error(), maxRefusal))
	}
	return list, err
}

func (i *instance) busy() bool {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return i.calls > 0
}

// unused says how long the server may still stay. When that is not at all, no call gets it any more.
func (i *instance) unused() time.Duration {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	if i.calls > 0 || i.run == nil {
		return i.server.Idle
	}
	left := i.server.Idle - i.s.o.Now().Sub(i.lastUsed)
	if left <= 0 {
		i.run.ending = true
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
