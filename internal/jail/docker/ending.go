//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// goneLimit is how long the engine may take to remove what it was told to.
	goneLimit = 10 * time.Second
	// drainLimit is how long what was printed last may take to be read.
	drainLimit = 5 * time.Second
	// memoryLimit is how long after the end of a container the engine may take to say that its memory was the reason:
	// it learns of the two by events whose order is not certain.
	memoryLimit = 500 * time.Millisecond
)

// watch waits for the end of a container's program and records it. It takes over what runs, and asks again while the
// engine is away: containers may outlive it.
func (d *Driver) watch(e *entry) {
	d.mu.Lock()
	began := e.watched
	e.watched = true
	d.mu.Unlock()
	if began {
		return
	}
	d.watchers.Add(1)
	go func() {
		defer d.watchers.Done()
		x, ok := d.awaitExit(d.background, e)
		if !ok {
			return
		}
		d.mu.Lock()
		if e.cause != "" {
			x.Cause = e.cause
		}
		if x.Cause == jail.CauseWallClock {
			x.Hit = append(x.Hit, jail.LimitWallClock)
		}
		e.rec.Exit = &x
		d.mu.Unlock()
		close(e.ended)
		d.o.Log.Info("container ended", "jail", e.rec.Name, "cause", x.Cause, "code", x.Code, "signal", x.Signal, "hit", x.Hit)
	}()
}

// awaitExit is false when the driver was closed before the container ended.
func (d *Driver) awaitExit(ctx context.Context, e *entry) (jail.Exit, bool) {
	name := string(d.snapshot(e).Name)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		wait := d.engine.ContainerWait(ctx, name, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		var err error
		select {
		case <-wait.Result:
		case err = <-wait.Error:
		case <-ctx.Done():
			return jail.Exit{}, false
		}
		if err == nil || cerrdefs.IsNotFound(err) {
			return d.exitOf(ctx, e), ctx.Err() == nil
		}
		if ctx.Err() != nil {
			return jail.Exit{}, false
		}
		d.pause(ctx, pause)
	}
}

// exitOf asks how a container that does not run has ended. One that is gone cannot be asked. One that failed by itself is
// asked again for memoryLimit.
func (d *Driver) exitOf(ctx context.Context, e *entry) jail.Exit {
	name := string(d.snapshot(e).Name)
	x := jail.Exit{Code: -1, Cause: jail.CauseExited, At: d.o.Now()}
	for waited := time.Duration(0); ; waited += 20 * time.Millisecond {
		got, err := d.engine.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if err != nil || got.Container.State == nil || got.Container.Config == nil || got.Container.Config.Labels[labelJail] != name {
			return x
		}
		s := got.Container.State
		x.Code, x.Signal = s.ExitCode, signalOf(s.ExitCode)
		if s.OOMKilled {
			x.Hit = []jail.LimitName{jail.LimitMemory}
			if x.Signal != "" {
				x.Cause = jail.CauseMemory
			}
		}
		d.mu.Lock()
		certain := s.OOMKilled || s.ExitCode == 0 || e.cause != "" || waited >= memoryLimit
		d.mu.Unlock()
		if certain {
			return x
		}
		d.pause(ctx, 20*time.Millisecond)
	}
}

// signalOf undoes what engines make of a signal.
func signalOf(code int) string {
	if code > 128 && code < 128+65 {
		return syscall.Signal(code - 128).String()
	}
	return ""
}

// Destroy ends a container in whatever state it is.
func (d *Driver) Destroy(ctx context.Context, name jail.Name) error {
	return d.end(ctx, name, jail.CauseDestroyed)
}

func (d *Driver) end(ctx context.Context, name jail.Name, why jail.Cause) error {
	e, err := d.lookup(name)
	if errors.Is(err, jail.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	d.setCause(e, why)
	if err := d.acquire(ctx, e); err != nil {
		return err
	}
	// From here on the caller's patience does not count: half a teardown helps nobody.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), jail.TeardownLimit)
	defer cancel()
	return d.teardown(ctx, e)
}

// ending is the teardown: the same list for close, failure and reaper. Every step is idempotent. The steps marked last
// need all before them to have succeeded; the others run even if one before them failed, so that a container loses its
// network also while the engine is away.
var ending = []struct {
	step jail.Step
	last bool
	do   func(*Driver, context.Context, *entry) error
}{
	{jail.StepRefuse, false, (*Driver).refuse},
	{jail.StepTerminate, false, (*Driver).terminate},
	{jail.StepDestroy, false, func(d *Driver, ctx context.Context, e *entry) error { return d.remove(ctx, d.snapshot(e).Name) }},
	{jail.StepUnmount, true, func(d *Driver, _ context.Context, e *entry) error { return d.unstage(d.snapshot(e).Name) }},
	{jail.StepForget, true, (*Driver).forget},
}

// teardown runs the steps. The caller holds e.working, which is given back.
func (d *Driver) teardown(ctx context.Context, e *entry) error {
	defer d.leave(e)
	d.mu.Lock()
	done := e.tornDown
	d.mu.Unlock()
	if done {
		return nil // somebody else's teardown was first
	}
	var errs []error
	if err := d.put(ctx, e, jail.StateStopping); err != nil {
		// A full disk must not keep a container alive: the record that is there names it, which is enough.
		d.o.Log.Error("journal a teardown", "jail", e.rec.Name, "error", err)
		d.change(e, func(r *jail.Record) { r.State = jail.StateStopping })
	}
	for _, s := range ending {
		if s.last && len(errs) > 0 {
			break
		}
		d.o.Barrier(s.step)
		if err := s.do(d, ctx, e); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.step, d.engineError(err)))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("end container %s: %w", e.rec.Name, errors.Join(errs...))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e.tornDown = true
	if e.rec.Exit == nil && !e.watched {
		e.rec.Exit = &jail.Exit{Code: -1, Cause: e.cause, At: d.o.Now()}
		close(e.ended) // nobody else does
	}
	delete(d.jails, e.rec.Name)
	return nil
}

