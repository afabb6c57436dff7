package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

const (
	// eater fills one buffer of 64 MiB, four times its limit.
	eater = `read go || exit; exec dd if=/dev/zero of=/dev/null bs=67108864 count=1 2>/dev/null`
	// forker starts 64 processes, eight times its limit. All of them wait for the end of standard input, so that none
	// outlives the process that started them.
	forker = `read go || exit; exec 3<&0; i=0; while [ $i -lt 64 ]; do (read x <&3) & i=$((i+1)); done; wait`

	limitMemory = jail.MinMemory
	limitTasks  = 8
)

// tryLimits has a program eat memory, and another start processes, in groups that allow neither.
func (t *trial) tryLimits(ctx context.Context) (Facts, error) {
	limiter, err := t.limiter.get()
	if err != nil {
		return nil, err
	}
	facts := Facts{"version": limiter.Version()}
	if err := t.hit(ctx, 2, eater, jail.LimitMemory); err != nil {
		return facts, fmt.Errorf("have a program eat memory: %w", err)
	}
	if err := t.hit(ctx, 3, forker, jail.LimitTasks); err != nil {
		return facts, fmt.Errorf("have a program start processes: %w", err)
	}
	return facts, nil
}

// hit runs a script in a group of its own until the group says that the limit was hit.
func (t *trial) hit(ctx context.Context, number int, script string, want jail.LimitName) (err error) {
	limiter, err := t.limiter.get()
	if err != nil {
		return err
	}
	runtime, err := t.runtime.get()
	if err != nil {
		return err
	}
	name := t.name(number)
	limits := jail.Limits{Memory: limitMemory, MilliCPU: 1000, Tasks: limitTasks, Disk: jail.MinDisk, SharedMemory: jail.MinDisk,
		Files: jail.MinFiles, WallClock: time.Minute}
	if err := limiter.Apply(ctx, name, "", limits); err != nil {
		return err
	}
	undo := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, limiter.Remove(undo, name)) }()

	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = in.Close() // the program may have closed it by ending
		err = errors.Join(err, runtime.Kill(undo, name, jail.Process{}))
		_ = cmd.Process.Kill() // it may not have got as far as its group
		_ = cmd.Wait()         // it was killed, or waited for already
	}()
	if err := enter(ctx, limiter, name, cmd.Process.Pid); err != nil {
		return err
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return err
	}
	if want == jail.LimitMemory {
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
				return fmt.Errorf("it was not killed, and ended with %s", exit.ProcessState)
			}
		} else if err == nil {
			return errors.New("it ate four times its limit and lived")
		}
	}
	// A shell that cannot start a process tries again or gives up; the group has counted it in both cases.
	for {
		usage, err := limiter.Usage(ctx, name, jail.Process{})
		if err != nil {
			return err
		}
		if slices.Contains(usage.Hit, want) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the limit %s was not hit: %w", want, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// enter puts a process into the groups of a jail.
func enter(ctx context.Context, limiter *linux.Limiter, name jail.Name, pid int) error {
	resources, err := limiter.List(ctx)
	if err != nil {
		return err
	}
	entered := false
	for _, trace := range resources {
		if trace.Name != name {
			continue
		}
		entered = true
		if err := os.WriteFile(filepath.Join(trace.ID, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("enter a control group: %w", err)
		}
	}
	if !entered {
		return errors.New("enter a control group: there is none")
	}
	return nil
}
