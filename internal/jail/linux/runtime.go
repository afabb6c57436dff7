//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Runtime starts and ends jails through an OCI runtime.
//
// The runtime runs for as long as a start takes; afterwards the jail's first process is a child of whoever called
// BecomeSubreaper, and everything else is done here: waiting, signalling, and removing what the runtime left.
type Runtime struct {
	o        Options
	limits   *Limiter
	run      *safepath.Folder
	bundles  *safepath.Folder
	state    *safepath.Folder
	filters  map[jail.SeccompProfile]*specs.LinuxSeccomp
	hostRoot string            // in which AppArmor's files are looked for
	amend    func(*specs.Spec) // tests take a control away with it
	// Of programs that join a jail: the names of what is staged, and what tests take away.
	newID     func() string
	amendExec func(*specs.Process)
	now       func() time.Time

	choosing sync.Mutex
	chosen   *program // guarded by choosing

	mu       sync.Mutex // of what follows
	children map[jail.Name]*child
	starting map[jail.Name]bool
	running  map[int]bool // processes of the runtime itself
	execs    jail.Executions
}

// child is a jail's first process while it is a child of this one.
type child struct {
	proc jail.Process
	fd   *os.File // pidfd

	mu     sync.Mutex // of what follows
	ended  bool
	code   int
	signal string
}

// NewRuntime opens the folders. Which runtime there is, and whether it works, is found out by the first Start, or by
// Ready.
func NewRuntime(o Options, limits *Limiter) (_ *Runtime, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Runtime{o: o, limits: limits, children: map[jail.Name]*child{}, starting: map[jail.Name]bool{}, running: map[int]bool{},
		newID: newStageID, now: time.Now,
		filters: map[jail.SeccompProfile]*specs.LinuxSeccomp{}, hostRoot: "/"}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare the runtime: %w", jail.Shortage(err)), r.Close())
		}
	}()
	for _, p := range []jail.SeccompProfile{jail.SeccompBrowser, jail.SeccompAgent, jail.SeccompShared} {
		if r.filters[p], err = seccompFilter(p); err != nil {
			return nil, err
		}
	}
	if r.run, err = safepath.MakeTrusted(o.RunDir, 0o711); err != nil {
		return nil, err
	}
	if r.bundles, err = r.run.Ensure(bundlesFolder, 0o700, -1); err != nil {
		return nil, err
	}
	if r.state, err = r.run.Ensure(stateFolder, 0o700, -1); err != nil {
		return nil, err
	}
	return r, errors.Join(r.endStale(), r.endTrial(context.Background()))
}

// Close ends the programs that joined jails, whose stdio goes with this process, and closes the folders. Jails run on.
func (r *Runtime) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), execGrace+execCleanup)
	defer cancel()
	errs := []error{r.execs.End(ctx, "")}
	for _, f := range []*safepath.Folder{r.state, r.bundles, r.run} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.children {
		errs = append(errs, c.fd.Close())
		delete(r.children, name)
	}
	return errors.Join(errs...)
}

// Means are what jails are confined with on this host.
func (r *Runtime) Means() jail.Means {
	m := jail.AllMeans()
	m.AppArmor = r.o.AppArmor
	return m
}

// appArmor is the name of a profile in the kernel, nothing for none.
func (r *Runtime) appArmor(p jail.AppArmorProfile) string {
	if p == "" {
		return ""
	}
	return p.Name(r.o.Installation)
}

// hasAppArmor refuses a jail whose profile the kernel does not enforce now: no runtime says so in words.
func (r *Runtime) hasAppArmor(p jail.AppArmorProfile) error {
	if p == "" {
		return nil
	}
	return appArmorHas(r.hostRoot, r.o.Installation, p)
}

