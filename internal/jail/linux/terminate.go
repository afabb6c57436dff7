//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// Terminate asks every process of the jail to end.
//
// The first process of a namespace never gets a signal that it has no handler for (pid_namespaces(7)), so a jail in which
// nobody handles SIGTERM would not end by it. There is nothing to wait for then: its first process is killed, and the
// others, for whom the signal is the end anyway, go with it.
//
// The program of the jail, which the first process waits for, is spared as if it were the first, so that a shell which handles
// nothing lives as long as what it waits for.
func (r *Runtime) Terminate(ctx context.Context, name jail.Name, proc jail.Process) error {
	if err := errors.Join(r.o.check(name), ctx.Err()); err != nil {
		return err
	}
	// Before anybody is asked: a handler may be for the first time only. One that only blocks the signal may wait for it, or
	// be about to start another, as shells and libraries do for a moment: then it is not known yet whether to spare it.
	caught, blocked, spared := r.handled(name, proc, syscall.SIGTERM)
	if blocked {
		waitFor(ctx, 200*time.Millisecond, func() bool {
			caught, blocked, spared = r.handled(name, proc, syscall.SIGTERM)
			return !blocked
		})
	}
	if _, err := r.signalAll(name, proc, syscall.SIGTERM, spared...); err != nil || caught || blocked || proc.PID == 0 {
		return err
	}
	fd, err := pidfd(proc)
	if err == nil {
		err = errors.Join(signalFD(fd, syscall.SIGKILL), fd.Close())
	}
	if err != nil && !gone(err) {
		return fmt.Errorf("kill the first process of jail %s: %w", name, err)
	}
	return nil
}

// handled reports whether a process of the jail does something of its own when it gets a signal: it has a handler, or blocks
// it, which is how it is waited for by sigwait(3) and signalfd(2). A process that cannot be read counts as one that has a handler. waiting are the children of
// the first process that do neither.
func (r *Runtime) handled(name jail.Name, first jail.Process, sig syscall.Signal) (caught, blocked bool, waiting []int) {
	pids, err := r.limits.processes(string(name))
	if err != nil {
		return true, false, nil
	}
	all := []jail.Process{first}
	for _, pid := range pids {
		if pid != first.PID {
			all = append(all, jail.Process{PID: pid})
		}
	}
	for _, proc := range all {
		if proc.PID == 0 {
			continue
		}
		text, err := statusOf(proc)
		if gone(err) {
			continue
		}
		catches, blocks := err != nil || hasSignal(text, "SigCgt", sig), err == nil && hasSignal(text, "SigBlk", sig)
		if !catches && !blocks && statusField(text, "PPid") == strconv.Itoa(first.PID) {
			waiting = append(waiting, proc.PID)
		}
		caught, blocked = caught || catches, blocked || blocks
	}
	return caught, blocked, waiting
}

func statusOf(proc jail.Process) ([]byte, error) {
	p, err := openProcess(proc)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.read("status")
}

// hasSignal reads one of the sets of signals in /proc/<pid>/status. One that is not understood has all.
func hasSignal(status []byte, field string, sig syscall.Signal) bool {
	set, err := strconv.ParseUint(statusField(status, field), 16, 64)
	return err != nil || set&(1<<(sig-1)) != 0
}
