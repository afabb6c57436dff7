//go:build linux

package docker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/base/wake"
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
func (d *Driver) watch(e *jail.Entry) {
	if !e.Watch() {
		return
	}
	d.watchers.Go(func() {
		if x, ok := d.awaitExit(d.background, e); ok {
			e.Exited(x)
		}
	})
}

// awaitExit is false when the driver was closed before the container ended.
func (d *Driver) awaitExit(ctx context.Context, e *jail.Entry) (jail.Exit, bool) {
	name := string(e.Record().Name)
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
		wake.Sleep(ctx, pause)
	}
}

// exitOf asks how a container that does not run has ended. One that is gone cannot be asked. One that failed by itself is
// asked again for memoryLimit.
func (d *Driver) exitOf(ctx context.Context, e *jail.Entry) jail.Exit {
	name := string(e.Record().Name)
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
		certain := s.OOMKilled || s.ExitCode == 0 || e.Cause() != "" || waited >= memoryLimit
		if certain {
			return x
		}
		wake.Sleep(ctx, 20*time.Millisecond)
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
	return d.End(ctx, name, why, d.teardown)
}

// ending is the teardown: the same list for close, failure and reaper. A container loses its network also while the engine
// is away.
var ending = []jail.Ending[*Driver]{
	{Step: jail.StepRefuse, Do: (*Driver).refuse},
	{Step: jail.StepTerminate, Do: (*Driver).terminate},
	{Step: jail.StepDestroy, Do: func(d *Driver, ctx context.Context, _ *jail.Entry, r jail.Record) error { return d.remove(ctx, r.Name) }},
	{Step: jail.StepUnmount, Last: true, Do: func(d *Driver, _ context.Context, _ *jail.Entry, r jail.Record) error { return d.unstage(r.Name) }},
	{Step: jail.StepForget, Last: true, Do: (*Driver).forget},
}

func (d *Driver) teardown(ctx context.Context, e *jail.Entry) error {
	return jail.TearDown(ctx, d, e, ending, func(do func() error) error { return d.engineError(do()) })
}

func (d *Driver) refuse(ctx context.Context, _ *jail.Entry, r jail.Record) error {
	d.mu.Lock()
	firewall := d.firewall
	d.mu.Unlock()
	if r.Lease.Index < 0 || firewall == nil {
		return nil // without a firewall of this process's there was no Admit; the reaper looks for members of an earlier one's
	}
	return firewall.Remove(ctx, jail.TableAgents, r.Lease)
}

// terminate asks the program to end, and waits. The first process, docker-init, passes the signal on.
func (d *Driver) terminate(ctx context.Context, e *jail.Entry, r jail.Record) error {
	if r.Process.PID == 0 || r.Exit != nil {
		return nil
	}
	if err := linux.Signal(r.Process, syscall.SIGTERM); err != nil {
		return err
	}
	e.AwaitEnd(ctx)
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
		wake.Sleep(ctx, 20*time.Millisecond)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// drain lets the follower read what was printed last.
func (d *Driver) drain(ctx context.Context, name jail.Name) {
	d.mu.Lock()
	drained := d.drained[name]
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
func (d *Driver) forget(ctx context.Context, e *jail.Entry, r jail.Record) error {
	if err := errors.Join(d.unmark(r.Name), d.o.Journal.Delete(ctx, r.Name)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Lease.Index >= 0 && d.pool != nil {
		d.pool.Release(r.Lease.Index)
	}
	e.Change(func(r *jail.Record) { r.Lease.Index = -1 })
	delete(d.drained, r.Name)
	return nil
}

// isConflict is also what engines say of a container that does not run.
func isConflict(err error) bool {
	var status interface{ StatusCode() int }
	return cerrdefs.IsConflict(err) || errors.As(err, &status) && slices.Contains([]int{http.StatusConflict}, status.StatusCode())
}
