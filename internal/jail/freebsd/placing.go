//go:build linux || freebsd

package freebsd

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
	root, err := s.clones.folder(string(p.Name))
	if err != nil {
		return fmt.Errorf("mount into jail %s: %w", p.Name, err)
	}
	defer func() { _ = root.Close() }() // opened for reading
	if a.Token {
		if err := s.mountToken(ctx, p.Name, root); err != nil {
			return fmt.Errorf("mount the folder of the token: %w", err)
		}
	}
	if a.State > 0 {
		if err := s.mountState(ctx, root, *a, int(p.Profile.UID)); err != nil {
			return fmt.Errorf("mount the state of %s: %w", a.Name, err)
		}
	}
	return s.mountFolders(ctx, root, p.Spec.Mounts, int(p.Profile.UID))
}

// mountToken makes an empty folder: no token of an earlier jail is ever in it.
func (s *Storage) mountToken(ctx context.Context, name jail.Name, root *folder) error {
	if err := s.tokens.mkdir(string(name), 0o755); err != nil {
		return err
	}
	dir, err := s.tokens.folder(string(name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	return s.nullfs(ctx, dir, root, jail.TokenDir, "ro", "noexec")
}

// mountFolders mounts folders of the operator, those that others are mounted in first.
func (s *Storage) mountFolders(ctx context.Context, root *folder, all []jail.Mount, uid int) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b jail.Mount) int { return cmp.Compare(a.Target, b.Target) })
	for _, m := range all {
		source, err := openMount(s.o.WorkspaceRoots, m, uid)
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
func (s *Storage) nullfs(ctx context.Context, source, root *folder, target string, options ...string) error {
	point, err := mountPoint(root, target)
	if err != nil {
		return err
	}
	if err := point.Close(); err != nil {
		return err
	}
	options = append(options, "nosuid")
	slices.SortFunc(options, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	if _, err := s.o.Commands.Run(ctx, "mount_nullfs", "-o", strings.Join(options, ","), source.path, point.path); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source.path, target, err)
	}
	all, err := below(ctx, s.o.Commands, point.path)
	if err != nil {
		return err
	}
	var through, opened unix.Stat_t
	seen, err := openAbsolute(point.path)
	if err == nil {
		err = errors.Join(unix.Fstat(seen.fd, &through), unix.Fstat(source.fd, &opened), seen.Close())
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(m mounted) bool { return m.point == point.path && m.kind == "nullfs" })
	if i < 0 || all[i].source != source.path || through.Ino != opened.Ino {
		return problem.New(problem.Forbidden, "let nobody else rename folders while a jail starts", "%s was replaced while it was mounted", source.path)
	}
	return nil
}

func order(option string) int { return slices.Index([]string{"ro", "nosuid", "noexec"}, option) }

// mountPoint opens a folder of the clone, and makes it when it is missing. Links of the template are not followed.
func mountPoint(root *folder, target string) (*folder, error) {
	point, err := root.subAll(strings.TrimPrefix(target, "/"), 0o755)
	if notAFolder(err) {
		return nil, problem.Wrap(err, problem.BadTemplate, "make it a folder in the template, or leave it out",
			"nothing can be mounted at %s: something on the way is not a folder", target)
	}
	if err != nil {
		return nil, fmt.Errorf("make a place for %s: %w", target, err)
	}
	return point, nil
}

// notAFolder reports whether a path was refused for what lies there: a link or a file. FreeBSD says EMLINK of a link where
// others say ELOOP (open(2)).
func notAFolder(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.ENOTDIR)
}

// rootOf finds the root that a path lies beneath: the longest, where there are several. rel is empty for the root itself.
func rootOf(roots []string, path string) (root, rel string, err error) {
	for _, r := range roots {
		if rest, ok := strings.CutPrefix(path+"/", r+"/"); ok && len(r) > len(root) {
			root, rel = r, strings.TrimSuffix(rest, "/")
		}
	}
	if root != "" {
		return root, rel, nil
	}
	hint := "add a folder that holds it to workspace_roots in the configuration of the host daemon"
	if len(roots) > 0 {
		hint += ", or use one beneath " + strings.Join(roots, ", ")
	}
	return "", "", problem.New(problem.Forbidden, hint, "%s does not lie beneath one of the workspace_roots", path)
}

