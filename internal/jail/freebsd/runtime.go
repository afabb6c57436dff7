//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Runtime starts and ends jails by jail(8) and jexec(8).
//
// The first process of a jail is a child of this one: jexec, which becomes chroot inside the jail, which becomes the shell
// that waits at the gate, which becomes the program. Its number stays the same.
type Runtime struct {
	o       Options
	jails   jails
	storage *Storage
	network *Network
	limits  *Limiter
	folders *safepath.Folder // <run>/jails
	now     func() time.Time
	stop    func()               // of the collection of orphans
	spoil   func(jail.Placement) // tests take controls away with it

	mu       sync.Mutex // of what follows
	children map[jail.Name]*child
	execs    jail.Executions
	relays   map[*exec.Cmd]bool
	working  sync.WaitGroup // programs that joined, and relays
}

// child is a process that this one has started and waits for.
type child struct {
	proc   jail.Process
	done   chan struct{} // closed when it has ended and was collected; code and signal are read after
	code   int
	signal string
}

func newRuntime(ctx context.Context, o Options, s *Storage, n *Network, l *Limiter) (_ *Runtime, err error) {
	r := &Runtime{o: o, jails: jails{o.Commands}, storage: s, network: n, limits: l, now: time.Now,
		children: map[jail.Name]*child{}, relays: map[*exec.Cmd]bool{}}
	if err := becomeReaper(); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			r.stop = watchOrphans()
		} else if r.folders != nil {
			err = errors.Join(err, r.folders.Close())
		}
	}()
	base, err := safepath.MakeTrusted(o.RunDir, 0o711)
	if err != nil {
		return nil, fmt.Errorf("prepare the runtime: %w", jail.Shortage(err))
	}
	r.folders, err = base.Ensure(jailsFolder, 0o700, -1)
	if err := errors.Join(err, base.Close()); err != nil {
		return nil, fmt.Errorf("prepare the runtime: %w", jail.Shortage(err))
	}
	if err := r.endStale(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// Close ends the programs that joined jails, whose stdio goes with this process, and closes the folder. Jails run on.
func (r *Runtime) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), execGrace+execCleanup)
	defer cancel()
	err := r.execs.End(ctx, "")
	r.mu.Lock()
	for cmd := range r.relays {
		err = errors.Join(err, sendSignal(cmd.Process.Pid, syscall.SIGKILL))
	}
	r.mu.Unlock()
	r.working.Wait()
	r.stop()
	if r.folders != nil {
		err = errors.Join(err, r.folders.Close())
	}
	return err
}

