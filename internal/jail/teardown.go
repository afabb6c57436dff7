package jail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
)

// Step is one named step of the making or the ending of a jail. Tests kill the process at every one of them,
// by this list, so a new step is tested as soon as it is in it.
type Step string

// The steps, in their order.
const (
	StepReserve Step = "reserve"
	StepClone   Step = "clone"
	StepMount   Step = "mount"
	StepAttach  Step = "attach"
	StepLimit   Step = "limit"
	StepStart   Step = "start"
	StepVerify  Step = "verify"
	StepDeliver Step = "deliver"
	StepBegin   Step = "begin"
	StepAdmit   Step = "admit"

	StepTerminate Step = "terminate" // 1 stop the service
	StepKill      Step = "kill"      // 2 kill what remains
	StepUnmount   Step = "unmount"   // 3 unmount, deepest first
	StepStop      Step = "stop"      // 4 stop the jail,
	StepDetach    Step = "detach"    //   detach its interface,
	StepUnlimit   Step = "unlimit"   //   remove its limits
	StepRefuse    Step = "refuse"    // 5 remove its address from the table
	StepRelease   Step = "release"   // 6 release address and uid
	StepDestroy   Step = "destroy"   // 7 destroy the clone
	StepForget    Step = "forget"    //   and forget it
)

// Steps lists every step that Lifecycle passes a Barrier at.
func Steps() []Step {
	out := []Step{StepReserve}
	for _, s := range creation {
		out = append(out, s.Step)
	}
	out = append(out, StepAdmit)
	for _, s := range ending {
		out = append(out, s.Step)
	}
	return out
}

// How long ends may take, on every substrate.
const (
	// TeardownLimit bounds one attempt at a teardown. The reaper tries the rest again.
	TeardownLimit = 30 * time.Second
	// OwnerGrace is how long the program of an owner jail may take to end by itself. Its state is thrown
	// away, so there is little for it to do.
	OwnerGrace = 100 * time.Millisecond
	// KeepGrace is the same for a jail that is kept.
	KeepGrace = 10 * time.Second
)

// busyLimit is how long one step waits for something that is busy.
const busyLimit = 5 * time.Second

// ending is the teardown: the same list for close, failure and reaper. Every step has looked at the host when it returns
// nil. An address is not released, nor a jail forgotten, while something of it may be left; and a process that cannot be
// killed loses its network all the same.
var ending = []Ending[*Lifecycle]{
	{StepTerminate, false, (*Lifecycle).terminate},
	{StepKill, false, (*Lifecycle).kill},
	{StepUnmount, false, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		if err := l.Parts.Storage.Unmount(ctx, r.Name, false); !errors.Is(err, ErrBusy) {
			return err
		}
		return nil // forced when the clone is destroyed
	}},
	{StepStop, false, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		err := l.Parts.Runtime.Stop(ctx, r.Name)
		if err == nil && l.Console != nil {
			err = l.Console.Finish(ctx, r.Name)
		}
		return err
	}},
	{StepDetach, false, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		if r.Lease.Index < 0 {
			return nil
		}
		return l.Parts.Network.Detach(ctx, r.Name, r.Lease)
	}},
	{StepUnlimit, false, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		return l.Parts.Limiter.Remove(ctx, r.Name)
	}},
	{StepRefuse, false, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		if r.Lease.Index < 0 {
			return nil
		}
		return l.Parts.Firewall.Remove(ctx, r.Name.Kind().Table(), r.Lease)
	}},
	{StepRelease, true, (*Lifecycle).release},
	{StepDestroy, true, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		err := l.Parts.Storage.Destroy(ctx, r.Name)
		if errors.Is(err, ErrBusy) {
			return errors.Join(err, l.Parts.Storage.Unmount(ctx, r.Name, true))
		}
		return err
	}},
	{StepForget, true, func(l *Lifecycle, ctx context.Context, _ *Entry, r Record) error {
		return l.Journal.Delete(ctx, r.Name)
	}},
}

// Destroy ends a jail in whatever state it is.
func (l *Lifecycle) Destroy(ctx context.Context, name Name) error {
	return l.end(ctx, name, CauseDestroyed)
}

func (l *Lifecycle) end(ctx context.Context, name Name, why Cause) error {
	return l.End(ctx, name, why, l.teardown)
}

func (l *Lifecycle) teardown(ctx context.Context, e *Entry) error {
	return TearDown(ctx, l, e, ending, func(do func() error) error { return l.untilFree(ctx, do) })
}

// untilFree repeats f with growing pauses while it says ErrBusy. ErrHasDependents is final even when joined
// with it.
func (l *Lifecycle) untilFree(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, busyLimit)
	defer cancel()
	return wake.Retry(ctx, time.Millisecond, 250*time.Millisecond, IsBusy, f)
}

func (l *Lifecycle) terminate(ctx context.Context, e *Entry, r Record) error {
	if r.Process.PID == 0 || r.Exit != nil {
		return nil
	}
	if err := l.Parts.Runtime.Terminate(ctx, r.Name, r.Process); err != nil {
		return err
	}
	e.AwaitEnd(ctx)
	return nil
}

func (l *Lifecycle) kill(ctx context.Context, e *Entry, r Record) error {
	if err := l.Parts.Runtime.Kill(ctx, r.Name, r.Process); err != nil {
		return err
	}
	if r.Process.PID == 0 {
		return nil
	}
	// The watcher reads the limits that were hit; let it, before they are removed.
	select {
	case <-e.ended:
	case <-time.After(busyLimit):
		return fmt.Errorf("process %d was killed and not seen to end", r.Process.PID)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// release gives the address back once interface and table membership were seen gone. The record loses it
// first: were the process to die in between, the address would have two owners otherwise.
func (l *Lifecycle) release(ctx context.Context, e *Entry, r Record) error {
	if r.Lease.Index < 0 {
		return nil
	}
	gone := r
	gone.Lease = Lease{Index: -1}
	if err := l.Journal.Put(ctx, gone); err != nil {
		// On a full disk the record cannot be rewritten, but it can be removed. The clone that is still
		// there is found by its name.
		if err2 := l.Journal.Delete(ctx, r.Name); err2 != nil {
			return errors.Join(err, err2)
		}
	}
	e.Change(func(r *Record) { r.Lease = gone.Lease })
	l.Parts.Network.Release(r.Lease)
	return nil
}
