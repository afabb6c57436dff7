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
)

// What the operator grants to jails lies beneath folders that the configuration names. Whoever may write there, a jailed
// program with a workspace of its own among them, may have planted anything: so a path is taken one element at a time, by
// descriptor, never out of the folder that was named, and what has to be made is only ever made in a folder that is open.

// granted is how names beneath a folder of the operator's are resolved: links may lead elsewhere in it, but not out.
const granted = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

// grant is one of the folders that the configuration names, and a path beneath it.
type grant struct {
	key  string // of the configuration
	root string
	rel  string // "." is the root itself
}

// grantFor finds the root that a path lies beneath: the longest, where there are several.
func grantFor(key string, roots []string, path string) (grant, error) {
	g := grant{key: key}
	for _, root := range roots {
		if rest, ok := strings.CutPrefix(path+"/", root+"/"); ok && len(root) > len(g.root) {
			g.root, g.rel = root, strings.TrimSuffix(rest, "/")
		}
	}
	if g.rel == "" {
		g.rel = "."
	}
	if g.root != "" {
		return g, nil
	}
	hint := "add a folder that holds it to " + key + " in the configuration of the host daemon"
	if len(roots) > 0 {
		hint += ", or use one beneath " + strings.Join(roots, ", ")
	}
	return g, problem.New(problem.Forbidden, hint, "%s does not lie beneath one of the %s", path, key)
}

func (g grant) String() string { return filepath.Join(g.root, g.rel) }

// openRoot opens the folder that the configuration names.
func (g grant) openRoot() (*folder, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, g.root, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		return &folder{fd: fd, path: g.root}, nil
	}
	err = &os.PathError{Op: "open", Path: g.root, Err: err}
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, problem.Wrap(err, problem.BadConfig, "write its path without links", "%s of %s leads through a link", g.root, g.key)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, problem.Wrap(err, problem.BadConfig, "make the folder, or remove it from the configuration", "%s of %s is not a folder", g.root, g.key)
	}
	return nil, err
}

// enter opens a path beneath an open folder of the operator's, links that stay inside followed. The kernel asks for
// another try when something was moved meanwhile.
func (f *folder) enter(rel string) (*folder, error) {
	var fd int
	var err error
	for range 16 {
		fd, err = unix.Openat2(f.fd, rel, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: granted})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(f.path, rel), Err: err}
	}
	return &folder{fd: fd, path: filepath.Join(f.path, rel)}, nil
}

