//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// treeV2 is a folder that behaves like a mounted hierarchy of version 2: a new group has the files that its parent has
// enabled for it. Few machines that run these tests have the memory controller in version 2.
type treeV2 struct {
	t    *testing.T
	root string // of the host
}

func newTreeV2(t *testing.T, offered string) (*treeV2, *Limiter, Options) {
	t.Helper()
	tree := &treeV2{t: t, root: t.TempDir()}
	dir := filepath.Join(tree.root, "sys/fs/cgroup")
	must(t, os.MkdirAll(dir, 0o755))
	tree.put(dir, "cgroup.controllers", offered)
	tree.put(dir, "cgroup.subtree_control", "")
	o := Options{Installation: "test", RunDir: "/run/x", DataDir: "/var/x", Gateway: netip.MustParseAddr("10.0.0.1"), CgroupParent: "system.slice/clawjail.service"}
	must(t, o.Validate())
	mounts, err := parseMounts(strings.NewReader("31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"))
	must(t, err)
	l, err := newLimiter(o, mounts, tree.root)
	if err != nil {
		return tree, nil, o
	}
	l.mkdir = tree.mkdir
	// No program can be put into a folder of the test's.
	l.attach = func(dir string) error { tree.put(dir, "filter", "on"); return nil }
	l.attached = func(dir string) (bool, error) {
		_, err := os.Stat(filepath.Join(dir, "filter"))
		return err == nil, nil
	}
	return tree, l, o
}

func (tree *treeV2) put(dir, file, text string) {
	must(tree.t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
}

func (tree *treeV2) get(dir, file string) string {
	text, err := readGroupText(dir, file)
	must(tree.t, err)
	return text
}

func (tree *treeV2) mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	enabled, err := readGroupText(filepath.Dir(path), "cgroup.subtree_control")
	if err != nil {
		return err
	}
	// Written one at a time, as +memory and so on; only the last is in the file, and the order is known.
	if strings.Contains(enabled, "pids") {
		enabled = "cpu memory pids"
	}
	for file, text := range map[string]string{"cgroup.procs": "", "cgroup.controllers": enabled, "cgroup.subtree_control": "",
		"cgroup.kill": "", "cpu.stat": "usage_usec 0\nuser_usec 0\n"} {
		tree.put(path, file, text)
	}
	for _, c := range strings.Fields(enabled) {
		for file, text := range map[string]map[string]string{
			"memory": {"memory.max": "max", "memory.swap.max": "max", "memory.current": "0", "memory.peak": "0", "memory.high": "max",
				"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"},
			"cpu":  {"cpu.max": "max 100000"},
			"pids": {"pids.max": "max", "pids.current": "0", "pids.events": "max 0\n"},
		}[c] {
			tree.put(path, file, text)
		}
	}
	return nil
}

func TestLimitsOfVersion2(t *testing.T) {
	tree, l, _ := newTreeV2(t, "cpuset cpu io memory hugetlb pids")
	ctx, name := context.Background(), jail.Name("btest00001")
	limits := testLimits()
	must(t, l.Apply(ctx, name, "", limits))
	dir := l.group(l.memory, string(name))
	if want := filepath.Join(tree.root, "sys/fs/cgroup/system.slice/clawjail.service/clawjail-test/btest00001"); dir != want {
		t.Errorf("the group is %s, want %s", dir, want)
	}
	for file, want := range map[string]string{"memory.max": "134217728", "memory.swap.max": "0", "memory.high": "max", "cpu.max": "200000 100000", "pids.max": "64"} {
		if got := tree.get(dir, file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}

	// A process outside of the group has no limits, whatever the group says.
	if m, c, p, err := l.enforced(string(name), 4711); m != 0 || c != 0 || p != 0 || err != nil {
		t.Errorf("of a process elsewhere: %d %d %d %v", m, c, p, err)
	}
	if is, err := l.devicesFiltered(string(name), 4711); is || err != nil {
		t.Errorf("the devices of a process elsewhere are filtered: %v, %v", is, err)
	}
	tree.put(dir, "cgroup.procs", "4711\n4712\n")
	if is, err := l.devicesFiltered(string(name), 4711); !is || err != nil {
		t.Errorf("the devices of a process are filtered: %v, %v", is, err)
	}
	if m, c, p, err := l.enforced(string(name), 4711); m != limits.Memory || c != limits.MilliCPU || p != limits.Tasks || err != nil {
		t.Errorf("read back: %d %d %d %v", m, c, p, err)
	}
	tree.put(dir, "memory.max", "max")
	tree.put(dir, "cpu.max", "max 100000")
	tree.put(dir, "pids.max", "max")
	if m, c, p, err := l.enforced(string(name), 4711); m != 0 || c != 0 || p != 0 || err != nil {
		t.Errorf("without limits: %d %d %d %v", m, c, p, err)
	}
	if err := l.Apply(ctx, name, "", limits); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("a group with processes was taken over: %v", err)
	}
}

