package jail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

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
	// by its creator. Default 30 s.
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
	*Registry

	background context.Context // ends the watchers
	stop       context.CancelFunc
	watchers   sync.WaitGroup
	reaping    chan struct{} // holds one token: single flight
}

// NewLifecycle reads the journal and takes over what it names. Jails that were being made by a process that
// is gone are removed by the first Reap.
func NewLifecycle(ctx context.Context, o Options) (*Lifecycle, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	jails, err := OpenRegistry(ctx, RegistryOptions{Journal: o.Journal, Log: o.Log, Now: o.Now, Grace: o.Grace, Barrier: o.Barrier})
	if err != nil {
		return nil, err
	}
	l := &Lifecycle{Options: o, Registry: jails, reaping: make(chan struct{}, 1)}
	l.background, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, e := range l.Entries() {
		r := e.Record()
		if r.Lease.Index >= 0 && !o.Pool.Claim(r.Lease.Index) {
			o.Log.Error("two records with one address", "jail", r.Name, "address", r.Lease.Addr)
			e.Change(func(r *Record) { r.Lease.Index = -1 })
		}
		if r.Exit == nil && r.Process.PID != 0 {
			l.watch(e)
			l.resume(ctx, r)
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

// Admit adds the jail's address to its firewall table.
func (l *Lifecycle) Admit(ctx context.Context, name Name) error {
	return l.AdmitBy(ctx, name, func(r Record) error {
		l.Barrier(StepAdmit)
		// A warm browser may have waited for long. Where it has lost its profile of AppArmor meanwhile, no session gets it.
		if place := l.placement(r); place.Profile.AppArmor != "" {
			if err := l.confined(ctx, place, r.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return err
			}
		}
		return l.Parts.Firewall.Add(ctx, r.Spec.Kind.Table(), r.Lease)
	})
}

// Token implements Maker.
func (l *Lifecycle) Token(ctx context.Context, name Name, token []byte) error {
	e, err := l.Lookup(name)
	if err != nil {
		return err
	}
	r := e.Record()
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
	if err := l.Stateless(a); err != nil {
		return err
	}
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
	r, err := l.Running(name)
	if err != nil {
		return Placement{}, Process{}, err
	}
	return l.placement(r), r.Process, nil
}

func (l *Lifecycle) placement(r Record) Placement {
	return Placement{Name: r.Name, Spec: r.Spec, Lease: r.Lease, Profile: l.profileOf(r), Root: r.Root, NetNS: r.NetNS}
}

// Inspect reports one jail with its current usage.
func (l *Lifecycle) Inspect(ctx context.Context, name Name) (Status, error) {
	e, err := l.Lookup(name)
	if err != nil {
		return Status{}, err
	}
	s := e.Record().Status()
	if s.Exit == nil && (s.State == StateStarted || s.State == StateReady) {
		if s.Usage, err = l.Parts.Limiter.Usage(ctx, name, e.Record().Process); err != nil {
			return Status{}, fmt.Errorf("measure jail %s: %w", name, err)
		}
	}
	return s, nil
}

// Close stops watching. Jails run on; the next Lifecycle takes them over.
func (l *Lifecycle) Close() {
	l.stop()
	l.watchers.Wait()
}

// watch waits for the end of a jail's program and records it.
func (l *Lifecycle) watch(e *Entry) {
	e.Watch()
	l.watchers.Go(func() {
		r := e.Record()
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
		e.Exited(x)
	})
}
