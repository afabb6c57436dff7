//go:build !linux && !freebsd

package template

import "golang.org/x/sys/unix"

// unmountBelow has nothing to do: only builds mount, and they need Linux or FreeBSD.
func unmountBelow(string) error { return nil }

// exchange gives a folder a name; a folder that has the name already gets the other one.
func exchange(from, to string) error { return swap(from, to) }

// syncFilesystem writes all filesystems to the disk.
func syncFilesystem(string) error { return unix.Sync() }

// needSpace is for builds.
func needSpace(string, int64) error { return nil }

// sourceMounts is for builds.
func sourceMounts(string) ([]string, error) { return nil, nil }
