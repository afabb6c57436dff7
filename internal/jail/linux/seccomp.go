//go:build linux

package linux

import (
	"fmt"
	"maps"
	"slices"

	mobyseccomp "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// decidedHere are the system calls whose rules of the default profile are replaced by those below, or by none. The
// default has no rule for some of them without capabilities; they are named so that it stays that way.
func decidedHere() []string {
	return []string{
		// Rules with arguments, below.
		"socket", "socketpair", "clone", "unshare", "setrlimit", "prlimit64",
		// The multiplexer of 32-bit systems would go around the rules of socket.
		"socketcall",
		// Large parts of the kernel that no browser and no agent needs.
		"io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd",
		"keyctl", "add_key", "request_key",
		// Namespaces and mounts: a user namespace gives the capability that these ask for.
		"setns", "mount", "umount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount",
		"fspick", "mount_setattr", "chroot",
	}
}

// ofModes are the system calls that give a file its mode, each with the argument that it is in.
func ofModes() map[string]uint {
	return map[string]uint{"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
}

// opening are those that do when they make one: the argument of the flags, which the mode follows.
func opening() map[string]uint { return map[string]uint{"open": 1, "openat": 2} }

// modeRules refuse to make a file setuid or setgid. A file that an agent makes in a folder of the operator's belongs to the
// operator on the host, and a setuid program of it would run as them there, for whoever starts it. A filter does not see
// whether it is a folder that is given the mode, so that setgid folders are refused as well; those that inherit it are not.
//
// The mode of openat2 is behind a pointer, where no filter looks. Programs that know it do without when it is missing.
func modeRules() []specs.LinuxSyscall {
	const setID = unix.S_ISUID | unix.S_ISGID
	const making = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	missing := uint(unix.ENOSYS)
	rules := []specs.LinuxSyscall{{Names: []string{"openat2"}, Action: specs.ActErrno, ErrnoRet: &missing}}
	for name, mode := range ofModes() {
		rules = append(rules, allow(name, masked(mode, setID, 0)))
	}
	for name, flags := range opening() {
		rules = append(rules, allow(name, masked(flags, making, 0)), allow(name, masked(flags+1, setID, 0)))
	}
	return rules
}

// newNamespaces are all CLONE_NEW* flags. Only unshare takes CLONE_NEWTIME: for clone its bits are part of the signal.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// seccompFilter is the system-call filter of a profile: moby's default for a process without capabilities, of the
// native architecture only, with fewer kinds of sockets.
//
// A browser may also do what Chromium's own sandbox is built from: make user, pid and network namespaces, and chroot.
// Its gain in such a namespace is bounded by the rest of the filter, which every process of the jail has; that
// includes those that Chromium leaves without a filter of its own.
func seccompFilter(p jail.SeccompProfile) (*specs.LinuxSeccomp, error) {
	none := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}
	filter, err := mobyseccomp.GetDefaultProfile(none)
	if err != nil {
		return nil, fmt.Errorf("make the system-call filter: %w", err)
	}
	if len(filter.Architectures) > 1 {
		filter.Architectures = filter.Architectures[:1] // the others can run code of older architectures
	}
	ours := decidedHere()
	if p == jail.SeccompAgent || p == jail.SeccompShared {
		ours = slices.Concat(ours, slices.Collect(maps.Keys(ofModes())), slices.Collect(maps.Keys(opening())), []string{"openat2"})
	}
	var rules []specs.LinuxSyscall
	if p == jail.SeccompBrowser {
		ours = append(ours, "setsockopt", "getsockopt")
	}
	for _, r := range filter.Syscalls {
		if r.Action == specs.ActAllow {
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return slices.Contains(ours, n) })
		}
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
	}
	rules = slices.Concat(rules, socketRules(), limitRules())
	if p == jail.SeccompShared {
		rules = append(rules, pairRules()...)
	} else {
		rules = append(rules, allow("socket", equal(0, unix.AF_UNIX)), allow("socketpair", equal(0, unix.AF_UNIX)))
	}
	switch p {
	case jail.SeccompBrowser:
		rules = append(rules, optionRules()...)
		rules = append(rules,
			allow("clone", masked(0, newNamespaces&^(unix.CLONE_NEWUSER|unix.CLONE_NEWPID|unix.CLONE_NEWNET), 0)),
			allow("unshare", equal(0, unix.CLONE_NEWUSER)),
			allow("chroot"))
	case jail.SeccompAgent, jail.SeccompShared:
		rules = append(rules, modeRules()...)
		rules = append(rules,
			allow("socket", equal(0, unix.AF_NETLINK), equal(2, unix.NETLINK_ROUTE)),
			allow("clone", masked(0, newNamespaces, 0)))
	default:
		return nil, fmt.Errorf("%q is not a system-call filter", p)
	}
	filter.Syscalls = rules
	return filter, nil
}

