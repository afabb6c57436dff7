//go:build linux

package linux

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keepCoreLimit answers this process, and those that it starts, that their limit on core files was set, and leaves it as it is: see limitRules. A
// runtime that has a filter with those rules sets the limit before it; where the limit is set by the process itself, this comes after it. before says
// whether the process had a filter of somebody else's.
var keepCoreLimit = sync.OnceValues(func() (before bool, err error) {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if err != nil {
		return false, fmt.Errorf("look for a filter of system calls: %w", err)
	}
	arch, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !known {
		return false, fmt.Errorf("the system calls of %s are not known", runtime.GOARCH)
	}
	if err := addFilter(coreFilter(arch)); err != nil {
		return false, fmt.Errorf("keep the limit on core files: %w", err)
	}
	return mode == unix.SECCOMP_MODE_FILTER, nil
})

// refuseSockets keeps this process, and those that it starts, from UNIX sockets that could have an address: see pairRules.
var refuseSockets = sync.OnceValue(func() error { return addFilter(socketFilter()) })

// addFilter adds a filter to those of all threads of this process: no program could have been started without it in between.
func addFilter(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("add a filter of system calls: %w", errno)
	}
	return nil
}

const (
	bpfLoad   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	minBpf    = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	bpfAnswer = unix.BPF_RET | unix.BPF_K
	// Of struct seccomp_data: the number of the system call, and the architecture.
	bpfNumber, bpfArchitecture = 0, 4
)

// argument is where the lower half of an argument is in struct seccomp_data, and where the upper one.
func argument(n uint32) (low, high uint32) {
	low, high = 16+8*n, 16+8*n+4
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low, high = high, low
	}
	return low, high
}

// coreFilter is the program of keepCoreLimit, for one architecture. System calls of another one, which have other numbers, are refused.
func coreFilter(arch uint32) []unix.SockFilter {
	const otherNumbers = 0x40000000 // of x32, __X32_SYSCALL_BIT
	first, _ := argument(0)
	second, _ := argument(1)
	third, thirdHigh := argument(2)
	const allow, pretend, refuse = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	return []unix.SockFilter{
		{Code: bpfLoad, K: bpfArchitecture},
		{Code: bpfEqual, K: arch, Jt: 1},
		{Code: bpfAnswer, K: refuse},
		{Code: bpfLoad, K: bpfNumber},
		{Code: minBpf, K: otherNumbers, Jf: 1},
		{Code: bpfAnswer, K: refuse},
		{Code: bpfEqual, K: unix.SYS_PRLIMIT64, Jt: 3},
		{Code: bpfEqual, K: unix.SYS_SETRLIMIT, Jf: 9},
		// setrlimit(resource, new)
		{Code: bpfLoad, K: first},
		{Code: bpfEqual, K: unix.RLIMIT_CORE, Jt: 6, Jf: 7},
		// prlimit64(process, resource, new, old): without a new one it is a question.
		{Code: bpfLoad, K: second},
		{Code: bpfEqual, K: unix.RLIMIT_CORE, Jf: 5},
		{Code: bpfLoad, K: third},
		{Code: bpfEqual, K: 0, Jf: 2},
		{Code: bpfLoad, K: thirdHigh},
		{Code: bpfEqual, K: 0, Jt: 1},
		{Code: bpfAnswer, K: pretend},
		{Code: bpfAnswer, K: allow},
	}
}

// socketFilter is the program of refuseSockets. Where coreFilter comes before it, the architecture is this one.
func socketFilter() []unix.SockFilter {
	first, _ := argument(0)
	second, _ := argument(1)
	return []unix.SockFilter{
		{Code: bpfLoad, K: bpfNumber},
		{Code: bpfEqual, K: unix.SYS_SOCKET, Jt: 1},
		{Code: bpfEqual, K: unix.SYS_SOCKETPAIR, Jt: 2, Jf: 8},
		// socket(family, type, protocol)
		{Code: bpfLoad, K: first},
		{Code: bpfEqual, K: unix.AF_UNIX, Jt: 7, Jf: 6},
		// socketpair(family, type, protocol, pair)
		{Code: bpfLoad, K: first},
		{Code: bpfEqual, K: unix.AF_UNIX, Jf: 4},
		{Code: bpfLoad, K: second},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: typeMask},
		{Code: bpfEqual, K: unix.SOCK_STREAM, Jt: 1},
		{Code: bpfEqual, K: unix.SOCK_SEQPACKET, Jf: 1},
		{Code: bpfAnswer, K: unix.SECCOMP_RET_ALLOW},
		{Code: bpfAnswer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
}
