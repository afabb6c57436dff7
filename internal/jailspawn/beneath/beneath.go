// Package beneath works in folders by descriptor, below one that is trusted.
//
// What lies beneath the root of a jail is the jail's: its programs may put a link, a pipe or a device anywhere, also between
// two looks at it. So every element of a name is opened by itself without following links, nothing that exists is opened
// for writing, and what was opened is what is looked at. It is portable: it needs no more than openat(2).
package beneath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Folder is an open directory. Names given to its methods never lead outside it.
type Folder struct {
	fd   int
	path string // for messages
}

// ErrPlanted is something that is not what it should be: a link, or no folder or plain file, where one is expected.
var ErrPlanted = errors.New("something else lies there")

const folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// Open opens a folder that the caller trusts: links on the way to it are followed, the last element is none.
func Open(name string) (*Folder, error) {
	fd, err := unix.Open(name, folderFlags, 0)
	if err != nil {
		return nil, failed("open", name, err)
	}
	return &Folder{fd: fd, path: name}, nil
}

// Close closes the directory.
func (f *Folder) Close() error { return unix.Close(f.fd) }

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
	if rel == "" || path.Clean(rel) != rel || strings.HasPrefix(rel, "..") || strings.ContainsRune(rel, 0) {
		return nil, fmt.Errorf("%q is not a plain name beneath a folder", name)
	}
	return strings.Split(rel, "/"), nil
}

func (f *Folder) element(name string) (*Folder, error) {
	at := path.Join(f.path, name)
	fd, err := unix.Openat(f.fd, name, folderFlags, 0)
	if err != nil {
		return nil, failed("open", at, err)
	}
	return &Folder{fd: fd, path: at}, nil
}

// walk opens a folder element by element. missing makes those that are not there, or is nil.
func (f *Folder) walk(name string, missing func(parent *Folder, name string) error) (*Folder, error) {
	names, err := elements(name)
	if err != nil {
		return nil, err
	}
	at := f
	for _, n := range names {
		next, err := at.element(n)
		if missing != nil && errors.Is(err, unix.ENOENT) {
			if err = missing(at, n); err == nil {
				next, err = at.element(n)
			}
		}
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

// Folder opens a folder beneath this one.
func (f *Folder) Folder(name string) (*Folder, error) { return f.walk(name, nil) }

// Ensure is Folder; what is missing is made, for that user alone. A negative uid is the process's own.
func (f *Folder) Ensure(name string, uid int) (*Folder, error) {
	return f.walk(name, func(parent *Folder, n string) error { return parent.Make(n, uid) })
}

// Make makes one folder with mode 0700. It fails when there is anything of that name.
func (f *Folder) Make(name string, uid int) error {
	if names, err := elements(name); err != nil || len(names) != 1 {
		return fmt.Errorf("%q is not one name", name)
	}
	at := path.Join(f.path, name)
	if err := unix.Mkdirat(f.fd, name, 0o700); err != nil {
		return failed("mkdir", at, err)
	}
	if uid < 0 {
		return nil
	}
	made, err := f.element(name)
	if err != nil {
		return err
	}
	err = unix.Fchown(made.fd, uid, uid)
	return errors.Join(err, made.Close())
}

// Create writes a new file with mode 0600. It never opens one that exists, and follows no link.
func (f *Folder) Create(name string, data []byte, uid int) (err error) {
	at := path.Join(f.path, name)
	fd, err := unix.Openat(f.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return failed("create", at, err)
	}
	file := os.NewFile(uintptr(fd), at)
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if uid >= 0 {
		return file.Chown(uid, uid)
	}
	return nil
}

// Owned is what is known of an open file or folder.
type Owned struct {
	UID, Mode int // Mode has the permissions alone
	Links     uint64
	Size      int64
}

func owned(fd int, kind uint32) (Owned, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Owned{}, err
	}
	if uint32(st.Mode)&unix.S_IFMT != kind {
		return Owned{}, ErrPlanted
	}
	return Owned{UID: int(st.Uid), Mode: int(st.Mode) & 0o7777, Links: uint64(st.Nlink), Size: st.Size}, nil
}

// Owned looks at the folder itself.
func (f *Folder) Owned() (Owned, error) {
	o, err := owned(f.fd, unix.S_IFDIR)
	if err != nil {
		return o, failed("stat", f.path, err)
	}
	return o, nil
}

// Read reads a plain file of at most so many bytes, and says whose it is. It waits for nobody: a pipe is no plain file.
func (f *Folder) Read(name string, most int64) (data []byte, o Owned, err error) {
	at := path.Join(f.path, name)
	fd, err := unix.Openat(f.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, o, failed("open", at, err)
	}
	file := os.NewFile(uintptr(fd), at)
	defer func() { err = errors.Join(err, file.Close()) }()
	if o, err = owned(fd, unix.S_IFREG); err != nil {
		return nil, o, failed("stat", at, err)
	}
	data, err = io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(data)) > most {
		err = &os.PathError{Op: "read", Path: at, Err: unix.EFBIG}
	}
	return data, o, err
}

// Remove removes a file or a link; that there is none is fine.
func (f *Folder) Remove(name string) error { return f.unlink(name, 0) }

// RemoveFolder removes an empty folder; that there is none is fine.
func (f *Folder) RemoveFolder(name string) error { return f.unlink(name, unix.AT_REMOVEDIR) }

func (f *Folder) unlink(name string, flags int) error {
	if err := unix.Unlinkat(f.fd, name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path.Join(f.path, name), Err: err}
	}
	return nil
}

// Names lists at most so many names.
func (f *Folder) Names(most int) (names []string, err error) {
	fd, err := unix.Openat(f.fd, ".", folderFlags, 0)
	if err != nil {
		return nil, failed("open", f.path, err)
	}
	file := os.NewFile(uintptr(fd), f.path)
	defer func() { err = errors.Join(err, file.Close()) }()
	names, err = file.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
