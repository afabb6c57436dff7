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
	filter := coreFilter(arch)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// For all threads, and with no program in between that could have been started without it.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return false, fmt.Errorf("keep the limit on core files: %w", errno)
	}
	return mode == unix.SECCOMP_MODE_FILTER, nil
})

// coreFilter is the program of keepCoreLimit, for one architecture. System calls of another one, which have other numbers, are refused.
func coreFilter(arch uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
		// struct seccomp_data: the number, the architecture, an address, and six arguments of 64 bits.
		number, architecture, arguments = 0, 4, 16
		otherNumbers                    = 0x40000000 // of x32, __X32_SYSCALL_BIT
	)
	low, high := func(n uint32) uint32 { return arguments + 8*n }, func(n uint32) uint32 { return arguments + 8*n + 4 }
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low, high = high, low
	}
	const allow, pretend, refuse = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	return []unix.SockFilter{
		{Code: load, K: architecture},
		{Code: equal, K: arch, Jt: 1},
		{Code: answer, K: refuse},
		{Code: load, K: number},
		{Code: least, K: otherNumbers, Jf: 1},
		{Code: answer, K: refuse},
		{Code: equal, K: unix.SYS_PRLIMIT64, Jt: 3},
		{Code: equal, K: unix.SYS_SETRLIMIT, Jf: 9},
		// setrlimit(resource, new)
		{Code: load, K: low(0)},
		{Code: equal, K: unix.RLIMIT_CORE, Jt: 6, Jf: 7},
		// prlimit64(process, resource, new, old): without a new one it is a question.
		{Code: load, K: low(1)},
		{Code: equal, K: unix.RLIMIT_CORE, Jf: 5},
		{Code: load, K: low(2)},
		{Code: equal, K: 0, Jf: 2},
		{Code: load, K: high(2)},
		{Code: equal, K: 0, Jt: 1},
		{Code: answer, K: pretend},
		{Code: answer, K: allow},
	}
}
