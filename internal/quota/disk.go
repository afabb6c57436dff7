package quota

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Disk is how large the disk of a file or folder is, and how much of it is free for the user of this process, in bytes.
func Disk(path string) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("look at the disk of %s: %w", path, err)
	}
	// FreeBSD counts below zero where only root has room left.
	return int64(st.Blocks) * int64(st.Bsize), int64(st.Bavail) * int64(st.Bsize), nil
}
