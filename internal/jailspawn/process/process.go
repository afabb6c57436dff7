// Package process holds a program that runs in a jail: it starts it with the stdio that it is given, and ends it together with
// everything that it started, also when that is root's and this process is not.
//
// This process becomes the parent of every orphan among its descendants, so that none gets away by leaving its parent or its
// process group; and what is left is killed from inside the jail, by the same way in as the program itself came.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jailspawn/command"
)

const (
	// patience is how long the end of everything may take.
	patience = 30 * time.Second
	// outputs is how long the outputs of a program are waited for that has ended, when somebody else holds them open.
	outputs = 2 * time.Second
	// gentle is how many rounds go by before the command that a program was started with is killed itself: first it shall
	// see its program end, and say so.
	gentle = 3
	// notMounted is what umount(8) says of a folder on which nothing is mounted.
	notMounted = "not a file system root directory"
)

// Exit is how a program ended.
type Exit struct {
	Code   int
	Signal syscall.Signal // 0 for none
}

// Held is a program and the ways to end it.
type Held struct {
	// Jail is the jail that it runs in.
	Jail string
	// Ephemeral is set when the jail is the program's own, and goes with it.
	Ephemeral *command.Ephemeral
	// Run runs a command with the right to enter jails.
	Run func(ctx context.Context, argv []string) error
	// Commands are those of the host that need no such right.
	Commands hostcmd.Runner
}

// Hold starts a prepared command and waits for its end. When ctx ends first, it is ended. In the end nothing that it started
// is left; an error says when that could not be done.
//
// The program leads a session of its own: signals of the caller's terminal do not reach it, nor can it type into one.
func (h Held) Hold(ctx context.Context, cmd *exec.Cmd) (Exit, error) {
	if err := AdoptOrphans(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return Exit{}, fmt.Errorf("become the parent of orphans: %w", err)
	}
	before, err := h.descendants(ctx)
	if err != nil {
		return Exit{}, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = outputs
	if err := cmd.Start(); err != nil {
		return Exit{}, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
		done <- err
	case <-ctx.Done():
	}
	// The program's end is not the end of what is to be done, whatever ctx says.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err = h.end(ending, cmd, done, before)
	exit := exitOf(cmd.ProcessState)
	if err == nil && h.Ephemeral != nil {
		err = h.unmount(ending, exit)
	}
	return exit, err
}

// unmount unmounts the devices of an ephemeral jail. jail(8) does it only when the program failed, as its own status says.
func (h Held) unmount(ctx context.Context, exit Exit) error {
	if exit.Code != 0 && exit.Signal == 0 {
		return nil
	}
	err := h.Run(ctx, h.Ephemeral.Unmount())
	if exit.Signal != 0 && hostcmd.Says(err, notMounted) {
		return nil // it was killed before it had mounted them, or after it had unmounted them
	}
	return err
}

func exitOf(state *os.ProcessState) Exit {
	if state == nil {
		return Exit{Code: -1}
	}
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return Exit{Code: -1, Signal: w.Signal()}
	}
	return Exit{Code: state.ExitCode()}
}

// end kills until nothing is left.
func (h Held) end(ctx context.Context, cmd *exec.Cmd, done <-chan error, before []int) error {
	over := false
	pause := 10 * time.Millisecond
	for round := 0; ; round++ {
		select {
		case <-done: // what Wait says is in the command's state, or that an output was held open by what is ended here
			over = true
		default:
		}
		left, err := h.descendants(ctx, before...)
		if err != nil {
			return err
		}
		if len(left) == 0 && over {
			return nil
		}
		switch {
		case len(left) == 0: // only what is copied is waited for
		case h.Ephemeral != nil:
			err = h.Run(ctx, command.Remove(h.Jail))
		default:
			err = h.Run(ctx, command.End(h.Jail, left))
		}
		if round >= gentle && !over {
			err = errors.Join(err, cmd.Process.Kill())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes of the program are left in the jail %s: %w", len(left), h.Jail, errors.Join(err, ctx.Err()))
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// descendants are the processes that descend from this one and run, but for some.
func (h Held) descendants(ctx context.Context, not ...int) ([]int, error) {
	argv := command.Processes()
	cmd, err := h.Commands.Command(ctx, argv[0], argv[1:]...)
	if err != nil {
		return nil, err
	}
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return command.Descendants(string(text), os.Getpid(), append(not, cmd.Process.Pid)...), nil
}
