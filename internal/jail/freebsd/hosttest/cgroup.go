//go:build linux

package hosttest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a jail become real where the machine has control groups, of either version, that this process may write to. Where
// it has none they are only listed.

// group is the control group of a jail's processes, below each of groupRoots.
func (s *state) group(jail string) string {
	sum := sha256.Sum256([]byte(s.Dir))
	return fmt.Sprintf("hosttest-%x-%s", sum[:4], jail)
}

// groupRoots are the folders of the controllers that are used, with the file that bounds each.
func groupRoots() map[string]map[string]string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return map[string]map[string]string{"/sys/fs/cgroup": {"tasks": "pids.max", "memory": "memory.max"}}
	}
	out := map[string]map[string]string{}
	for dir, files := range map[string]map[string]string{"pids": {"tasks": "pids.max"}, "memory": {"memory": "memory.limit_in_bytes"}} {
		if _, err := os.Stat("/sys/fs/cgroup/" + dir); err == nil {
			out["/sys/fs/cgroup/"+dir] = files
		}
	}
	return out
}

// enforce makes the rules of a jail real.
func (s *state) enforce(jail string) error {
	if s.prison(jail, false) == nil {
		return nil
	}
	limits := s.limitsOf(jail)
	bounds := map[string]string{"tasks": "max", "memory": ""}
	tasks, ok := limits["nthr"]
	if n, also := limits["maxproc"]; also && (!ok || n < tasks) {
		tasks, ok = n, true
	}
	if ok {
		bounds["tasks"] = strconv.FormatUint(tasks, 10)
	}
	// Only what kills: deny denies no memory, see kern_rctl.c.
	if n, ok := limits["memoryuse sigkill"]; ok {
		bounds["memory"] = strconv.FormatUint(n, 10)
	}
	for root, files := range groupRoots() {
		dir := filepath.Join(root, s.group(jail))
		for what, file := range files {
			value := bounds[what]
			if value == "" {
				value = "-1"
				if file == "memory.max" {
					value = "max"
				}
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil // no control groups for us
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
	}
	return nil
}

// openGroups opens the groups that there are, for joinGroups.
func openGroups(group string) []*os.File {
	var out []*os.File
	for root := range groupRoots() {
		if f, err := os.OpenFile(filepath.Join(root, group, "cgroup.procs"), os.O_WRONLY, 0); err == nil {
			out = append(out, f)
		}
	}
	return out
}

// joinGroups puts this process into groups, as the last thing before it is another program: until then it is one of many
// threads, which would count.
func joinGroups(groups []*os.File) error {
	for _, f := range groups {
		if _, err := f.WriteString(strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	return nil
}

// dropGroup removes the groups of a jail, a moment after its last process.
func dropGroup(group string) error {
	for root := range groupRoots() {
		dir := filepath.Join(root, group)
		for deadline := time.Now().Add(2 * time.Second); ; {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}
