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

// Names in a clone's folder.
const (
	rootMount  = "root" // the jail's root file system is mounted here
	writeMount = "rw"   // what is written to an overlay
)

// Storage clones templates.
//
// An overlay is the template's folder below and a small tmpfs above; a snapshot is a btrfs subvolume or a ZFS dataset,
// bound to its place. Either way the clone is one mount at <run>/jails/<name>/root, without devices and setuid, in a
// folder of the host that nothing else is mounted into. The jail sees it read-only: what is above only takes the mount
// points that the runtime makes.
type Storage struct {
	o         Options
	run       *safepath.Folder
	jails     *safepath.Folder
	data      *safepath.Folder
	templates *safepath.Folder
	volumes   *safepath.Folder // of agents' states
	cloner    cloner
	locks     locks
	maps      userMaps
}

// cloner is one way of making clones of templates: overlays, subvolumes or datasets.
type cloner interface {
	kind() string
	// ready looks whether clones can be made, and prepares what all of them share.
	ready(ctx context.Context) error
	// clone makes the clone and attaches it at place/root. Remains of a failure are for unmount and destroy.
	clone(ctx context.Context, place *safepath.Folder, name jail.Name, t origin) error
	// destroy removes what of a clone is not below its place, after all of it was unmounted.
	destroy(ctx context.Context, name jail.Name) error
	// list reports the clones that destroy removes.
	list(ctx context.Context) ([]jail.HostResource, error)
	// trees makes the folders that templates are built in, so that they can be cloned.
	trees() *Trees
	close() error
}

// origin is what a clone is made of: an open folder, and its path.
type origin struct {
	tree int
	path string
}

// NewStorage opens the folders and decides between overlay, btrfs and ZFS.
func NewStorage(o Options) (_ *Storage, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Storage{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare storage: %w", jail.Shortage(err)), s.Close())
		}
	}()
	if s.run, err = safepath.MakeTrusted(o.RunDir, 0o711); err != nil {
		return nil, err
	}
	if s.data, err = safepath.MakeTrusted(o.DataDir, 0o711); err != nil {
		return nil, err
	}
	if s.templates, err = safepath.MakeTrusted(o.Templates, 0o755); err != nil {
		return nil, err
	}
	if s.jails, err = s.run.Ensure(jailsFolder, 0o700, -1); err != nil {
		return nil, err
	}
	if s.volumes, err = s.data.Ensure(volumesFolder, 0o700, -1); err != nil {
		return nil, err
	}
	if err = s.isolate(); err != nil {
		return nil, err
	}
	s.cloner, err = newCloner(s.o, s.data, s.templates)
	return s, err
}

func newCloner(o Options, data, templates *safepath.Folder) (cloner, error) {
	if o.Storage == StorageZFS {
		return newDatasets(o, templates)
	}
	onBtrfs, err := isBtrfs(data.FD())
	if err != nil {
		return nil, err
	}
	if o.Storage == StorageOverlay || o.Storage == StorageAuto && !onBtrfs {
		return overlays{}, nil
	}
	if !onBtrfs {
		return nil, problem.New(problem.BadConfig, "use storage: auto", "storage is btrfs, and %s is not on btrfs", data.Path())
	}
	clones, err := data.Ensure(clonesFolder, 0o700, -1)
	if err != nil {
		return nil, err
	}
	return &subvolumes{o: o, clones: clones}, nil
}

// Ready looks whether clones can be made, and prepares what all of them share: with ZFS the datasets that hold others.
func (s *Storage) Ready(ctx context.Context) error {
	if err := s.cloner.ready(ctx); err != nil {
		return fmt.Errorf("prepare storage: %w", err)
	}
	return nil
}

// Close closes the folders. Clones stay.
func (s *Storage) Close() error {
	var errs []error
	if s.cloner != nil {
		errs = append(errs, s.cloner.close())
	}
	s.maps.close()
	for _, f := range []*safepath.Folder{s.volumes, s.jails, s.templates, s.data, s.run} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Kind is overlay, btrfs or zfs.
func (s *Storage) Kind() string { return s.cloner.kind() }

// Trees makes and removes the folders that templates are built in.
func (s *Storage) Trees() *Trees { return s.cloner.trees() }

// isolate makes the folder of jails a mount whose own mounts are seen in this namespace only. Where the host's mounts
// are shared, as under systemd, every clone would otherwise appear in the namespaces of other services and be held
// there.
func (s *Storage) isolate() error {
	all, err := readMounts("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	var around mount // the innermost mount that holds the folder; of several at one place, the latest
	for _, m := range all {
		if (mount{Point: s.jails.Path()}).below(m.Point) && len(m.Point) >= len(around.Point) {
			around = m
		}
	}
	if !around.Shared {
		return nil
	}
	if around.Point != s.jails.Path() {
		tree, err := unix.OpenTree(s.jails.FD(), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("bind %s to itself: %w", s.jails.Path(), err)
		}
		defer func() { _ = unix.Close(tree) }() // the mount stays
		if err := unix.MoveMount(tree, "", s.run.FD(), jailsFolder, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("bind %s to itself: %w", s.jails.Path(), err)
		}
		if err := s.jails.Close(); err != nil {
			return err
		}
		// From here on the mount is worked in, not the folder that it covers.
		if s.jails, err = s.run.Folder(jailsFolder); err != nil {
			return err
		}
	}
	if err := unix.MountSetattr(s.jails.FD(), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return fmt.Errorf("make %s private: %w", s.jails.Path(), err)
	}
	return nil
}

// uninstallStorage takes away the mount that isolate makes. ErrBusy while a clone is mounted in it.
func uninstallStorage(runDir string) error {
	place := filepath.Join(runDir, jailsFolder)
	err := unix.Unmount(place, unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil, gone(err), errors.Is(err, unix.EINVAL): // nothing is mounted there now
		return nil
	case errors.Is(err, unix.EBUSY):
		err = errors.Join(jail.ErrBusy, err)
	}
	return &os.PathError{Op: "unmount", Path: place, Err: err}
}

// Clone makes the root file system of a jail, of a template or of a folder of the operator's.
func (s *Storage) Clone(ctx context.Context, name jail.Name, spec jail.Spec) (root string, err error) {
	if err := errors.Join(s.o.check(name), ctx.Err()); err != nil {
		return "", err
	}
	tree, err := s.source(spec)
	if err != nil {
		return "", err
	}
	template := cmp.Or(spec.Root, spec.Template)
	defer func() { _ = unix.Close(tree) }() // opened for reading
	if err := s.jails.Make(string(name), 0o700, -1); err != nil {
		return "", fmt.Errorf("clone %s: %w", template, jail.Shortage(err))
	}
	place, err := s.jails.Folder(string(name))
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, place.Close())
		if err != nil {
			undo := context.WithoutCancel(ctx)
			root, err = "", errors.Join(fmt.Errorf("clone %s: %w", template, jail.Shortage(err)), s.Unmount(undo, name, true), s.Destroy(undo, name))
		}
	}()
	if err := place.Make(rootMount, 0o700, -1); err != nil {
		return "", err
	}
	if spec.Root != "" {
		err = overlay(place, tree)
	} else {
		err = s.cloner.clone(ctx, place, name, origin{tree: tree, path: filepath.Join(s.templates.Path(), spec.Template, rootfsFolder)})
	}
	return filepath.Join(place.Path(), rootMount), err
}

