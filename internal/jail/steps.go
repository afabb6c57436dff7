package jail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Making is what the creation of a jail carries from step to step. Drivers embed it beside what is their own.
type Making struct {
	// Jail is what its owner gets.
	Jail Jail
	// Deliver gives it to its owner; see Maker.CreateFor.
	Deliver   func(context.Context, *Jail) error
	delivered bool
}

func (m *Making) making() *Making { return m }

// Hand gives the jail to its owner.
func (m *Making) Hand(ctx context.Context) error {
	j := m.Jail
	err := m.Deliver(ctx, &j)
	m.delivered = err == nil
	return err
}

// Beginning is a step of the creation of driver D's jails. When it is done, State is journalled before the next begins.
type Beginning[D, M any] struct {
	Step  Step
	State State                        // empty when none is reached
	Took  func(*Timing) *time.Duration // where its time is added; may be nil
	Do    func(D, context.Context, *Entry, M) error
}

// Ending is a step of the teardown of driver D's jails. It is idempotent.
type Ending[D any] struct {
	Step Step
	// Last needs all steps before it to have succeeded. The others run even if one before them failed.
	Last bool
	Do   func(D, context.Context, *Entry, Record) error
}

// Make makes a jail that was entered, step by step, or tears it down again. Once it is delivered, the context counts no more.
func Make[D any, M interface{ making() *Making }](ctx context.Context, d D, e *Entry, m M, steps []Beginning[D, M],
	do func(func() error) error, tearDown func(context.Context, *Entry) error) (_ *Jail, err error) {
	g, of, r := e.of, m.making(), e.Record()
	of.Jail.Name, of.Jail.Lease = r.Name, r.Lease
	defer func() {
		if err == nil {
			e.Leave()
			return
		}
		of.Jail.Stdio.Close()
		e.SetCause(CauseDestroyed)
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), TeardownLimit)
		defer cancel()
		err = errors.Join(fmt.Errorf("make jail %s: %w", e.rec.Name, err), tearDown(undo, e))
	}()
	if err := e.Put(ctx, StateReserved); err != nil {
		return nil, err
	}
	for _, s := range steps {
		g.o.Barrier(s.Step)
		if of.delivered {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), TeardownLimit)
			defer cancel()
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		began := g.o.Now()
		if err := do(func() error { return s.Do(d, ctx, e, m) }); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Step, Shortage(err))
		}
		if s.Took != nil {
			*s.Took(&of.Jail.Timing) += g.o.Now().Sub(began)
		}
		then := s.State
		if s.Step == StepBegin && e.rec.Spec.Admit {
			then = StateReady
		}
		if then != "" {
			if err := e.Put(context.WithoutCancel(ctx), then); err != nil {
				return nil, err
			}
		}
	}
	return &of.Jail, nil
}

// AdmitBy opens the gateway to a jail that has started, unless it is open.
func (g *Registry) AdmitBy(ctx context.Context, name Name, open func(Record) error) error {
	e, err := g.Lookup(name)
	if err != nil {
		return err
	}
	if err := e.Acquire(ctx); err != nil {
		return err
	}
	defer e.Leave()
	r := e.Record()
	switch {
	case r.State == StateReady:
		return nil
	case r.State != StateStarted || r.Exit != nil:
		return problem.New(problem.Conflict, "open a new session, or start it again", "jail %s is %s and cannot be admitted to the gateway", name, r.State)
	}
	if err := open(r); err != nil {
		return fmt.Errorf("admit jail %s: %w", name, err)
	}
	return e.Put(ctx, StateReady)
}

// End ends a jail in whatever state it is, if there is one of that name.
func (g *Registry) End(ctx context.Context, name Name, why Cause, tearDown func(context.Context, *Entry) error) error {
	e, err := g.Lookup(name)
	if err != nil {
		return nil // it has ended
	}
	e.SetCause(why)
	if err := e.Acquire(ctx); err != nil {
		return err
	}
	// From here on the caller's context does not count: half a teardown leaves resources behind.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), TeardownLimit)
	defer cancel()
	return tearDown(ctx, e)
}

// TearDown runs the steps. The caller has acquired the jail, which is left.
func TearDown[D any](ctx context.Context, d D, e *Entry, steps []Ending[D], do func(func() error) error) error {
	defer e.Leave()
	if e.TornDown() {
		return nil // somebody else's teardown was first
	}
	if err := e.Put(ctx, StateStopping); err != nil {
		// A full disk must not keep a jail alive: the record that is there names it, which is enough.
		e.of.o.Log.Error("journal a teardown", "jail", e.rec.Name, "error", err)
		e.Change(func(r *Record) { r.State = StateStopping })
	}
	var errs []error
	for _, s := range steps {
		if s.Last && len(errs) > 0 {
			break
		}
		e.of.o.Barrier(s.Step)
		if err := do(func() error { return s.Do(d, ctx, e, e.Record()) }); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Step, err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("end jail %s: %w", e.rec.Name, errors.Join(errs...))
	}
	e.Remove()
	return nil
}

// AwaitEnd gives a program that was asked to end the time to do so.
func (e *Entry) AwaitEnd(ctx context.Context) {
	grace := OwnerGrace
	if e.rec.Spec.Lifetime == LifetimeKeep {
		grace = KeepGrace
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	select {
	case <-e.ended:
	case <-ctx.Done():
	}
}