func openRoot(root string) (*folder, error) {
	dir, err := openAbsolute(root)
	switch {
	case notAFolder(err):
		return nil, problem.Wrap(err, problem.BadConfig, "write its path without links", "%s of workspace_roots leads through a link", root)
	case errors.Is(err, unix.ENOENT):
		return nil, problem.Wrap(err, problem.BadConfig, "make the folder, or remove it from the configuration", "%s of workspace_roots is not a folder", root)
	}
	return dir, err
}

// openMount opens the folder of a mount beneath one of the roots, and makes it and the folders in it that are missing, for
// the jail's user. No link is followed, not even one that stays inside: the folder is mounted by its path.
func openMount(roots []string, m jail.Mount, uid int) (*folder, error) {
	root, rel, err := rootOf(roots, m.Source)
	if err != nil {
		return nil, err
	}
	dir, err := openRoot(root)
	if err != nil {
		return nil, err
	}
	if rel != "" {
		for name := range strings.SplitSeq(rel, "/") {
			next, err := dir.ensure(name, uid)
			if err := errors.Join(refused(err, name, root), dir.Close()); err != nil {
				return nil, err
			}
			dir = next
		}
	}
	for _, name := range m.Make {
		made, err := dir.ensure(name, uid)
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
func checkMount(roots []string, m jail.Mount) error {
	root, rel, err := rootOf(roots, m.Source)
	if err != nil {
		return err
	}
	dir, err := openRoot(root)
	if err != nil {
		return err
	}
	if rel == "" {
		return dir.Close()
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := dir.folder(name)
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
	case notAFolder(err):
		return problem.Wrap(err, problem.Forbidden, "replace it by a folder", "%s beneath %s is a link or not a folder", name, root)
	case errors.Is(err, unix.EROFS):
		return problem.Wrap(err, problem.Conflict, "make the folder where it can be written", "%s beneath %s is on a read-only file system", name, root)
	}
	return shortage(err)
}

// unfinished is the mode of a folder that ensure has made and not yet given away.
const unfinished = unix.S_ISVTX

// ensure opens a folder of one element, and makes it for a user when it is missing. One that is there keeps its owner and
// mode; one that a killed process left half-made is told by its mode, and finished when it is empty.
func (f *folder) ensure(name string, uid int) (*folder, error) {
	err := unix.Mkdirat(f.fd, name, unfinished)
	if err == nil {
		// FreeBSD drops the sticky bit of mkdir's mode (mkdir(2)).
		made, opened := f.folder(name)
		if opened == nil {
			opened = errors.Join(unix.Fchmod(made.fd, unfinished), made.Close())
		}
		err = opened
	} else if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: filepath.Join(f.path, name), Err: err}
	}
	dir, err := f.folder(name)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir.fd, &st); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	mode := uint32(st.Mode) & 0o7777 &^ unix.S_ISGID // folders may inherit that bit
	if mode != unfinished && mode != 0 {
		return dir, nil
	}
	some, err := dir.names()
	if err == nil && len(some) > 0 {
		err = fmt.Errorf("%s cannot be used by anybody, and is not empty", dir.path)
	}
	if err == nil {
		err = dir.own(uid, 0o755)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// Token puts the token into its folder. Whoever reads sees the one before or this one.
func (s *Storage) Token(ctx context.Context, name jail.Name, uid uint32, token []byte) error {
	if err := errors.Join(s.o.check(name), ctx.Err()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := s.tokens.folder(string(name))
	if errors.Is(err, os.ErrNotExist) {
		return problem.Wrap(err, problem.Conflict, "start the jail again", "jail %s has no place for a token", name)
	}
	if err != nil {
		return fmt.Errorf("deliver the token of jail %s: %w", name, err)
	}
	const fresh = ".new" // a killed process may have left one
	err = errors.Join(dir.remove(fresh), dir.create(fresh, token, 0o600, int(uid)))
	if err == nil {
		err = unix.Renameat(dir.fd, fresh, dir.fd, jail.TokenName)
	}
	if err != nil {
		err = errors.Join(err, dir.remove(fresh))
	}
	if err := errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("deliver the token of jail %s: %w", name, err)
	}
	return nil
}
