//go:build linux

package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	endGrace  = time.Second
	killLimit = 10 * time.Second
)

// Exec implements jail.Maker. The image needs /bin/sh.
func (d *Driver) Exec(ctx context.Context, name jail.Name, p jail.Program, stdio [3]*os.File) (_ jail.Execution, err error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Wire != jail.WireStdio {
		return nil, problem.New(problem.BadRequest, "", "a container's wire is %s", jail.WireStdio)
	}
	r, err := d.Running(name)
	if err != nil {
		return nil, err
	}
	profile := ProfileFor(r.Spec, r.Lease)
	dir := p.Dir
	if dir == "" {
		dir = r.Spec.Kind.Home()
	}
	made, err := d.engine.ExecCreate(ctx, string(name), client.ExecCreateOptions{
		User: fmt.Sprintf("%d:%d", profile.UID, profile.GID), AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Env: environment(p.Env, p.Without, r.Spec.Kind.Home()), WorkingDir: dir, Cmd: append([]string{shellPath, "-c", execGate, "gate"}, p.Argv...)})
	if err != nil {
		if cerrdefs.IsNotFound(err) || isConflict(err) {
			return nil, problem.Wrap(err, problem.Conflict, "start it first", "container %s does not run", name)
		}
		return nil, d.engineError(err)
	}
	conn, err := d.engine.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, d.engineError(err)
	}
	x := &execution{driver: d, id: made.ID, Joined: jail.Joined{Name: name, Over: make(chan struct{})}}
	defer func() {
		if err != nil {
			conn.Close()
			err = errors.Join(err, x.sweep())
		}
	}()
	if err := x.hold(ctx, conn.HijackedResponse, r.Process, profile); err != nil {
		return nil, err
	}
	ends, err := jail.OwnStdio(stdio)
	if err != nil {
		return nil, err
	}
	if err := linux.Signal(x.proc, syscall.SIGCONT); err != nil {
		closeAll(ends)
		return nil, err
	}
	d.watchers.Add(1)
	go func() {
		defer d.watchers.Done()
		x.run(conn.HijackedResponse, ends)
	}()
	return x, nil
}

// execution is a program beside the first process of a container.
type execution struct {
	jail.Joined
	driver *Driver
	id     string // the engine's
	proc   jail.Process
	fence  *fence
}

// hold waits until the gate has stopped, puts it into its fence, and compares it with the profile.
func (x *execution) hold(ctx context.Context, conn client.HijackedResponse, container jail.Process, declared jail.Profile) error {
	ctx, cancel := context.WithTimeout(ctx, gateLimit)
	defer cancel()
	for {
		got, err := x.driver.engine.ExecInspect(ctx, x.id, client.ExecInspectOptions{})
		if err != nil {
			return x.driver.engineError(err)
		}
		if !got.Running && got.PID == 0 && got.ExitCode != 0 || !got.Running && got.PID != 0 {
			return notStarted(conn, got.ExitCode)
		}
		if got.PID > 0 {
			if x.proc, err = linux.FindProcess(got.PID); err != nil {
				return problem.Wrap(err, problem.JailFailed, "the image needs /bin/sh", "the program could not be started in the container")
			}
			state, err := linux.StatusField(x.proc, "State")
			if err == nil && strings.HasPrefix(state, "T") {
				break
			}
		}
		wake.Sleep(ctx, 2*time.Millisecond)
		if ctx.Err() != nil {
			return problem.Wrap(ctx.Err(), problem.Timeout, "look at the engine's log", "the program did not start in the container")
		}
	}
	var err error
	if x.fence, err = makeFence(container, rand.Text()); err != nil {
		return fmt.Errorf("fence the program in: %w", err)
	}
	if err := x.fence.add(x.proc.PID); err != nil {
		return fmt.Errorf("fence the program in: %w", err)
	}
	seen, err := linux.ObserveProcess(ctx, x.proc, declared)
	if err != nil {
		return fmt.Errorf("observe the program: %w", err)
	}
	if seen.Memory, seen.MilliCPU, seen.Tasks, err = x.fence.limits(container, x.proc); err != nil {
		return fmt.Errorf("observe the program: %w", err)
	}
	if diff := declared.Compare(seen); len(diff) > 0 {
		return unconfined(diff)
	}
	return nil
}

