//go:build linux

// Package hostpath opens folders of the operator's for jails: beneath the folders that the root-owned configuration
// names, by descriptor, following no link that leads out of them, and making what is missing.
package hostpath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Roots are the folders beneath which jails may see something. None allows nothing.
type Roots []string

// Open opens the folder of a mount, and makes it and the folders in it that are missing, for the jail's user. What is there
// already keeps its owner and its mode. The descriptor is good for being mounted.
func (r Roots) Open(m jail.Mount, uid int) (*os.File, error) {
	root, rel, err := r.split(m.Source)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadConfig, "make the folder, or correct `workspace_roots` in the configuration",
			"the folder %s cannot be opened", root)
	}
	dir := os.NewFile(uintptr(fd), root)
	if rel != "." {
		if dir, err = descend(dir, root, rel, uid); err != nil {
			return nil, err
		}
	}
	for _, name := range m.Make {
		sub, err := enter(dir, name, uid)
		if err != nil {
			return nil, errors.Join(refused(err, filepath.Join(m.Source, name), root), dir.Close())
		}
		if err := sub.Close(); err != nil {
			return nil, errors.Join(err, dir.Close())
		}
	}
	return dir, nil
}

// Check says what would keep Open from working, and makes nothing.
func (r Roots) Check(m jail.Mount) error {
	root, rel, err := r.split(m.Source)
	if err != nil {
		return err
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return problem.Wrap(err, problem.BadConfig, "make the folder, or correct `workspace_roots` in the configuration",
			"the folder %s cannot be opened", root)
	}
	dir := os.NewFile(uintptr(fd), root)
	defer func() { _ = dir.Close() }() // opened for its identity
	parts := strings.Split(rel, "/")
	parent, err := dup(dir)
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }() // the same
	for n, name := range parts {
		next, err := beneath(dir, strings.Join(parts[:n+1], "/"))
		if errors.Is(err, unix.ENOENT) {
			if isLink(parent, name) {
				return refused(unix.ELOOP, m.Source, root)
			}
			return nil // it is made
		}
		if err != nil {
			return refused(err, m.Source, root)
		}
		parent, next = next, parent
		if err := next.Close(); err != nil {
			return err
		}
	}
	for _, name := range m.Make {
		var st unix.Stat_t
		err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK:
			return refused(unix.ELOOP, filepath.Join(m.Source, name), root)
		case err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return refused(unix.ENOTDIR, filepath.Join(m.Source, name), root)
		case err != nil:
			return refused(err, filepath.Join(m.Source, name), root)
		}
	}
	return nil
}

// isLink says whether a name in a folder is a link.
func isLink(parent *os.File, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// split finds the longest root that a path is beneath. The comparison is of text: what links make of it is seen when it
// is opened.
func (r Roots) split(path string) (root, rel string, err error) {
	for _, candidate := range r {
		c := filepath.Clean(candidate)
		below, ok := strings.CutPrefix(path, strings.TrimSuffix(c, "/")+"/")
		if path == c {
			below, ok = ".", true
		}
		if ok && len(c) > len(root) {
			root, rel = c, below
		}
	}
	if root == "" {
		return "", "", problem.New(problem.Forbidden, "add a folder above it to `workspace_roots` in the root-owned configuration",
			"%s is beneath none of the folders that jails may see", path)
	}
	return root, rel, nil
}

// descend opens rel beneath dir, which it closes.
func descend(dir *os.File, root, rel string, uid int) (*os.File, error) {
	parts := strings.Split(rel, "/")
	parent, err := dup(dir)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	for n := range parts {
		// From the root every time, so that a link may lead upward as long as it stays beneath.
		next, err := beneath(dir, strings.Join(parts[:n+1], "/"))
		if errors.Is(err, unix.ENOENT) {
			next, err = enter(parent, parts[n], uid)
		}
		if err != nil {
			return nil, errors.Join(refused(err, filepath.Join(root, rel), root), parent.Close(), dir.Close())
		}
		if err := parent.Close(); err != nil {
			return nil, errors.Join(err, next.Close(), dir.Close())
		}
		parent = next
	}
	return parent, dir.Close()
}

// enter opens one folder in another, and makes it when it is missing. A link is not followed.
func enter(parent *os.File, name string, uid int) (*os.File, error) {
	made := true
	if err := unix.Mkdirat(int(parent.Fd()), name, 0o700); errors.Is(err, unix.EEXIST) {
		made = false
	} else if err != nil {
		return nil, err
	}
	flags := uint64(unix.O_PATH)
	if made {
		flags = unix.O_RDONLY // its owner is to be set
	}
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOTDIR) && isLink(parent, name) {
		err = unix.ELOOP
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	if made {
		err = errors.Join(f.Chown(uid, uid), f.Chmod(0o755))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func beneath(dir *os.File, rel string) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), rel)), nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// refused says what is in the way.
func refused(err error, path, root string) error {
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return problem.Wrap(err, problem.Forbidden, "remove the link, or name the folder that it leads to",
			"%s leads through a link out of %s, or through one where none is allowed", path, root)
	case errors.Is(err, unix.ENOTDIR):
		return problem.Wrap(err, problem.Conflict, "remove it, or name another folder", "something on the path %s is not a folder", path)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return problem.Wrap(err, problem.DiskFull, "make room", "%s cannot be made", path)
	}
	return problem.Wrap(err, problem.Conflict, "look at its owner and mode", "%s cannot be opened", path)
}
