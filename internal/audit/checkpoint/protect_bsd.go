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

// changeable takes away what appendOnly sets.
func changeable(f *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil || stat.Flags&systemAppend == 0 {
		return err
	}
	return unix.Chflags(f.Name(), int(stat.Flags&^systemAppend))
}
