//go:build unix && !freebsd

package helper

import "golang.org/x/sys/unix"

func setLimit(resource int, limit uint64) error {
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit})
}
