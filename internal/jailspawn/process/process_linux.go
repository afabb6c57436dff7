package process

import "golang.org/x/sys/unix"

// AdoptOrphans makes this process the parent of descendants whose own parent has ended.
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// Hide keeps others from tracing this process, and its memory out of files.
func Hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// KeepFrom sees to it that no program that is started from here gets a descriptor from one on.
func KeepFrom(first int) error {
	return unix.CloseRange(uint(first), ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC)
}
