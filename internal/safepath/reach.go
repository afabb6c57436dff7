package safepath

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links may be on the way to a file, as in path_resolution(7).
const maxLinks = 40

// Reach opens the folder of a file that a configuration names, and returns the file's name in it; the file need not be there.
// A link on the way, or in its place, is followed where only root and the process's user could have put it: in a folder of
// theirs that no other user may write to. Elsewhere it is [ErrPlanted].
func Reach(name string) (dir *Folder, file string, err error) {
	left, err := absolute(name)
	if err != nil {
		return nil, "", err
	}
	at, err := Open("/")
	if err != nil {
		return nil, "", err
	}
	for links := 0; ; {
		name, rest, more := strings.Cut(left, "/")
		target, err := at.link(name)
		switch {
		case err != nil:
			return nil, "", closed(at, err)
		case target != "" && links == maxLinks:
			return nil, "", closed(at, failed("open", path.Join(at.path, name), unix.ELOOP))
		case target != "":
			links++
			if !path.IsAbs(target) {
				target = path.Join(at.path, target) // no element of it is a link
			}
			if left, err = absolute(path.Join(target, rest)); err == nil {
				err = at.Close()
			}
			if err != nil {
				return nil, "", err
			}
			if at, err = Open("/"); err != nil {
				return nil, "", err
			}
		case !more:
			return at, name, nil
		default:
			next, err := at.enter(name)
			if err = closed(at, err); err != nil {
				return nil, "", err
			}
			at, left = next, rest
		}
	}
}

// absolute is an absolute path without the slash at its beginning.
func absolute(name string) (string, error) {
	if !filepath.IsAbs(name) {
		return "", &os.PathError{Op: "open", Path: name, Err: unix.EINVAL}
	}
	names, err := elements(path.Clean(name))
	return strings.Join(names, "/"), err
}

func closed(f *Folder, err error) error {
	if also := f.Close(); err == nil {
		err = also
	}
	return err
}

// link is where a link in the folder leads, and empty when there is none of that name. One that others may have put there is ErrPlanted.
func (f *Folder) link(name string) (string, error) {
	var st unix.Stat_t
	err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || uint32(st.Mode)&unix.S_IFMT != unix.S_IFLNK {
		return "", nil // opening it finds the error
	}
	if o, err := f.Owned(); err != nil || !o.alone() {
		return "", failed("open", path.Join(f.path, name), unix.ELOOP)
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(f.fd, name, target)
	if err == nil && n == 0 {
		err = unix.ENOENT // as Linux says of a link that leads nowhere
	}
	if err != nil {
		return "", failed("readlink", path.Join(f.path, name), err)
	}
	return string(target[:n]), nil
}

// alone says whether only root and the process's user may write.
func (o Owned) alone() bool { return (o.UID == 0 || o.UID == os.Geteuid()) && o.Mode&0o022 == 0 }

// OpenBelieved opens a plain file for reading that may be believed to be what it is there for: in a folder that others may write
// to, one of the folder's owner that has no other name. Else it is [ErrPlanted]: its owner could have given any file that name.
func (f *Folder) OpenBelieved(name string) (*os.File, error) {
	folder, err := f.Owned()
	if err != nil {
		return nil, err
	}
	fd, err := f.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	at := path.Join(f.path, name)
	file := os.NewFile(uintptr(fd), at)
	o, err := owned(fd, unix.S_IFREG)
	if err == nil && !folder.alone() && (o.UID != folder.UID || o.Links != 1) {
		err = ErrPlanted
	}
	if err != nil {
		return nil, errors.Join(failed("open", at, err), file.Close())
	}
	return file, nil
}
