//go:build linux

package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// groups are the control groups of a process: a folder for each controller, the same one for all in version 2.
type groups map[string]string

const unified = ""

// controllers are those that bound or count something.
func controllers() []string { return []string{"memory", "cpu", "cpuacct", "pids"} }

// groupsOf finds the control groups that a process is in.
func groupsOf(proc jail.Process) (groups, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", proc.PID))
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseGroups(string(text), string(mounts)), nil
}

// parseGroups reads /proc/<pid>/cgroup and a mountinfo file, see cgroups(7). A controller that is mounted nowhere, or
// whose group is outside of what is mounted, is left out, and so are its limits.
func parseGroups(membership, mounts string) groups {
	type hierarchy struct{ dir, root string }
	mounted := map[string]hierarchy{}
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			continue
		}
		h := hierarchy{dir: f[4], root: f[3]}
		switch g[0] {
		case "cgroup2":
			mounted[unified] = h
		case "cgroup":
			for _, c := range strings.Split(g[2], ",") {
				if slices.Contains(controllers(), c) {
					mounted[c] = h
				}
			}
		}
	}
	out := groups{}
	for line := range strings.Lines(membership) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || strings.Contains(f[2], "..") {
			continue
		}
		for _, c := range strings.Split(f[1], ",") { // empty for version 2
			h, ok := mounted[c]
			if !ok {
				continue
			}
			rel, err := filepath.Rel(h.root, f[2])
			if err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
				out[c] = filepath.Join(h.dir, rel)
			}
		}
	}
	return out
}

// dir is the group of a controller, and which version it is.
func (g groups) dir(controller string) (string, int) {
	if dir, ok := g[controller]; ok {
		return dir, 1
	}
	if dir, ok := g[unified]; ok {
		return dir, 2
	}
	return "", 0
}

