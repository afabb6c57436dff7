//go:build linux

package linux

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Whatever somebody has planted in the place of a workspace, or on the way to it, is refused, named, and left as it is.
func TestNothingIsMountedOrMadeThroughWhatWasPlanted(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for _, tt := range []struct {
		what  string
		plant func(t *testing.T, root, outside string)
		code  string // none: it is mounted
		names string // what the error speaks of
	}{
		{"nothing", func(*testing.T, string, string) {}, "", ""},
		{"folders that are there", func(t *testing.T, root, _ string) { must(t, os.MkdirAll(filepath.Join(root, "a/b/bot"), 0o700)) }, "", ""},
		{"a link that stays inside", func(t *testing.T, root, _ string) {
			must(t, os.Mkdir(filepath.Join(root, "other"), 0o755))
			must(t, os.Symlink("other", filepath.Join(root, "a")))
		}, problem.Forbidden, "a beneath"},
		{"a link out on the way", func(t *testing.T, root, outside string) { must(t, os.Symlink(outside, filepath.Join(root, "a"))) }, problem.Forbidden, "a beneath"},
		{"a link upwards", func(t *testing.T, root, _ string) { must(t, os.Symlink("../..", filepath.Join(root, "a"))) }, problem.Forbidden, "a beneath"},
		{"a link out at the end", func(t *testing.T, root, outside string) {
			must(t, os.Mkdir(filepath.Join(root, "a"), 0o755))
			must(t, os.Symlink(outside, filepath.Join(root, "a/b")))
		}, problem.Forbidden, "a/b beneath"},
		{"a magic link", func(t *testing.T, root, _ string) { must(t, os.Symlink("/proc/self/root", filepath.Join(root, "a"))) }, problem.Forbidden, "a beneath"},
		{"a link to nothing", func(t *testing.T, root, _ string) { must(t, os.Symlink("none", filepath.Join(root, "a"))) }, problem.Forbidden, "a beneath"},
		{"a link to nothing outside", func(t *testing.T, root, outside string) {
			must(t, os.Symlink(filepath.Join(outside, "new"), filepath.Join(root, "a")))
		}, problem.Forbidden, "a beneath"},
		{"a fifo", func(t *testing.T, root, _ string) { must(t, unix.Mkfifo(filepath.Join(root, "a"), 0o666)) }, problem.Conflict, "a beneath"},
		{"a file", func(t *testing.T, root, _ string) { must(t, os.WriteFile(filepath.Join(root, "a"), nil, 0o644)) }, problem.Conflict, "a beneath"},
		{"a hard link", func(t *testing.T, root, _ string) {
			must(t, os.WriteFile(filepath.Join(root, "victim"), []byte("untouched"), 0o644))
			must(t, os.Mkdir(filepath.Join(root, "a"), 0o755))
			must(t, os.Link(filepath.Join(root, "victim"), filepath.Join(root, "a/b")))
		}, problem.Conflict, "a/b beneath"},
		{"a link for the agent's own folder", func(t *testing.T, root, outside string) {
			must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
			must(t, os.Symlink(outside, filepath.Join(root, "a/b/bot")))
		}, problem.Forbidden, "a/b/bot"},
		{"a link inside for the agent's own folder", func(t *testing.T, root, _ string) {
			must(t, os.MkdirAll(filepath.Join(root, "a/b/other"), 0o755))
			must(t, os.Symlink("other", filepath.Join(root, "a/b/bot")))
		}, problem.Forbidden, "a/b/bot"},
		{"a fifo for the agent's own folder", func(t *testing.T, root, _ string) {
			must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
			must(t, unix.Mkfifo(filepath.Join(root, "a/b/bot"), 0o666))
		}, problem.Conflict, "a/b/bot"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			root, outside := t.TempDir(), t.TempDir()
			must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600))
			tt.plant(t, root, outside)
			before := tree(t, outside)
			m := jail.Mount{Source: filepath.Join(root, "a/b"), Target: jail.WorkspaceDir, Make: []string{"bot"}}
			checked := CheckMount([]string{root}, jail.DefaultTenant, m)
			was := tree(t, root)
			f, err := OpenMount([]string{root}, bot, m, jail.AgentUID)
			if err == nil {
				if text := tree(t, "/proc/self/fd/"+num(uint64(f.Fd()))+"/"); !strings.Contains(text, "bot") {
					t.Errorf("the folder holds\n%s", text)
				}
				must(t, f.Close())
			}
			for _, err := range []error{err, checked} {
				if problem.CodeOf(err) != tt.code && (err != nil || tt.code != "") {
					t.Errorf("code %q of %v, want %q", problem.CodeOf(err), err, tt.code)
				}
				if err != nil && !strings.Contains(err.Error(), tt.names) {
					t.Errorf("%v does not speak of %q", err, tt.names)
				}
			}
			if (err == nil) != (tt.code == "") {
				t.Errorf("opened: %v", err)
			}
			if after := tree(t, outside); after != before {
				t.Errorf("outside is now\n%s", after)
			}
			if now := tree(t, root); tt.code != "" && now != was {
				t.Errorf("beneath the root is now\n%s", now)
			}
		})
	}
}

