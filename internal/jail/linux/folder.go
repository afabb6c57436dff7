//go:build linux

package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// beneath is how every name below a trusted folder is resolved: no way out, no links.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// folder is an open directory. Names given to its methods never lead outside it.
type folder struct {
	fd   int
	path string // for messages and for what is handed to the runtime
}

// trustedFolder is openTrusted after the folder was made, when it was missing.
func trustedFolder(path string, mode os.FileMode) (*folder, error) {
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, shortage(err)
	}
	return openTrusted(path)
}

// openTrusted opens a folder that the configuration names. It must belong to the user that the process runs as, and
// nobody else may write to it: what is below can then be believed.
func openTrusted(path string) (*folder, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, real, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: real, Err: err}
	}
	f := &folder{fd: fd, path: real}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(&os.PathError{Op: "stat", Path: real, Err: err}, f.Close())
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("folder %s belongs to uid %d with mode %04o: only uid %d may write to it",
			real, st.Uid, st.Mode&0o7777, os.Geteuid()), f.Close())
	}
	return f, nil
}

// Close closes the directory.
func (f *folder) Close() error { return unix.Close(f.fd) }

// open opens something beneath the folder.
func (f *folder) open(rel string, flags int, mode os.FileMode) (int, error) {
	fd, err := unix.Openat2(f.fd, rel, &unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode.Perm()), Resolve: beneath})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: filepath.Join(f.path, rel), Err: err}
	}
	return fd, nil
}

// folder opens a directory beneath the folder.
func (f *folder) folder(rel string) (*folder, error) {
	fd, err := f.open(rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &folder{fd: fd, path: filepath.Join(f.path, rel)}, nil
}

// mkdir makes one directory. name is a single element. It fails when it exists.
//
// The mode is the directory's in the end, whatever the process's umask: the mode of the upper layer becomes that of a
// jail's root. fchmodat would follow a link, but the directory was made by this process beneath one that is root's.
func (f *folder) mkdir(name string, mode os.FileMode) error {
	err := unix.Mkdirat(f.fd, name, uint32(mode.Perm()))
	if err == nil {
		err = unix.Fchmodat(f.fd, name, uint32(mode.Perm()), 0)
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

// create writes a new file. It never opens one that exists, nor follows a link. A negative uid leaves the owner.
func (f *folder) create(name string, data []byte, mode os.FileMode, uid, gid int) (err error) {
	fd, err := f.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return shortage(err)
	}
	file := os.NewFile(uintptr(fd), filepath.Join(f.path, name))
	defer func() { err = shortage(errors.Join(err, file.Close())) }()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if uid >= 0 {
		if err := file.Chown(uid, gid); err != nil {
			return err
		}
	}
	return file.Chmod(mode) // after the owner, and whatever the umask is
}

// own gives the folder to a user.
func (f *folder) own(uid, gid int, mode os.FileMode) error {
	if err := unix.Fchown(f.fd, uid, gid); err != nil {
		return &os.PathError{Op: "chown", Path: f.path, Err: err}
	}
	if err := unix.Fchmod(f.fd, uint32(mode.Perm())); err != nil {
		return &os.PathError{Op: "chmod", Path: f.path, Err: err}
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
	return names, errors.Join(err, file.Close())
}

// removeAll removes a file or a tree beneath the folder. It follows no link and enters no mount: a folder that
// something is mounted on is an error, and what is mounted there is left as it is.
func (f *folder) removeAll(name string) error {
	err := unix.Unlinkat(f.fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &os.PathError{Op: "remove", Path: filepath.Join(f.path, name), Err: err}
	}
	fd, err := unix.Openat2(f.fd, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: beneath | unix.RESOLVE_NO_XDEV})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open for removal", Path: filepath.Join(f.path, name), Err: err}
	}
	dir := &folder{fd: fd, path: filepath.Join(f.path, name)}
	names, err := dir.names()
	errs := []error{err}
	for _, n := range names {
		errs = append(errs, dir.removeAll(n))
	}
	errs = append(errs, dir.Close())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.rmdir(name)
}
