//go:build freebsd || darwin

package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// systemAppend is SF_APPEND of sys/stat.h: only root sets it, and nobody takes it away at a raised securelevel.
const systemAppend = 0x00040000

// appendOnly sets the flag that `chflags sappnd` sets.
func appendOnly(f *os.File) error { return unix.Chflags(f.Name(), systemAppend) }