func TestAListOfDevicesThatFilters(t *testing.T) {
	for list, want := range map[string]bool{
		"":                             true,
		"c 1:3 rwm\nc 5:0 rwm\n":       true,
		"c *:* m\nb *:* m\nc 1:9 rw\n": true,
		"c 5:2 rwm\nc 136:* rwm\n":     true,
		"c 10:200 rwm\n":               true,
		"c 10:229 rwm\n":               false,
		"a *:* rwm\n":                  false,
		"c *:* rwm\n":                  false,
		"c 1:3 rwm\nb 7:0 rw\n":        false,
		"c 1:1 r\n":                    false,
		"b 136:* r\n":                  false,
		"c 1:3\n":                      false,
	} {
		if got := filters(list); got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
}

// TestDevicesOfVersion2 uses the kernel's own groups of version 2, which are there beside those of version 1, too.
func TestDevicesOfVersion2(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mounts, err := readMounts("/proc/thread-self/mountinfo")
	must(t, err)
	at := slices.IndexFunc(mounts, func(m mount) bool { return m.FSType == "cgroup2" })
	if at < 0 {
		testenv.Missing(t, "a mount of control groups of version 2", "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
	}
	group := filepath.Join(mounts[at].Point, fmt.Sprintf("clawjail-devices-%d", os.Getpid()))
	must(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() { must(t, os.Remove(group)) })
	dir := t.TempDir()
	node := func(name string, major, minor uint32) string {
		path := filepath.Join(dir, name)
		must(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))))
		return path
	}
	own, others := node("zero", 1, 5), node("fuse", 10, 229)
	fd, err := unix.Open(group, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer func() { must(t, unix.Close(fd)) }()
	open := func(path string) error {
		cmd := exec.Command("/bin/sh", "-c", `: <"$1"`, "open", path)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		return cmd.Run()
	}
	if is, err := filterAttached(group); is || err != nil {
		t.Errorf("a new group has a filter: %v, %v", is, err)
	}
	if err := open(others); err != nil {
		t.Fatalf("a device does not open without the filter, which shows nothing: %v", err)
	}
	must(t, attachFilter(group))
	if is, err := filterAttached(group); !is || err != nil {
		t.Errorf("the filter is not seen: %v, %v", is, err)
	}
	if err := open(own); err != nil {
		t.Errorf("a device of every jail does not open: %v", err)
	}
	if open(others) == nil {
		t.Error("another device of the host opens")
	}
}

func TestUsageOfVersion2(t *testing.T) {
	tree, l, _ := newTreeV2(t, "cpu memory pids")
	ctx, name := context.Background(), jail.Name("btest00001")
	must(t, l.Apply(ctx, name, "", testLimits()))
	dir := l.group(l.memory, string(name))
	tree.put(dir, "memory.current", "1000")
	tree.put(dir, "memory.peak", "5000")
	tree.put(dir, "cpu.stat", "usage_usec 1500000\nuser_usec 1\n")
	tree.put(dir, "pids.current", "7")
	u, err := l.Usage(ctx, name, jail.Process{})
	if err != nil || u.MemoryBytes != 1000 || u.MemoryPeak != 5000 || u.CPU != 1500*time.Millisecond || u.Tasks != 7 || len(u.Hit) > 0 {
		t.Errorf("usage is %+v (%v)", u, err)
	}
	tree.put(dir, "memory.events", "low 0\nmax 12\noom 1\noom_kill 1\n")
	tree.put(dir, "pids.events", "max 3\n")
	if u, err = l.Usage(ctx, name, jail.Process{}); err != nil || !slices.Equal(u.Hit, []jail.LimitName{jail.LimitMemory, jail.LimitTasks}) {
		t.Errorf("hit %v (%v)", u.Hit, err)
	}
	must(t, os.Remove(filepath.Join(dir, "memory.peak"))) // before Linux 5.19
	if u, err = l.Usage(ctx, name, jail.Process{}); err != nil || u.MemoryPeak != 1000 {
		t.Errorf("peak %d (%v), want what is used now", u.MemoryPeak, err)
	}
}

func TestMissingControllersAreNamed(t *testing.T) {
	if _, l, _ := newTreeV2(t, "cpu pids"); l != nil {
		t.Error("a host without the memory controller was accepted")
	}
	// Offered at the root, and not passed on by a group on the way.
	tree, l, o := newTreeV2(t, "cpu memory pids")
	slice := filepath.Join(tree.root, "sys/fs/cgroup/system.slice")
	must(t, os.Mkdir(slice, 0o755))
	tree.put(slice, "cgroup.controllers", "cpu pids")
	tree.put(slice, "cgroup.subtree_control", "")
	err := l.Apply(context.Background(), "btest00001", "", testLimits())
	if problem.CodeOf(err) != problem.Unsupported || !strings.Contains(err.Error(), "memory") {
		t.Errorf("got %v, want that memory is not offered", err)
	}
	if _, err := newLimiter(o, nil, tree.root); problem.CodeOf(err) != problem.Unsupported {
		t.Errorf("a host without control groups: %v", err)
	}
}

