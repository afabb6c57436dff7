//go:build linux

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// bomb starts chains of processes, each of which forks and ends: a killer that lists pids first finds them gone, and the
// chains go on. A fork bomb of a shell gives up when it may not fork, and has ended before a test looks.
func bomb([]string) (answer, error) {
	for range 12 {
		// Without flags but the signal it is fork(2). The child has this thread alone, which does nothing but these calls.
		if pid, _, errno := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0); errno != 0 || pid != 0 {
			continue
		}
		for {
			if pid, _, errno := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0); errno == 0 && pid != 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
	}
	time.Sleep(time.Hour)
	return answer{}, nil
}
