//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/zfs"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Trees makes the folders that templates are built in: datasets or subvolumes where clones are snapshots, else plain
// folders. The caller is root's command line, and the paths are below the folder of templates.
type Trees struct {
	subvolumes bool
	datasets   *zfs.Trees // nil unless storage is zfs
}

// OpenTrees decides as NewStorage does, without making anything: datasets with zfs; subvolumes when dataDir is on btrfs
// and storage is not overlay. dataDir need not exist yet; then the folder that it will be made in decides.
func OpenTrees(dataDir, storage, zfsDataset string) (*Trees, error) {
	switch storage {
	case StorageOverlay:
		return &Trees{}, nil
	case StorageZFS:
		d, err := zfs.New(hostcmd.Runner{}, zfsDataset)
		if err != nil {
			return nil, err
		}
		return &Trees{datasets: zfs.NewTrees(d)}, nil
	}
	for dir := dataDir; ; dir = filepath.Dir(dir) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: dir, Err: err}
		}
		on, err := isBtrfs(fd)
		return &Trees{subvolumes: on}, errors.Join(err, unix.Close(fd))
	}
}

// Make makes an empty tree with mode 0755. Its parent must exist, and it must not.
func (t *Trees) Make(path string) error {
	parent, err := safepath.OpenTrusted(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("make tree: %w", err)
	}
	name := filepath.Base(path)
	switch {
	case t.datasets != nil:
		err = t.datasets.Make(context.Background(), filepath.Join(parent.Path(), name))
	case t.subvolumes:
		err = makeSubvolume(parent, name)
	default:
		err = parent.Make(name, 0o755, -1)
	}
	if err == nil {
		err = os.Chmod(path, 0o755) // whatever the umask is
	}
	return jail.Shortage(errors.Join(err, parent.Close()))
}

// Remove removes a tree of any kind with everything in it. It follows no link and enters no mount but that of a dataset.
// That there is none is fine.
func (t *Trees) Remove(path string) error {
	parent, err := safepath.OpenTrusted(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	name := filepath.Base(path)
	if t.datasets != nil {
		// A folder that is left afterwards was none: a template of the time before storage was zfs.
		if err := t.datasets.Remove(context.Background(), filepath.Join(parent.Path(), name)); err != nil {
			return errors.Join(err, parent.Close())
		}
	}
	subvolume := false
	if dir, err2 := parent.Folder(name); err2 == nil {
		subvolume, err = isSubvolume(dir.FD())
		err = errors.Join(err, dir.Close())
	}
	switch {
	case err != nil:
	case subvolume:
		err = deleteSubvolume(parent, name)
	default:
		err = parent.RemoveAll(name)
	}
	return errors.Join(err, parent.Close())
}

// Settle mounts the dataset of a tree where it is now, for root. A tree that is none is fine.
func (t *Trees) Settle(path string) error {
	if t.datasets == nil || os.Geteuid() != 0 {
		return nil
	}
	parent, err := safepath.OpenTrusted(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("settle tree: %w", err)
	}
	err = t.datasets.Settle(context.Background(), filepath.Join(parent.Path(), filepath.Base(path)))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, parent.Close())
}