func TestHierarchiesOfVersion1AreToldApart(t *testing.T) {
	root := t.TempDir()
	unified := filepath.Join(root, "sys/fs/cgroup/unified")
	must(t, os.MkdirAll(unified, 0o755))
	must(t, os.WriteFile(filepath.Join(unified, "cgroup.controllers"), []byte("hugetlb\n"), 0o644))
	var lines strings.Builder
	for i, super := range []string{"rw,cpu,cpuacct", "rw,memory", "rw,pids", "rw,xattr,name=systemd", "rw,freezer", "rw,devices", "rw,memory"} {
		fmt.Fprintf(&lines, "%d 31 0:%d / /sys/fs/cgroup/h%d rw - cgroup cgroup %s\n", 40+i, 40+i, i, super)
	}
	lines.WriteString("60 31 0:60 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n61 31 0:61 / / rw - ext4 /dev/x rw\n")
	mounts, err := parseMounts(strings.NewReader(lines.String()))
	must(t, err)
	l, err := newLimiter(Options{Installation: "test"}, mounts, root)
	must(t, err)
	if l.Version() != 1 || l.cpu.dir != l.cpuacct.dir || len(l.used()) != 4 || len(l.hierarchies) != 7 {
		t.Errorf("version %d, %d used and %d in all: %+v", l.Version(), len(l.used()), len(l.hierarchies), l.hierarchies)
	}
}

func TestLimitsAreSetReadBackAndRemoved(t *testing.T) {
	h := newTestHost(t)
	ctx, name := context.Background(), nameOf(t, h, 1)
	must(t, h.limiter.Apply(ctx, name, "", testLimits()))
	must(t, h.limiter.Apply(ctx, name, "", testLimits())) // of an empty group: once more is fine
	sleeper := exec.Command("/bin/sleep", "60")
	must(t, sleeper.Start())
	ended := make(chan error, 1)
	go func() { ended <- sleeper.Wait() }()
	pid := sleeper.Process.Pid
	if m, c, p, err := h.limiter.enforced(string(name), pid); m != 0 || c != 0 || p != 0 || err != nil {
		t.Errorf("limits of a process elsewhere: %d %d %d %v", m, c, p, err)
	}
	for _, hi := range h.limiter.used() {
		must(t, writeGroupFile(h.limiter.group(hi, string(name)), "cgroup.procs", int64(pid)))
	}
	want := testLimits()
	if m, c, p, err := h.limiter.enforced(string(name), pid); m != want.Memory || c != want.MilliCPU || p != want.Tasks || err != nil {
		t.Errorf("limits read back: %d %d %d %v", m, c, p, err)
	}
	if h.limiter.Version() == 1 {
		dir := h.limiter.group(h.limiter.memory, string(name))
		if v, err := readGroupNumber(dir, "memory.memsw.limit_in_bytes"); err == nil && v != want.Memory {
			t.Errorf("memory and swap together are %d", v)
		}
	}
	if err := h.limiter.Remove(ctx, name); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("removed with a process in it: %v", err)
	}
	if err := h.limiter.Apply(ctx, name, "", want); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("taken over with a process in it: %v", err)
	}
	must(t, sleeper.Process.Kill())
	<-ended
	must(t, h.limiter.Remove(ctx, name))
	must(t, h.limiter.Remove(ctx, name))
	bad := want
	bad.Memory = 0
	if err := h.limiter.Apply(ctx, name, "", bad); problem.CodeOf(err) != problem.BadLimit {
		t.Errorf("no limit: %v", err)
	}
	if err := h.limiter.Apply(ctx, "../x", "", want); problem.CodeOf(err) != problem.BadName {
		t.Errorf("a name that is a path: %v", err)
	}
}

// The unified hierarchy of a hybrid host has no memory controller, but a group can be entered and killed.
func TestGroupsOfVersion2AreEnteredAndKilledByTheKernel(t *testing.T) {
	h := newTestHost(t)
	i := slices.IndexFunc(h.limiter.hierarchies, func(h hierarchy) bool { return h.unified })
	if i < 0 {
		testenv.Missing(t, "control groups of version 2", "mount cgroup2 at /sys/fs/cgroup/unified")
	}
	unified, name := h.limiter.hierarchies[i], nameOf(t, h, 1)
	dir := h.limiter.group(unified, string(name))
	must(t, os.MkdirAll(dir, 0o755))
	group, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	// As execute starts a runtime that joins.
	cmd := exec.Command("/bin/sh", "-c", "sleep 60 & sleep 60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: group, Setpgid: true}
	must(t, cmd.Start())
	must(t, unix.Close(group))
	pids, err := h.limiter.processes(string(name))
	if err != nil || !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("processes are %v (%v), want %d among them", pids, err, cmd.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	killGroupV2(h.limiter, string(name))
	<-ended
	collectGroup(cmd.Process.Pid) // its child has become this process's
	must(t, h.runtime.Kill(context.Background(), name, jail.Process{}))
	must(t, h.limiter.Remove(context.Background(), name))
}

func FuzzGroupFiles(f *testing.F) {
	f.Add("low 0\nmax 12\noom_kill 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o600))
		v, err := readGroupKey(dir, "f", "oom_kill")
		if err == nil && v != 0 && !strings.Contains(text, fmt.Sprint(v)) {
			t.Errorf("%d out of %q", v, text)
		}
	})
}
