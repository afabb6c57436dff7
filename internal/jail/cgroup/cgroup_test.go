//go:build linux

package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestControlGroupsAreFoundWhereTheyAreMounted(t *testing.T) {
	const (
		v1 = "35 30 0:29 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n" +
			"36 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"37 30 0:31 /host /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
		v2 = "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
	)
	for name, c := range map[string]struct {
		membership, mounts string
		want               Groups
	}{
		"version 1": {"5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:pids:/host/docker/abc\n0::/\n", v1, Groups{
			"memory": "/sys/fs/cgroup/memory/docker/abc", "cpu": "/sys/fs/cgroup/cpu,cpuacct/docker/abc",
			"cpuacct": "/sys/fs/cgroup/cpu,cpuacct/docker/abc", "pids": "/sys/fs/cgroup/pids/docker/abc"}},
		"version 2":                    {"0::/system.slice/docker-abc.scope\n", v2, Groups{Unified: "/sys/fs/cgroup/system.slice/docker-abc.scope"}},
		"outside of what is mounted":   {"3:pids:/elsewhere/docker/abc\n", v1, Groups{}},
		"a group that leads out":       {"5:memory:/../../etc\n", v1, Groups{}},
		"nothing that is understood":   {"garbage\n:::\n1:2\n", "more garbage\n- - -\n", Groups{}},
		"a controller that is nowhere": {"5:memory:/docker/abc\n", v2, Groups{}},
	} {
		if got := parse(c.membership, mountsOf(c.mounts)); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("5:memory:/docker/abc\n0::/x\n", "35 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
	f.Fuzz(func(t *testing.T, membership, mounts string) {
		for c, dir := range parse(membership, mountsOf(mounts)) {
			if dir != filepath.Clean(dir) {
				t.Errorf("%s: %q", c, dir)
			}
		}
	})
}

// A limit that is not set is none, on either version.
func TestLimitsAreReadOfBothVersions(t *testing.T) {
	write := func(dir string, files map[string]string) string {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	v1 := write(t.TempDir(), map[string]string{"memory.limit_in_bytes": "1048576\n", "cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n", "pids.max": "64\n"})
	v2 := write(t.TempDir(), map[string]string{"memory.max": "1048576\n", "cpu.max": "50000 100000\n", "pids.max": "64\n"})
	none := write(t.TempDir(), map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n", "pids.max": "max\n"})
	for name, c := range map[string]struct {
		g            Groups
		memory       int64
		milli, tasks int
	}{
		"version 1": {Groups{"memory": v1, "cpu": v1, "pids": v1}, 1 << 20, 500, 64},
		"version 2": {Groups{Unified: v2}, 1 << 20, 500, 64},
		"no limits": {Groups{Unified: none}, 0, 0, 0},
		"no Groups": {Groups{}, 0, 0, 0},
	} {
		if memory, milli, tasks := c.g.Limits(); memory != c.memory || milli != c.milli || tasks != c.tasks {
			t.Errorf("%s: %d, %d, %d", name, memory, milli, tasks)
		}
	}
}

// mountsOf are the mounts of a mountinfo file; none of one that cannot be read.
func mountsOf(text string) []*mountinfo.Info {
	all, _ := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
	return all
}
