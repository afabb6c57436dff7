package jail

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Create makes a jail without an owner.
func (l *Lifecycle) Create(ctx context.Context, spec Spec) (*Jail, error) {
	return l.CreateFor(ctx, "", spec, func(context.Context, *Jail) error { return nil })
}

// CreateFor makes a jail for an owner, which Lost and Found speak of.
//
// deliver gives the jail to its owner, stdio and all, and returns when the owner has it. Until then the program has
// not begun and the journal does not say that the jail has started: when the process dies before its owner has it,
// the jail has no owner, and is removed. Once it is delivered, the context counts no more.
func (l *Lifecycle) CreateFor(ctx context.Context, owner string, spec Spec, deliver func(context.Context, *Jail) error) (*Jail, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.Image != "" {
		return nil, problem.New(problem.BadRequest, "name a template", "this driver makes no containers")
	}
	if spec.Lifetime == LifetimeKeep && l.Console == nil {
		return nil, problem.New(problem.BadRequest, "", "this host daemon keeps no jails of agents")
	}
	l.Barrier(StepReserve)
	lease, err := l.Parts.Network.Reserve(ctx)
	if err != nil {
		return nil, fmt.Errorf("reserve an address: %w", err)
	}
	e, err := l.Enter(Record{Owner: owner, Spec: spec, Lease: lease, OwnUser: l.Parts.Means.OwnUsers, AppArmor: l.Parts.Means.AppArmor},
		func(n int) (Name, error) { return NewName(spec.Kind, l.Installation, n) })
	if err != nil {
		l.Parts.Network.Release(lease)
		return nil, err
	}
	m := &making{Making: Making{Deliver: deliver}, place: Placement{Name: e.rec.Name, Spec: spec, Lease: lease, Profile: l.profile(spec, lease)}}
	defer m.closeJailEnds()
	return Make(ctx, l, e, m, creation, func(do func() error) error { return do() }, l.teardown)
}

// making is what a creation carries from step to step.
type making struct {
	Making
	place    Placement
	jailEnds [3]*os.File
}

// connect makes the stdio: pipes for the owner, or those of the console for a jail that has none.
func (l *Lifecycle) connect(ctx context.Context, m *making) (err error) {
	if m.place.Spec.Lifetime != LifetimeKeep {
		m.jailEnds, m.Jail.Stdio, err = Pipes()
		return err
	}
	m.jailEnds, err = l.Console.Open(ctx, m.place.Name, *m.place.Spec.Agent)
	return err
}

func (m *making) closeJailEnds() {
	for i, f := range m.jailEnds {
		if f != nil {
			_ = f.Close() // a pipe's end has nothing to flush
			m.jailEnds[i] = nil
		}
	}
}

// creation is the order in which a jail comes to be. Each step is journalled as done before the next begins.
var creation = []Beginning[*Lifecycle, *making]{
	{StepClone, StateCloned, func(t *Timing) *time.Duration { return &t.Clone }, (*Lifecycle).clone},
	{StepMount, "", func(t *Timing) *time.Duration { return &t.Clone }, (*Lifecycle).mount},
	{StepAttach, StateAttached, func(t *Timing) *time.Duration { return &t.Attach }, (*Lifecycle).attach},
	{StepLimit, "", func(t *Timing) *time.Duration { return &t.Start }, (*Lifecycle).limit},
	{StepStart, "", func(t *Timing) *time.Duration { return &t.Start }, (*Lifecycle).start},
	{StepVerify, "", func(t *Timing) *time.Duration { return &t.Verify }, (*Lifecycle).verify},
	{StepDeliver, "", nil, func(_ *Lifecycle, ctx context.Context, _ *Entry, m *making) error { return m.Hand(ctx) }},
	{StepBegin, StateStarted, func(t *Timing) *time.Duration { return &t.Start }, (*Lifecycle).begin},
}

func (l *Lifecycle) clone(ctx context.Context, e *Entry, m *making) (err error) {
	m.place.Root, err = l.Parts.Storage.Clone(ctx, m.place.Name, m.place.Spec)
	e.Change(func(r *Record) { r.Root = m.place.Root })
	return err
}

func (l *Lifecycle) mount(ctx context.Context, _ *Entry, m *making) error {
	if m.place.Spec.Agent == nil {
		return nil
	}
	return l.Parts.Storage.Mount(ctx, m.place)
}

func (l *Lifecycle) attach(ctx context.Context, e *Entry, m *making) (err error) {
	m.place.NetNS, err = l.Parts.Network.Attach(ctx, m.place.Name, m.place.Lease)
	e.Change(func(r *Record) { r.NetNS = m.place.NetNS })
	return err
}

func (l *Lifecycle) limit(ctx context.Context, _ *Entry, m *making) error {
	return l.Parts.Limiter.Apply(ctx, m.place.Name, m.place.Spec.Tenant(), m.place.Spec.Limits)
}

func (l *Lifecycle) start(ctx context.Context, e *Entry, m *making) error {
	if err := l.connect(ctx, m); err != nil {
		return fmt.Errorf("make pipes: %w", err)
	}
	proc, err := l.Parts.Runtime.Start(ctx, m.place, m.jailEnds)
	e.Change(func(r *Record) { r.Process = proc })
	m.closeJailEnds()
	if err != nil {
		return err
	}
	l.watch(e)
	return nil
}

// verify is what makes every other step's promise true: the jail is compared with its profile as the kernel
// reports it, and a difference ends it.
func (l *Lifecycle) verify(ctx context.Context, e *Entry, m *making) error {
	return l.confined(ctx, m.place, e.Record().Process)
}

func (l *Lifecycle) confined(ctx context.Context, place Placement, proc Process) error {
	seen, err := l.Parts.Runtime.Observe(ctx, place, proc)
	if err != nil {
		return err
	}
	if diff := place.Profile.Compare(seen); len(diff) > 0 {
		return problem.New(problem.JailUnconfined, "`clawjail doctor` shows what this host can enforce",
			"the jail is not confined as declared: %s", strings.Join(diff, "; "))
	}
	return nil
}

// begin lets the program begin: nothing of it ran before the jail was seen to be confined.
func (l *Lifecycle) begin(ctx context.Context, e *Entry, m *making) error {
	if m.place.Spec.Admit {
		l.Barrier(StepAdmit)
		if err := l.Parts.Firewall.Add(ctx, m.place.Spec.Kind.Table(), m.place.Lease); err != nil {
			return fmt.Errorf("admit: %w", err)
		}
	}
	return l.Parts.Runtime.Begin(ctx, m.place, e.Record().Process)
}
