package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail/linux"
)

// tryUserNamespace starts a program in new user, process and network namespaces, from a thread that has become the
// given user and has no rights left. The network namespace is what tells a kernel that hands out user namespaces
// without any right in them, as AppArmor makes it on Ubuntu.
func tryUserNamespace(ctx context.Context, uid uint32) error {
	// A change of user makes the process one that its own user may not look into.
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("look at this process: %w", err)
	}
	err = linux.OnDiscardedThread(func() error {
		if err := becomeUser(uid); err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
		cmd := exec.CommandContext(ctx, "/bin/true")
		cmd.Dir, cmd.Env = "/", []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET}
		if err := cmd.Start(); err != nil {
			return err
		}
		// The start is the proof, so ECHILD is fine: a runtime that another check tries collects what ends in a process namespace of its own.
		if err := cmd.Wait(); !errors.Is(err, unix.ECHILD) {
			return err
		}
		return nil
	})
	if dumpable == 1 {
		err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	}
	return err
}

// becomeUser changes the calling thread alone, which the functions of Go's packages for it do not.
func becomeUser(uid uint32) error {
	if unix.Geteuid() == int(uid) {
		return nil
	}
	id := uintptr(uid)
	for _, call := range []struct{ number, a, b, c uintptr }{
		{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, errno := unix.RawSyscall(call.number, call.a, call.b, call.c); errno != 0 {
			return errno
		}
	}
	return nil
}