// open opens the folder, and makes what is missing for a user when uid is not negative.
func (g grant) open(uid int) (*folder, error) {
	root, err := g.openRoot()
	if err != nil || g.rel == "." {
		return root, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	if dir, err := root.enter(g.rel); err == nil {
		return dir, nil
	}
	var dir *folder
	above := root
	elements := strings.Split(g.rel, "/")
	for i, name := range elements {
		rel := strings.Join(elements[:i+1], "/")
		dir, err = root.enter(rel)
		if uid >= 0 && errors.Is(err, unix.ENOENT) {
			dir, err = above.ensure(name, uid, 0o755)
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

// refused says in the user's words what is in the place of a folder.
func (g grant) refused(rel string, err error) error {
	return planted(err, rel, fmt.Sprintf("%s of %s", g.root, g.key))
}

// planted turns the kernel's refusal of a path into a problem that names the path and what it lies beneath.
func planted(err error, rel, beneath string) error {
	var done *problem.Error
	switch {
	case err == nil || errors.As(err, &done):
		return err
	case errors.Is(err, unix.EXDEV):
		return problem.Wrap(err, problem.Forbidden, "replace the link by a folder", "%s leads out of %s", rel, beneath)
	case errors.Is(err, unix.ELOOP):
		return problem.Wrap(err, problem.Forbidden, "replace the link by a folder", "%s beneath %s is a link that cannot be followed", rel, beneath)
	case errors.Is(err, unix.ENOTDIR):
		return problem.Wrap(err, problem.Conflict, "move away what is there, or name another folder", "%s beneath %s is not a folder", rel, beneath)
	case errors.Is(err, unix.ENOENT):
		return problem.Wrap(err, problem.NotFound, "make it, or name another folder", "there is no %s beneath %s", rel, beneath)
	case errors.Is(err, unix.EROFS):
		return problem.Wrap(err, problem.Conflict, "make the folder where it can be written, or name another one", "%s beneath %s is on a read-only file system", rel, beneath)
	}
	return shortage(err)
}

// unfinished is the mode of a folder that ensure has made and not yet given away. It is never that of a folder in use.
const unfinished = unix.S_ISVTX

// ensure opens a folder of one element, and makes it for a user when it is missing. One that is there keeps its owner and
// mode. What is given away is empty: should somebody who may write here put another folder in its place, he gains nothing.
// One that a killed process left half-made is told by its mode, and finished.
func (f *folder) ensure(name string, uid int, mode os.FileMode) (*folder, error) {
	fail := func(op string, err error) (*folder, error) {
		return nil, shortage(&os.PathError{Op: op, Path: filepath.Join(f.path, name), Err: err})
	}
	if err := unix.Mkdirat(f.fd, name, unfinished); err != nil && !errors.Is(err, unix.EEXIST) {
		return fail("mkdir", err)
	}
	fd, err := unix.Openat2(f.fd, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath})
	if err != nil {
		return fail("open", err)
	}
	dir := &folder{fd: fd, path: filepath.Join(f.path, name)}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = dir.Close() // opened for reading
		return fail("stat", err)
	}
	if st.Mode&0o7777&^unix.S_ISGID != unfinished { // folders may inherit that bit
		return dir, nil
	}
	some, err := dir.some(1)
	if err == nil && len(some) > 0 {
		err = unix.ENOTEMPTY
	}
	if err == nil {
		err = dir.own(uid, uid, mode)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// some lists at most so many entries of the folder: others may have filled it.
func (f *folder) some(most int) ([]string, error) {
	fd, err := f.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), f.path)
	names, err := file.Readdirnames(most)
	if len(names) == 0 {
		err = nil // the end of an empty folder is reported as an error
	}
	return names, errors.Join(err, file.Close())
}

// OpenMount opens the folder of a mount beneath one of the roots, and makes it and the folders in it that are missing, for
// the jail's user. The caller mounts it by its descriptor.
func OpenMount(roots []string, m jail.Mount, uid int) (*os.File, error) {
	f, err := openMount(roots, m, uid)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(f.fd), f.path), nil
}

func openMount(roots []string, m jail.Mount, uid int) (*folder, error) {
	g, err := grantFor("workspace_roots", roots, m.Source)
	if err != nil {
		return nil, err
	}
	dir, err := g.open(uid)
	if err != nil {
		return nil, err
	}
	for _, name := range m.Make {
		sub, err := dir.ensure(name, uid, 0o755)
		if err == nil {
			err = sub.Close()
		}
		if err != nil {
			return nil, errors.Join(g.refused(filepath.Join(g.rel, name), err), dir.Close())
		}
	}
	return dir, nil
}

// CheckMount says what would keep OpenMount from working, and makes nothing.
func CheckMount(roots []string, m jail.Mount) error {
	g, err := grantFor("workspace_roots", roots, m.Source)
	if err != nil {
		return err
	}
	root, err := g.openRoot()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	dir, err := g.walk(root)
	if dir == nil || err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	for _, name := range m.Make {
		sub, err := dir.folder(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = sub.Close()
		}
		if err != nil {
			return g.refused(filepath.Join(g.rel, name), err)
		}
	}
	return nil
}

// walk opens the folder as far as there is something, and reports what is in the way: nil is one that would be made. A link
// that leads nowhere is in the way.
func (g grant) walk(root *folder) (*folder, error) {
	for i := range len(g.rel) + 1 {
		if i < len(g.rel) && g.rel[i] != '/' {
			continue
		}
		rel := g.rel[:i]
		dir, err := root.enter(rel)
		if errors.Is(err, unix.ENOENT) {
			return nil, g.refused(rel, nothingAt(root, rel))
		}
		if err != nil {
			return nil, g.refused(rel, err)
		}
		if rel == g.rel {
			return dir, nil
		}
		if err := dir.Close(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// nothingAt is nil when there really is nothing at a path that could not be opened for that.
func nothingAt(root *folder, rel string) error {
	fd, err := unix.Openat2(root.fd, rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: granted})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = errors.Join(unix.ELOOP, unix.Close(fd))
	}
	return &os.PathError{Op: "open", Path: filepath.Join(root.path, rel), Err: err}
}
