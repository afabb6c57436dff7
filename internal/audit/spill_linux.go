package audit

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate reserves space for a file in one piece, where the file system can; the caller writes to all of it anyway.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func syncData(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
