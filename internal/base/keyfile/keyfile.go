// Package keyfile reads and writes files that are their owner's alone: keys and tokens.
//
// A file is read through one descriptor, so that what is checked is what is read, and nothing is followed or waited for. Of the
// folder nothing is asked: systemd, packages, containers and people make it, each with a mode of their own. Neither is a file
// refused that has a second name, as one has that is just being made.
package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Why is the reason for which a file is not read.
type Why int

// The reasons.
const (
	Link      Why = iota + 1 // it is a symbolic link
	Irregular                // it is no regular file
	Shared                   // its mode lets others use it
	Strange                  // it belongs neither to root nor to this process's user
	Large                    // it has more bytes than such a file can have
)

// Refused is the error of a file that is not read. It says nothing of what is in it.
type Refused struct {
	Path  string
	Why   Why
	Mode  fs.FileMode // not of a link
	Owner int         // not of a link
}

// Error implements error.
func (r *Refused) Error() string { return r.Path + " is " + r.What() }

// What says in words what kind of file it is.
func (r *Refused) What() string {
	switch r.Why {
	case Link:
		return "a symbolic link"
	case Strange:
		return fmt.Sprintf("a file of user %d", r.Owner)
	case Large:
		return "too long"
	}
	return r.Mode.String()
}

// Read reads a regular file of at most the given number of bytes that only its owner may use, which is root or this process's user.
// The error is a [Refused], or the system's.
func Read(path string, limit int64) (data []byte, info fs.FileInfo, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) { // the second is FreeBSD's
		return nil, nil, &Refused{Path: path, Why: Link}
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	refused := &Refused{Path: path, Mode: info.Mode(), Owner: ownerOf(info)}
	switch {
	case !info.Mode().IsRegular():
		refused.Why = Irregular
	case info.Mode().Perm()&0o077 != 0:
		refused.Why = Shared
	case strange(refused.Owner, os.Geteuid()):
		refused.Why = Strange
	default:
		if data, err = io.ReadAll(io.LimitReader(f, limit+1)); err != nil || int64(len(data)) <= limit {
			return data, info, err
		}
		clear(data)
		refused.Why = Large
	}
	return nil, nil, refused
}

// strange says whether a user should not use a file of that owner's: root may use everybody's, and everybody their own and root's.
func strange(owner, me int) bool { return me != 0 && owner != me && owner != 0 }

// ownerOf is the user whose a file is; -1 is not known.
func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// Write gives a file its name when it is whole and on the disk. place is os.Link, which replaces no file, or os.Rename.
func Write(path string, mode fs.FileMode, data []byte, place func(from, to string) error) (err error) {
	folder := filepath.Dir(path)
	f, err := os.CreateTemp(folder, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if gone := os.Remove(f.Name()); !errors.Is(gone, fs.ErrNotExist) { // a rename has taken it
			err = errors.Join(err, gone)
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), path); err != nil {
		return err
	}
	return SyncFolder(folder)
}

// SyncFolder makes the names in a folder survive the loss of power.
func SyncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
