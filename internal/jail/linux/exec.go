//go:build linux

package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// A program that joins a jail that runs is started by the runtime like the first one: as the same user, with the same
// filter and without any more rights. It runs in a control group of its own inside the jail's, by which everything that it
// starts is found and ended, also what has left its session and its parents. The limits are the jail's, for all together.
//
// A folder of the bundle, execs/<id>, says that it was started. Programs that a killed host daemon leaves are ended by the next.

const (
	bundleExecs   = "execs"   // <id>/: one folder for each program that joined
	bundleRuntime = "runtime" // the path of the runtime that has started the jail
	execProcess   = "process.json"
	// execGroup begins the name of its control group.
	execGroup = "exec-"
	// execGrace is how long a program may take to end by itself when it is asked to.
	execGrace = 2 * time.Second
	// execCleanup bounds what is done after its end.
	execCleanup = 10 * time.Second
)

// execution is a program that joined a jail. Its group takes the place of a jail's name in what is kept of processes.
type execution struct {
	jail.Joined
	r     *Runtime
	id    string
	group jail.Name // <jail>/exec-<id>
	proc  jail.Process
	stage *safepath.Folder // in the jail, holds the folder <id>
	// staged is set when that folder is the one that was made for it.
	staged bool
}

// Exec starts a program beside the first process of a jail.
func (r *Runtime) Exec(ctx context.Context, p jail.Placement, proc jail.Process, prog jail.Program, stdio [3]*os.File) (_ jail.Execution, err error) {
	if err := errors.Join(r.o.check(p.Name), ctx.Err(), r.hasAppArmor(p.Profile.AppArmor)); err != nil {
		return nil, err
	}
	x := &execution{r: r, id: r.newID(), Joined: jail.Joined{Name: p.Name, Over: make(chan struct{})}}
	x.group = p.Name + "/" + jail.Name(execGroup+x.id)
	defer func() {
		if err != nil {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), execCleanup)
			defer cancel()
			err = errors.Join(fmt.Errorf("start a program in jail %s: %w", p.Name, jail.Shortage(err)), x.clean(clean))
		}
	}()
	bundle, err := x.mark()
	if err != nil {
		return nil, err
	}
	defer func() { _ = bundle.Close() }() // opened for reading
	runtime, err := r.startedWith(p.Name)
	if err != nil {
		return nil, err
	}
	home := p.Spec.Kind.Home()
	var folder string
	if x.stage, folder, err = r.openStage(p.Name, proc, int(p.Profile.Host)); err != nil {
		return nil, err
	}
	at := filepath.Join(folder, x.id)
	if err := x.stageProgram(prog, at, home, int(p.Profile.Host)); err != nil {
		if r.o.StageDir != "" {
			err = full(err)
		}
		return nil, err
	}
	process := r.process(p.Profile, filepath.Join(at, jail.StageLaunch))
	if r.amendExec != nil {
		r.amendExec(process)
	}
	text, err := json.Marshal(process)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(bundle.Create(execProcess, text, 0o400, -1), r.limits.divide(string(x.group))); err != nil {
		return nil, err
	}
	if err := r.join(ctx, runtime, p, x, bundle, stdio); err != nil {
		return nil, err
	}
	if err := r.joined(ctx, p, proc, x.proc); err != nil {
		return nil, err
	}
	watching, end := context.WithCancel(context.Background()) // ended by End, or by the program
	x.Stop = end
	r.execs.Add(&x.Joined)
	go x.watch(watching)
	return x, nil
}

