package safepath

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// enterSame opens a folder of one element, unless something is mounted on it. Only openat2(2) can tell: a file system that
// is bound into itself has the same number.
func (f *Folder) enterSame(name string) (*Folder, error) {
	at := path.Join(f.path, name)
	fd, err := unix.Openat2(f.fd, name, &unix.OpenHow{Flags: folderFlags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV})
	if errors.Is(err, unix.EXDEV) {
		err = errors.Join(ErrMounted, err)
	}
	if err != nil {
		return nil, failed("open for removal", at, err)
	}
	return &Folder{fd: fd, path: at}, nil
}
