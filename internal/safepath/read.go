package safepath

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

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

// Read reads a plain file of up to limit bytes, and says whose it is. It does not block: a pipe is no plain file.
func (f *Folder) Read(name string, limit int64) (data []byte, o Owned, err error) {
	at := path.Join(f.path, name)
	fd, err := f.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, o, err
	}
	file := os.NewFile(uintptr(fd), at)
	defer func() { err = errors.Join(err, file.Close()) }()
	if o, err = owned(fd, unix.S_IFREG); err != nil {
		return nil, o, failed("stat", at, err)
	}
	data, err = io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &os.PathError{Op: "read", Path: at, Err: unix.EFBIG}
	}
	return data, o, err
}

// Names lists the folder in order: up to limit of its names, because others may have filled it; all of them when limit
// is negative.
func (f *Folder) Names(limit int) (names []string, err error) {
	fd, err := f.openat(".", folderFlags, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), f.path)
	defer func() { err = errors.Join(err, file.Close()) }()
	names, err = file.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil // the end of an empty folder is reported as an error
	}
	slices.Sort(names)
	return names, err
}
