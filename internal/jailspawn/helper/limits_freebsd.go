package helper

import (
	"math"

	"golang.org/x/sys/unix"
)

// setLimit sets a limit; FreeBSD's numbers are signed, and its endless one is the largest.
func setLimit(resource int, most uint64) error {
	n := int64(min(most, math.MaxInt64))
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: n})
}
