//go:build !linux

package trawl

import (
	"os"
	"syscall"
)

// mountOf is the device that a path is on.
func mountOf(path string) (uint64, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return 0, err
	}
	return uint64(st.Dev), nil
}

func isNamespace(*os.File) bool { return false }

// dataAfter says that all of a file is data: holes are read as zeros.
func dataAfter(_ *os.File, at, size int64) (from, to int64) { return at, size }

// eachAttribute knows of no attributes: they are searched on Linux only.
func eachAttribute(string, func(name string, value []byte)) error { return nil }
