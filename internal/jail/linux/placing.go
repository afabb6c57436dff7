//go:build linux

package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// tokenFolder is the folder of the token, in the clone's.
const tokenFolder = "token"

// Mount mounts what the jail of an agent has of the host onto its clone. The runtime binds the clone with everything that
// is mounted there, so the jail's view of it begins with the jail and ends with it, and Unmount finds all of it.
func (s *Storage) Mount(ctx context.Context, p jail.Placement) error {
	if err := errors.Join(s.o.check(p.Name), ctx.Err()); err != nil {
		return err
	}
	a := p.Spec.Agent
	if a == nil {
		return nil
	}
	place, err := s.jails.Folder(string(p.Name))
	if err != nil {
		return fmt.Errorf("mount into jail %s: %w", p.Name, err)
	}
	defer func() { _ = place.Close() }() // opened for reading
	root, err := place.Folder(rootMount)
	if err != nil {
		return fmt.Errorf("mount into jail %s: %w", p.Name, err)
	}
	defer func() { _ = root.Close() }()
	if a.Token {
		if err := s.mountToken(place, root); err != nil {
			return fmt.Errorf("mount the folder of the token: %w", jail.Shortage(err))
		}
	}
	if a.State > 0 {
		if err := s.mountState(ctx, root, *a, p.Profile); err != nil {
			return fmt.Errorf("mount the state of %s: %w", a.Name, jail.Shortage(err))
		}
	}
	return s.mountFolders(root, *a, p.Spec.Mounts, p.Profile)
}

// mountToken makes an empty folder: no token of an earlier jail is ever in it.
func (s *Storage) mountToken(place, root *safepath.Folder) error {
	if err := place.Make(tokenFolder, 0o755, -1); err != nil {
		return err
	}
	dir, err := place.Folder(tokenFolder)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	point, err := jail.MountPoint(root, jail.TokenDir)
	if err != nil {
		return err
	}
	defer func() { _ = point.Close() }()
	return bind(dir, point, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC, nil)
}

// mapped is the map of a folder's mount, where the jail's user has another number on the host.
func (s *Storage) mapped(f *safepath.Folder, p jail.Profile) (func(tree int) error, error) {
	if p.Host == p.UID {
		return nil, nil
	}
	of, err := ownerOf(f)
	return func(tree int) error { return s.maps.restrict(tree, f.Path(), userMap{of, p.Host}) }, err
}

