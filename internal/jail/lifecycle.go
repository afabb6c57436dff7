package jail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Parts are what a driver is composed of.
type Parts struct {
	Storage  Storage
	Network  Network
	Firewall Firewall
	Runtime  Runtime
	Limiter  Limiter
	Means    Means
}

// Options configure a Lifecycle. Every field without a default is required.
type Options struct {
	Installation Installation
	Parts        Parts
	Pool         *Pool
	Journal      Journal
	Log          *slog.Logger
	Now          func() time.Time // default time.Now
	// Grace is how long owner jails outlive their owner, and how long an ended jail waits to be destroyed
	// by whoever made it. Default 30 s.
	Grace time.Duration
	// ScanEvery is how often the host is compared with the journal. Default 1 min.
	ScanEvery time.Duration
	// Barrier is called before every step, for tests that kill the process there. May be nil.
	Barrier func(Step)
	// Console keeps what jails of LifetimeKeep print. Without one there are none.
	Console Console
}

func (o *Options) defaults() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("lifecycle: %s is missing", what))
		}
	}
	need(o.Installation != "", "installation id")
	need(o.Parts.Storage != nil && o.Parts.Network != nil && o.Parts.Firewall != nil && o.Parts.Runtime != nil && o.Parts.Limiter != nil, "a part")
	need(o.Pool != nil, "address pool")
	need(o.Journal != nil, "journal")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
	o.ScanEvery = cmp.Or(o.ScanEvery, time.Minute)
	if o.Barrier == nil {
		o.Barrier = func(Step) {}
	}
	return errors.Join(errs...)
}

// Lifecycle is the Driver that is made of five parts. It owns the journal: there is one per installation.
type Lifecycle struct {
	Options

	background context.Context // ends the watchers
	stop       context.CancelFunc
	watchers   sync.WaitGroup
	reaping    chan struct{} // holds one token: single flight

	mu     sync.Mutex
	jails  map[Name]*entry
	number int                  // of the jail that was made last
	lost   map[string]time.Time // owners that are gone, and since when
}

// entry is one jail of the journal. Its fields are guarded by Lifecycle.mu; working is held by whoever
// changes the host on its behalf.
type entry struct {
	rec      Record
	working  chan struct{} // one token
	active   bool          // being made or torn down by this process
	ended    chan struct{} // closed when rec.Exit is set
	cause    Cause         // why it is being ended, when it is not by itself
	tornDown bool
}

// NewLifecycle reads the journal and takes over what it names. Jails that were being made by a process that
// is gone are removed by the first Reap.
func NewLifecycle(ctx context.Context, o Options) (*Lifecycle, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	records, damaged, err := o.Journal.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	l := &Lifecycle{
		Options: o,
		reaping: make(chan struct{}, 1),
		jails:   map[Name]*entry{},
		lost:    map[string]time.Time{},
		// Numbers go on from the clock, so that a name is not soon used again after a restart.
		number: int(o.Now().Unix() % (maxNumber + 1)),
	}
	l.background, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, n := range damaged {
		o.Log.Error("damaged journal record", "jail", n)
		records = append(records, Record{Version: recordVersion, Name: n, State: StateStopping, Lease: Lease{Index: -1}})
	}
	for _, r := range records {
		e := newEntry(r)
		if r.Lease.Index >= 0 && !o.Pool.Claim(r.Lease.Index) {
			o.Log.Error("two records with one address", "jail", r.Name, "address", r.Lease.Addr)
			e.rec.Lease.Index = -1
		}
		if r.Exit != nil {
			close(e.ended)
		} else if r.Process.PID != 0 {
			l.watch(e)
			l.resume(ctx, r)
		}
		l.jails[r.Name] = e
		if r.Owner != "" {
			l.lost[r.Owner] = o.Now()
		}
	}
	return l, nil
}

// resume takes the stdio of a jail over that an earlier process made. One that cannot be taken over runs on: what it
// prints stays in its pipes.
func (l *Lifecycle) resume(ctx context.Context, r Record) {
	if r.Spec.Lifetime != LifetimeKeep || l.Console == nil || r.Spec.Agent == nil {
		return
	}
	if err := l.Console.Resume(ctx, r.Name, *r.Spec.Agent); err != nil {
		l.Log.Error("take the stdio of a jail over", "jail", r.Name, "error", err)
	}
}

func newEntry(r Record) *entry {
	return &entry{rec: r, working: make(chan struct{}, 1), ended: make(chan struct{})}
}

