//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/zfs"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// states holds the volumes of agents, below the parent.
const states = "state"

// Storage clones templates, which are datasets. A clone is mounted at <data>/clones/NAME, and everything that a jail has of
// the host is mounted beneath it.
type Storage struct {
	o         Options
	data      *zfs.Datasets
	trees     *zfs.Trees
	templates *safepath.Folder
	clones    *safepath.Folder
	volumes   *safepath.Folder
	tokens    *safepath.Folder

	mu sync.Mutex // makes and changes volumes, and replaces tokens
}

func newStorage(ctx context.Context, o Options) (_ *Storage, err error) {
	s := &Storage{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare storage: %w", jail.Shortage(err)), s.Close())
		}
	}()
	if s.data, err = zfs.New(o.Commands, o.Dataset); err != nil {
		return nil, err
	}
	s.trees = zfs.NewTrees(s.data)
	if err := s.data.Open(ctx); err != nil {
		return nil, err
	}
	err = s.data.Create(ctx, states, map[string]string{"mountpoint": "none"})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if s.templates, err = safepath.MakeTrusted(o.Templates, 0o700); err != nil {
		return nil, err
	}
	for _, made := range []struct {
		at   **safepath.Folder
		dir  string
		name string
	}{{&s.clones, o.DataDir, clonesFolder}, {&s.volumes, o.DataDir, statesFolder}, {&s.tokens, o.RunDir, tokensFolder}} {
		base, err := safepath.MakeTrusted(made.dir, 0o711)
		if err != nil {
			return nil, err
		}
		*made.at, err = base.Ensure(made.name, 0o700, -1)
		if err := errors.Join(err, base.Close()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Close closes the folders. Clones stay.
func (s *Storage) Close() error {
	var errs []error
	for _, f := range []*safepath.Folder{s.tokens, s.volumes, s.clones, s.templates} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Kind is zfs.
func (s *Storage) Kind() string { return "zfs" }

func dataset(name jail.Name) string { return zfs.Jails + "/" + string(name) }

// root is where a jail's clone is mounted.
func (s *Storage) root(name jail.Name) string { return filepath.Join(s.clones.Path(), string(name)) }

// Clone makes the root file system of a jail. It can be written by the host until the jail is started.
func (s *Storage) Clone(ctx context.Context, name jail.Name, spec jail.Spec) (root string, err error) {
	if err := errors.Join(s.o.check(name), ctx.Err()); err != nil {
		return "", err
	}
	path, err := s.template(spec)
	if err != nil {
		return "", err
	}
	if _, err := s.data.Look(ctx, dataset(name)); err == nil {
		return "", fmt.Errorf("clone %s: %s: %w", spec.Template, dataset(name), fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	defer func() {
		if err != nil {
			undo := context.WithoutCancel(ctx)
			root, err = "", errors.Join(fmt.Errorf("clone %s: %w", spec.Template, err), s.Unmount(undo, name, true), s.Destroy(undo, name))
		}
	}()
	root = s.root(name)
	if err := s.trees.Clone(ctx, path, dataset(name), map[string]string{"atime": "off", "mountpoint": root, "setuid": "off"}); err != nil {
		return "", err
	}
	d, err := s.data.Look(ctx, dataset(name))
	if err != nil {
		return "", err
	}
	if !d.Mounted {
		if err := s.data.Mount(ctx, dataset(name)); err != nil {
			return "", err
		}
		if d, err = s.data.Look(ctx, dataset(name)); err != nil {
			return "", err
		}
	}
	if !d.Mounted || d.Mountpoint != root {
		return "", fmt.Errorf("the clone is not mounted at %s", root)
	}
	return root, nil
}

// template is where the root file system of a template is.
func (s *Storage) template(spec jail.Spec) (string, error) {
	if spec.Root != "" {
		return "", problem.New(problem.Unsupported, "make a template of it: clawjail template build NAME --from "+spec.Root,
			"jails on FreeBSD are clones of templates, and %s is not a template", spec.Root)
	}
	if spec.Image != "" {
		return "", problem.New(problem.BadRequest, "name a template", "this driver makes no containers")
	}
	if err := jail.ValidTemplateName(spec.Template); err != nil {
		return "", err
	}
	dir, err := s.templates.Folder(spec.Template + "/" + rootfsFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return "", problem.Wrap(err, problem.TemplateMissing, "run `clawjail template build "+spec.Template+"`",
			"there is no template %s", spec.Template)
	}
	if err != nil {
		return "", fmt.Errorf("open template %s: %w", spec.Template, err)
	}
	return dir.Path(), dir.Close()
}

// Unmount unmounts what is beneath the clone, deepest first, and then the clone. A jail that is there holds its root: that
// is ErrBusy, and forced it is taken away.
func (s *Storage) Unmount(ctx context.Context, name jail.Name, force bool) error {
	if err := s.o.check(name); err != nil {
		return err
	}
	root := s.root(name)
	all, err := below(ctx, s.o.Commands, root)
	if err != nil || len(all) == 0 {
		return err
	}
	var errs []error
	for _, m := range all {
		if m.point == root && m.kind == "zfs" {
			errs = append(errs, s.data.Unmount(ctx, dataset(name), force))
		} else {
			errs = append(errs, unmount(ctx, s.o.Commands, m.point, force))
		}
	}
	left, err := below(ctx, s.o.Commands, root)
	if err != nil || len(left) == 0 {
		return err
	}
	return fmt.Errorf("unmount %s: %s is still mounted: %w", name, left[0].point, errors.Join(append(errs, jail.ErrBusy)...))
}

// Destroy destroys the clone, and looks whether it is gone. A mount that is still beneath it is ErrBusy.
func (s *Storage) Destroy(ctx context.Context, name jail.Name) error {
	if err := s.o.check(name); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("destroy clone %s: %w", name, err) }
	all, err := below(ctx, s.o.Commands, s.root(name))
	if err != nil {
		return fail(err)
	}
	if len(all) > 0 && all[0].point != s.root(name) {
		return fail(fmt.Errorf("%s is still mounted: %w", all[0].point, jail.ErrBusy))
	}
	failed := s.data.Destroy(ctx, dataset(name))
	_, err = s.data.Look(ctx, dataset(name))
	switch {
	case err == nil && failed == nil:
		return fail(fmt.Errorf("zfs ended well and dataset %s is still there: %w", dataset(name), jail.ErrBusy))
	case err == nil:
		return fail(failed)
	case !errors.Is(err, fs.ErrNotExist):
		return fail(errors.Join(err, failed))
	}
	// The folder that it was mounted at may stay.
	if err := errors.Join(s.clones.RemoveFolder(string(name)), s.tokens.RemoveAll(string(name))); err != nil {
		return fail(busy(err))
	}
	return nil
}

// List reports clones, what is mounted in them, and folders of tokens.
func (s *Storage) List(ctx context.Context) ([]jail.HostResource, error) {
	clones, err := s.data.List(ctx, zfs.Jails)
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	var out []jail.HostResource
	for _, d := range clones {
		if name := jail.Name(strings.TrimPrefix(d.Name, zfs.Jails+"/")); name.Belongs(s.o.Installation) {
			out = append(out, jail.HostResource{Kind: jail.ResourceClone, Name: name, Index: -1, ID: s.data.Full(d.Name)})
		}
	}
	all, err := below(ctx, s.o.Commands, s.clones.Path())
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	for _, m := range all {
		name, _, _ := strings.Cut(strings.TrimPrefix(m.point, s.clones.Path()+"/"), "/")
		if jail.Name(name).Belongs(s.o.Installation) {
			out = append(out, jail.HostResource{Kind: jail.ResourceMount, Name: jail.Name(name), Index: -1, ID: m.point})
		}
	}
	places, err := jail.ResourcesIn(s.clones, jail.ResourceStaged, s.o.Installation)
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	tokens, err := jail.ResourcesIn(s.tokens, jail.ResourceStaged, s.o.Installation)
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	return append(append(out, places...), tokens...), nil
}

// Check says what would keep Clone and Mount from working, and makes nothing.
func (s *Storage) Check(ctx context.Context, spec jail.Spec) error {
	path, err := s.template(spec)
	errs := []error{err, ctx.Err()}
	if err == nil {
		_, err := s.trees.Dataset(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			err = problem.Wrap(err, problem.BadTemplate, "build the template again", "the template %s is not a ZFS dataset", spec.Template)
		}
		errs = append(errs, err)
	}
	roots, err := spec.Roots(s.o.WorkspaceRoots, s.o.AddedRoots)
	errs = append(errs, err)
	for _, m := range spec.Mounts {
		errs = append(errs, checkMount(roots, spec.Tenant(), m))
	}
	return errors.Join(errs...)
}

// mountState mounts the volume of an agent: a dataset with a quota, made when it is missing and enlarged when more is
// declared. It is never made smaller.
func (s *Storage) mountState(ctx context.Context, root *safepath.Folder, a jail.Agent, uid int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, at := states+"/"+a.Key(), filepath.Join(s.volumes.Path(), a.Key())
	err := s.data.Create(ctx, name, map[string]string{"mountpoint": at, "quota": strconv.FormatInt(a.State, 10), "setuid": "off"})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := s.data.Look(ctx, name)
	if err != nil {
		return err
	}
	if !d.Mounted {
		if err := s.data.Mount(ctx, name); err != nil {
			return err
		}
	}
	text, err := s.data.Get(ctx, name, "quota")
	if err != nil {
		return err
	}
	if has, err := strconv.ParseInt(text, 10, 64); err != nil || has < a.State {
		if err := s.data.Set(ctx, name, "quota", strconv.FormatInt(a.State, 10)); err != nil {
			return err
		}
	}
	dir, err := s.volumes.Folder(a.Key())
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	if err := dir.Own(uid, 0o700); err != nil {
		return err
	}
	return s.nullfs(ctx, dir, root, jail.StateDir)
}

// RemoveState removes the volume of an agent's state.
func (s *Storage) RemoveState(ctx context.Context, a jail.Agent) error {
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := states + "/" + a.Key()
	err := s.data.Destroy(ctx, name)
	if errors.Is(err, jail.ErrBusy) {
		return problem.Wrap(err, problem.JailBusy, "end what uses it, then try again", "the state of %s is in use", a.Name)
	}
	if err == nil {
		err = s.volumes.RemoveFolder(a.Key())
	}
	if err != nil {
		return fmt.Errorf("remove the state of %s: %w", a.Name, err)
	}
	return nil
}

// busy adds what the domain calls it when something is still mounted.
func busy(err error) error {
	if errors.Is(err, safepath.ErrMounted) {
		return errors.Join(jail.ErrBusy, err)
	}
	return err
}
