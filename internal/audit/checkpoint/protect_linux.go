package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// appendFlag is FS_APPEND_FL of linux/fs.h.
const appendFlag = 0x00000020

// appendOnly sets the attribute that `chattr +a` sets.
func appendOnly(f *os.File) error {
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	if flags&appendFlag != 0 {
		return nil
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|appendFlag)
}

// changeable takes away what appendOnly sets.
func changeable(f *os.File) error {
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&appendFlag == 0 {
		return err
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^appendFlag)
}
