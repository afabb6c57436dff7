package controlplane

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryOfMachine is how much memory there is for this process: the machine's, or that of its container. 0 is not known.
func memoryOfMachine() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	total := int64(uint64(info.Totalram) * uint64(info.Unit))
	// In a container the groups begin with its own. Elsewhere the first one has no bound.
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			total = min(total, n)
		}
	}
	return total
}