// Start stages and starts the jail's program.
func (r *Runtime) Start(ctx context.Context, p jail.Placement, stdio [3]*os.File) (_ jail.Process, err error) {
	if err := errors.Join(r.o.check(p.Name), ctx.Err(), r.hasAppArmor(p.Profile.AppArmor)); err != nil {
		return jail.Process{}, err
	}
	prog, err := r.program(ctx)
	if err != nil {
		return jail.Process{}, err
	}
	var users *os.File
	if p.Profile.Host != p.Profile.UID {
		if users, err = ownNamespace(p.Profile); err != nil {
			return jail.Process{}, problem.Wrap(err, problem.JailFailed, "let root make user namespaces: sysctl user.max_user_namespaces",
				"the kernel makes no user namespace for jail %s", p.Name)
		}
		defer func() { err = errors.Join(err, users.Close()) }()
	}
	bundle, err := r.stage(p, users)
	if err != nil {
		return jail.Process{}, fmt.Errorf("stage jail %s: %w", p.Name, jail.Shortage(err))
	}
	defer func() { err = errors.Join(err, bundle.Close()) }()
	if prog.kind != RuntimeCrun {
		if err := alignMountPoints(p); err != nil {
			return jail.Process{}, err
		}
	}
	if err := bundle.Create(bundleRuntime, []byte(prog.path), 0o400, -1); err != nil {
		return jail.Process{}, jail.Shortage(err)
	}
	if prog.ownDelete {
		if err := bundle.Create(bundleDelete, []byte(prog.path), 0o400, -1); err != nil {
			return jail.Process{}, jail.Shortage(err)
		}
	}
	if err := r.setStarting(p.Name); err != nil {
		return jail.Process{}, err
	}
	defer func() {
		r.mu.Lock()
		delete(r.starting, p.Name)
		r.mu.Unlock()
		r.collectOrphans()
	}()
	if err := r.execute(ctx, prog, p.Name, prog.start(r.state.Path(), bundle.Path(), string(p.Name)), stdio, bundle, network(p)); err != nil {
		return jail.Process{}, fmt.Errorf("start jail %s with %s: %w", p.Name, filepath.Base(prog.path), err)
	}
	proc, err := r.adopt(ctx, p.Name, bundle)
	if err == nil {
		err = seal(ctx, proc, p.Root)
	}
	if err != nil {
		return jail.Process{}, fmt.Errorf("start jail %s: %w", p.Name, err)
	}
	return proc, nil
}