// Unmount unmounts the clone and everything beneath it, deepest first, and looks whether it is gone.
func (s *Storage) Unmount(_ context.Context, name jail.Name, force bool) error {
	if err := s.o.check(name); err != nil {
		return err
	}
	dir := filepath.Join(s.jails.Path(), string(name))
	mounts, err := mountsBelow(dir)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", name, err)
	}
	if len(mounts) == 0 {
		return nil
	}
	var errs []error
	for _, m := range mounts {
		if err := s.unmount(m.Point, force); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.Point, err))
		}
	}
	left, err := mountsBelow(dir)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", name, err)
	}
	if len(left) == 0 {
		return nil // a part may have been detached together with what it was mounted on
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("unmount %s: %s is still mounted: %w", name, left[0].Point, jail.ErrBusy))
	}
	return errors.Join(errs...)
}

func (s *Storage) unmount(point string, force bool) error {
	rel, err := filepath.Rel(s.jails.Path(), point)
	if err != nil {
		return err
	}
	// O_PATH opens nothing in the clone. A zfs-fuse that is told too late of what was closed keeps it open for ever.
	parent, err := unix.Openat2(s.jails.FD(), filepath.Dir(rel), &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	flags := unix.UMOUNT_NOFOLLOW
	if force {
		flags |= unix.MNT_DETACH
	}
	// There is no umount by descriptor; the last element is a mount point, which cannot be replaced.
	err = unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", parent, filepath.Base(rel)), flags)
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(jail.ErrBusy, err)
	}
	return errors.Join(err, unix.Close(parent))
}

// Destroy removes the clone. A clone that is still mounted is ErrBusy; a ZFS clone is, too, while a process holds a file of it open
// that was detached.
func (s *Storage) Destroy(ctx context.Context, name jail.Name) error {
	if err := s.o.check(name); err != nil {
		return err
	}
	if mounts, err := mountsBelow(filepath.Join(s.jails.Path(), string(name))); err != nil {
		return fmt.Errorf("destroy clone %s: %w", name, err)
	} else if len(mounts) > 0 {
		return fmt.Errorf("destroy clone %s: %s is still mounted: %w", name, mounts[0].Point, jail.ErrBusy)
	}
	place, err := s.jails.Folder(string(name))
	switch {
	case err == nil:
		err = errors.Join(place.RemoveFolder(rootMount), place.RemoveFolder(writeMount), place.RemoveAll(tokenFolder), place.Close(), s.jails.RemoveFolder(string(name)))
	case errors.Is(err, os.ErrNotExist):
		err = nil
	}
	err = errors.Join(err, s.cloner.destroy(ctx, name))
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(jail.ErrBusy, err)
	}
	if err != nil {
		return fmt.Errorf("destroy clone %s: %w", name, err)
	}
	return nil
}

// List reports mounts and clones of this installation.
func (s *Storage) List(ctx context.Context) ([]jail.HostResource, error) {
	var out []jail.HostResource
	all, err := mountsBelow(s.jails.Path())
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	for _, m := range all {
		rel, err := filepath.Rel(s.jails.Path(), m.Point)
		if err != nil {
			return nil, fmt.Errorf("list clones: %w", err)
		}
		if name, _, _ := strings.Cut(rel, "/"); jail.Name(name).Belongs(s.o.Installation) {
			out = append(out, jail.HostResource{Kind: jail.ResourceMount, Name: jail.Name(name), Index: -1, ID: m.Point})
		}
	}
	places, err := jail.ResourcesIn(s.jails, jail.ResourceClone, s.o.Installation)
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	clones, err := s.cloner.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list clones: %w", err)
	}
	return slices.Concat(out, places, clones), nil
}