// Start stages the program, makes the jail, gives it its address and starts its first process.
func (r *Runtime) Start(ctx context.Context, p jail.Placement, stdio [3]*os.File) (_ jail.Process, err error) {
	if err := errors.Join(r.o.check(p.Name), ctx.Err()); err != nil {
		return jail.Process{}, err
	}
	if err := r.folders.Make(string(p.Name), 0o700, -1); err != nil {
		if errors.Is(err, os.ErrExist) {
			return jail.Process{}, problem.Wrap(err, problem.Conflict, "take another name", "jail %s has been started already", p.Name)
		}
		return jail.Process{}, jail.Shortage(err)
	}
	own, err := r.folders.Folder(string(p.Name))
	if err != nil {
		return jail.Process{}, err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	if err := r.furnish(ctx, p, own); err != nil {
		return jail.Process{}, fmt.Errorf("stage jail %s: %w", p.Name, jail.Shortage(err))
	}
	if err := own.Create(confName, r.o.conf(p.Name, p.Root), 0o600, -1); err != nil {
		return jail.Process{}, jail.Shortage(err)
	}
	if err := r.make(ctx, p, own); err != nil {
		return jail.Process{}, fmt.Errorf("make jail %s: %w", p.Name, err)
	}
	if err := r.network.configure(ctx, p.Name, p.Lease); err != nil {
		return jail.Process{}, err
	}
	// Connections that are open when a jail is removed keep it dying for twice this time, by default a minute. The sysctl is
	// the jail's own. Without it the end of a jail takes longer, and that is all.
	if _, err := r.o.Commands.Run(ctx, "jexec", string(p.Name), "/sbin/sysctl", "net.inet.tcp.msl=500"); err != nil {
		r.o.Log.Warn("a jail may take a minute to end", "jail", p.Name, "error", err)
	}
	c, err := r.launch(ctx, p, jail.StageDir+"/"+jail.StageLaunch, stdio, nil)
	if err != nil {
		return jail.Process{}, fmt.Errorf("start jail %s: %w", p.Name, err)
	}
	r.mu.Lock()
	r.children[p.Name] = c
	r.mu.Unlock()
	if r.spoil != nil {
		r.spoil(p)
	}
	return c.proc, nil
}

// make makes the jail. jail(8) is not believed: it may end well without one.
func (r *Runtime) make(ctx context.Context, p jail.Placement, own *safepath.Folder) error {
	_, failed := r.o.Commands.Run(ctx, "jail", "-f", filepath.Join(own.Path(), confName), "-c", string(p.Name))
	have, there, err := r.jails.find(ctx, p.Name)
	switch {
	case err != nil || failed != nil:
		return errors.Join(failed, err)
	case !there:
		return problem.New(problem.JailFailed, "look at the messages of jail(8) in the host's log", "jail(8) ended well, and there is no jail %s", p.Name)
	case have.dying:
		return fmt.Errorf("an earlier jail %s is still dying: %w", p.Name, jail.ErrBusy)
	case have.path != p.Root:
		return problem.New(problem.JailFailed, "", "the root of jail %s is %s, not %s", p.Name, have.path, p.Root)
	}
	return nil
}

// launch starts /bin/sh with a script in the jail, as the jail's user and without a way to more rights. The caller's
// context does not end it.
func (r *Runtime) launch(ctx context.Context, p jail.Placement, script string, stdio [3]*os.File, env []string) (*child, error) {
	cmd, err := r.o.Commands.Command(context.WithoutCancel(ctx), "jexec", r.inside(p, "/bin/sh", script)...)
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal and no process group of the host's
	jail.Connect(cmd, stdio)
	began := r.now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{proc: jail.Process{PID: cmd.Process.Pid, Started: uint64(began.Unix())}, done: make(chan struct{})}
	go func() { // ends with the process
		defer close(c.done)
		c.code, c.signal = exitOf(cmd.Wait())
	}()
	return c, nil
}

// inside is the command line of a program in a jail. chroot -n takes the way to more rights away, for good (chroot(8)).
func (r *Runtime) inside(p jail.Placement, argv ...string) []string {
	uid, gid := strconv.FormatUint(uint64(p.Profile.UID), 10), strconv.FormatUint(uint64(p.Profile.GID), 10)
	return append([]string{string(p.Name), "/usr/sbin/chroot", "-n", "-G", gid, "-g", gid, "-u", uid, "/"}, argv...)
}

func exitOf(err error) (code int, sig string) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, ""
	case errors.As(err, &exit):
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return -1, w.Signal().String()
		}
		return exit.ExitCode(), ""
	}
	return -1, ""
}

func (r *Runtime) child(name jail.Name, proc jail.Process) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.children[name]; c != nil && c.proc == proc {
		return c
	}
	return nil
}

func (c *child) ended() bool {
	return wake.Closed(c.done)
}

// gateLimit bounds how long the jail's first process may take to arrive at the gate.
const gateLimit = 20 * time.Second

// Begin opens the gate. A process that has ended before it came there needs no opening.
func (r *Runtime) Begin(ctx context.Context, p jail.Placement, proc jail.Process) error {
	if err := r.o.check(p.Name); err != nil {
		return err
	}
	stage, err := r.storage.clones.Folder(string(p.Name) + jail.StageDir)
	if err != nil {
		return fmt.Errorf("open the gate of jail %s: %w", p.Name, err)
	}
	defer func() { _ = stage.Close() }() // opened for reading
	var failed error
	done := waitFor(ctx, gateLimit, func() bool {
		fd, err := stage.Open(jail.StageGate, unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			failed = unix.Close(fd) // the process that waits has been let through
			return true
		}
		if !errors.Is(err, unix.ENXIO) { // that says that nobody waits yet
			failed = err
			return true
		}
		over, err := r.over(ctx, p.Name, proc)
		failed = err
		return over || err != nil
	})
	if failed == nil && !done {
		failed = errors.Join(ctx.Err(), fmt.Errorf("process %d did not come to the gate", proc.PID))
	}
	if failed != nil {
		return fmt.Errorf("open the gate of jail %s: %w", p.Name, failed)
	}
	return nil
}

// over reports whether the first process of a jail has ended.
func (r *Runtime) over(ctx context.Context, name jail.Name, proc jail.Process) (bool, error) {
	if c := r.child(name, proc); c != nil {
		return c.ended(), nil
	}
	p, err := r.jails.process(ctx, proc.PID)
	if gone(err) {
		return true, nil
	}
	return err == nil && !p.is(proc, r.now()), err
}

