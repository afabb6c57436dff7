//go:build freebsd || darwin

package memory

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Host is how much memory the host has, in bytes.
func Host() (int64, error) {
	name := "hw.physmem"
	if runtime.GOOS == "darwin" {
		name = "hw.memsize"
	}
	n, err := unix.SysctlUint64(name)
	if err != nil {
		return 0, fmt.Errorf("look at the memory of the host: %w", err)
	}
	return int64(n), nil
}
