//go:build linux

package linux

import (
	"errors"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// Processes that a runtime leaves become children of this process once BecomeSubreaper was called: the jail's first process,
// which it waits for, and others that are only to be collected when they have ended. crun leaves one with every
// jail, between itself and the first process; one that is killed half-way leaves whatever it had started.

// collectOrphans collects ended children that nobody else waits for. They are told by the runtime's name, which a
// process keeps until it is collected, or by their process namespace. Other children are left to whatever in this
// process has started them.
func (r *Runtime) collectOrphans() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		pid, ok := endedChild()
		if !ok || r.running[pid] {
			return
		}
		if c := r.childWithPID(pid); c != nil {
			if _, _, done := c.status(); done || c.collect() != nil {
				return // collected between the two looks, or not to be had: not this one's to insist
			}
			continue
		}
		orphan, first := r.orphan(pid)
		if !orphan || first && len(r.starting) > 0 {
			return // the first process of a jail that is being started: Start takes its status
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil {
			return
		}
	}
}

func (r *Runtime) childWithPID(pid int) *child {
	for _, c := range r.children {
		if c.proc.PID == pid {
			return c
		}
	}
	return nil
}

// orphan reports whether an ended child was the runtime's or a jail's, and whether it may be the first process of a
// jail: those are in a process namespace of their own.
func (r *Runtime) orphan(pid int) (orphan, first bool) {
	p, err := openProcess(jail.Process{PID: pid})
	if err != nil {
		return false, false
	}
	defer p.Close()
	comm, err := p.read("comm")
	if err != nil {
		return false, false
	}
	name, _, _ := strings.Cut(strings.TrimSpace(string(comm)), ":") // "runc:[2:INIT]"
	theirs, err1 := p.namespace("pid")
	own, err2 := os.Readlink("/proc/self/ns/pid")
	known := err1 == nil && err2 == nil
	// Nothing but jails is started in a process namespace of its own: a first process whose runtime was killed before it
	// could name it is told by that, whatever it has become.
	return name == RuntimeCrun || name == RuntimeRunc || name == RuntimeRunsc || known && theirs != own, !known || theirs != own
}

// endedChild is a child that has ended and was not collected, which it stays.
func endedChild() (pid int, ok bool) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || info.Signo == 0 {
			return 0, false
		}
		// The process follows three numbers of 32 bits, aligned to a pointer: siginfo_t in sigaction(2).
		const pointer = unsafe.Sizeof(uintptr(0))
		const offset = (3*unsafe.Sizeof(int32(0)) + pointer - 1) &^ (pointer - 1)
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), offset))), true
	}
}