// Wait blocks until the process has ended. The status of one that an earlier host daemon has started is not known.
func (r *Runtime) Wait(ctx context.Context, name jail.Name, proc jail.Process) (int, string, error) {
	if c := r.child(name, proc); c != nil {
		select {
		case <-c.done:
			return c.code, c.signal, nil
		case <-ctx.Done():
			return -1, "", ctx.Err()
		}
	}
	const every = 500 * time.Millisecond // kqueue's NOTE_EXIT would say it at once, and only on FreeBSD
	for {
		over, err := r.over(ctx, name, proc)
		if over || err != nil {
			return -1, "", err
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return -1, "", ctx.Err()
		}
	}
}

// Terminate asks every process of the jail to end.
func (r *Runtime) Terminate(ctx context.Context, name jail.Name, _ jail.Process) error {
	if err := r.o.check(name); err != nil {
		return err
	}
	all, err := r.jails.processes(ctx, name)
	errs := []error{err}
	for _, p := range all {
		errs = append(errs, sendSignal(p.pid, syscall.SIGTERM))
	}
	return errors.Join(errs...)
}

// Kill ends every process of the jail.
func (r *Runtime) Kill(ctx context.Context, name jail.Name, proc jail.Process) error {
	if err := r.o.check(name); err != nil {
		return err
	}
	c := r.child(name, proc)
	if c != nil && !c.ended() {
		// It may not have entered the jail yet. No other process has its number before it is collected.
		if err := sendSignal(proc.PID, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if err := r.jails.kill(ctx, name); err != nil {
		return err
	}
	collectOrphans()
	if c != nil && !waitFor(ctx, killLimit, c.ended) {
		return fmt.Errorf("kill jail %s: process %d does not end: %w", name, proc.PID, jail.ErrBusy)
	}
	return nil
}

// Stop removes the jail, its epair and what was staged for it. A jail that is dying is ErrBusy: something holds it, most
// often a connection that is being closed. A program that a killed host daemon had started may have entered the jail only after Kill,
// and is ended here.
//
// By jail -R and not by -r: everything that -r would undo has been made here and is undone here, and looked at.
func (r *Runtime) Stop(ctx context.Context, name jail.Name) error {
	if err := r.o.check(name); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("stop jail %s: %w", name, err) }
	if err := errors.Join(r.execs.End(ctx, name), r.jails.kill(ctx, name)); err != nil {
		return fail(err)
	}
	have, there, err := r.jails.find(ctx, name)
	if err != nil {
		return fail(err)
	}
	var failed error
	if there && !have.dying {
		_, failed = r.o.Commands.Run(ctx, "jail", "-R", string(name))
		if have, there, err = r.jails.find(ctx, name); err != nil {
			return fail(errors.Join(failed, err))
		}
	}
	switch {
	case there && have.dying:
		return fail(fmt.Errorf("it is dying: %w", jail.ErrBusy))
	case there:
		return fail(errors.Join(failed, fmt.Errorf("jail(8) was to remove it and it is still there: %w", jail.ErrBusy)))
	}
	// Also the epair of a jail that no record speaks of, which has no lease to detach.
	if err := r.network.remove(ctx, name); err != nil {
		return fail(err)
	}
	if err := r.folders.RemoveAll(string(name)); err != nil {
		return fail(busy(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.children, name)
	return nil
}

// List reports jails, dying ones included, their processes, and folders of this installation.
func (r *Runtime) List(ctx context.Context) ([]jail.HostResource, error) {
	all, err := r.jails.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []jail.HostResource
	var errs []error
	for _, p := range all {
		name := jail.Name(p.name)
		t := jail.HostResource{Kind: jail.ResourceRuntimeState, Name: name, Index: -1, ID: "jail " + p.name}
		if !name.Belongs(r.o.Installation) || slices.Contains(out, t) {
			continue
		}
		out = append(out, t)
		if p.dying {
			continue
		}
		procs, err := r.jails.processes(ctx, name)
		errs = append(errs, err)
		for _, one := range procs {
			out = append(out, jail.HostResource{Kind: jail.ResourceProcess, Name: name, Index: -1, ID: strconv.Itoa(one.pid)})
		}
	}
	folders, err := jail.ResourcesIn(r.folders, jail.ResourceRuntimeState, r.o.Installation)
	return append(out, folders...), errors.Join(append(errs, err)...)
}
