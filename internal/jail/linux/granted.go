//go:build linux

package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Folders that the operator grants to jails lie beneath those that the configuration names. A writer there, a jailed
// program with a workspace of its own among them, may have planted anything: so a path is taken one element at a time, by
// descriptor, never out of the folder that was named, and what has to be made is only ever made in a folder that is open.

// granted is how names beneath a folder of the operator's are resolved: no link is followed. One that stays inside would
// lead to the folder of another agent.
const granted = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS

// grant is a folder that a tenant may have.
type grant struct{ jail.Grant }

func grantFor(key string, roots []string, tenant, path string) (grant, error) {
	g, err := jail.GrantFor(key, roots, tenant, path)
	return grant{g}, err
}

// openRoot opens the folder that the configuration names.
func (g grant) openRoot() (*safepath.Folder, error) {
	dir, err := safepath.OpenPlain(g.Root)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, problem.Wrap(err, problem.BadConfig, "write its path without links", "%s of %s leads through a link", g.Root, g.Key)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, problem.Wrap(err, problem.BadConfig, "make the folder, or remove it from the configuration", "%s of %s is not a folder", g.Root, g.Key)
	}
	return dir, err
}

// enter opens a path beneath an open folder of the operator's, through no link. The kernel asks for another try when
// something was moved meanwhile.
func enter(f *safepath.Folder, rel string) (*safepath.Folder, error) {
	var fd int
	var err error
	for range 16 {
		fd, err = unix.Openat2(f.FD(), rel, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: granted})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(f.Path(), rel), Err: err}
	}
	return safepath.At(fd, filepath.Join(f.Path(), rel)), nil
}

