//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// agentSpec is the jail of an agent with everything that one can have of the host.
func agentSpec(name string, mounts ...jail.Mount) jail.Spec {
	spec := probeSpec(jail.KindAgent)
	spec.Agent = &jail.Agent{Tenant: "default", Name: name, State: 16 << 20, Token: true}
	spec.Mounts = mounts
	return spec
}

// newAgentHost has a folder for workspaces, which it returns.
func newAgentHost(t testing.TB, change ...func(*Options)) (*testHost, string) {
	t.Helper()
	testenv.Tool(t, "mkfs.ext4")
	root := t.TempDir()
	h := newTestHost(t, append(change, func(o *Options) { o.WorkspaceRoots = []string{root} })...)
	return h, root
}

// placeAgent is place with the step that mounts.
func (h *testHost) placeAgent(t testing.TB, spec jail.Spec) jail.Placement {
	t.Helper()
	p := h.place(t, spec)
	must(t, h.storage.Mount(context.Background(), p))
	return p
}

func (h *testHost) startAgent(t testing.TB, spec jail.Spec, amend func(*specs.Spec)) *testJail {
	t.Helper()
	j, err := h.launch(t, h.placeAgent(t, spec), amend)
	must(t, err)
	return j
}

func onEachRuntimeWithAgents(t *testing.T, f func(t *testing.T, h *testHost, root string)) {
	for _, name := range []string{RuntimeCrun, RuntimeRunc} {
		t.Run(name, func(t *testing.T) {
			testenv.Tool(t, name)
			h, root := newAgentHost(t, func(o *Options) { o.Runtime = name })
			f(t, h, root)
		})
	}
}

// runc from 1.1.13 on reads the map of a user namespace from a process that it believes to find in the namespace's path. The path
// that is given to it must not look like that; the plain one, which does, is the control.
func TestRuncFindsNoProcessInThePathOfAUserNamespace(t *testing.T) {
	h, _ := newAgentHost(t, func(o *Options) { o.Runtime = RuntimeRunc })
	var namespace string
	h.startAgent(t, agentSpec("one"), func(s *specs.Spec) {
		for _, n := range s.Linux.Namespaces {
			if n.Type == specs.UserNamespace {
				namespace = n.Path
			}
		}
	})
	for path, finds := range map[string]int{namespace: 0, filepath.Clean(namespace): 1} {
		var pid int
		var rest rune
		if found, _ := fmt.Sscanf(path, "/proc/%d/ns/user%c", &pid, &rest); found != finds {
			t.Errorf("it finds %d processes in %q", found, path)
		}
	}
}

func TestAgentSeesItsFoldersAsDeclared(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, root string) {
		ctx := context.Background()
		must(t, os.WriteFile(filepath.Join(root, "note"), []byte("of the operator"), 0o644))
		j := h.startAgent(t, agentSpec("one",
			jail.Mount{Source: filepath.Join(root, "team"), Target: "/workspace", Make: []string{"one", "two"}},
			jail.Mount{Source: root, Target: "/mnt/all", ReadOnly: true}), nil)
		o, err := h.runtime.Observe(ctx, j.place, j.proc)
		must(t, err)
		if diff := j.place.Profile.Compare(o); len(diff) > 0 {
			t.Fatalf("not as declared: %q", diff)
		}
		for path, may := range map[string]bool{
			"/workspace/file": true, "/workspace/one/file": true, "/workspace/two/file": true, "/state/file": true, "/tmp/file": true,
			"/mnt/all/file": false, "/mnt/all/team/file": false, "/mnt/file": false, "/run/hermit/token": false, "/run/hermit/x": false, "/file": false,
		} {
			if a := j.Ask("write", path, "x"); a.OK != may {
				t.Errorf("writing %s: %+v, want %v", path, a, may)
			}
		}
		if a := j.Ask("read", "/mnt/all/note"); a.Text != "of the operator" {
			t.Errorf("the operator's file reads %+v", a)
		}
		if a := j.Ask("list", "/run/hermit"); !a.OK || slices.ContainsFunc(a.List, func(s string) bool { return strings.Contains(s, jail.TokenName) }) {
			t.Errorf("the folder of the token begins with %+v", a)
		}
		if a := j.Ask("cwd"); a.Text != jail.StateDir {
			t.Errorf("the program runs in %q", a.Text)
		}
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(root, "team/one"), &st))
		if st.Uid != jail.AgentUID || st.Gid != jail.AgentUID || st.Mode&0o7777 != 0o755 {
			t.Errorf("a folder that was made is of %d:%d with mode %o", st.Uid, st.Gid, st.Mode)
		}
	})
}

