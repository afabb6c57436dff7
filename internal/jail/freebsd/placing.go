//go:build linux || freebsd

package freebsd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Mount mounts what the jail of an agent has of the host onto its clone, by nullfs.
func (s *Storage) Mount(ctx context.Context, p jail.Placement) error {
	if err := errors.Join(s.o.check(p.Name), ctx.Err()); err != nil {
		return err
	}
	a := p.Spec.Agent
	if a == nil {
		return nil
	}
	root, err := s.clones.Folder(string(p.Name))
	if err != nil {
		return fmt.Errorf("mount into jail %s: %w", p.Name, err)
	}
	defer func() { _ = root.Close() }() // opened for reading
	if a.Token {
		if err := s.mountToken(ctx, p.Name, root); err != nil {
			return fmt.Errorf("mount the folder of the token: %w", jail.Shortage(err))
		}
	}
	if a.State > 0 {
		if err := s.mountState(ctx, root, *a, int(p.Profile.UID)); err != nil {
			return fmt.Errorf("mount the state of %s: %w", a.Name, jail.Shortage(err))
		}
	}
	return s.mountFolders(ctx, root, p.Spec.Agent.Tenant, p.Spec.Mounts, int(p.Profile.UID))
}

// mountToken makes an empty folder: no token of an earlier jail is ever in it.
func (s *Storage) mountToken(ctx context.Context, name jail.Name, root *safepath.Folder) error {
	if err := s.tokens.Make(string(name), 0o755, -1); err != nil {
		return err
	}
	dir, err := s.tokens.Folder(string(name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	return s.nullfs(ctx, dir, root, jail.TokenDir, "ro", "noexec")
}

// mountFolders mounts folders of the operator, those that others are mounted in first.
func (s *Storage) mountFolders(ctx context.Context, root *safepath.Folder, tenant string, all []jail.Mount, uid int) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b jail.Mount) int { return cmp.Compare(a.Target, b.Target) })
	if len(all) == 0 {
		return nil
	}
	roots, err := jail.RootsFor(tenant, s.o.WorkspaceRoots, s.o.AddedRoots)
	if err != nil {
		return err
	}
	for _, m := range all {
		source, err := openMount(roots, tenant, m, uid)
		if err != nil {
			return err
		}
		var options []string
		if m.ReadOnly {
			options = append(options, "ro")
		}
		err = s.nullfs(ctx, source, root, m.Target, options...)
		if err := errors.Join(err, source.Close()); err != nil {
			return fmt.Errorf("mount %s: %w", m.Source, err)
		}
	}
	return nil
}

// nullfs mounts an open folder at a place of the clone, which is made when it is missing.
//
// mount_nullfs(8) takes a path, and whoever may write above the source could have put a link there since it was opened. So
// what was mounted is compared with what was opened: the source that the kernel was given, which has no links in it any
// more, and the folder that is seen through the mount.
func (s *Storage) nullfs(ctx context.Context, source, root *safepath.Folder, target string, options ...string) error {
	point, err := jail.MountPoint(root, target)
	if err != nil {
		return err
	}
	if err := point.Close(); err != nil {
		return err
	}
	options = append(options, "nosuid")
	slices.SortFunc(options, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	if _, err := s.o.Commands.Run(ctx, "mount_nullfs", "-o", strings.Join(options, ","), source.Path(), point.Path()); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source.Path(), target, err)
	}
	all, err := below(ctx, s.o.Commands, point.Path())
	if err != nil {
		return err
	}
	var through, opened unix.Stat_t
	seen, err := safepath.OpenPlain(point.Path())
	if err == nil {
		err = errors.Join(unix.Fstat(seen.FD(), &through), unix.Fstat(source.FD(), &opened), seen.Close())
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(m mounted) bool { return m.point == point.Path() && m.kind == "nullfs" })
	if i < 0 || all[i].source != source.Path() || through.Ino != opened.Ino {
		return problem.New(problem.Forbidden, "let nobody else rename folders while a jail starts", "%s was replaced while it was mounted", source.Path())
	}
	return nil
}

func order(option string) int { return slices.Index([]string{"ro", "nosuid", "noexec"}, option) }

func openRoot(root string) (*safepath.Folder, error) {
	dir, err := safepath.OpenPlain(root)
	switch {
	case errors.Is(err, safepath.ErrPlanted):
		return nil, problem.Wrap(err, problem.BadConfig, "write its path without links", "%s of workspace_roots leads through a link", root)
	case errors.Is(err, unix.ENOENT):
		return nil, problem.Wrap(err, problem.BadConfig, "make the folder, or remove it from the configuration", "%s of workspace_roots is not a folder", root)
	}
	return dir, err
}

// openMount opens the folder of a mount beneath one of the roots, and makes it and the folders in it that are missing, for
// the jail's user. No link is followed, not even one that stays inside: the folder is mounted by its path.
func openMount(roots []string, tenant string, m jail.Mount, uid int) (*safepath.Folder, error) {
	g, err := jail.GrantFor("workspace_roots", roots, tenant, m.Source)
	root, rel := g.Root, g.Rel
	if err != nil {
		return nil, err
	}
	dir, err := openRoot(root)
	if err != nil {
		return nil, err
	}
	if rel != "." {
		for name := range strings.SplitSeq(rel, "/") {
			next, err := dir.Give(name, 0o755, uid)
			if err := errors.Join(refused(err, name, root), dir.Close()); err != nil {
				return nil, err
			}
			dir = next
		}
	}
	for _, name := range m.Make {
		made, err := dir.Give(name, 0o755, uid)
		if err == nil {
			err = made.Close()
		}
		if err != nil {
			return nil, errors.Join(refused(err, name, root), dir.Close())
		}
	}
	return dir, nil
}

// checkMount says what would keep openMount from working, and makes nothing.
func checkMount(roots []string, tenant string, m jail.Mount) error {
	g, err := jail.GrantFor("workspace_roots", roots, tenant, m.Source)
	root, rel := g.Root, g.Rel
	if err != nil {
		return err
	}
	dir, err := openRoot(root)
	if err != nil {
		return err
	}
	if rel == "." {
		return dir.Close()
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := dir.Folder(name)
		closed := dir.Close()
		if errors.Is(err, unix.ENOENT) {
			return closed // it will be made
		}
		if err := errors.Join(refused(err, name, root), closed); err != nil {
			return err
		}
		dir = next
	}
	return dir.Close()
}

// refused says in the user's words what is in the place of a folder.
func refused(err error, name, root string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, safepath.ErrPlanted):
		return problem.Wrap(err, problem.Forbidden, "replace it by a folder", "%s beneath %s is a link or not a folder", name, root)
	case errors.Is(err, unix.EROFS):
		return problem.Wrap(err, problem.Conflict, "make the folder where it can be written", "%s beneath %s is on a read-only file system", name, root)
	}
	return jail.Shortage(err)
}

// Token puts the token into its folder. A reader sees the one before or this one.
func (s *Storage) Token(ctx context.Context, name jail.Name, uid uint32, token []byte) error {
	if err := errors.Join(s.o.check(name), ctx.Err()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return jail.PutToken(s.tokens, string(name), name, int(uid), token)
}
