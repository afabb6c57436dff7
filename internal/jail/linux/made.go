//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

// A folder that was made as an agent's workspace has a mark: an attribute that only root of the host can set, see or remove,
// with the agent and the folder's own inode. A copy of the folder is therefore not marked. A folder without a mark is the operator's
// and is never removed: so is what was made where attributes cannot be set, or just before the host daemon was killed. A mark
// goes when the folder comes to be anybody else's too.
const madeMark = "trusted.clawjail.made"

// Holder is whose folders are marked: an agent of an installation.
type Holder struct {
	Installation jail.Installation
	Agent        jail.Agent
}

// mark is what the mark of an open folder says.
func (h Holder) mark(f *safepath.Folder) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.FD(), &st); err != nil {
		return "", fmt.Errorf("look at %s: %w", f.Path(), err)
	}
	return fmt.Sprintf("%s %s %d", h.Installation, h.Agent.Key(), st.Ino), nil
}

// marked says whether a folder was made for this agent, and nobody else has had it.
func (h Holder) marked(f *safepath.Folder) (bool, error) {
	want, err := h.mark(f)
	if err != nil {
		return false, err
	}
	is, err := readMark(f)
	return is == want, err
}

// readMark is empty when there is no mark. One that is too long is none of ours.
func readMark(f *safepath.Folder) (string, error) {
	value := make([]byte, 512)
	n, err := unix.Fgetxattr(f.FD(), madeMark, value)
	switch {
	case err == nil:
		return string(value[:n]), nil
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return "", nil
	}
	return "", fmt.Errorf("read whose folder %s is: %w", f.Path(), err)
}

// unmark makes a folder the operator's.
func unmark(f *safepath.Folder) error {
	err := unix.Fremovexattr(f.FD(), madeMark)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("take the mark of %s away: %w", f.Path(), err)
	}
	return nil
}

// sharedMark is that of a folder which two calls have made at the same time: it is nobody's alone.
const sharedMark = "shared"

// first marks a folder before it is given away. Alone says that it is to be that of the agent as a whole.
func (h Holder) first(alone bool) func(dir *safepath.Folder, made bool) error {
	return func(dir *safepath.Folder, made bool) error {
		value := sharedMark
		switch {
		case made && !alone:
			return nil
		case made:
			var err error
			if value, err = h.mark(dir); err != nil {
				return err
			}
		}
		err := unix.Fsetxattr(dir.FD(), madeMark, []byte(value), unix.XATTR_CREATE)
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("mark %s: %w", dir.Path(), jail.Shortage(err))
		}
		return nil
	}
}

// note takes the mark of a folder away that is not, or not only, this agent's any more. Alone says that the folder as a whole is
// that of the agent.
func (h Holder) note(f *safepath.Folder, alone bool) error {
	is, err := readMark(f)
	if err != nil || is == "" || is == sharedMark {
		return err
	}
	if want, err := h.mark(f); err != nil || alone && is == want {
		return err
	}
	return unmark(f)
}

// single says whether a path may be one agent's: the root and the folder of a tenant hold those of many.
func (g grant) single(tenant string) bool { return g.Rel != "." && g.Rel != tenant }

// passBy takes the marks of the folders away that the path leads through: what lies in them is not one agent's any more.
func (g grant) passBy() error {
	if !strings.Contains(g.Rel, "/") {
		return nil
	}
	root, err := g.openRoot()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	for rel := filepath.Dir(g.Rel); rel != "."; rel = filepath.Dir(rel) {
		dir, err := enter(root, rel)
		if err != nil {
			return g.refused(rel, err)
		}
		is, err := readMark(dir)
		if err == nil && is != "" {
			err = unmark(dir)
		}
		if err := errors.Join(err, dir.Close()); err != nil {
			return err
		}
	}
	return nil
}

// RemoveMade removes the folders of an agent's mounts that were made for it. The agent has no jail. Everything is done beneath
// the roots by descriptor, no link is followed, and what is mounted there is left and an error. A folder that is not there, has no mark
// of the agent, or does not lie beneath a root any more is left alone.
func RemoveMade(ctx context.Context, roots []string, whose Holder, mounts []jail.Mount) error {
	var errs []error
	for _, m := range mounts {
		g, err := grantFor("workspace_roots", roots, whose.Agent.Tenant, m.Source)
		if err != nil {
			continue // the operator has taken it away from the tenant
		}
		if len(m.Make) == 0 {
			if g.single(whose.Agent.Tenant) {
				errs = append(errs, g.removeMade(ctx, whose, filepath.Dir(g.Rel), filepath.Base(g.Rel)))
			}
			continue
		}
		for _, name := range m.Make {
			errs = append(errs, g.removeMade(ctx, whose, g.Rel, name))
		}
	}
	return errors.Join(errs...)
}

func (g grant) removeMade(ctx context.Context, whose Holder, in, name string) error {
	root, err := g.openRoot()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	parent, err := enter(root, in)
	if err != nil {
		return leftAlone(err)
	}
	defer func() { _ = parent.Close() }()
	dir, err := enter(parent, name)
	if err != nil {
		return leftAlone(err)
	}
	is, err := whose.marked(dir)
	if err == nil && is {
		err = dir.Empty(ctx)
	}
	if err := errors.Join(err, dir.Close()); err != nil || !is {
		return g.refused(filepath.Join(in, name), err)
	}
	// Should somebody who may write there put another folder in its place, that one is removed when it is empty, or stays.
	return g.refused(filepath.Join(in, name), parent.RemoveFolder(name))
}

// leftAlone is nil for what is not a folder that was made here: nothing, or something planted.
func leftAlone(err error) error {
	for _, is := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV} {
		if errors.Is(err, is) {
			return nil
		}
	}
	return err
}
