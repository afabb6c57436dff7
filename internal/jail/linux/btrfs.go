//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// The three requests of btrfs(5) that are needed, from linux/btrfs.h. All of them name what they act upon by the
// descriptor of the parent folder and one element.
const (
	btrfsSnapCreateV2   = 0x50009417 // _IOW(0x94, 23, struct btrfs_ioctl_vol_args_v2)
	btrfsSubvolCreateV2 = 0x50009418 // _IOW(0x94, 24, struct btrfs_ioctl_vol_args_v2)
	btrfsSnapDestroy    = 0x5000940f // _IOW(0x94, 15, struct btrfs_ioctl_vol_args)

	subvolumeInode = 256 // of the root folder of every subvolume
)

type btrfsArgs struct {
	fd   int64
	name [4088]byte
}

type btrfsArgsV2 struct {
	fd      int64
	transID uint64
	flags   uint64
	unused  [4]uint64
	name    [4040]byte
}

func btrfsIoctl(fd int, request uintptr, args unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(args)); errno != 0 {
		return errno
	}
	return nil
}

func isBtrfs(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, fmt.Errorf("ask for the kind of file system: %w", err)
	}
	return st.Type == unix.BTRFS_SUPER_MAGIC, nil
}

func isSubvolume(fd int) (bool, error) {
	onBtrfs, err := isBtrfs(fd)
	if err != nil || !onBtrfs {
		return false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	return st.Ino == subvolumeInode, nil
}

// subvolumes are clones that are snapshots on btrfs, in a folder of the data directory.
type subvolumes struct {
	o      Options
	clones *safepath.Folder
}

func (b *subvolumes) kind() string                { return StorageBtrfs }
func (b *subvolumes) ready(context.Context) error { return nil }
func (b *subvolumes) trees() *Trees               { return &Trees{subvolumes: true} }
func (b *subvolumes) close() error                { return b.clones.Close() }

func (b *subvolumes) list(context.Context) ([]jail.HostResource, error) {
	return jail.ResourcesIn(b.clones, jail.ResourceClone, b.o.Installation)
}

func (b *subvolumes) destroy(_ context.Context, name jail.Name) error {
	return deleteSubvolume(b.clones, string(name))
}

// clone makes a writable snapshot of the template and binds it to place/root.
func (b *subvolumes) clone(_ context.Context, place *safepath.Folder, name jail.Name, t origin) error {
	ok, err := isSubvolume(t.tree)
	if err != nil {
		return err
	}
	if !ok {
		return problem.New(problem.BadTemplate, "build the template again; on btrfs its root file system is made a subvolume",
			"the template is not a btrfs subvolume")
	}
	args := btrfsArgsV2{fd: int64(t.tree)}
	copy(args.name[:], name)
	if err := btrfsIoctl(b.clones.FD(), btrfsSnapCreateV2, unsafe.Pointer(&args)); err != nil {
		return jail.Shortage(fmt.Errorf("snapshot: %w", err))
	}
	return bindRoot(b.clones, string(name), place)
}

// bindRoot binds a folder to place/root, without devices and setuid.
func bindRoot(parent *safepath.Folder, name string, place *safepath.Folder) error {
	tree, err := unix.OpenTree(parent.FD(), name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open the snapshot: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // the mount stays, or was never attached
	attr := unix.MountAttr{Attr_set: cloneAttributes, Attr_clr: unix.MOUNT_ATTR__ATIME, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("restrict the snapshot: %w", err)
	}
	if err := unix.MoveMount(tree, "", place.FD(), rootMount, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the root file system: %w", err)
	}
	return nil
}

func makeSubvolume(parent *safepath.Folder, name string) error {
	var args btrfsArgsV2
	copy(args.name[:], name)
	if err := btrfsIoctl(parent.FD(), btrfsSubvolCreateV2, unsafe.Pointer(&args)); err != nil {
		return jail.Shortage(&os.PathError{Op: "make subvolume", Path: filepath.Join(parent.Path(), name), Err: err})
	}
	return nil
}

// deleteSubvolume removes a subvolume, whatever is in it; that there is none is fine. Subvolumes inside it are
// ErrHasDependents.
func deleteSubvolume(parent *safepath.Folder, name string) error {
	var args btrfsArgs
	copy(args.name[:], name)
	err := btrfsIoctl(parent.FD(), btrfsSnapDestroy, unsafe.Pointer(&args))
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		err = errors.Join(jail.ErrBusy, err)
	case errors.Is(err, unix.ENOTEMPTY):
		err = errors.Join(jail.ErrHasDependents, err)
	}
	return &os.PathError{Op: "remove subvolume", Path: filepath.Join(parent.Path(), name), Err: err}
}
