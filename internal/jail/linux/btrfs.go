//go:build linux

package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
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

// snapshot makes a writable snapshot of the template and binds it to place/root.
func (s *Storage) snapshot(place *folder, name jail.Name, template int) error {
	ok, err := isSubvolume(template)
	if err != nil {
		return err
	}
	if !ok {
		return problem.New(problem.BadTemplate, "build the template again; on btrfs its root file system is made a subvolume",
			"the template is not a btrfs subvolume")
	}
	args := btrfsArgsV2{fd: int64(template)}
	copy(args.name[:], name)
	if err := btrfsIoctl(s.clones.fd, btrfsSnapCreateV2, unsafe.Pointer(&args)); err != nil {
		return shortage(fmt.Errorf("snapshot: %w", err))
	}
	tree, err := unix.OpenTree(s.clones.fd, string(name), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open the snapshot: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // the mount stays, or was never attached
	attr := unix.MountAttr{Attr_set: cloneAttributes, Attr_clr: unix.MOUNT_ATTR__ATIME, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("restrict the snapshot: %w", err)
	}
	if err := unix.MoveMount(tree, "", place.fd, rootMount, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the root file system: %w", err)
	}
	return nil
}

func makeSubvolume(parent *folder, name string) error {
	var args btrfsArgsV2
	copy(args.name[:], name)
	if err := btrfsIoctl(parent.fd, btrfsSubvolCreateV2, unsafe.Pointer(&args)); err != nil {
		return shortage(&os.PathError{Op: "make subvolume", Path: filepath.Join(parent.path, name), Err: err})
	}
	return nil
}

// deleteSubvolume removes a subvolume, whatever is in it; that there is none is fine. Subvolumes inside it are
// ErrHasDependents.
func deleteSubvolume(parent *folder, name string) error {
	var args btrfsArgs
	copy(args.name[:], name)
	err := btrfsIoctl(parent.fd, btrfsSnapDestroy, unsafe.Pointer(&args))
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		err = errors.Join(jail.ErrBusy, err)
	case errors.Is(err, unix.ENOTEMPTY):
		err = errors.Join(jail.ErrHasDependents, err)
	}
	return &os.PathError{Op: "remove subvolume", Path: filepath.Join(parent.path, name), Err: err}
}

// Trees makes the folders that templates are built in: subvolumes where clones are snapshots, else plain folders.
// The caller is root's command line, and the paths are below the folder of templates.
type Trees struct{ subvolumes bool }

// OpenTrees decides as NewStorage does, without making anything: subvolumes when dataDir is on btrfs and storage is not
// overlay. dataDir need not exist yet; then the folder that it will be made in decides.
func OpenTrees(dataDir, storage string) (*Trees, error) {
	if storage == StorageOverlay {
		return &Trees{}, nil
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
	parent, err := openTrusted(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("make tree: %w", err)
	}
	name := filepath.Base(path)
	if t.subvolumes {
		err = makeSubvolume(parent, name)
	} else {
		err = parent.mkdir(name, 0o755)
	}
	if err == nil {
		err = os.Chmod(path, 0o755) // whatever the umask is
	}
	return errors.Join(err, parent.Close())
}

// Remove removes a tree of either kind with everything in it. It follows no link and enters no mount. That there is
// none is fine.
func (t *Trees) Remove(path string) error {
	parent, err := openTrusted(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove tree: %w", err)
	}
	name := filepath.Base(path)
	subvolume := false
	if dir, err2 := parent.folder(name); err2 == nil {
		subvolume, err = isSubvolume(dir.fd)
		err = errors.Join(err, dir.Close())
	}
	switch {
	case err != nil:
	case subvolume:
		err = deleteSubvolume(parent, name)
	default:
		err = parent.removeAll(name)
	}
	return errors.Join(err, parent.Close())
}