// notStarted says why the engine could not start a program. The engine writes it where the program would have printed.
func notStarted(conn client.HijackedResponse, status int) error {
	var said texts.Tail
	_ = conn.Conn.SetReadDeadline(time.Now().Add(time.Second)) // without it the reason is left out
	_, _ = stdcopy.StdCopy(&said, &said, conn.Reader)
	return problem.New(problem.JailFailed, "the image needs /bin/sh", "the program could not be started in the container: status %d, %s",
		status, cmp.Or(strings.Join(said.Lines(3, 300), " "), "without a word"))
}

// run copies until the program has ended, ends what it left, and records how it ended.
func (x *execution) run(conn client.HijackedResponse, ends [3]*os.File) {
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		pump(x.driver.background, conn, ends)
	}()
	err := linux.AwaitEnd(x.driver.background, x.proc)
	err = errors.Join(err, x.sweep())
	<-copied
	exit, errExit := x.result()
	x.Exit, x.Err = exit, errors.Join(err, errExit)
	close(x.Over)
}

// result asks the engine how the program ended. It learns that a moment later than the kernel.
func (x *execution) result() (jail.Exit, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.driver.background), gateLimit)
	defer cancel()
	exit := jail.Exit{Code: -1, Cause: jail.CauseExited, At: x.driver.o.Now()}
	for {
		got, err := x.driver.engine.ExecInspect(ctx, x.id, client.ExecInspectOptions{})
		if err != nil {
			if cerrdefs.IsNotFound(err) || away(err) {
				return exit, nil // its container is gone, or the engine: how it ended is not known
			}
			return exit, x.driver.engineError(err)
		}
		if !got.Running {
			exit.Code, exit.Signal = got.ExitCode, signalOf(got.ExitCode)
			return exit, nil
		}
		wake.Sleep(ctx, 5*time.Millisecond)
		if ctx.Err() != nil {
			return exit, nil
		}
	}
}

// sweep ends everything in the fence.
func (x *execution) sweep() error {
	if x.fence == nil {
		if x.proc.PID != 0 {
			return linux.Signal(x.proc, syscall.SIGKILL) // it is at the gate still
		}
		return nil
	}
	return x.driver.sweep(x.fence)
}

// sweep ends everything in a fence, and returns when it is seen to be so.
func (d *Driver) sweep(f *fence) error {
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		busy, err := f.kill()
		if err != nil || !busy {
			return err
		}
		wake.Sleep(ctx, pause)
		if ctx.Err() != nil {
			return fmt.Errorf("end what runs in %s: %w", f.dir, jail.ErrBusy)
		}
	}
}

// End implements jail.Execution.
func (x *execution) End(ctx context.Context) error {
	if wake.Closed(x.Over) {
		return nil
	}
	if err := linux.Signal(x.proc, syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(endGrace)
	defer timer.Stop()
	select {
	case <-x.Over:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if err := x.sweep(); err != nil {
		return err
	}
	select {
	case <-x.Over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const dialLimit = 5 * time.Second

// Dial implements jail.Maker: first to the loopback of the container's network, then to its address.
func (d *Driver) Dial(ctx context.Context, name jail.Name, port uint16) (*os.File, error) {
	r, err := d.Running(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var errs []error
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), r.Lease.Addr} {
		f, err := linux.DialIn(ctx, r.Process, netip.AddrPortFrom(addr, port))
		if err == nil {
			return f, nil
		}
		errs = append(errs, err)
	}
	return nil, problem.Wrap(errors.Join(errs...), problem.UpstreamUnreachable, "let the program listen on that port", "nothing answers on port %d in container %s", port, name)
}
