//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Bounds of what the runtime writes to a clone before it becomes read-only: mount points and nothing else.
const (
	writeSize   = "16m"
	writeInodes = "4096"
)

// cloneAttributes of every clone. Access times would be written to the upper layer.
const cloneAttributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOATIME

// overlays are clones that are all mount and nothing else.
type overlays struct{}

func (overlays) kind() string                                      { return StorageOverlay }
func (overlays) ready(context.Context) error                       { return readyToOverlay(unix.Fsopen) }
func (overlays) destroy(context.Context, jail.Name) error          { return nil }
func (overlays) list(context.Context) ([]jail.HostResource, error) { return nil, nil }
func (overlays) trees() *Trees                                     { return &Trees{} }
func (overlays) close() error                                      { return nil }

func (overlays) clone(_ context.Context, place *safepath.Folder, _ jail.Name, t origin) error {
	return overlay(place, t.tree)
}

// readyToOverlay looks whether the kernel has overlayfs, and loads it where it is a module. Without it a host daemon would start,
// and no jail of it.
func readyToOverlay(open func(fstype string, flags int) (int, error)) error {
	fs, err := open("overlay", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) {
		return problem.Wrap(err, problem.Unsupported,
			"sudo modprobe overlay, or a kernel with CONFIG_OVERLAY_FS; or a data_dir on btrfs with storage: btrfs",
			"this kernel has no overlayfs, which jails' file systems are made with")
	}
	if err != nil {
		return fmt.Errorf("look for overlayfs: %w", err)
	}
	return unix.Close(fs)
}

// overlay mounts a tmpfs at place/rw, and an overlay of the template and that tmpfs at place/root. No path is given to
// the kernel, only descriptors.
func overlay(place *safepath.Folder, template int) error {
	if err := place.Make(writeMount, 0o700, -1); err != nil {
		return err
	}
	write, err := newMount("tmpfs", func(fs int) error {
		return errors.Join(
			unix.FsconfigSetString(fs, "source", "clawjail"),
			unix.FsconfigSetString(fs, "size", writeSize),
			unix.FsconfigSetString(fs, "nr_inodes", writeInodes),
			unix.FsconfigSetString(fs, "mode", "0700"))
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(write) }() // the mount stays, or was never attached
	if err := unix.MoveMount(write, "", place.FD(), writeMount, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the writable layer: %w", err)
	}
	layers := safepath.At(write, writeMount)
	upper, err := layers.Ensure("upper", 0o755, -1) // becomes the mode of the jail's root folder
	if err != nil {
		return err
	}
	defer func() { _ = upper.Close() }()
	work, err := layers.Ensure("work", 0o700, -1)
	if err != nil {
		return err
	}
	defer func() { _ = work.Close() }()
	root, err := newMount("overlay", func(fs int) error {
		return errors.Join(
			unix.FsconfigSetString(fs, "source", "clawjail"),
			kernelCalls.set(fs, "lowerdir+", "lowerdir", template),
			kernelCalls.set(fs, "upperdir", "upperdir", upper.FD()),
			kernelCalls.set(fs, "workdir", "workdir", work.FD()))
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(root) }()
	if err := unix.MoveMount(root, "", place.FD(), rootMount, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the root file system: %w", err)
	}
	return nil
}

// layerCalls are the calls that give a directory to a file system that is being configured.
type layerCalls struct {
	descriptor func(fs int, key string, fd int) error
	text       func(fs int, key, value string) error
}

// kernelCalls are those of the kernel.
var kernelCalls = layerCalls{descriptor: unix.FsconfigSetFd, text: unix.FsconfigSetString}

// set hands a directory to overlayfs: as a descriptor from Linux 6.13 on, before that as the name of the descriptor,
// which is resolved once and leads to the same directory. A kernel that takes no descriptor answers EINVAL, and
// EOPNOTSUPP before Linux 6.5, where overlayfs is configured through the old interface of mount(2).
func (c layerCalls) set(fs int, key, oldKey string, dir int) error {
	err := c.descriptor(fs, key, dir)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = c.text(fs, oldKey, "/proc/self/fd/"+strconv.Itoa(dir))
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", oldKey, err)
	}
	return nil
}

// newMount makes a file system and returns it as a mount that is not attached anywhere.
func newMount(fstype string, configure func(fs int) error) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a %s: %w", fstype, err)
	}
	defer func() { _ = unix.Close(fs) }()
	err = configure(fs)
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return -1, fmt.Errorf("make a %s: %w%s", fstype, err, kernelWords(fs))
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, cloneAttributes)
	if err != nil {
		return -1, fmt.Errorf("make a %s: %w", fstype, err)
	}
	return m, nil
}

// kernelWords is what the kernel says about a file system that it would not make.
func kernelWords(fs int) string {
	var words []string
	for {
		var line [256]byte
		n, err := unix.Read(fs, line[:])
		if err != nil || n <= 0 { // ENODATA: nothing more to say
			break
		}
		words = append(words, strings.TrimSpace(string(line[:n])))
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, "; ") + ")"
}
