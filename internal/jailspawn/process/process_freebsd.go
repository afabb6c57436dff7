package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of sys/procctl.h and sys/wait.h; not tried on a real FreeBSD.
const (
	idOfProcess     = 0 // P_PID
	reapAcquire     = 2 // PROC_REAP_ACQUIRE
	traceControl    = 7 // PROC_TRACE_CTL
	traceDisable    = 2 // PROC_TRACE_CTL_DISABLE: no tracing, no core dump, not inherited through exec
	lastDescriptor  = 1<<32 - 1
	callCloseRange  = unix.SYS_CLOSE_RANGE // 12.2
	callControl     = unix.SYS_PROCCTL
	ownProcess      = 0 // "the calling process" (procctl(2))
	noMoreArguments = 0
)

func failure(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// AdoptOrphans makes this process the parent of descendants whose own parent has ended.
func AdoptOrphans() error {
	_, _, errno := unix.Syscall6(callControl, idOfProcess, ownProcess, reapAcquire, noMoreArguments, 0, 0)
	return failure(errno)
}

// Hide keeps others from tracing this process, and its memory out of files.
func Hide() error {
	disable := int32(traceDisable)
	_, _, errno := unix.Syscall6(callControl, idOfProcess, ownProcess, traceControl, uintptr(unsafe.Pointer(&disable)), 0, 0)
	return failure(errno)
}

// KeepFrom sees to it that no program that is started from here gets a descriptor from one on. It closes them: the runtime
// has none of its own yet when this is called first.
func KeepFrom(first int) error {
	_, _, errno := unix.Syscall(callCloseRange, uintptr(first), lastDescriptor, 0)
	return failure(errno)
}
