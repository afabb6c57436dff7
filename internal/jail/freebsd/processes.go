//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// process is what ps(1) says of one.
type process struct {
	pid, ppid        int
	uid, ruid, svuid uint32
	gid, rgid, svgid uint32
	jid              int
	flags2           uint64
	state            string
	age              time.Duration // in whole seconds
}

// noNewPrivs is P2_NO_NEW_PRIVS of sys/proc.h, which ps shows among the second flags. chroot -n sets it for good.
const noNewPrivs = 0x8000

// columns are asked for one by one: what follows a header is part of it (bin/ps/keyword.c, parsefmt).
func columns() []string {
	var args []string
	for _, c := range []string{"pid", "ppid", "uid", "ruid", "svuid", "gid", "rgid", "svgid", "jid", "f2", "state", "etimes"} {
		args = append(args, "-o", c+"=")
	}
	return args
}

// processes lists those of a jail. One that is not there has none.
func (j *jails) processes(ctx context.Context, name jail.Name) ([]process, error) {
	out, err := j.ps(ctx, "-J", string(name))
	if err == nil {
		return out, nil
	}
	// ps does not know a jail that is gone, or that is dying and has no processes.
	if p, there, lookErr := j.find(ctx, name); lookErr == nil && (!there || p.dying) {
		return nil, nil
	}
	return nil, err
}

// process looks at one. os.ErrProcessDone when it is not there.
func (j *jails) process(ctx context.Context, pid int) (process, error) {
	out, err := j.ps(ctx, "-p", strconv.Itoa(pid))
	if err == nil && len(out) == 0 {
		err = os.ErrProcessDone
	}
	if err != nil {
		return process{}, err
	}
	return out[0], nil
}

func (j *jails) ps(ctx context.Context, args ...string) ([]process, error) {
	text, err := j.run.Run(ctx, "ps", append(args, columns()...)...)
	var f *hostcmd.Failure
	if errors.As(err, &f) && f.Code == 1 && strings.TrimSpace(f.Stderr) == "" && strings.TrimSpace(text) == "" {
		return nil, nil // that is how ps says that there are none
	}
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []process
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		p, err := parseProcess(line)
		if err != nil {
			return nil, fmt.Errorf("list processes: ps says %q: %w", line, err)
		}
		if !strings.HasPrefix(p.state, "Z") { // it has ended, and waits for its parent
			out = append(out, p)
		}
	}
	return out, nil
}

func parseProcess(line string) (process, error) {
	var p process
	f := strings.Fields(line)
	if len(f) != 12 {
		return p, errors.New("not 12 columns")
	}
	var errs []error
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		errs = append(errs, err)
		return n
	}
	id := func(s string) uint32 {
		n, err := strconv.ParseUint(s, 10, 32)
		errs = append(errs, err)
		return uint32(n)
	}
	p.pid, p.ppid, p.jid = number(f[0]), number(f[1]), number(f[8])
	p.uid, p.ruid, p.svuid = id(f[2]), id(f[3]), id(f[4])
	p.gid, p.rgid, p.svgid = id(f[5]), id(f[6]), id(f[7])
	flags, err := strconv.ParseUint(f[9], 16, 64)
	errs = append(errs, err)
	p.flags2, p.state, p.age = flags, f[10], time.Duration(number(f[11]))*time.Second
	if p.pid <= 0 {
		errs = append(errs, errors.New("no process"))
	}
	return p, errors.Join(errs...)
}

// started tells a process from a later one of its number: the second in which it began.
func (p process) started(now time.Time) uint64 { return uint64(now.Add(-p.age).Unix()) }

// is reports whether it is the process that was meant. Ages are rounded, and clocks are set.
func (p process) is(want jail.Process, now time.Time) bool {
	if want.Started == 0 {
		return p.pid == want.PID
	}
	diff := int64(p.started(now)) - int64(want.Started)
	return p.pid == want.PID && diff >= -2 && diff <= 2
}

// sendSignal signals a process that ps has just named. One that has ended is none.
func sendSignal(pid int, sig syscall.Signal) error {
	if pid <= 1 {
		return fmt.Errorf("process %d is not signalled", pid)
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// killLimit is how long the kernel may take to end what was killed.
const killLimit = 2 * time.Second

// kill ends every process of a jail, also one that forks faster than it can be listed in one go. ErrBusy when some are left.
func (j *jails) kill(ctx context.Context, name jail.Name) error {
	var failed error
	var left []process
	done := waitFor(ctx, killLimit, func() bool {
		if left, failed = j.processes(ctx, name); failed != nil {
			return false
		}
		for _, p := range left {
			failed = errors.Join(failed, sendSignal(p.pid, syscall.SIGKILL))
		}
		return failed == nil && len(left) == 0
	})
	switch {
	case failed != nil:
		return fmt.Errorf("kill jail %s: %w", name, failed)
	case !done && ctx.Err() != nil:
		return ctx.Err()
	case !done:
		return fmt.Errorf("kill jail %s: %d processes are left: %w", name, len(left), jail.ErrBusy)
	}
	return nil
}
