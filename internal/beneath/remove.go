package beneath

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// Remove removes a file or a link; that there is none is fine.
func (f *Folder) Remove(name string) error { return f.unlink(name, 0) }

// RemoveFolder removes an empty folder; that there is none is fine.
func (f *Folder) RemoveFolder(name string) error { return f.unlink(name, unix.AT_REMOVEDIR) }

func (f *Folder) unlink(name string, flags int) error {
	if err := element(name); err != nil {
		return err
	}
	if err := unix.Unlinkat(f.fd, name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return failed("remove", path.Join(f.path, name), err)
	}
	return nil
}

// RemoveAll removes a file or a tree; that there is none is fine. It follows no link and enters no mount: a folder that
// something is mounted on is ErrMounted, and what is mounted there is left as it is.
func (f *Folder) RemoveAll(name string) error {
	err := f.Remove(name)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	dir, err := f.enterSame(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := dir.Names(-1)
	errs := []error{err}
	for _, n := range names {
		errs = append(errs, dir.RemoveAll(n))
	}
	if err := errors.Join(append(errs, dir.Close())...); err != nil {
		return err
	}
	return f.RemoveFolder(name)
}