func TestOnlyFoldersBeneathTheRootsAreGranted(t *testing.T) {
	roots := []string{"/srv/ws", "/srv/ws/deep", "/home/x"}
	for path, want := range map[string]string{
		"/srv/ws": "/srv/ws .", "/srv/ws/a/b": "/srv/ws a/b", "/srv/ws/deep/c": "/srv/ws/deep c", "/srv/ws/deeper": "/srv/ws deeper",
		"/srv/wsx": "", "/srv": "", "/": "", "/etc": "", "/home/x": "/home/x .",
	} {
		g, err := grantFor("workspace_roots", roots, jail.DefaultTenant, path)
		if got := g.Root + " " + g.Rel; err == nil && got != want || (err == nil) != (want != "") {
			t.Errorf("%s is %q, %v, want %q", path, got, err, want)
		}
		if err != nil && problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := grantFor("workspace_roots", nil, jail.DefaultTenant, "/srv"); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("without roots: %v", err)
	}
}

func TestARootOfTheOperatorsIsClonedAndNeverChanged(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx := context.Background()
		roots := t.TempDir()
		h.storage.o.JailRoots = []string{roots}
		must(t, os.CopyFS(filepath.Join(roots, "mine"), os.DirFS(filepath.Join(templates(t), "tiny", rootfsFolder))))
		must(t, os.Symlink("mine", filepath.Join(roots, "link")))
		must(t, os.Symlink("/", filepath.Join(roots, "out")))
		before := tree(t, filepath.Join(roots, "mine"))
		spec := probeSpec(jail.KindAgent)
		spec.Agent = &jail.Agent{Tenant: jail.DefaultTenant, Name: "bot"}
		spec.Template, spec.Root = "", filepath.Join(roots, "mine")
		j := h.start(t, spec, nil)
		for _, path := range []string{"/new", "/bin/sh"} {
			if a := j.Ask("write", path, "x"); a.OK {
				t.Errorf("%s was written", path)
			}
		}
		if after := tree(t, filepath.Join(roots, "mine")); after != before {
			t.Error("the operator's folder was changed")
		}
		for root, code := range map[string]string{"link": problem.Forbidden, "out": problem.Forbidden, "out/etc": problem.Forbidden, "none": problem.NotFound, "mine/etc/hosts": problem.Conflict} {
			spec.Root = filepath.Join(roots, root)
			if _, err := h.storage.Clone(ctx, nameOf(t, h, 99), spec); problem.CodeOf(err) != code {
				t.Errorf("%s: %v", root, err)
			}
			if err := h.storage.Check(ctx, spec); problem.CodeOf(err) != code {
				t.Errorf("check of %s: %v", root, err)
			}
		}
		spec.Root = "/etc"
		if err := h.storage.Check(ctx, spec); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("a folder outside: %v", err)
		}
	})
}