func TestTokenAppearsOnlyWhenDeliveredAndIsReplacedInPlace(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		ctx := context.Background()
		j := h.startAgent(t, agentSpec("one"), nil)
		path := filepath.Join(jail.TokenDir, jail.TokenName)
		if a := j.Ask("read", path); a.OK {
			t.Fatalf("there is a token before one was delivered: %+v", a)
		}
		for _, token := range []string{"first", "second"} {
			must(t, h.storage.Token(ctx, j.place.Name, j.place.Profile.Host, []byte(token)))
			if a := j.Ask("read", path); a.Text != token {
				t.Errorf("the token reads %+v, want %q", a, token)
			}
		}
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(h.storage.jails.Path(), string(j.place.Name), tokenFolder, jail.TokenName), &st))
		if st.Mode&0o7777 != 0o600 || st.Uid != j.place.Profile.Host {
			t.Errorf("the token's file is of %d with mode %o", st.Uid, st.Mode)
		}
		if names, err := os.ReadDir(filepath.Join(h.storage.jails.Path(), string(j.place.Name), tokenFolder)); err != nil || len(names) != 1 {
			t.Errorf("beside the token: %v, %v", names, err)
		}
		// A writer that was killed half-way hinders nobody.
		must(t, os.WriteFile(filepath.Join(h.storage.jails.Path(), string(j.place.Name), tokenFolder, ".new"), []byte("half"), 0o600))
		must(t, h.storage.Token(ctx, j.place.Name, j.place.Profile.Host, []byte("third")))
		if a := j.Ask("read", path); a.Text != "third" {
			t.Errorf("the token reads %+v", a)
		}
	})
	h, _ := newAgentHost(t)
	if err := h.storage.Token(context.Background(), nameOf(t, h, 7), jail.AgentUID, []byte("x")); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a token for no jail: %v", err)
	}
}

func TestStateOutlivesTheJailAndNothingElseDoes(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		ctx := context.Background()
		one := h.startAgent(t, agentSpec("one"), nil)
		if a := one.Ask("write", "/state/kept", "x"); !a.OK {
			t.Fatalf("writing to /state: %+v", a)
		}
		if a := one.Ask("write", "/tmp/lost", "x"); !a.OK {
			t.Fatalf("writing to /tmp: %+v", a)
		}
		must(t, h.storage.Token(ctx, one.place.Name, one.place.Profile.Host, []byte("t")))
		h.end(t, one.place.Name, one.proc)
		h.noTraces(t)

		two := h.startAgent(t, agentSpec("one"), nil)
		if a := two.Ask("read", "/state/kept"); a.Text != "x" {
			t.Errorf("what was kept reads %+v", a)
		}
		for _, path := range []string{"/tmp/lost", "/run/hermit/token"} {
			if a := two.Ask("read", path); a.OK {
				t.Errorf("%s of an earlier jail is there", path)
			}
		}
		other := h.startAgent(t, agentSpec("other"), nil)
		if a := other.Ask("list", "/state"); len(a.List) > 1 { // itself
			t.Errorf("the state of another agent begins with %q", a.List)
		}
		h.end(t, two.place.Name, two.proc)
		must(t, h.storage.RemoveState(ctx, *two.place.Spec.Agent))
		must(t, h.storage.RemoveState(ctx, *two.place.Spec.Agent))
		three := h.startAgent(t, agentSpec("one"), nil)
		if a := three.Ask("read", "/state/kept"); a.OK {
			t.Error("a removed state is still there")
		}
	})
}

