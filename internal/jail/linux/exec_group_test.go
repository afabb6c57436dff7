//go:build linux

package linux

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestProgramThatJoinsHasAGroupInsideTheJailsOfVersion2(t *testing.T) {
	tree, l, _ := newTreeV2(t, "cpuset cpu io memory pids")
	name, group := "atest00001", "atest00001/"+execGroup+"x"
	must(t, l.apply(name, "", testLimits()))
	must(t, l.divide(group))
	if got, want := l.joinable(group), []string{l.group(l.memory, group)}; !slices.Equal(got, want) {
		t.Errorf("entered are %q, want %q", got, want)
	}
	// Dividing a controller would forbid processes in the jail's own group.
	if got := tree.get(l.group(l.memory, name), "cgroup.subtree_control"); got != "" {
		t.Errorf("the jail's group divides %q", got)
	}
	args := newProgram("/usr/sbin/runc").exec("/s", "/b", name, execGroup+"x", 2)
	if i := slices.Index(args, "--cgroup"); i < 0 || args[i+1] != execGroup+"x" || args[len(args)-1] != name {
		t.Errorf("runc is told %q", args)
	}
	tree.put(l.group(l.pids, name), "pids.events", "max 2\n")
	tree.put(l.group(l.pids, name), "pids.max", "64")
	if l.full(name) || l.refusals(name) != 2 {
		t.Errorf("full %v after %d refusals", l.full(name), l.refusals(name))
	}
	tree.put(l.group(l.pids, name), "pids.current", "64")
	if !l.full(name) {
		t.Error("64 of 64 tasks are not full")
	}
}

func TestProgramThatJoinsHasAGroupOfTasksAloneInVersion1(t *testing.T) {
	mounts, err := parseMounts(strings.NewReader("1 0 0:1 / /g/memory rw - cgroup cgroup rw,memory\n2 0 0:2 / /g/cpu rw - cgroup cgroup rw,cpu,cpuacct\n3 0 0:3 / /g/pids rw - cgroup cgroup rw,pids\n4 0 0:4 / /g/devices rw - cgroup cgroup rw,devices\n"))
	must(t, err)
	l, err := newLimiter(Options{Installation: "test"}, mounts, "/")
	must(t, err)
	want := []string{"/g/memory/clawjail-test/a", "/g/cpu/clawjail-test/a", "/g/pids/clawjail-test/a/" + execGroup + "x", "/g/devices/clawjail-test/a"}
	if got := l.joinable(filepath.Join("a", execGroup+"x")); !slices.Equal(got, want) {
		t.Errorf("entered are %q, want %q", got, want)
	}
	if got := l.joinable("a"); strings.Contains(strings.Join(got, " "), execGroup) || len(got) != 4 {
		t.Errorf("a jail enters %q", got)
	}
	args := newProgram("/usr/sbin/runc").exec("/s", "/b", "a", execGroup+"x", 1)
	if i := slices.Index(args, "--cgroup"); i < 0 || args[i+1] != "pids:"+execGroup+"x" {
		t.Errorf("runc is told %q", args)
	}
	if args := newProgram("/usr/bin/crun").exec("/s", "/b", "a", execGroup+"x", 1); slices.Contains(args, "--cgroup") {
		t.Errorf("crun is told %q", args)
	}
}

func TestProgramsAreStagedWhereTheHostDaemonSays(t *testing.T) {
	h, _ := newAgentHost(t, func(o *Options) { o.StageDir = "/tmp/staged/here" })
	j := h.startAgent(t, agentSpec("one"), nil)
	if e := j.mustExec(t, shell(`[ -f /tmp/staged/here/*/env.sh ] && exit 5`)).exit(t); e.Code != 5 {
		t.Errorf("not staged there: %+v", e)
	}
	if left := j.staged(t); len(left) > 0 {
		t.Errorf("staged at the usual place: %q", left)
	}
	h.runtime.o.StageDir = "/etc/staged"
	if _, err := j.exec(t, shell("exit 0")); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("staged in the read-only root: %v", err)
	}
	j.noPrograms(t)
}

func FuzzFormattedSize(f *testing.F) {
	super := func(magic uint16, blocks, shift uint32) []byte {
		b := make([]byte, 2048)
		binary.LittleEndian.PutUint16(b[1024+0x38:], magic)
		binary.LittleEndian.PutUint32(b[1024+4:], blocks)
		binary.LittleEndian.PutUint32(b[1024+0x18:], shift)
		return b
	}
	f.Add(super(0xef53, 1000, 2))
	f.Add(super(0xef53, 0xffffffff, 40))
	f.Add(super(0, 1000, 2))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		size, err := formattedSize(bytes.NewReader(data))
		if err == nil && (size <= 0 || size > jail.MaxState<<16) {
			t.Errorf("%d bytes", size)
		}
	})
}
