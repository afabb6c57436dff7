package freebsd

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The constants of sys/procctl.h, whose structures are part of the kernel's interface. They are not verified on a real host.
const (
	pPID           = 0 // idtype P_PID (sys/wait.h)
	reapAcquire    = 2 // PROC_REAP_ACQUIRE
	reapGetPIDs    = 5 // PROC_REAP_GETPIDS
	reaperValid    = 1 // REAPER_PIDINFO_VALID
	reaperChild    = 2 // REAPER_PIDINFO_CHILD
	reaperZombie   = 8 // REAPER_PIDINFO_ZOMBIE
	maxDescendants = 1 << 16
)

type reaperPIDInfo struct {
	pid, subtree int32
	flags        uint32
	_            [15]uint32
}

type reaperPIDs struct {
	count uint32
	_     [15]uint32
	pids  *reaperPIDInfo
}

func procctl(command int, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_PROCCTL, pPID, uintptr(os.Getpid()), uintptr(command), uintptr(data), 0, 0)
	if errno != 0 {
		return fmt.Errorf("procctl: %w", errno)
	}
	return nil
}

// becomeReaper makes this process the parent of what its children leave. That it is one already is fine.
func becomeReaper() error {
	if err := procctl(reapAcquire, nil); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// descendants are the processes that come from a child of this one, the child not included.
func descendants(child int, _ string) ([]int, error) {
	all, err := reaped()
	var out []int
	for _, p := range all {
		if int(p.subtree) == child && int(p.pid) != child && p.flags&reaperZombie == 0 {
			out = append(out, int(p.pid))
		}
	}
	return out, err
}

// collectOrphans takes what has ended of the processes that became this one's children: one that nobody has collected
// counts as a task of its jail, and keeps the jail dying. A child that this process itself has started is its own subtree,
// and is waited for by whoever started it.
func collectOrphans() {
	all, err := reaped()
	if err != nil {
		return // asked again with the next that ends
	}
	for _, p := range all {
		if p.flags&reaperChild != 0 && p.flags&reaperZombie != 0 && p.subtree != p.pid {
			_, _ = unix.Wait4(int(p.pid), nil, unix.WNOHANG, nil) // somebody may have been first
		}
	}
}

// watchOrphans collects orphans whenever a child of this process ends, until it is stopped.
func watchOrphans() (stop func()) {
	ended, over := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		defer close(over)
		for range ended {
			collectOrphans()
		}
	}()
	return func() {
		signal.Stop(ended)
		close(ended)
		<-over
	}
}

// reaped lists everything that this process is the reaper of.
func reaped() ([]reaperPIDInfo, error) {
	for size := 256; ; size *= 2 {
		buf := make([]reaperPIDInfo, size)
		request := reaperPIDs{count: uint32(size), pids: &buf[0]}
		if err := procctl(reapGetPIDs, unsafe.Pointer(&request)); err != nil {
			return nil, err
		}
		n := 0
		for n < size && buf[n].flags&reaperValid != 0 {
			n++
		}
		if n < size || size >= maxDescendants {
			return buf[:n], nil
		}
	}
}
