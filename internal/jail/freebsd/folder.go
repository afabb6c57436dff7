//go:build linux || freebsd

package freebsd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// folder is an open directory. Names given to its methods are walked one element at a time by descriptors, and no link is
// followed: what is below it is what it seems to be, whoever may write there.
type folder struct {
	fd   int
	path string // for messages and for commands
}

const folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// trustedFolder makes and opens a folder that the configuration names. It must belong to the user that the process runs as,
// and nobody else may write to it: what is below can then be believed.
func trustedFolder(path string, mode os.FileMode) (*folder, error) {
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, shortage(err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	f, err := openAbsolute(real)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return nil, errors.Join(&os.PathError{Op: "stat", Path: real, Err: err}, f.Close())
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("folder %s belongs to uid %d with mode %04o: only uid %d may write to it",
			real, st.Uid, st.Mode&0o7777, os.Geteuid()), f.Close())
	}
	return f, nil
}

// openAbsolute opens a folder by its path, without following a link.
func openAbsolute(path string) (*folder, error) {
	fd, err := unix.Open("/", folderFlags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/", Err: err}
	}
	root := &folder{fd: fd, path: "/"}
	if path == "/" {
		return root, nil
	}
	dir, err := root.folder(strings.TrimPrefix(path, "/"))
	return dir, errors.Join(err, root.Close())
}

// Close closes the directory.
func (f *folder) Close() error { return unix.Close(f.fd) }

// open opens something beneath the folder.
func (f *folder) open(rel string, flags int, mode os.FileMode) (int, error) {
	fail := func(err error) (int, error) {
		return -1, &os.PathError{Op: "open", Path: filepath.Join(f.path, rel), Err: err}
	}
	at := f.fd
	elements := strings.Split(rel, "/")
	for i, name := range elements {
		if name == "" || name == ".." || name == "." && len(elements) > 1 || strings.ContainsRune(name, 0) {
			return fail(unix.EINVAL)
		}
		how := folderFlags
		if i == len(elements)-1 {
			how = flags | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := unix.Openat(at, name, how, uint32(mode.Perm()))
		for errors.Is(err, unix.EINTR) {
			fd, err = unix.Openat(at, name, how, uint32(mode.Perm()))
		}
		if at != f.fd {
			_ = unix.Close(at) // opened for reading
		}
		if err != nil {
			return fail(err)
		}
		at = fd
	}
	return at, nil
}

// folder opens a directory beneath the folder.
func (f *folder) folder(rel string) (*folder, error) {
	fd, err := f.open(rel, folderFlags, 0)
	if err != nil {
		return nil, err
	}
	return &folder{fd: fd, path: filepath.Join(f.path, rel)}, nil
}

// mkdir makes one directory. name is a single element. It fails when it exists. The mode does not depend on the umask.
func (f *folder) mkdir(name string, mode os.FileMode) error {
	err := unix.Mkdirat(f.fd, name, uint32(mode.Perm()))
	if err == nil {
		var made *folder
		if made, err = f.folder(name); err == nil {
			err = errors.Join(unix.Fchmod(made.fd, uint32(mode.Perm())), made.Close())
		}
	}
	if err != nil {
		return shortage(&os.PathError{Op: "mkdir", Path: filepath.Join(f.path, name), Err: err})
	}
	return nil
}

// sub opens a directory of one element, and makes it when missing.
func (f *folder) sub(name string, mode os.FileMode) (*folder, error) {
	if err := f.mkdir(name, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return f.folder(name)
}

// subAll is sub for a path of several elements.
func (f *folder) subAll(rel string, mode os.FileMode) (*folder, error) {
	at := f
	for name := range strings.SplitSeq(rel, "/") {
		next, err := at.sub(name, mode)
		if at != f {
			err = errors.Join(err, at.Close())
		}
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// create writes a new file. It never opens one that exists. A negative uid leaves the owner.
func (f *folder) create(name string, data []byte, mode os.FileMode, uid int) (err error) {
	fd, err := f.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return shortage(err)
	}
	file := os.NewFile(uintptr(fd), filepath.Join(f.path, name))
	defer func() { err = shortage(errors.Join(err, file.Close())) }()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if uid >= 0 {
		if err := file.Chown(uid, uid); err != nil {
			return err
		}
	}
	return file.Chmod(mode)
}

// own gives the folder to a user.
func (f *folder) own(uid int, mode os.FileMode) error {
	if err := unix.Fchown(f.fd, uid, uid); err != nil {
		return &os.PathError{Op: "chown", Path: f.path, Err: err}
	}
	if err := unix.Fchmod(f.fd, uint32(mode.Perm())); err != nil {
		return &os.PathError{Op: "chmod", Path: f.path, Err: err}
	}
	return nil
}

// remove removes a file; that there is none is fine.
func (f *folder) remove(name string) error {
	if err := unix.Unlinkat(f.fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: filepath.Join(f.path, name), Err: err}
	}
	return nil
}

// rmdir removes an empty directory; that there is none is fine.
func (f *folder) rmdir(name string) error {
	err := unix.Unlinkat(f.fd, name, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: filepath.Join(f.path, name), Err: err}
	}
	return nil
}

// names lists the folder.
func (f *folder) names() ([]string, error) {
	fd, err := f.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), f.path)
	names, err := file.Readdirnames(-1)
	slices.Sort(names)
	return names, errors.Join(err, file.Close())
}

// removeAll removes a file or a tree beneath the folder. It follows no link and enters no other file system.
func (f *folder) removeAll(name string) error {
	err := unix.Unlinkat(f.fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &os.PathError{Op: "remove", Path: filepath.Join(f.path, name), Err: err}
	}
	dir, err := f.folder(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	var here, there unix.Stat_t
	err = errors.Join(unix.Fstat(f.fd, &here), unix.Fstat(dir.fd, &there))
	if err == nil && here.Dev != there.Dev {
		err = errors.Join(jail.ErrBusy, fmt.Errorf("something is mounted at %s", dir.path))
	}
	if err != nil {
		return errors.Join(err, dir.Close())
	}
	names, err := dir.names()
	errs := []error{err}
	for _, n := range names {
		errs = append(errs, dir.removeAll(n))
	}
	if err := errors.Join(append(errs, dir.Close())...); err != nil {
		return err
	}
	return f.rmdir(name)
}

// traces reports what lies in the folder and has the name of a jail.
func (f *folder) traces(kind jail.TraceKind, id jail.Installation) ([]jail.Trace, error) {
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	var out []jail.Trace
	for _, n := range names {
		if jail.Name(n).Belongs(id) {
			out = append(out, jail.Trace{Kind: kind, Name: jail.Name(n), Index: -1, ID: filepath.Join(f.path, n)})
		}
	}
	return out, nil
}
