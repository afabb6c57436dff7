package safepath

import (
	"context"
	"crypto/rand"
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
	if errors.Is(err, unix.ENOENT) {
		err = nil // somebody else has removed it meanwhile
	}
	errs := []error{err}
	for _, n := range names {
		errs = append(errs, dir.RemoveAll(n))
	}
	if err := errors.Join(append(errs, dir.Close())...); err != nil {
		return err
	}
	return f.RemoveFolder(name)
}

// deepest is how many folders Empty has open, one in the other: a jail may have made any number.
const deepest = 32

// Empty removes everything in the folder, however deep, in pieces and with a bounded number of descriptors, until the context
// ends. Like RemoveAll it follows no link and enters no mount.
func (f *Folder) Empty(ctx context.Context) error { return f.empty(ctx, f, deepest) }

// empty is Empty for a folder below top. An entry that is too deep is moved up to top, which is looked through until nothing is there.
func (f *Folder) empty(ctx context.Context, top *Folder, depth int) error {
	for {
		const some = 1024
		names, err := f.Names(some)
		if err := errors.Join(err, context.Cause(ctx)); err != nil || len(names) == 0 {
			return err
		}
		for _, n := range names {
			if err := errors.Join(context.Cause(ctx), f.emptyOne(ctx, n, top, depth)); err != nil {
				return err
			}
		}
	}
}

func (f *Folder) emptyOne(ctx context.Context, name string, top *Folder, depth int) error {
	err := f.Remove(name)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if f.RemoveFolder(name) == nil {
		return nil
	}
	dir, err := f.enterSame(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if depth == 0 {
		if err := errors.Join(unix.Renameat(f.fd, name, top.fd, ".removed-"+rand.Text()), dir.Close()); err != nil {
			return failed("rename", path.Join(f.path, name), err)
		}
		return nil
	}
	if err := errors.Join(dir.empty(ctx, top, depth-1), dir.Close()); err != nil {
		return err
	}
	return f.RemoveFolder(name)
}
