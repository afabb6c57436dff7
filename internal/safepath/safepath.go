// Package safepath works in folders by descriptor, below one that is trusted.
//
// Files beneath the root of a jail are the jail's, and those in a workspace an agent's: programs may put a link, a
// pipe or a device anywhere there, also between two looks at it. So every element of a name is opened by itself without
// following links, an existing file is opened for writing only when the caller asks for that, and checks are made on the open
// descriptor. It is portable: it needs no more than openat(2). Setuid programs link it, so it imports next to nothing.
package safepath

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Folder is an open directory. Names given to its methods never lead outside it.
type Folder struct {
	fd   int
	path string
}

var (
	// ErrPlanted is something that is not what it should be: a link, or no folder or plain file, where one is expected.
	// The system's word for it is ELOOP when it is a link.
	ErrPlanted = errors.New("something else lies there")
	// ErrMounted is a folder that cannot be removed, because something is mounted on it.
	ErrMounted = errors.New("something is mounted there")
)

const folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// Open opens a folder that the caller trusts: links on the way to it are followed, the last element is none.
func Open(name string) (*Folder, error) {
	fd, err := unix.Open(name, folderFlags, 0)
	if err != nil {
		return nil, failed("open", name, err)
	}
	return &Folder{fd: fd, path: name}, nil
}

// OpenPlain opens a folder by its absolute path, on which no element is a link.
func OpenPlain(name string) (*Folder, error) {
	root, err := Open("/")
	if err != nil || name == "/" {
		return root, err
	}
	dir, err := root.Folder(name)
	return dir, errors.Join(err, root.Close())
}

// OpenTrusted opens a folder that a configuration names. It must belong to the user that the process runs as, and nobody
// else may write to it: what is below can then be believed.
func OpenTrusted(name string) (*Folder, error) {
	plain, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, err
	}
	f, err := OpenPlain(plain)
	if err != nil {
		return nil, err
	}
	o, err := f.Owned()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if o.UID != os.Geteuid() || o.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("folder %s belongs to uid %d with mode %04o: only uid %d may write to it",
			plain, o.UID, o.Mode, os.Geteuid()), f.Close())
	}
	return f, nil
}

// MakeTrusted is OpenTrusted after the folder was made, when it was missing.
func MakeTrusted(name string, mode os.FileMode) (*Folder, error) {
	if err := os.MkdirAll(name, mode); err != nil {
		return nil, err
	}
	return OpenTrusted(name)
}

// At is the folder of a descriptor, which it owns from now on. The path is for messages, and for Path.
func At(fd int, name string) *Folder { return &Folder{fd: fd, path: name} }

// FD is the descriptor. It stays the folder's.
func (f *Folder) FD() int { return f.fd }

// Path is how the folder was named when it was opened. The folder of that name may be another by now.
func (f *Folder) Path() string { return f.path }

// Close closes the directory.
func (f *Folder) Close() error { return unix.Close(f.fd) }

// Lock waits for the lock of the file of that name. It makes the file readable for its owner alone: a user who can open a file
// can lock it. The file stays.
func (f *Folder) Lock(name string) (unlock func() error, err error) {
	fd, err := f.Open(name, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		switch err := unix.Flock(fd, unix.LOCK_EX); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, errors.Join(failed("lock", path.Join(f.path, name), err), unix.Close(fd))
		default:
			return func() error { return unix.Close(fd) }, nil
		}
	}
}

// failed names what was tried. A link in the way is ELOOP, or EMLINK on FreeBSD (open(2)).
func failed(op, name string, err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w (%w)", ErrPlanted, err)
	}
	return &os.PathError{Op: op, Path: name, Err: err}
}

// elements splits a name that may begin with a slash, and refuses one that is not plain.
func elements(name string) ([]string, error) {
	rel := strings.Trim(name, "/")
	if rel == "" || path.Clean(rel) != rel || rel == ".." || strings.HasPrefix(rel, "../") || strings.ContainsRune(rel, 0) {
		return nil, fmt.Errorf("%q is not a plain name beneath a folder", name)
	}
	return strings.Split(rel, "/"), nil
}

// element refuses what is not one plain name.
func element(name string) error {
	if names, err := elements(name); err != nil || len(names) != 1 || names[0] != name {
		return fmt.Errorf("%q is not one name", name)
	}
	return nil
}

// openat opens one element, which is no link.
func (f *Folder) openat(name string, flags int, mode os.FileMode) (int, error) {
	for {
		fd, err := unix.Openat(f.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOTDIR):
			// Linux says so of a link, too, when a folder is asked for.
			var st unix.Stat_t
			if unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && uint32(st.Mode)&unix.S_IFMT == unix.S_IFLNK {
				err = unix.ELOOP
			}
		}
		if err != nil {
			return -1, failed("open", path.Join(f.path, name), err)
		}
		return fd, nil
	}
}

func (f *Folder) enter(name string) (*Folder, error) {
	fd, err := f.openat(name, folderFlags, 0)
	if err != nil {
		return nil, err
	}
	return &Folder{fd: fd, path: path.Join(f.path, name)}, nil
}

// walk opens a folder element by element with what opens one of them.
func (f *Folder) walk(names []string, open func(parent *Folder, name string) (*Folder, error)) (*Folder, error) {
	at := f
	for _, n := range names {
		next, err := open(at, n)
		if at != f {
			err = errors.Join(err, at.Close())
		}
		if err != nil {
			if next != nil {
				err = errors.Join(err, next.Close())
			}
			return nil, err
		}
		at = next
	}
	return at, nil
}

// Folder opens a folder beneath this one, or with "." this one once more.
func (f *Folder) Folder(name string) (*Folder, error) {
	names, err := elements(name)
	if err != nil {
		return nil, err
	}
	return f.walk(names, (*Folder).enter)
}

// Open opens something beneath the folder, as openat(2) does. The mode is that of what is made.
func (f *Folder) Open(name string, flags int, mode os.FileMode) (int, error) {
	names, err := elements(name)
	if err != nil {
		return -1, err
	}
	last := len(names) - 1
	dir, err := f.walk(names[:last], (*Folder).enter)
	if err != nil {
		return -1, err
	}
	fd, err := dir.openat(names[last], flags, mode)
	if dir != f {
		_ = dir.Close() // opened for reading
	}
	return fd, err
}