// number reads a file of a group's. A file that is not there, no number, and "max" are 0: a limit that is not set.
func (g groups) number(controller, v1, v2 string) int64 {
	dir, version := g.dir(controller)
	file := v1
	if version == 2 {
		file = v2
	}
	if version == 0 || file == "" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// key reads one line of a file of "key value" lines.
func (g groups) key(controller, v1, v2, key string) int64 {
	dir, version := g.dir(controller)
	file := v1
	if version == 2 {
		file = v2
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if version == 0 || err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// limits reads the limits in force. One that is not set is 0.
func (g groups) limits() (memory int64, milli, tasks int) {
	memory = g.number("memory", "memory.limit_in_bytes", "memory.max")
	tasks = int(g.number("pids", "pids.max", "pids.max"))
	dir, version := g.dir("cpu")
	var quota, period int64
	if version == 1 {
		quota, period = g.number("cpu", "cpu.cfs_quota_us", ""), g.number("cpu", "cpu.cfs_period_us", "")
	} else if text, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil && version == 2 {
		if f := strings.Fields(string(text)); len(f) == 2 {
			quota, _ = strconv.ParseInt(f[0], 10, 64) // "max" is 0
			period, _ = strconv.ParseInt(f[1], 10, 64)
		}
	}
	if quota > 0 && period > 0 {
		milli = int(quota * 1000 / period)
	}
	return memory, milli, tasks
}

// usage measures a container. A figure that cannot be measured is 0.
func usage(proc jail.Process) jail.Usage {
	g, err := groupsOf(proc)
	if err != nil {
		return jail.Usage{}
	}
	u := jail.Usage{
		MemoryBytes: g.number("memory", "memory.usage_in_bytes", "memory.current"),
		MemoryPeak:  g.number("memory", "memory.max_usage_in_bytes", "memory.peak"),
		Tasks:       int(g.number("pids", "pids.current", "pids.current")),
	}
	if _, version := g.dir("cpuacct"); version == 1 {
		u.CPU = time.Duration(g.number("cpuacct", "cpuacct.usage", ""))
	} else {
		u.CPU = time.Duration(g.key("cpu", "", "cpu.stat", "usage_usec")) * time.Microsecond
	}
	if g.key("memory", "memory.oom_control", "memory.events", "oom_kill") > 0 {
		u.Hit = append(u.Hit, jail.LimitMemory)
	}
	if g.key("pids", "pids.events", "pids.events", "max") > 0 {
		u.Hit = append(u.Hit, jail.LimitTasks)
	}
	return u
}

// fence is a control group of its own below a container's, for a program that was started in it. Nothing that the program
// starts can leave it, re-parented or not: nobody in a container can write to control groups.
type fence struct {
	dir     string
	version int
}

const fencePrefix = "clawjail-exec-"

var errNoTasksGroup = errors.New("the container's tasks are in no control group")

// makeFence makes one below the group that counts a container's tasks.
func makeFence(proc jail.Process, id string) (*fence, error) {
	g, err := groupsOf(proc)
	if err != nil {
		return nil, err
	}
	dir, version := g.dir("pids")
	if version == 0 {
		return nil, errNoTasksGroup
	}
	f := &fence{dir: filepath.Join(dir, fencePrefix+id), version: version}
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *fence) add(pid int) error {
	return os.WriteFile(filepath.Join(f.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// limits are those in force for a program in the fence: those of the group that the fence is in, and with version 1, where each controller
// has groups of its own, those that the engine has put the program into.
func (f *fence) limits(container, program jail.Process) (memory int64, milli, tasks int, err error) {
	above, err := groupsOf(container)
	if err != nil {
		return 0, 0, 0, err
	}
	if f.version == 1 {
		own, err := groupsOf(program)
		if err != nil {
			return 0, 0, 0, err
		}
		own["pids"] = above["pids"]
		above = own
	}
	return f.below(above)
}

// below reads the limits of the groups above the fence, if that is where it is.
func (f *fence) below(above groups) (memory int64, milli, tasks int, err error) {
	if dir, version := above.dir("pids"); version != f.version || dir != filepath.Dir(f.dir) {
		return 0, 0, 0, fmt.Errorf("the program is in %s, and the container in %s", f.dir, dir)
	}
	memory, milli, tasks = above.limits()
	return memory, milli, tasks, nil
}

func (f *fence) pids() ([]int, error) {
	text, err := os.ReadFile(filepath.Join(f.dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	var out []int
	for _, word := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.dir, err)
		}
		out = append(out, n)
	}
	return out, err
}

// kill ends everything in the fence and removes it. A group of version 1 is first forbidden to grow, so that what forks
// cannot outrun it. busy is true while something is left.
func (f *fence) kill() (busy bool, err error) {
	if f.version == 1 {
		err = os.WriteFile(filepath.Join(f.dir, "pids.max"), []byte("0"), 0)
	} else {
		err = os.WriteFile(filepath.Join(f.dir, "cgroup.kill"), []byte("1"), 0)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return true, err
	}
	pids, err := f.pids()
	if err != nil {
		return true, err
	}
	for _, pid := range pids {
		// The number is of a member a moment ago. Numbers are not given again so soon, and a process of the host's that had
		// this one would have to be in the group to be looked at again.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return true, err
		}
	}
	if err := unix.Rmdir(f.dir); err != nil && !errors.Is(err, unix.ENOENT) {
		if errors.Is(err, unix.EBUSY) {
			return true, nil
		}
		return true, err
	}
	return false, nil
}

// fences lists those that are below a container's group.
func fences(proc jail.Process) ([]*fence, error) {
	g, err := groupsOf(proc)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil // it has ended
	}
	if err != nil {
		return nil, err
	}
	dir, version := g.dir("pids")
	if version == 0 {
		return nil, errNoTasksGroup
	}
	inside, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []*fence
	for _, group := range inside {
		if strings.HasPrefix(group.Name(), fencePrefix) {
			out = append(out, &fence{dir: filepath.Join(dir, group.Name()), version: version})
		}
	}
	return out, nil
}