// Whatever confines what an agent has of the host is seen when it is taken away.
func TestObserveSeesEveryBindThatIsNotAsPlaced(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, root string) {
		ctx := context.Background()
		for what, change := range map[string]func(clone string){
			"writable workspace":  func(c string) { remount(t, c+"/workspace", 0, unix.MOUNT_ATTR_RDONLY) },
			"devices":             func(c string) { remount(t, c+"/workspace", 0, unix.MOUNT_ATTR_NODEV) },
			"setuid":              func(c string) { remount(t, c+"/state", 0, unix.MOUNT_ATTR_NOSUID) },
			"writable token":      func(c string) { remount(t, c+"/run/hermit", 0, unix.MOUNT_ATTR_RDONLY) },
			"token can be run":    func(c string) { remount(t, c+"/run/hermit", 0, unix.MOUNT_ATTR_NOEXEC) },
			"state not mounted":   func(c string) { must(t, unix.Unmount(c+"/state", 0)) },
			"token not mounted":   func(c string) { must(t, unix.Unmount(c+"/run/hermit", 0)) },
			"a folder undeclared": func(c string) { bindMount(t, root, c+"/var") },
		} {
			p := h.placeAgent(t, agentSpec("one", jail.Mount{Source: filepath.Join(root, "ws"), Target: jail.WorkspaceDir, ReadOnly: true}))
			change(p.Root)
			j, err := h.hold(t, p, nil)
			must(t, err)
			o, err := h.runtime.Observe(ctx, p, j.proc)
			must(t, err)
			if diff := p.Profile.Compare(o); len(diff) == 0 {
				t.Errorf("%s: not seen", what)
			}
			h.end(t, p.Name, j.proc)
		}
		p := h.placeAgent(t, agentSpec("one"))
		j, err := h.hold(t, p, func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: jail.StateDir, Type: "bind", Source: root, Options: []string{"bind", "nosuid", "nodev"}})
		})
		must(t, err)
		o, err := h.runtime.Observe(ctx, p, j.proc)
		must(t, err)
		if diff := p.Profile.Compare(o); len(diff) == 0 {
			t.Error("another folder in the place of the state: not seen")
		}
	})
}

func remount(t testing.TB, point string, set, clr uint64) {
	t.Helper()
	must(t, unix.MountSetattr(unix.AT_FDCWD, point, 0, &unix.MountAttr{Attr_set: set, Attr_clr: clr}))
}

func bindMount(t testing.TB, from, to string) {
	t.Helper()
	must(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
}

func TestCheckMakesNothing(t *testing.T) {
	h, root := newAgentHost(t)
	ctx := context.Background()
	spec := agentSpec("one", jail.Mount{Source: filepath.Join(root, "a/b"), Target: jail.WorkspaceDir, Make: []string{"one"}})
	before := tree(t, root) + tree(t, h.storage.data.Path())
	must(t, h.storage.Check(ctx, spec))
	if after := tree(t, root) + tree(t, h.storage.data.Path()); after != before {
		t.Errorf("made:\n%s", after)
	}
	spec.Mounts[0].Source = "/etc"
	spec.Template = "none"
	err := h.storage.Check(ctx, spec)
	for _, want := range []string{"there is no template none", "/etc does not lie beneath"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// A full disk is told, and nothing is half-made.
func TestFullDiskIsToldAndNothingIsHalfMade(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	must(t, unix.Mount("clawjail", dir, "tmpfs", 0, "size=24k,mode=755"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	h, _ := newAgentHost(t, func(o *Options) { o.DataDir = dir })
	spec := agentSpec("one")
	if err := h.storage.Check(context.Background(), spec); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("check: %v", err)
	}
	p := h.place(t, spec)
	if err := h.storage.Mount(context.Background(), p); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("mount: %v", err)
	}
	names, err := os.ReadDir(filepath.Join(dir, volumesFolder))
	if errors.Is(err, fs.ErrNotExist) || err != nil || len(names) > 0 {
		t.Errorf("left on the disk: %v, %v", names, err)
	}
}

// bot is whose mounts tests open.
var bot = Holder{Installation: "test", Agent: jail.Agent{Tenant: jail.DefaultTenant, Name: "bot"}}
