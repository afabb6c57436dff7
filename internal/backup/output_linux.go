package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// newOutput makes a file without a name, of which not even a process that is killed leaves anything.
func newOutput(path string) (*Output, error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) {
		return named(path)
	}
	if err != nil {
		return nil, err
	}
	return &Output{File: os.NewFile(uintptr(fd), path), path: path}, nil
}

func (o *Output) link() error {
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", o.Fd()), unix.AT_FDCWD, o.path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: "", New: o.path, Err: err}
	}
	return nil
}
