package template

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// unmountBelow unmounts everything that is mounted at or below a path.
func unmountBelow(path string) error {
	for range 3 { // a mount can be covered by another one of the same path
		mounts, err := mountsBelow(path)
		if err != nil || len(mounts) == 0 {
			return err
		}
		for _, mount := range mounts {
			if err := unix.Unmount(mount, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmount %s: %w", mount, err)
			}
		}
	}
	mounts, err := mountsBelow(path)
	if err == nil && len(mounts) > 0 {
		err = fmt.Errorf("%s is still mounted", mounts[0])
	}
	return err
}

// mountsBelow are the mount points at or below a path, what is mounted on another mount before that.
func mountsBelow(path string) ([]string, error) {
	path, err := filepath.EvalSymlinks(path) // the kernel lists paths without symbolic links
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	return linux.MountPoints(path)
}

// exchange gives a folder a name. A folder that has the name already is swapped in the same moment, so that at no time
// there is none.
func exchange(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// syncFilesystem writes the filesystem of a folder to the disk.
func syncFilesystem(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// needSpace refuses early what would fill the disk after minutes.
func needSpace(path string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("look at the free disk space: %w", err)
	}
	free := int64(st.Bavail) * st.Bsize
	if free < need {
		return problem.New(problem.DiskFull, "free some space, or put the data directory on a larger disk",
			"building needs %d MiB of free disk, and there are %d MiB", need>>20, free>>20).With("need_bytes", need).With("free_bytes", free)
	}
	return nil
}

// clone makes one file share the blocks of another, where the filesystem can do that.
func clone(to, from *os.File) error { return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) }

// sourceMounts are the mount points below a folder, without the folder itself.
func sourceMounts(path string) ([]string, error) {
	mounts, err := mountsBelow(path)
	return slices.DeleteFunc(mounts, func(mount string) bool { return mount == path }), err
}
