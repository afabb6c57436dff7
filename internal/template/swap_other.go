//go:build !linux

package template

import (
	"errors"
	"io/fs"
	"os"
)

// swap gives a folder a name by renames; a folder that has the name already gets the other one.
func swap(from, to string) error {
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

// clone is left to the copy: copying a file uses copy_file_range(2), which shares blocks where the filesystem can.
func clone(_, _ *os.File) error { return errors.ErrUnsupported }