// open opens the folder, and makes the folders that are missing for a user. first is called with the folder itself before that one is
// given away; see [safepath.Folder.GiveOne].
func (g grant) open(uid int, first func(dir *safepath.Folder, made bool) error) (*safepath.Folder, error) {
	root, err := g.openRoot()
	if err != nil || g.Rel == "." {
		return root, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	if dir, err := enterFinished(root, g.Rel); err == nil {
		return dir, nil
	}
	var dir *safepath.Folder
	above := root
	elements := strings.Split(g.Rel, "/")
	for i, name := range elements {
		rel := strings.Join(elements[:i+1], "/")
		dir, err = enterFinished(root, rel)
		if errors.Is(err, unix.ENOENT) {
			last := first
			if i < len(elements)-1 {
				last = nil
			}
			dir, err = above.GiveOne(name, 0o755, uid, last)
		}
		if above != root {
			err = errors.Join(err, above.Close())
		}
		if err != nil {
			return nil, g.refused(rel, err)
		}
		above = dir
	}
	return dir, nil
}

// enterFinished is enter. A folder that was made and not given away yet, by another call or a process that was killed, is not there. It is
// empty: the mode alone can be set by whoever has a folder.
func enterFinished(root *safepath.Folder, rel string) (*safepath.Folder, error) {
	dir, err := enter(root, rel)
	if err != nil {
		return nil, err
	}
	o, err := dir.Owned()
	if err == nil && o.Unfinished() {
		var some []string
		if some, err = dir.Names(1); err == nil && len(some) == 0 {
			err = unix.ENOENT
		}
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// owner is whose the folders are that are made beneath the root: its owner's, and the agents' user's in one of root's.
func (g grant) owner() (int, error) {
	root, err := g.openRoot()
	if err != nil {
		return -1, err
	}
	of, err := ownerOf(root)
	return int(of.uid), errors.Join(err, root.Close())
}

// refused says in the user's words what is in the place of a folder.
func (g grant) refused(rel string, err error) error {
	return planted(err, rel, fmt.Sprintf("%s of %s", g.Root, g.Key))
}

// planted turns the kernel's refusal of a path into a problem that names the path and what it lies beneath.
func planted(err error, rel, in string) error {
	var done *problem.Error
	switch {
	case err == nil || errors.As(err, &done):
		return err
	case errors.Is(err, unix.EXDEV):
		return problem.Wrap(err, problem.Forbidden, "replace the link by a folder", "%s leads out of %s", rel, in)
	case errors.Is(err, unix.ELOOP):
		return problem.Wrap(err, problem.Forbidden, "replace the link by a folder", "%s beneath %s is a symbolic link, which is not followed", rel, in)
	case errors.Is(err, unix.ENOTDIR):
		return problem.Wrap(err, problem.Conflict, "move away what is there, or name another folder", "%s beneath %s is not a folder", rel, in)
	case errors.Is(err, unix.ENOENT):
		return problem.Wrap(err, problem.NotFound, "make it, or name another folder", "there is no %s beneath %s", rel, in)
	case errors.Is(err, unix.EROFS):
		return problem.Wrap(err, problem.Conflict, "make the folder where it can be written, or name another one", "%s beneath %s is on a read-only file system", rel, in)
	}
	return jail.Shortage(err)
}

// OpenMount opens the folder of a mount of an agent beneath one of the roots, and makes it and the folders in it that are
// missing, for the jail's user. The caller mounts it by its descriptor.
func OpenMount(roots []string, whose Holder, m jail.Mount, uid int) (*os.File, error) {
	f, err := openMount(roots, whose, m, uid, false)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(f.FD()), f.Path()), nil
}

// openMount is OpenMount. In a folder that is mapped, what is made belongs to the folder's owner.
func openMount(roots []string, whose Holder, m jail.Mount, uid int, mapped bool) (*safepath.Folder, error) {
	g, err := grantFor("workspace_roots", roots, whose.Agent.Tenant, m.Source)
	if err != nil {
		return nil, err
	}
	owner := uid
	if mapped {
		if owner, err = g.owner(); err != nil {
			return nil, err
		}
	}
	alone := len(m.Make) == 0
	dir, err := g.open(owner, whose.first(alone && g.single(whose.Agent.Tenant)))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(g.passBy(), whose.note(dir, alone)); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if mapped {
		of, err := ownerOf(dir)
		if err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		uid = int(of.uid)
	}
	for _, name := range m.Make {
		sub, err := dir.GiveOne(name, 0o755, uid, whose.first(true))
		if err == nil {
			err = errors.Join(whose.note(sub, true), sub.Close())
		}
		if err != nil {
			return nil, errors.Join(g.refused(filepath.Join(g.Rel, name), err), dir.Close())
		}
	}
	return dir, nil
}

// CheckMount says what would keep OpenMount from working, and makes nothing.
func CheckMount(roots []string, tenant string, m jail.Mount) error {
	g, err := grantFor("workspace_roots", roots, tenant, m.Source)
	if err != nil {
		return err
	}
	dir, err := g.walk()
	if dir == nil || err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	for _, name := range m.Make {
		sub, err := dir.Folder(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = sub.Close()
		}
		if err != nil {
			return g.refused(filepath.Join(g.Rel, name), err)
		}
	}
	return nil
}

// walk opens the folder as far as there is something, and reports what is in the way: nil is one that would be made. A link
// that leads nowhere is in the way.
func (g grant) walk() (*safepath.Folder, error) {
	root, err := g.openRoot()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	for i := range len(g.Rel) + 1 {
		if i < len(g.Rel) && g.Rel[i] != '/' {
			continue
		}
		rel := g.Rel[:i]
		dir, err := enter(root, rel)
		if errors.Is(err, unix.ENOENT) {
			return nil, g.refused(rel, nothingAt(root, rel))
		}
		if err != nil {
			return nil, g.refused(rel, err)
		}
		if rel == g.Rel {
			return dir, nil
		}
		if err := dir.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// nothingAt is nil when there really is nothing at a path that could not be opened for that.
func nothingAt(root *safepath.Folder, rel string) error {
	fd, err := unix.Openat2(root.FD(), rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: granted})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = errors.Join(unix.ELOOP, unix.Close(fd))
	}
	return &os.PathError{Op: "open", Path: filepath.Join(root.Path(), rel), Err: err}
}