// Admit adds the jail's address to its firewall table.
func (l *Lifecycle) Admit(ctx context.Context, name Name) error {
	e, err := l.lookup(name)
	if err != nil {
		return err
	}
	if err := l.acquire(ctx, e); err != nil {
		return err
	}
	defer l.leave(e)
	r := l.snapshot(e)
	switch {
	case r.State == StateReady:
		return nil
	case r.State != StateStarted || r.Exit != nil:
		return problem.New(problem.Conflict, "open a new session", "jail %s is %s and cannot be admitted to the gateway", name, r.State)
	}
	l.Barrier(StepAdmit)
	// A warm browser may have waited for long. Where it has lost its profile of AppArmor meanwhile, nobody gets it.
	if place := l.placement(r); place.Profile.AppArmor != "" {
		if err := l.confined(ctx, place, r.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("admit jail %s: %w", name, err)
		}
	}
	if err := l.Parts.Firewall.Add(ctx, r.Spec.Kind.Table(), r.Lease); err != nil {
		return fmt.Errorf("admit jail %s: %w", name, err)
	}
	return l.put(ctx, e, StateReady)
}

// Token implements Maker.
func (l *Lifecycle) Token(ctx context.Context, name Name, token []byte) error {
	e, err := l.lookup(name)
	if err != nil {
		return err
	}
	r := l.snapshot(e)
	if r.Spec.Agent == nil || !r.Spec.Agent.Token {
		return problem.New(problem.Conflict, "", "jail %s has no place for a token", name)
	}
	return l.Parts.Storage.Token(ctx, name, l.profileOf(r).Host, token)
}

// Exec implements Maker.
func (l *Lifecycle) Exec(ctx context.Context, name Name, p Program, stdio [3]*os.File) (Execution, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	place, proc, err := l.running(name)
	if err != nil {
		return nil, err
	}
	return l.Parts.Runtime.Exec(ctx, place, proc, p, stdio)
}

// Dial implements Maker.
func (l *Lifecycle) Dial(ctx context.Context, name Name, port uint16) (*os.File, error) {
	place, proc, err := l.running(name)
	if err != nil {
		return nil, err
	}
	return l.Parts.Runtime.Dial(ctx, place, proc, port)
}

// Check implements Maker.
func (l *Lifecycle) Check(ctx context.Context, spec Spec) error {
	return errors.Join(spec.Validate(), l.Parts.Storage.Check(ctx, spec))
}

// RemoveState implements Maker.
func (l *Lifecycle) RemoveState(ctx context.Context, a Agent) error {
	if err := errors.Join(ValidAgentName(a.Tenant), ValidAgentName(a.Name)); err != nil {
		return err
	}
	l.mu.Lock()
	for _, e := range l.jails {
		if own := e.rec.Spec.Agent; own != nil && own.Tenant == a.Tenant && own.Name == a.Name && own.State > 0 {
			l.mu.Unlock()
			return problem.New(problem.Conflict, "end its jail first", "the state of %s is in use by jail %s", a.Name, e.rec.Name)
		}
	}
	l.mu.Unlock()
	return l.Parts.Storage.RemoveState(ctx, a)
}

// profile is how a jail is confined on this substrate.
func (l *Lifecycle) profile(s Spec, lease Lease) Profile {
	return ProfileFor(s, lease).With(l.Parts.Means)
}

// profileOf is how a jail was confined when it was made, by this version or an earlier one, and with the AppArmor of then.
func (l *Lifecycle) profileOf(r Record) Profile {
	means := l.Parts.Means
	means.AppArmor = r.AppArmor
	p := ProfileFor(r.Spec, r.Lease).With(means)
	if r.Spec.Kind == KindAgent && !r.OwnUser {
		p = p.SharedUser()
	}
	return p
}

// running is a jail whose program has begun and has not ended.
func (l *Lifecycle) running(name Name) (Placement, Process, error) {
	e, err := l.lookup(name)
	if err != nil {
		return Placement{}, Process{}, err
	}
	r := l.snapshot(e)
	if r.Exit != nil || r.State != StateStarted && r.State != StateReady {
		return Placement{}, Process{}, problem.New(problem.Conflict, "start it first", "jail %s does not run", name)
	}
	return l.placement(r), r.Process, nil
}

func (l *Lifecycle) placement(r Record) Placement {
	return Placement{Name: r.Name, Spec: r.Spec, Lease: r.Lease, Profile: l.profileOf(r), Root: r.Root, NetNS: r.NetNS}
}

