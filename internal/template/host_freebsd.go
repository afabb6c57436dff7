package template

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// unmountBelow is not used on FreeBSD: see Store.letGo.
func unmountBelow(string) error { return nil }

// sourceMounts is not used on FreeBSD: see Store.mountsIn.
func sourceMounts(string) ([]string, error) { return nil, nil }

// syncFilesystem writes all filesystems to the disk: there is no call for one (sync(2)).
func syncFilesystem(string) error { return unix.Sync() }

// needSpace refuses early what would fill the disk after minutes. On ZFS it is what the dataset may still use (statfs(2)).
func needSpace(path string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("look at the free disk space: %w", err)
	}
	free := st.Bavail * int64(st.Bsize)
	if free < need {
		return problem.New(problem.DiskFull, "free some space, or put the data directory on a larger disk",
			"building needs %d MiB of free disk, and there are %d MiB", need>>20, free>>20).With("need_bytes", need).With("free_bytes", free)
	}
	return nil
}

// exchange gives a folder a name; a folder that has the name already gets the other one. There is no call that does both at
// once, so for a moment there is none of the name.
func exchange(from, to string) error { return swap(from, to) }
