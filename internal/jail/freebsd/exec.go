//go:build linux || freebsd

package freebsd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// A program that joins a jail that runs is started like the first one. Everything that it starts is found by the kernel: the
// host daemon is the reaper of what it starts (procctl(2), PROC_REAP_ACQUIRE), and each descendant remembers which of the
// reaper's children it comes from, whatever session it is in and whoever its parent has become. The limits are the jail's,
// for all together.
//
// A file <run>/jails/NAME/execs/<id> says that it was started. A host daemon that was killed is no reaper any more: the next
// one ends the program that the file names with its children as ps shows them. Processes that had left both are ended with the jail.

const (
	// execGrace is how long a program may take to end by itself when it is asked to.
	execGrace = 2 * time.Second
	// execCleanup bounds what is done after its end.
	execCleanup = 10 * time.Second
	// execMark is a variable that programs which joined begin with. Tests on other systems find their children by it.
	execMark = "CLAWJAIL_EXEC"
)

// execution is a program that joined a jail.
type execution struct {
	jail.Joined
	r  *Runtime
	id string
	*child
}

// Exec starts a program beside the first process of a jail.
func (r *Runtime) Exec(ctx context.Context, p jail.Placement, _ jail.Process, prog jail.Program, stdio [3]*os.File) (_ jail.Execution, err error) {
	if err := errors.Join(r.o.check(p.Name), ctx.Err()); err != nil {
		return nil, err
	}
	have, there, err := r.jails.find(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	if !there || have.dying {
		return nil, problem.New(problem.Conflict, "start it first", "jail %s does not run any more", p.Name)
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	x := &execution{r: r, id: hex.EncodeToString(b[:]), Joined: jail.Joined{Name: p.Name, Over: make(chan struct{})}}
	defer func() {
		if err != nil {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), execCleanup)
			defer cancel()
			err = errors.Join(fmt.Errorf("start a program in jail %s: %w", p.Name, jail.Shortage(err)), x.clean(clean))
		}
	}()
	own, err := r.folders.Folder(string(p.Name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }() // opened for reading
	marks, err := own.Ensure(marksFolder, 0o700, -1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = marks.Close() }()
	if err := marks.Create(x.id, nil, 0o600, -1); err != nil {
		return nil, err
	}
	if err := x.stage(own, prog, p.Spec.Kind.Home(), int(p.Profile.UID)); err != nil {
		return nil, err
	}
	if x.child, err = r.launch(ctx, p, execPlace+"/"+x.id+"/"+jail.StageLaunch, stdio, []string{execMark + "=" + x.id}); err != nil {
		return nil, err
	}
	pid := strconv.Itoa(x.proc.PID)
	if err := errors.Join(marks.Remove(x.id), marks.Create(x.id, []byte(pid), 0o600, -1)); err != nil {
		return nil, err
	}
	if err := r.joined(ctx, p, x.child, have.jid); err != nil {
		return nil, err
	}
	watching, end := context.WithCancel(context.Background()) // ended by End, or by the program
	x.Stop = end
	r.execs.Add(&x.Joined)
	r.working.Go(func() { x.watch(watching) })
	return x, nil
}

// stage writes what the program is started by, where the jail can only read it.
func (x *execution) stage(own *safepath.Folder, prog jail.Program, home string, uid int) (err error) {
	all, err := own.Folder(execFolder)
	if err != nil {
		return err
	}
	defer func() { _ = all.Close() }() // opened for reading
	dir, err := all.Ensure(x.id, 0o700, -1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return errors.Join(
		dir.Create(jail.StageEnv, prog.EnvScript(), 0o400, uid),
		dir.Create(jail.StageLaunch, prog.ExecScript(execPlace+"/"+x.id, home), 0o500, uid),
		dir.Own(uid, 0o700))
}

// joined compares the program's process with the jail's profile, as far as it can differ from the first one's.
func (r *Runtime) joined(ctx context.Context, p jail.Placement, c *child, jid int) error {
	seen, err := r.arrived(ctx, p, c.proc, jid)
	if c.ended() || gone(err) {
		return nil // at its end already
	}
	if err != nil {
		return err
	}
	var o jail.Observed
	identify(&o, seen, jid)
	if err := r.limits.enforced(ctx, p.Name, &o); err != nil {
		return err
	}
	want := p.Profile
	want.Tmpfs, want.Binds, want.ReadOnlyRoot = nil, nil, false // of the mounts, which it shares
	if diff := want.Compare(o); len(diff) > 0 && !c.ended() {
		return problem.New(problem.JailUnconfined, "`clawjail doctor` shows what this host can enforce",
			"the program is not confined as declared: %s", strings.Join(diff, "; "))
	}
	return nil
}

// watch waits for the end of the program, or ends it, and with it everything that it started.
func (x *execution) watch(ending context.Context) {
	defer close(x.Over)
	ctx := context.Background()
	x.Exit = jail.Exit{Cause: jail.CauseExited}
	select {
	case <-x.done:
	case <-ending.Done():
		x.Exit.Cause = jail.CauseDestroyed
		if members, err := x.members(); err == nil {
			for _, pid := range members {
				_ = sendSignal(pid, syscall.SIGTERM) // what does not listen is killed
			}
		}
		waitFor(ctx, execGrace, func() bool {
			members, err := x.members()
			return err == nil && len(members) == 0
		})
	}
	ctx, cancel := context.WithTimeout(ctx, execCleanup)
	defer cancel()
	x.Err = x.clean(ctx)
	if x.child.ended() {
		x.Exit.Code, x.Exit.Signal = x.code, x.signal
	} else {
		x.Exit.Code = -1
	}
	x.Exit.At = x.r.now()
	x.Stop()
	x.r.execs.Remove(&x.Joined)
}

// members are the processes that come from the program, itself included while it runs.
func (x *execution) members() ([]int, error) {
	out, err := descendants(x.proc.PID, x.id)
	if err == nil && !x.child.ended() {
		out = append(out, x.proc.PID)
	}
	return out, err
}

// clean ends what is left of a program that may have been started only half, and removes what was staged for it.
func (x *execution) clean(ctx context.Context) error {
	var errs []error
	if x.child != nil {
		var failed error
		if !waitFor(ctx, killLimit, func() bool {
			var members []int
			if members, failed = x.members(); failed != nil {
				return false
			}
			for _, pid := range members {
				failed = errors.Join(failed, sendSignal(pid, syscall.SIGKILL))
			}
			return failed == nil && len(members) == 0
		}) {
			errs = append(errs, fmt.Errorf("processes of a program in jail %s are left: %w", x.Name, errors.Join(failed, jail.ErrBusy)))
		}
	}
	return errors.Join(append(errs, x.r.unstage(x.Name, x.id, len(errs) == 0))...)
}

// unstage removes what a program was started by, and its mark when everything of it has ended.
func (r *Runtime) unstage(name jail.Name, id string, forget bool) error {
	own, err := r.folders.Folder(string(name))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }() // opened for reading
	var errs []error
	for folder, remove := range map[string]bool{execFolder: true, marksFolder: forget} {
		dir, err := own.Folder(folder)
		if gone(err) || !remove && err == nil {
			if dir != nil {
				errs = append(errs, dir.Close())
			}
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, busy(dir.RemoveAll(id)), dir.Close())
	}
	return errors.Join(errs...)
}

// endStale ends the programs that a host daemon had started in jails and that it did not live to end: their stdio has no
// reader any more. It is called before there are others. A program that cannot be ended keeps its mark, and ends with its jail.
func (r *Runtime) endStale(ctx context.Context) error {
	all, err := jail.ResourcesIn(r.folders, jail.ResourceStaged, r.o.Installation)
	if err != nil {
		return err
	}
	for _, t := range all {
		marks, err := r.folders.Folder(string(t.Name) + "/" + marksFolder)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		ids, err := marks.Names(-1)
		if err := errors.Join(err, marks.Close()); err != nil {
			return err
		}
		for _, id := range ids {
			if err := r.endOne(ctx, t.Name, id); err != nil {
				r.o.Log.Error("end a program that an earlier host daemon has started", "jail", t.Name, "error", err)
			} else {
				r.o.Log.Info("ended a program that an earlier host daemon has started", "jail", t.Name)
			}
		}
	}
	return nil
}

func (r *Runtime) endOne(ctx context.Context, name jail.Name, id string) error {
	text, err := os.ReadFile(r.folders.Path() + "/" + string(name) + "/" + marksFolder + "/" + id)
	if err != nil {
		return err
	}
	first, err := strconv.Atoi(string(text))
	if err != nil || first <= 1 {
		return r.unstage(name, id, true) // it was not started
	}
	var failed error
	if !waitFor(ctx, killLimit, func() bool {
		var all []process
		if all, failed = r.jails.processes(ctx, name); failed != nil {
			return false
		}
		left := familyOf(all, first)
		for _, pid := range left {
			failed = errors.Join(failed, sendSignal(pid, syscall.SIGKILL))
		}
		return failed == nil && len(left) == 0
	}) {
		return errors.Join(failed, jail.ErrBusy)
	}
	return r.unstage(name, id, true)
}

// familyOf is a process of a jail with its children and theirs.
func familyOf(all []process, first int) []int {
	in := map[int]bool{first: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.ppid] && !in[p.pid] {
				in[p.pid], grown = true, true
			}
		}
	}
	var out []int
	for _, p := range all {
		if in[p.pid] {
			out = append(out, p.pid)
		}
	}
	return out
}
