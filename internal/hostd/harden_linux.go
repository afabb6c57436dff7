package hostd

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// noCores is the limit on core files with which the kernel neither writes one nor starts the program of a piped
// core_pattern. With 0 it would do that, and jails could not have their 1 from a host daemon that may not raise limits.
const noCores = 1

// hardenPlatform keeps others from tracing this process and marks every descriptor that was inherited, so that no
// program which is started from here gets it.
func hardenPlatform() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		err = nil // before Linux 5.11: package os marks its own, and inherited ones are the service manager's
	}
	return errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