// typeMask is the part of a socket's type that is its kind: SOCK_NONBLOCK and SOCK_CLOEXEC are in the same argument.
const typeMask = 0xf

// pairRules allow UNIX sockets that come as a connected pair, and can neither listen nor connect to another one: those of
// streams. A filter does not see addresses, so that a socket which could have one is refused as a whole. One of datagrams
// can be connected anew, or send to a path, also when it is one of a pair; SOCK_RAW is another word for them.
func pairRules() (rules []specs.LinuxSyscall) {
	for _, kind := range []uint64{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		rules = append(rules, allow("socketpair", equal(0, unix.AF_UNIX), masked(1, typeMask, kind)))
	}
	return rules
}

// socketRules allow TCP and UDP. UNIX sockets are for each profile to say. Everything else is refused: AF_VSOCK and AF_PACKET, raw sockets also
// where a user namespace would give the capability, and netlink. An agent also has the netlink family that programs list
// addresses with: it has no user namespace, and without one that family changes nothing. A browser has one, in which it
// could make links.
func socketRules() []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []uint64{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			rules = append(rules, allow("socket", equal(0, family), masked(1, typeMask, kind)))
		}
	}
	return rules
}

// optionRules allow the socket options of sockets, TCP, UDP and IP, but those of the packet filter: x_tables takes its
// tables as options of IP with the numbers from 64 on, from whoever has a network namespace of their own.
func optionRules() (rules []specs.LinuxSyscall) {
	const firstOfFilter = 64 // IPT_BASE_CTL and IP6T_BASE_CTL; arptables and ebtables come after them
	for _, name := range []string{"setsockopt", "getsockopt"} {
		for _, level := range []uint64{unix.SOL_SOCKET, unix.SOL_TCP, unix.SOL_UDP} {
			rules = append(rules, allow(name, equal(1, level)))
		}
		for _, level := range []uint64{unix.SOL_IP, unix.SOL_IPV6} {
			rules = append(rules, allow(name, equal(1, level), below(2, firstOfFilter)))
		}
		// Options of IPv6 among those numbers that are no tables.
		for _, option := range []uint64{unix.IPV6_RECVTCLASS, unix.IPV6_TCLASS} {
			rules = append(rules, allow(name, equal(1, unix.SOL_IPV6), equal(2, option)))
		}
	}
	return rules
}

// CoreLimit is what every jail has as the limit on core files: to the kernel, 1 means that nothing is written, and
// nothing is handed to the program of a piped core_pattern either, which 0 does not (core(5), do_coredump). That program
// runs as root of the host.
const CoreLimit = 1

// limitRules allow what programs set for themselves but the limit on core files, which would lose its 1. Programs that
// keep keys set it to 0, and end when they may not: gpg and ssh-agent do. They are told that it was done, and have more.
func limitRules() []specs.LinuxSyscall {
	const resources = 16 // RLIM_NLIMITS
	// The kernel looks at 32 bits of the number.
	core := func(index uint) specs.LinuxSeccompArg { return masked(index, 0xffffffff, unix.RLIMIT_CORE) }
	rules := []specs.LinuxSyscall{
		allow("prlimit64", equal(2, 0)), // without a new value it is a question
		pretend("setrlimit", core(0)),
		pretend("prlimit64", core(1), specs.LinuxSeccompArg{Index: 2, Value: 0, Op: specs.OpNotEqual}),
	}
	for r := range uint64(resources) {
		if r != unix.RLIMIT_CORE {
			rules = append(rules, allow("setrlimit", equal(0, r)), allow("prlimit64", equal(1, r)))
		}
	}
	return rules
}

// pretend answers that a call was done, and does nothing.
func pretend(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	success := uint(0)
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActErrno, ErrnoRet: &success, Args: args}
}

func allow(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
}

func equal(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

// below matches an argument that is smaller. The comparison is of 64 bits, so one that only its lower half makes small is not.
func below(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpLessThan}
}

// masked matches when the bits of mask in the argument are those of value.
func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}