// mark makes the folder that says that there is, or was, such a program.
func (x *execution) mark() (*safepath.Folder, error) {
	jailBundle, err := x.r.bundles.Folder(string(x.Name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = jailBundle.Close() }() // opened for reading
	all, err := jailBundle.Ensure(bundleExecs, 0o700, -1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = all.Close() }()
	if err := all.Make(x.id, 0o700, -1); err != nil {
		return nil, err
	}
	return all.Folder(x.id)
}

// startedWith is the runtime that knows the jail.
func (r *Runtime) startedWith(name jail.Name) (*program, error) {
	path, _, err := r.bundles.Read(filepath.Join(string(name), bundleRuntime), unix.PathMax)
	if err != nil {
		return nil, err
	}
	p := newProgram(string(path))
	if p.kind == RuntimeRunsc {
		return nil, problem.New(problem.Unsupported, "set runtime to crun or runc", "no program can join a jail of runsc")
	}
	return p, nil
}

// join has the runtime start the program, and takes over its process.
func (r *Runtime) join(ctx context.Context, prog *program, p jail.Placement, x *execution, bundle *safepath.Folder, stdio [3]*os.File) error {
	if err := r.setStarting(x.group); err != nil {
		return err
	}
	defer func() {
		r.mu.Lock()
		delete(r.starting, x.group)
		r.mu.Unlock()
		r.collectOrphans()
	}()
	args := prog.exec(r.state.Path(), bundle.Path(), string(p.Name), execGroup+x.id, r.limits.Version())
	// A process that is moved into a group is not counted against its limit, only those that are forked in it.
	full := problem.New(problem.LimitTasks, "end something in it, or give it more tasks", "jail %s has as many tasks as it may have", p.Name)
	if r.limits.full(string(p.Name)) {
		return full
	}
	refused := r.limits.refusals(string(p.Name))
	if err := r.execute(ctx, prog, x.group, args, stdio, bundle, network(p)); err != nil {
		if r.limits.refusals(string(p.Name)) > refused {
			return errors.Join(full, err)
		}
		return problem.Wrap(err, problem.JailFailed, "see whether its program still runs", "%s did not start the program", filepath.Base(prog.path))
	}
	var err error
	x.proc, err = r.adopt(ctx, x.group, bundle)
	return err
}

// joined compares the program's process with the jail's profile and with its first process, as far as they can differ.
func (r *Runtime) joined(ctx context.Context, p jail.Placement, first, proc jail.Process) error {
	pr, err := openProcess(proc)
	if gone(err) {
		return nil // at its end already
	}
	if err != nil {
		return err
	}
	defer pr.Close()
	waitFor(ctx, startLimit, func() bool {
		var inside bool
		inside, err = pr.runsFromItsRoot()
		return inside || err != nil || pr.ended()
	})
	var o jail.Observed
	if err == nil {
		err = errors.Join(pr.endFirst(), pr.identity(&o), pr.namespaces(&o), pr.resources(&o))
	}
	if err == nil && p.Profile.AppArmor != "" {
		err = pr.underAppArmor(r.o.Installation, &o)
	}
	if err == nil {
		o.Memory, o.MilliCPU, o.Tasks, err = r.limits.enforced(string(p.Name), proc.PID)
	}
	// One that is just ending has no namespaces any more, and is not yet said to have ended.
	if pr.ended() || gone(err) && waitFor(ctx, startLimit, pr.ended) {
		return nil
	}
	if err != nil {
		return err
	}
	want := p.Profile
	want.Tmpfs, want.Binds, want.ReadOnlyRoot = nil, nil, false // of the mounts, which it shares
	diff := append(want.Compare(o), pr.apart(first)...)
	if len(diff) > 0 && !pr.ended() {
		return problem.New(problem.JailUnconfined, "`clawjail doctor` shows what this host can enforce",
			"the program is not confined as declared: %s", strings.Join(diff, "; "))
	}
	return nil
}

// endFirst makes the kernel end the process before others of the host. crun sets that for the first of a jail only.
func (p *process) endFirst() error {
	fd, err := unix.Openat(int(p.dir.Fd()), "oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.failed("oom_score_adj", err)
	}
	_, err = unix.Write(fd, []byte(strconv.Itoa(oomScore)))
	return errors.Join(err, unix.Close(fd))
}

// apart lists the namespaces that a process does not have in common with the first of its jail.
func (p *process) apart(first jail.Process) (diff []string) {
	in, err := openProcess(first)
	if err != nil {
		return nil // the jail is ending
	}
	defer in.Close()
	for _, kind := range []string{"pid", "mnt", "net", "ipc", "uts", "cgroup", "user"} {
		a, err1 := p.namespace(kind)
		b, err2 := in.namespace(kind)
		if err1 == nil && err2 == nil && a != b {
			diff = append(diff, "it is in another "+kind+" namespace than the jail")
		}
	}
	return diff
}

// watch waits for the end of the program, or ends it, and with it everything that it started.
func (x *execution) watch(ending context.Context) {
	defer close(x.Over)
	code, signal, err := x.r.Wait(ending, x.group, x.proc)
	ctx, cancel := context.WithTimeout(context.Background(), execGrace+execCleanup)
	defer cancel()
	x.Exit = jail.Exit{Cause: jail.CauseExited}
	if ending.Err() != nil {
		x.Exit.Cause = jail.CauseDestroyed
		_, err = x.r.signalAll(x.group, x.proc, syscall.SIGTERM)
		waitFor(ctx, execGrace, func() bool {
			left, err := x.r.limits.processes(string(x.group))
			return err == nil && len(left) == 0
		})
	}
	if x.r.limits.refusals(string(x.group)) > 0 {
		x.Exit.Hit = append(x.Exit.Hit, jail.LimitTasks)
	}
	err = errors.Join(err, x.r.kill(ctx, x.group, x.proc))
	if ending.Err() != nil {
		var werr error
		code, signal, werr = x.r.Wait(ctx, x.group, x.proc)
		err = errors.Join(err, werr)
	}
	x.Exit.Code, x.Exit.Signal, x.Exit.At = code, signal, x.r.now()
	x.Err = errors.Join(err, x.clean(ctx))
	x.Stop()
	x.r.execs.Remove(&x.Joined)
}

// clean removes everything of a program that may have been started only half.
func (x *execution) clean(ctx context.Context) error {
	var errs []error
	if x.stage != nil {
		if x.staged {
			errs = append(errs, unstage(x.stage, x.id))
		}
		errs = append(errs, x.stage.Close())
		x.stage = nil
	}
	errs = append(errs, x.r.kill(ctx, x.group, x.proc))
	x.r.mu.Lock()
	c := x.r.children[x.group]
	delete(x.r.children, x.group)
	x.r.mu.Unlock()
	if c != nil {
		errs = append(errs, c.collect(), c.fd.Close())
	}
	errs = append(errs, x.r.limits.remove(ctx, string(x.group)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up after a program in jail %s: %w", x.Name, err) // the mark stays for the next daemon
	}
	return x.r.unmark(x.Name, x.id)
}

func (r *Runtime) unmark(name jail.Name, id string) error {
	all, err := r.bundles.Folder(filepath.Join(string(name), bundleExecs))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(all.RemoveAll(id), all.Close())
}

// process is how every program in a jail is confined by the runtime.
func (r *Runtime) process(prof jail.Profile, launch string) *specs.Process {
	files, oom, umask := fileLimit(prof.Limits.Files), oomScore, uint32(0o077)
	return &specs.Process{
		User:            specs.User{UID: prof.UID, GID: prof.GID, Umask: &umask},
		Args:            []string{"/bin/sh", launch},
		Env:             []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
		Cwd:             "/",
		Capabilities:    &specs.LinuxCapabilities{Bounding: prof.Capabilities},
		NoNewPrivileges: prof.NoNewPrivileges,
		OOMScoreAdj:     &oom,
		ApparmorProfile: r.appArmor(prof.AppArmor),
		Rlimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Hard: files, Soft: files},
			{Type: "RLIMIT_CORE", Hard: CoreLimit, Soft: CoreLimit},
		},
	}
}