// seal does what no runtime does. One that has ended by now needs nothing.
func seal(ctx context.Context, proc jail.Process, root string) error {
	p, err := openProcess(proc)
	if err == nil {
		defer p.Close()
		if err = p.awaitProgram(ctx); err == nil {
			err = p.sealRoot(root)
		}
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// setStarting keeps the status of a first process that ends at once for adopt.
func (r *Runtime) setStarting(name jail.Name) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting[name] || r.children[name] != nil {
		return problem.New(problem.Conflict, "take another name", "jail %s has been started already", name)
	}
	r.starting[name] = true
	return nil
}

// adopt takes over the first process from the runtime that has just ended.
func (r *Runtime) adopt(ctx context.Context, name jail.Name, bundle *safepath.Folder) (jail.Process, error) {
	pid, err := namedProcess(bundle, bundlePID)
	if err != nil {
		return jail.Process{}, err
	}
	proc := jail.Process{PID: pid}
	// A child that has ended keeps its number until it is collected, which happens only here.
	p, err := openProcess(proc)
	if err != nil {
		return jail.Process{}, fmt.Errorf("find process %d: %w", proc.PID, err)
	}
	proc.Started, err = p.started()
	if err == nil && isSubreaper() {
		// crun ends a moment before the process between itself and this one does, which is its parent until then.
		// Should that last, the jail is none the worse for it; only its exit status will not be known.
		waitFor(ctx, time.Second, func() bool { return p.parent() == os.Getpid() })
	}
	p.Close()
	if err != nil {
		return jail.Process{}, fmt.Errorf("find process %d: %w", proc.PID, err)
	}
	c := &child{proc: proc}
	if c.fd, err = pidfd(proc); err != nil {
		return jail.Process{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.children[name] = c
	return proc, nil
}

// namedProcess is the number that the runtime has written into a file.
func namedProcess(f *safepath.Folder, name string) (int, error) {
	text, _, err := f.Read(name, 32)
	if err != nil {
		return 0, fmt.Errorf("read the first process: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("the runtime named %q as the first process", text)
	}
	return pid, nil
}

// collect takes the child's status if it has ended, once.
func (c *child) collect() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	code, signal, known, err := exitOf(c.fd, c.proc.PID)
	if known && signal == "" && code > 128 {
		// The first process is a shell, which says so of the program.
		if s := syscall.Signal(code - 128); unix.SignalName(s) != "" {
			signal = s.String()
		}
	}
	if known {
		c.ended, c.code, c.signal = true, code, signal
	}
	return err
}

func (c *child) status() (code int, signal string, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code, c.signal, c.ended
}

func (r *Runtime) child(name jail.Name, proc jail.Process) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.children[name]; c != nil && c.proc == proc {
		return c
	}
	return nil
}

// Wait blocks until the process has ended. It may be called more than once.
func (r *Runtime) Wait(ctx context.Context, name jail.Name, proc jail.Process) (int, string, error) {
	c := r.child(name, proc)
	fd, err := pidfd(proc)
	switch {
	case errors.Is(err, os.ErrProcessDone):
	case err != nil:
		return -1, "", fmt.Errorf("wait for jail %s: %w", name, err)
	default:
		err := awaitEnd(ctx, fd)
		if err = errors.Join(err, fd.Close()); err != nil {
			return -1, "", fmt.Errorf("wait for jail %s: %w", name, err)
		}
	}
	if c == nil {
		return -1, "", nil // not a child of this process: its status went elsewhere
	}
	if err := c.collect(); err != nil && !errors.Is(err, os.ErrClosed) { // closed by Stop, which has collected it
		return -1, "", fmt.Errorf("wait for jail %s: %w", name, err)
	}
	if code, signal, ended := c.status(); ended {
		return code, signal, nil
	}
	return -1, "", nil
}

// signalAll signals every process of a jail and returns their numbers. A process that left the jail's groups while
// its descriptor was being opened is another one by now, and is spared.
func (r *Runtime) signalAll(name jail.Name, proc jail.Process, sig syscall.Signal, spared ...int) ([]int, error) {
	var errs []error
	if proc.PID != 0 {
		fd, err := pidfd(proc)
		if err == nil {
			err = errors.Join(signalFD(fd, sig), fd.Close())
		}
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	pids, err := r.limits.processes(string(name))
	errs = append(errs, err)
	open := map[int]*os.File{}
	for _, pid := range pids {
		if pid == proc.PID || slices.Contains(spared, pid) {
			continue
		}
		fd, err := pidfd(jail.Process{PID: pid})
		if gone(err) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		open[pid] = fd
	}
	if len(open) > 0 {
		still, err := r.limits.processes(string(name))
		errs = append(errs, err)
		for _, pid := range still {
			if fd := open[pid]; fd != nil {
				errs = append(errs, signalFD(fd, sig))
			}
		}
	}
	for _, fd := range open {
		errs = append(errs, fd.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return pids, fmt.Errorf("signal jail %s: %w", name, err)
	}
	return pids, nil
}

// killLimit is how long Kill waits for the kernel to end what was killed.
const killLimit = 2 * time.Second

// Kill ends every process of the jail. Its first process takes all others of its process namespace along; what a
// killed runtime left outside of one is found in the control groups.
func (r *Runtime) Kill(ctx context.Context, name jail.Name, proc jail.Process) error {
	if err := r.o.check(name); err != nil {
		return err
	}
	return r.kill(ctx, name, proc)
}

func (r *Runtime) kill(ctx context.Context, name jail.Name, proc jail.Process) error {
	var failed error
	var left []int
	done := waitFor(ctx, killLimit, func() bool {
		killGroupV2(r.limits, string(name))
		left, failed = r.signalAll(name, proc, syscall.SIGKILL)
		if failed != nil {
			return false
		}
		r.collectOrphans()
		return len(left) == 0 && ended(proc)
	})
	switch {
	case failed != nil:
		return fmt.Errorf("kill jail %s: %w", name, failed)
	case !done:
		return fmt.Errorf("kill jail %s: processes %v are left: %w", name, left, jail.ErrBusy)
	}
	return nil
}

// ended reports whether a process runs no more. One that was not yet collected has ended as well.
func ended(proc jail.Process) bool {
	if proc.PID == 0 {
		return true
	}
	fd, err := pidfd(proc)
	if err != nil {
		return gone(err)
	}
	defer func() { _ = fd.Close() }()
	over := false
	err = control(fd, func(fd int) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		over = n == 1
		return err
	})
	return err == nil && over
}

// killGroupV2 ends a group of version 2 in one go, also one that forks faster than it can be listed. Where there is
// no such file the processes are ended one by one, which errors here need not prevent.
func killGroupV2(l *Limiter, name string) {
	for _, h := range l.hierarchies {
		if h.unified {
			_ = writeGroupText(l.group(h, name), "cgroup.kill", "1")
		}
	}
}

// Stop removes the runtime's state and the bundle. Processes that are left are ErrBusy.
func (r *Runtime) Stop(ctx context.Context, name jail.Name) error {
	if err := r.o.check(name); err != nil {
		return err
	}
	pids, err := r.limits.processes(string(name))
	if err != nil {
		return fmt.Errorf("stop jail %s: %w", name, err)
	}
	if len(pids) > 0 {
		return fmt.Errorf("stop jail %s: process %d is left: %w", name, pids[0], jail.ErrBusy)
	}
	if err := r.execs.End(ctx, name); err != nil {
		return fmt.Errorf("stop jail %s: %w", name, err)
	}
	r.mu.Lock()
	c := r.children[name]
	delete(r.children, name)
	r.mu.Unlock()
	if c != nil {
		if err := errors.Join(c.collect(), c.fd.Close()); err != nil {
			return fmt.Errorf("stop jail %s: %w", name, err)
		}
	}
	r.collectOrphans()
	if err := r.runtimeDelete(ctx, string(name)); err != nil {
		return fmt.Errorf("stop jail %s: %w", name, err)
	}
	// The state of crun, and of runc, is one folder: removing it is what their delete does once the processes and the
	// groups are gone, without the time to start them.
	if err := errors.Join(r.state.RemoveAll(string(name)), r.bundles.RemoveAll(string(name))); err != nil {
		return fmt.Errorf("stop jail %s: %w", name, err)
	}
	return nil
}

// runtimeDelete asks the runtime to clean up where the bundle says that it has to.
func (r *Runtime) runtimeDelete(ctx context.Context, name string) error {
	bundle, err := r.bundles.Folder(name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = bundle.Close() }()
	path, _, err := bundle.Read(bundleDelete, unix.PathMax)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	prog := newProgram(string(path))
	return r.execute(ctx, prog, "", prog.delete(r.state.Path(), bundle.Path(), name), [3]*os.File{}, bundle, "")
}

// List reports processes, runtime state and bundles of this installation.
func (r *Runtime) List(context.Context) ([]jail.HostResource, error) {
	r.collectOrphans() // what ended just after the last look at it would stay a zombie until the next jail
	var out []jail.HostResource
	var errs []error
	seen := map[int]bool{}
	for _, h := range r.limits.hierarchies {
		names, err := r.limits.names(h)
		errs = append(errs, err)
		for _, n := range names {
			pids, err := readPIDs(r.limits.group(h, string(n)))
			errs = append(errs, err)
			for _, pid := range pids {
				if !seen[pid] {
					seen[pid] = true
					out = append(out, jail.HostResource{Kind: jail.ResourceProcess, Name: n, Index: -1, ID: strconv.Itoa(pid)})
				}
			}
		}
	}
	states, err := jail.ResourcesIn(r.state, jail.ResourceRuntimeState, r.o.Installation)
	errs = append(errs, err)
	bundles, err := jail.ResourcesIn(r.bundles, jail.ResourceStaged, r.o.Installation)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("list what runs: %w", err)
	}
	return append(append(out, states...), bundles...), nil
}

// missing is the problem of a runtime that is not there or does not work.
func missing(err error, what string) error {
	return problem.Wrap(err, problem.RuntimeMissing, "install crun or runc, then look at `clawjail doctor`", "%s", what)
}
