package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate takes blocks for a file without making it longer. File systems that cannot are left alone.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
