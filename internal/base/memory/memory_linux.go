package memory

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Host is how much memory the host has, in bytes.
func Host() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("look at the memory of the host: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}
