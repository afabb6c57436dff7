package safepath

import (
	"errors"
	"os"
	"path"
	"runtime"

	"golang.org/x/sys/unix"
)

// Make makes one folder. It fails when there is anything of that name. A negative uid leaves the owner, which is the
// process's user.
//
// The mode is the folder's in the end, whatever the process's umask: that of the upper layer becomes the mode of a jail's
// root.
func (f *Folder) Make(name string, mode os.FileMode, uid int) error {
	if err := element(name); err != nil {
		return err
	}
	if err := unix.Mkdirat(f.fd, name, uint32(mode.Perm())); err != nil {
		return failed("mkdir", path.Join(f.path, name), err)
	}
	made, err := f.enter(name)
	if err != nil {
		return err
	}
	return errors.Join(made.Own(uid, mode), made.Close())
}

// Ensure is Folder, and makes what is missing with that mode and owner, as Make does.
func (f *Folder) Ensure(name string, mode os.FileMode, uid int) (*Folder, error) {
	names, err := elements(name)
	if err != nil {
		return nil, err
	}
	return f.walk(names, func(parent *Folder, n string) (*Folder, error) {
		dir, err := parent.enter(n)
		if !errors.Is(err, unix.ENOENT) {
			return dir, err
		}
		if err := parent.Make(n, mode, uid); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		return parent.enter(n)
	})
}

// Unfinished is the mode of a folder that Give has made and not yet given away. It is never that of a folder in use.
const Unfinished = unix.S_ISVTX

// Give is Folder; missing folders are made and given to a user. Those that are there keep their owner and mode. A new one is
// empty when it is given away: should somebody who may write here put another folder in its place, he gains nothing. One that a killed process
// left half-made is told by its mode, and finished.
func (f *Folder) Give(name string, mode os.FileMode, uid int) (*Folder, error) {
	names, err := elements(name)
	if err != nil {
		return nil, err
	}
	return f.walk(names, func(parent *Folder, n string) (*Folder, error) {
		return parent.GiveOne(n, mode, uid, nil)
	})
}

// GiveOne is Give for one element. first, which may be nil, is called with a folder that is about to be given away, and whether it was
// made here or is one that another call or a killed process has made. No process uses the folder before that.
func (f *Folder) GiveOne(name string, mode os.FileMode, uid int, first func(dir *Folder, made bool) error) (*Folder, error) {
	if err := element(name); err != nil {
		return nil, err
	}
	at := path.Join(f.path, name)
	made := unix.Mkdirat(f.fd, name, Unfinished)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return nil, failed("mkdir", at, made)
	}
	dir, err := f.enter(name)
	if err != nil {
		return nil, err
	}
	if made == nil && dropsSticky {
		err = unix.Fchmod(dir.fd, Unfinished)
	}
	o, looked := dir.Owned()
	if err := errors.Join(err, looked); err != nil {
		return nil, errors.Join(failed("mkdir", at, err), dir.Close())
	}
	if !o.Unfinished() {
		return dir, nil
	}
	some, err := dir.Names(1)
	if err == nil && len(some) > 0 {
		if o, err = dir.Owned(); err == nil && !o.Unfinished() {
			return dir, nil // another call has finished it since, and it is in use
		}
		err = errors.Join(err, failed("mkdir", at, unix.ENOTEMPTY))
	}
	if err == nil && first != nil {
		err = first(dir, made == nil)
	}
	if err == nil {
		err = dir.Own(uid, mode)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// Unfinished says whether a folder was made and not yet given away.
func (o Owned) Unfinished() bool {
	mode := o.Mode &^ unix.S_ISGID // folders may inherit that bit
	return mode == Unfinished || mode == 0 && dropsSticky
}

// dropsSticky says that mkdir(2) makes folders without the sticky bit of its mode, so that one which is half-made may
// have no mode at all. Linux is the one that keeps it.
const dropsSticky = runtime.GOOS != "linux"

// Create writes a new file, which has the mode in the end, whatever the umask. It never opens one that exists, and follows
// no link. A negative uid leaves the owner.
func (f *Folder) Create(name string, data []byte, mode os.FileMode, uid int) (err error) {
	if err := element(name); err != nil {
		return err
	}
	fd, err := f.openat(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), path.Join(f.path, name))
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if uid >= 0 {
		if err := file.Chown(uid, uid); err != nil {
			return err
		}
	}
	return file.Chmod(mode) // after the owner: a change of that may take bits away
}

// Own gives the folder to a user and their group, and sets its mode. A negative uid leaves the owner.
func (f *Folder) Own(uid int, mode os.FileMode) error {
	if uid >= 0 {
		if err := unix.Fchown(f.fd, uid, uid); err != nil {
			return failed("chown", f.path, err)
		}
	}
	if err := unix.Fchmod(f.fd, uint32(mode.Perm())); err != nil {
		return failed("chmod", f.path, err)
	}
	return nil
}

// Rename gives something in the folder another name there, over what has it.
func (f *Folder) Rename(from, to string) error {
	if err := errors.Join(element(from), element(to)); err != nil {
		return err
	}
	if err := unix.Renameat(f.fd, from, f.fd, to); err != nil {
		return failed("rename", path.Join(f.path, from), err)
	}
	return nil
}