func (d *Driver) refuse(ctx context.Context, e *entry) error {
	l := d.snapshot(e).Lease
	d.mu.Lock()
	firewall := d.firewall
	d.mu.Unlock()
	if l.Index < 0 || firewall == nil {
		return nil // without a firewall of this process's there was no Admit; the reaper looks for members of an earlier one's
	}
	return firewall.Remove(ctx, jail.TableAgents, l)
}

// terminate asks the program to end, and waits. The first process, docker-init, passes the signal on.
func (d *Driver) terminate(ctx context.Context, e *entry) error {
	r := d.snapshot(e)
	if r.Process.PID == 0 || r.Exit != nil {
		return nil
	}
	if err := linux.Signal(r.Process, syscall.SIGTERM); err != nil {
		return err
	}
	grace := jail.OwnerGrace
	if r.Spec.Lifetime == jail.LifetimeKeep {
		grace = jail.KeepGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-e.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// remove ends a container and has it removed, with everything that runs in it. Its output is read first. It returns
// when the engine does not know it any more.
func (d *Driver) remove(ctx context.Context, name jail.Name) error {
	got, err := d.engine.ContainerInspect(ctx, string(name), client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if c := got.Container.Config; c == nil || c.Labels[labelInstallation] != string(d.o.Installation) || c.Labels[labelJail] != string(name) {
		return problem.New(problem.Conflict, "rename or remove it", "the container %s was not made by this clawjail", name)
	}
	id := got.Container.ID
	if s := got.Container.State; s != nil && s.Running {
		if _, err := d.engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"}); err != nil &&
			!cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
			return err
		}
	}
	d.drain(ctx, name)
	ctx, cancel := context.WithTimeout(ctx, goneLimit)
	defer cancel()
	for {
		_, err := d.engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case cerrdefs.IsNotFound(err):
			return nil
		case err == nil, cerrdefs.IsConflict(err): // it is being removed
		default:
			return err
		}
		if _, err := d.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{}); cerrdefs.IsNotFound(err) {
			return nil
		}
		d.pause(ctx, 20*time.Millisecond)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// drain lets the follower read what was printed last.
func (d *Driver) drain(ctx context.Context, name jail.Name) {
	e, err := d.lookup(name)
	if err != nil {
		return
	}
	d.mu.Lock()
	drained := e.drained
	d.mu.Unlock()
	if drained == nil {
		return
	}
	timer := time.NewTimer(drainLimit)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		d.o.Log.Warn("the last words of a container were not read", "jail", name)
	case <-ctx.Done():
	}
}

// forget removes the record, and then gives the address back: were the process to die in between, it would be free.
func (d *Driver) forget(ctx context.Context, e *entry) error {
	r := d.snapshot(e)
	if err := errors.Join(d.unmark(r.Name), d.o.Journal.Delete(ctx, r.Name)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Lease.Index >= 0 && d.pool != nil {
		d.pool.Release(r.Lease.Index)
	}
	e.rec.Lease.Index = -1
	return nil
}

type verdict struct {
	text  string
	cause jail.Cause
}

// overdue yields the containers of the journal that should not be. What is overdue is found at once, and is judged again
// when its turn comes: ending those before it takes time, in which its owner may have come back.
func (d *Driver) overdue() iter.Seq2[jail.Name, verdict] {
	d.mu.Lock()
	defer d.mu.Unlock()
	owners, late := map[string]bool{}, map[jail.Name]*entry{}
	for name, e := range d.jails {
		owners[e.rec.Owner] = true
		if d.judge(e).text != "" {
			late[name] = e
		}
	}
	for o := range d.lost {
		if !owners[o] {
			delete(d.lost, o)
		}
	}
	return func(yield func(jail.Name, verdict) bool) {
		for name, e := range late {
			d.mu.Lock()
			v := d.judge(e)
			d.mu.Unlock()
			if v.text != "" && !yield(name, v) {
				return
			}
		}
	}
}

// judge says why a container should not be; an empty text lets it live. The caller holds d.mu.
func (d *Driver) judge(e *entry) verdict {
	r, now := e.rec, d.o.Now()
	gone, lost := d.lost[r.Owner]
	lost = lost && r.Spec.Lifetime == jail.LifetimeOwner
	switch {
	case e.active, e.tornDown:
	case r.State != jail.StateStarted && r.State != jail.StateReady:
		return verdict{fmt.Sprintf("left in state %s", r.State), jail.CauseOwnerLost}
	case now.After(r.Deadline):
		return verdict{"its wall clock has run out", jail.CauseWallClock}
	case lost && now.Sub(gone) >= d.o.Grace:
		return verdict{"its owner is gone", jail.CauseOwnerLost}
	case lost && r.Exit != nil && now.Sub(gone) >= min(jail.EndedGrace, d.o.Grace):
		return verdict{"its owner is gone and its program has ended", jail.CauseOwnerLost}
	case r.Exit != nil && r.Spec.Lifetime == jail.LifetimeOwner && now.Sub(r.Exit.At) >= d.o.Grace:
		return verdict{"its program has ended and nobody destroyed it", jail.CauseDestroyed}
	}
	return verdict{}
}

// isConflict is also what engines say of a container that does not run.
func isConflict(err error) bool {
	var status interface{ StatusCode() int }
	return cerrdefs.IsConflict(err) || errors.As(err, &status) && slices.Contains([]int{http.StatusConflict}, status.StatusCode())
}