// Wait blocks until the jail's program has ended.
func (l *Lifecycle) Wait(ctx context.Context, name Name) (Exit, error) {
	e, err := l.lookup(name)
	if err != nil {
		return Exit{}, err
	}
	select {
	case <-e.ended:
		return *l.snapshot(e).Exit, nil
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
}

// Inspect reports one jail with its current usage.
func (l *Lifecycle) Inspect(ctx context.Context, name Name) (Status, error) {
	e, err := l.lookup(name)
	if err != nil {
		return Status{}, err
	}
	s := l.status(l.snapshot(e))
	if s.Exit == nil && (s.State == StateStarted || s.State == StateReady) {
		if s.Usage, err = l.Parts.Limiter.Usage(ctx, name, l.snapshot(e).Process); err != nil {
			return Status{}, fmt.Errorf("measure jail %s: %w", name, err)
		}
	}
	return s, nil
}

// List reports every jail, oldest first.
func (l *Lifecycle) List(context.Context) ([]Status, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Status, 0, len(l.jails))
	for _, e := range l.jails {
		out = append(out, l.status(e.rec))
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// Lost says that an owner is gone. Its owner jails are ended after the grace period, unless it is Found.
func (l *Lifecycle) Lost(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.lost[owner]; !ok && owner != "" {
		l.lost[owner] = l.Now()
	}
}

// Found says that an owner is there.
func (l *Lifecycle) Found(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lost, owner)
}

// missAnew gives every owner that is not there its whole grace period from now on.
func (l *Lifecycle) missAnew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := range l.lost {
		l.lost[o] = l.Now()
	}
}

// Close stops watching. Jails run on; the next Lifecycle takes them over.
func (l *Lifecycle) Close() {
	l.stop()
	l.watchers.Wait()
}

// watch waits for the end of a jail's program and records it.
func (l *Lifecycle) watch(e *entry) {
	l.watchers.Add(1)
	go func() {
		defer l.watchers.Done()
		r := l.snapshot(e)
		code, signal, err := l.Parts.Runtime.Wait(l.background, r.Name, r.Process)
		if l.background.Err() != nil {
			return
		}
		if err != nil {
			l.Log.Error("wait for a jail", "jail", r.Name, "error", err)
			code = -1
		}
		x := Exit{Code: code, Signal: signal, Cause: CauseExited, At: l.Now()}
		if u, err := l.Parts.Limiter.Usage(l.background, r.Name, r.Process); err == nil {
			x.Hit = u.Hit
			if signal != "" && OutOfMemory(u.Hit) {
				x.Cause = CauseMemory
			}
		}
		l.mu.Lock()
		if e.cause != "" {
			x.Cause = e.cause
		}
		if x.Cause == CauseWallClock {
			x.Hit = append(x.Hit, LimitWallClock)
		}
		e.rec.Exit = &x
		l.mu.Unlock()
		close(e.ended)
		l.Log.Info("jail ended", "jail", r.Name, "cause", x.Cause, "code", x.Code, "signal", x.Signal, "hit", x.Hit)
	}()
}

// enter gives a new jail its name and its place in the table, already marked as being worked on.
func (l *Lifecycle) enter(owner string, spec Spec, lease Lease) (*entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range maxNumber + 1 {
		l.number = (l.number + 1) % (maxNumber + 1)
		name, err := NewName(spec.Kind, l.Installation, l.number)
		if err != nil {
			return nil, err
		}
		if _, taken := l.jails[name]; taken {
			continue
		}
		now := l.Now()
		e := newEntry(Record{Version: recordVersion, Name: name, State: StateReserved, Owner: owner, Spec: spec,
			Lease: lease, OwnUser: l.Parts.Means.OwnUsers, AppArmor: l.Parts.Means.AppArmor, Created: now, Deadline: now.Add(spec.Limits.WallClock)})
		e.working <- struct{}{}
		e.active = true
		l.jails[name] = e
		return e, nil
	}
	return nil, problem.New(problem.PoolExhausted, "close sessions", "every jail name is in use")
}

// put journals a state, then takes it on.
func (l *Lifecycle) put(ctx context.Context, e *entry, s State) error {
	r := l.snapshot(e)
	r.State = s
	if err := l.Journal.Put(ctx, r); err != nil {
		return fmt.Errorf("journal %s as %s: %w", r.Name, s, err)
	}
	l.change(e, func(r *Record) { r.State = s })
	return nil
}

func (l *Lifecycle) acquire(ctx context.Context, e *entry) error {
	select {
	case e.working <- struct{}{}:
		l.mu.Lock()
		e.active = true
		l.mu.Unlock()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Lifecycle) leave(e *entry) {
	l.mu.Lock()
	e.active = false
	l.mu.Unlock()
	<-e.working
}

func (l *Lifecycle) lookup(name Name) (*entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.jails[name]
	if !ok {
		return nil, fmt.Errorf("jail %s: %w", texts.Clip(string(name), 20), ErrNotFound)
	}
	return e, nil
}

func (l *Lifecycle) snapshot(e *entry) Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.rec
}

func (l *Lifecycle) change(e *entry, f func(*Record)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&e.rec)
}

func (l *Lifecycle) setCause(e *entry, c Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.cause == "" {
		e.cause = c
	}
}

func (l *Lifecycle) status(r Record) Status {
	s := Status{Name: r.Name, State: r.State, Spec: r.Spec, Lease: r.Lease, PID: r.Process.PID,
		Created: r.Created, Deadline: r.Deadline, Exit: r.Exit}
	s.Spec.HomeFiles = nil // of no use to whoever lists
	return s
}
