//go:build !linux

package template

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// supported says whether templates can be built on this system: so far only on Linux. Listing, verifying and removing
// work everywhere.
func supported() error {
	return problem.New(problem.Unsupported, "build it on Linux", "templates cannot be built on this system")
}

// unmountBelow has nothing to do: only builds mount, and they need Linux.
func unmountBelow(string) error { return nil }

// exchange gives a folder a name; a folder that has the name already gets the other one.
func exchange(from, to string) error {
	if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(from, to)
	}
	aside := from + "-swap"
	if err := os.Rename(to, aside); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return errors.Join(err, os.Rename(aside, to))
	}
	return os.Rename(aside, from)
}

// syncFilesystem writes all filesystems to the disk.
func syncFilesystem(string) error { return unix.Sync() }

// needSpace is for builds, which need Linux.
func needSpace(string, int64) error { return nil }

// clone is not available.
func clone(_, _ *os.File) error { return errors.ErrUnsupported }

// sourceMounts is for builds, which need Linux.
func sourceMounts(string) ([]string, error) { return nil, nil }
