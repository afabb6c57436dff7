package freebsd

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// Linux is where the driver is tested. A variable that they inherit stands for the kernel's memory of descendants:
// the programs of the tests keep it.

func becomeReaper() error { return nil }

func collectOrphans() {}

func watchOrphans() (stop func()) { return func() {} }

func descendants(child int, mark string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == child || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue // it has ended
		}
		if bytes.Contains(append([]byte{0}, env...), []byte("\x00"+execMark+"="+mark+"\x00")) {
			out = append(out, pid)
		}
	}
	return out, nil
}
