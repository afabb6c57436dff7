//go:build linux

// Package cgroup reads the control groups that somebody else has put a process into: an engine for containers, or a kubelet.
package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/clawjail/clawjail/internal/jail"
)

// Groups are the control groups of a process: a folder for each controller, the same one for all in version 2.
type Groups map[string]string

// Unified is the key of version 2, in which all controllers have one folder.
const Unified = ""

// controllers are those that bound or count something.
func controllers() []string { return []string{"memory", "cpu", "cpuacct", "pids"} }

// Of finds the control groups that a process is in.
func Of(proc jail.Process) (Groups, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", proc.PID))
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return parse(string(text), mounts), nil
}

// parse reads /proc/<pid>/cgroup, see cgroups(7). A controller that is mounted nowhere, or
// whose group is outside of what is mounted, is left out, and so are its limits.
func parse(membership string, mounts []*mountinfo.Info) Groups {
	type hierarchy struct{ dir, root string }
	mounted := map[string]hierarchy{}
	for _, m := range mounts {
		h := hierarchy{dir: m.Mountpoint, root: m.Root}
		switch m.FSType {
		case "cgroup2":
			mounted[Unified] = h
		case "cgroup":
			for _, c := range strings.Split(m.VFSOptions, ",") {
				if slices.Contains(controllers(), c) {
					mounted[c] = h
				}
			}
		}
	}
	out := Groups{}
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

// Dir is the group of a controller, and which version it is.
func (g Groups) Dir(controller string) (string, int) {
	if dir, ok := g[controller]; ok {
		return dir, 1
	}
	if dir, ok := g[Unified]; ok {
		return dir, 2
	}
	return "", 0
}

// number reads a file of a group's. A file that is not there, no number, and "max" are 0: a limit that is not set.
func (g Groups) number(controller, v1, v2 string) int64 {
	dir, version := g.Dir(controller)
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
func (g Groups) key(controller, v1, v2, key string) int64 {
	dir, version := g.Dir(controller)
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

// Limits reads the limits in force. One that is not set is 0.
func (g Groups) Limits() (memory int64, milli, tasks int) {
	memory = g.number("memory", "memory.limit_in_bytes", "memory.max")
	tasks = int(g.number("pids", "pids.max", "pids.max"))
	dir, version := g.Dir("cpu")
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

// Usage measures what is in the groups. A figure that cannot be measured is 0.
func (g Groups) Usage() jail.Usage {
	u := jail.Usage{
		MemoryBytes: g.number("memory", "memory.usage_in_bytes", "memory.current"),
		MemoryPeak:  g.number("memory", "memory.max_usage_in_bytes", "memory.peak"),
		Tasks:       int(g.number("pids", "pids.current", "pids.current")),
	}
	if _, version := g.Dir("cpuacct"); version == 1 {
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
