//go:build linux

package linux

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// ConfineSelf takes from this process, and from those that it starts, what a process can take from itself: new privileges, core files,
// more than so many descriptors, and with SeccompShared UNIX sockets that have an address. filtered says whether it had a filter of system calls
// before: afterwards it has one.
func ConfineSelf(files int, filter jail.SeccompProfile) (filtered bool, err error) {
	limit := func(resource int, value uint64) error {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return err
		}
		value = min(value, now.Max) // more than the hard limit cannot be had
		return unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value})
	}
	if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), limit(unix.RLIMIT_CORE, CoreLimit), limit(unix.RLIMIT_NOFILE, uint64(files))); err != nil {
		return false, fmt.Errorf("confine this process: %w", err)
	}
	if filtered, err = keepCoreLimit(); err == nil && filter == jail.SeccompShared {
		err = refuseSockets()
	}
	return filtered, err
}

// ObserveSelf reads how this process is confined, from within: everything but the limits of its control groups. The numbers of users are those
// that it sees itself; host is what its own is in the user namespace around it, if there is one. Of its namespaces only those are known to be
// the machine's whose numbers are the same on all machines, so the network is not among them.
func ObserveSelf(declared jail.Profile) (o jail.Observed, host uint32, err error) {
	p, err := openProcess(jail.Process{PID: os.Getpid()})
	if err != nil {
		return o, 0, err
	}
	defer p.Close()
	if err := errors.Join(p.identity(&o), p.files(&o, declared), p.resources(&o), p.forgetHarmless(&o)); err != nil {
		return o, 0, err
	}
	o.InsideUID, o.InsideGID = o.UIDs[0], o.GIDs[0]
	if host, err = p.translate("uid_map", o.InsideUID, true); err != nil {
		return o, 0, err
	}
	// Those that a machine begins with: PROC_IPC_INIT_INO and its neighbours in the kernel's proc_ns.h.
	first := []string{"ipc:[4026531839]", "uts:[4026531838]", "pid:[4026531836]", "cgroup:[4026531835]"}
	for _, kind := range []string{"pid", "ipc", "uts", "cgroup"} {
		own, err := p.namespace(kind)
		if err != nil {
			return o, 0, err
		}
		if slices.Contains(first, own) {
			o.SharedNamespaces = append(o.SharedNamespaces, kind)
		}
	}
	return o, host, nil
}

// HideSelf keeps others of its user from tracing this process and reading its memory, and what it has open from programs that it starts.
func HideSelf() error {
	return errors.Join(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), CloseFrom(3))
}

// CloseFrom keeps descriptors from a number on from programs that this process starts.
func CloseFrom(first uint) error {
	return unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