// Two file systems in memory over one image would destroy it.
func TestAVolumeThatIsStillHeldIsTheSameFileSystem(t *testing.T) {
	h, _ := newAgentHost(t)
	one := h.placeAgent(t, agentSpec("one"))
	file := filepath.Join(one.Root, "state/file")
	must(t, os.WriteFile(file, []byte("x"), 0o644)) // not yet on the disk
	two := h.placeAgent(t, agentSpec("one"))
	if text, err := os.ReadFile(filepath.Join(two.Root, "state/file")); err != nil || string(text) != "x" {
		t.Fatalf("the second mount reads %q, %v", text, err)
	}
	var a, b unix.Stat_t
	must(t, unix.Stat(file, &a))
	must(t, unix.Stat(filepath.Join(two.Root, "state/file"), &b))
	if a.Dev != b.Dev {
		t.Error("one image has two file systems")
	}
}

func TestStateIsBoundedGrowsAndNeverShrinks(t *testing.T) {
	h, _ := newAgentHost(t)
	blocks := func(state int64) int64 {
		t.Helper()
		spec := agentSpec("one")
		spec.Agent.State = state
		p := h.placeAgent(t, spec)
		var st unix.Statfs_t
		must(t, unix.Statfs(filepath.Join(p.Root, "state"), &st))
		if names, err := os.ReadDir(filepath.Join(p.Root, "state")); err != nil || len(names) > 0 {
			t.Errorf("the state holds %v, %v", names, err)
		}
		h.end(t, p.Name, jail.Process{})
		return int64(st.Blocks) * st.Bsize
	}
	small := blocks(8 << 20)
	if small <= 0 || small > 8<<20 {
		t.Errorf("8 MiB are %d bytes", small)
	}
	for _, size := range []int64{64 << 20, 2 << 30} {
		if got := blocks(size); got < size*9/10 || got > size {
			t.Errorf("enlarged to %d it has %d bytes", size, got)
		}
	}
	if got := blocks(8 << 20); got < 1<<30 {
		t.Errorf("it was made smaller: %d bytes", got)
	}
	spec := agentSpec("full")
	spec.Agent.State = jail.MinState
	p := h.placeAgent(t, spec)
	if err := os.WriteFile(filepath.Join(p.Root, "state/big"), make([]byte, 2<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than there is: %v", err)
	}
}

func TestLoopDevicesGoWithTheMount(t *testing.T) {
	h, _ := newAgentHost(t)
	p := h.placeAgent(t, agentSpec("one"))
	image := filepath.Join(h.storage.volumes.Path(), "one"+volumeSuffix)
	var st unix.Stat_t
	must(t, unix.Stat(image, &st))
	held := func() bool {
		device, err := findLoop(st.Dev, st.Ino)
		must(t, err)
		if device != nil {
			must(t, device.Close())
		}
		return device != nil
	}
	if !held() {
		t.Fatal("the volume has no loop device")
	}
	h.end(t, p.Name, jail.Process{})
	testenv.Eventually(t, testenv.Patience*time.Second, func() bool { return !held() }, "the loop device stays")
}

func TestDamagedAndHalfMadeVolumes(t *testing.T) {
	h, _ := newAgentHost(t)
	ctx := context.Background()
	// Left by a process that was killed while it formatted.
	must(t, os.WriteFile(filepath.Join(h.storage.volumes.Path(), ".one.img.new"), []byte("half"), 0o600))
	p := h.placeAgent(t, agentSpec("one"))
	if _, err := os.Stat(filepath.Join(h.storage.volumes.Path(), ".one.img.new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the half-made image is there: %v", err)
	}
	h.end(t, p.Name, jail.Process{})
	must(t, os.WriteFile(filepath.Join(h.storage.volumes.Path(), "two.img"), make([]byte, 1<<20), 0o600))
	p = h.place(t, agentSpec("two"))
	if err := h.storage.Mount(ctx, p); problem.CodeOf(err) != problem.JailFailed {
		t.Errorf("a volume of zeros: %v", err)
	}
	must(t, os.Symlink(filepath.Join(h.storage.volumes.Path(), "one.img"), filepath.Join(h.storage.volumes.Path(), "three.img")))
	p = h.place(t, agentSpec("three"))
	if err := h.storage.Mount(ctx, p); err == nil {
		t.Error("a link was taken for a volume")
	}
}