// mountFolders mounts folders of the operator, those that others are mounted in first.
func (s *Storage) mountFolders(root *safepath.Folder, a jail.Agent, mounts []jail.Mount, p jail.Profile) (err error) {
	uid, whose := int(p.UID), Holder{s.o.Installation, a}
	mounts = slices.SortedFunc(slices.Values(mounts), func(a, b jail.Mount) int { return cmp.Compare(a.Target, b.Target) })
	if len(mounts) == 0 {
		return nil
	}
	roots, err := jail.RootsFor(a.Tenant, s.o.WorkspaceRoots, s.o.AddedRoots)
	if err != nil {
		return err
	}
	sources := map[string]*safepath.Folder{} // by target
	defer func() {
		for _, f := range sources {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, m := range mounts {
		if sources[m.Target], err = openMount(roots, whose, m, uid, p.Host != p.UID); err != nil {
			delete(sources, m.Target)
			return err
		}
		var attributes uint64
		if m.ReadOnly {
			attributes = unix.MOUNT_ATTR_RDONLY
		}
		point, err := pointIn(root, sources, m.Target, uid)
		if err != nil {
			return err
		}
		amend, err := s.mapped(sources[m.Target], p)
		if err == nil {
			err = bind(sources[m.Target], point, attributes, amend)
		}
		if err := errors.Join(err, point.Close()); err != nil {
			return fmt.Errorf("mount %s: %w", m.Source, err)
		}
	}
	return nil
}

// pointIn opens the place that something is to be mounted on. One that lies in another folder of the operator's is made
// there, by its own descriptor: the mount of it may be read-only.
func pointIn(root *safepath.Folder, sources map[string]*safepath.Folder, target string, uid int) (*safepath.Folder, error) {
	for over := filepath.Dir(target); over != "/"; over = filepath.Dir(over) {
		source := sources[over]
		if source == nil {
			continue
		}
		rel := strings.TrimPrefix(target, over+"/")
		made, err := source.Give(rel, 0o755, uid)
		if err == nil {
			err = made.Close()
		}
		if err != nil {
			return nil, planted(err, rel, source.Path())
		}
		point, err := root.Folder(strings.TrimPrefix(target, "/"))
		return point, planted(err, rel, source.Path())
	}
	return jail.MountPoint(root, target)
}

// bind mounts a folder, and nothing that is mounted beneath it, onto another. There are neither devices nor setuid
// programs through it. amend may change the mount before anybody sees it.
func bind(from, onto *safepath.Folder, attributes uint64, amend func(tree int) error) error {
	tree, err := unix.OpenTree(from.FD(), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return &os.PathError{Op: "bind", Path: from.Path(), Err: err}
	}
	defer func() { _ = unix.Close(tree) }() // the mount stays, or was never attached
	attr := unix.MountAttr{Attr_set: attributes | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return &os.PathError{Op: "restrict the bind of", Path: from.Path(), Err: err}
	}
	if amend != nil {
		if err := amend(tree); err != nil {
			return err
		}
	}
	if err := attach(tree, onto); err != nil {
		return fmt.Errorf("bind %s: %w", from.Path(), err)
	}
	return nil
}

// attach puts a mount onto an open folder.
func attach(tree int, onto *safepath.Folder) error {
	if err := unix.MoveMount(tree, "", onto.FD(), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount onto", Path: onto.Path(), Err: err}
	}
	return nil
}

// Token puts the token into its folder. A reader sees the one before or this one.
func (s *Storage) Token(ctx context.Context, name jail.Name, uid uint32, token []byte) error {
	if err := errors.Join(s.o.check(name), ctx.Err()); err != nil {
		return err
	}
	unlock := s.locks.lock("token " + string(name))
	defer unlock()
	return jail.PutToken(s.jails, filepath.Join(string(name), tokenFolder), name, int(uid), token)
}

// Check says what would keep Clone and Mount from working, and makes nothing.
func (s *Storage) Check(ctx context.Context, spec jail.Spec) error {
	if spec.Image != "" {
		return problem.New(problem.BadRequest, "name a template", "this driver makes no containers")
	}
	var errs []error
	if tree, err := s.source(spec); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, unix.Close(tree))
	}
	roots, err := spec.Roots(s.o.WorkspaceRoots, s.o.AddedRoots)
	errs = append(errs, err)
	for _, m := range spec.Mounts {
		errs = append(errs, CheckMount(roots, spec.Tenant(), m))
	}
	if spec.Agent != nil && spec.Agent.State > 0 {
		errs = append(errs, s.checkState(*spec.Agent))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// source opens what a clone is made of: the folder of a template, or one of the operator's.
func (s *Storage) source(spec jail.Spec) (int, error) {
	if spec.Root != "" {
		g, err := grantFor("jail_roots", s.o.JailRoots, spec.Tenant(), spec.Root)
		if err != nil {
			return -1, err
		}
		dir, err := g.walk()
		if dir == nil && err == nil {
			err = g.refused(g.Rel, unix.ENOENT)
		}
		if err != nil {
			return -1, err
		}
		return dir.FD(), nil
	}
	if err := jail.ValidTemplateName(spec.Template); err != nil {
		return -1, err
	}
	tree, err := s.templates.Open(filepath.Join(spec.Template, rootfsFolder), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return -1, problem.Wrap(err, problem.TemplateMissing, "run `clawjail template build "+spec.Template+"`",
			"there is no template %s", spec.Template)
	}
	if err != nil {
		return -1, fmt.Errorf("open template %s: %w", spec.Template, err)
	}
	return tree, nil
}
