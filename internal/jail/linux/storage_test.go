//go:build linux

package linux

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// onBtrfs gives a test a btrfs of its own, and returns where it is mounted.
func onBtrfs(t testing.TB) string {
	t.Helper()
	testenv.Need(t, testenv.Root)
	mkfs, mount := testenv.Tool(t, "mkfs.btrfs"), testenv.Tool(t, "mount")
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "btrfs")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 256<<20))
	must(t, os.Mkdir(point, 0o755))
	run(t, mkfs, "--quiet", image)
	run(t, mount, "-o", "loop", image, point)
	t.Cleanup(func() { must(t, unix.Unmount(point, 0)) })
	return point
}

// newBtrfsHost is newTestHost with data, and the template, on btrfs.
func newBtrfsHost(t testing.TB) *testHost {
	t.Helper()
	point := onBtrfs(t)
	trees := &Trees{subvolumes: true}
	dir := filepath.Join(point, "data", "templates", "tiny")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, trees.Make(filepath.Join(dir, rootfsFolder)))
	must(t, os.CopyFS(filepath.Join(dir, rootfsFolder), os.DirFS(filepath.Join(templates(t), "tiny", rootfsFolder))))
	return newTestHost(t, func(o *Options) { o.DataDir, o.Templates = filepath.Join(point, "data"), "" })
}

// newZFSHost is newTestHost with the template, and the clones, in a pool of its own.
func newZFSHost(t testing.TB) *testHost {
	t.Helper()
	dataset := testenv.Pool(t, 128<<20)
	data := filepath.Join(t.TempDir(), "data")
	trees, err := OpenTrees(data, StorageZFS, dataset)
	must(t, err)
	dir := filepath.Join(data, "templates", "tiny")
	must(t, os.MkdirAll(dir, 0o755))
	tree := filepath.Join(dir, rootfsFolder)
	must(t, trees.Make(tree))
	t.Cleanup(func() { must(t, trees.Remove(tree)) })
	must(t, os.CopyFS(tree, os.DirFS(filepath.Join(templates(t), "tiny", rootfsFolder))))
	h := newTestHost(t, func(o *Options) {
		o.Storage, o.ZFSDataset, o.DataDir, o.Templates = StorageZFS, dataset, data, ""
	})
	must(t, h.storage.Ready(context.Background()))
	return h
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if text, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, text)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onEachStorage runs a test on every kind of storage.
func onEachStorage(t *testing.T, f func(t *testing.T, h *testHost)) {
	t.Run(StorageOverlay, func(t *testing.T) { f(t, newTestHost(t)) })
	t.Run(StorageBtrfs, func(t *testing.T) {
		h := newBtrfsHost(t)
		if h.storage.Kind() != StorageBtrfs {
			t.Fatalf("storage auto chose %s for a data directory on btrfs", h.storage.Kind())
		}
		f(t, h)
	})
	t.Run(StorageZFS, func(t *testing.T) {
		if testenv.OnZFS(t) {
			f(t, newZFSHost(t))
		}
	})
}

// destroy destroys a clone, as the teardown does: again while it is busy.
func (h *testHost) destroy(t testing.TB, name jail.Name) {
	t.Helper()
	var err error
	testenv.Eventually(t, 10*time.Second, func() bool {
		err = h.storage.Destroy(context.Background(), name)
		return !errors.Is(err, jail.ErrBusy)
	}, "destroy the clone")
	must(t, err)
}

func nameOf(t testing.TB, h *testHost, n int) jail.Name {
	t.Helper()
	name, err := jail.NewName(jail.KindBrowser, h.o.Installation, n)
	must(t, err)
	return name
}

func TestCloneIsTheTemplateAndNeverChangesIt(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx, name := context.Background(), nameOf(t, h, 1)
		root, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
		must(t, err)
		template := filepath.Join(h.storage.templates.Path(), "tiny", rootfsFolder)
		want, err := os.ReadFile(filepath.Join(template, "bin/sh"))
		must(t, err)
		if got, err := os.ReadFile(filepath.Join(root, "bin/sh")); err != nil || !slices.Equal(got, want) {
			t.Errorf("the clone's shell is not the template's: %v", err)
		}
		must(t, os.WriteFile(filepath.Join(root, "etc/new"), []byte("x"), 0o644))
		must(t, os.Remove(filepath.Join(root, "bin/sh")))
		if _, err := os.Stat(filepath.Join(template, "etc/new")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file written to the clone is in the template: %v", err)
		}
		if _, err := os.Stat(filepath.Join(template, "bin/sh")); err != nil {
			t.Errorf("a file removed from the clone is gone from the template: %v", err)
		}
		mounts, err := mountsBelow(root)
		must(t, err)
		if len(mounts) != 1 || !slices.Contains(mounts[0].Options, "nosuid") || !slices.Contains(mounts[0].Options, "nodev") {
			t.Errorf("mounted as %+v, want one mount without devices and setuid", mounts)
		}
		if st, err := os.Stat(root); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("the root folder has mode %v (%v), want 0755", st.Mode(), err)
		}
		must(t, h.storage.Unmount(ctx, name, false))
		h.destroy(t, name)
	})
}

func TestCloneFailsWhenOneExists(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx, name := context.Background(), nameOf(t, h, 1)
		root, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
		must(t, err)
		if _, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a second clone of one name: %v, want that it exists", err)
		}
		if _, err := os.Stat(filepath.Join(root, "bin/sh")); err != nil {
			t.Errorf("the first clone was harmed: %v", err)
		}
		must(t, h.storage.Unmount(ctx, name, false))
		h.destroy(t, name)
	})
}

func TestBusyCloneIsToldAndForced(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx, name := context.Background(), nameOf(t, h, 1)
		root, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
		must(t, err)
		if err := h.storage.Destroy(ctx, name); !errors.Is(err, jail.ErrBusy) {
			t.Errorf("destroy while mounted: %v, want busy", err)
		}
		release := occupy(t, h, root)
		if err := h.storage.Unmount(ctx, name, false); !errors.Is(err, jail.ErrBusy) {
			t.Errorf("unmount while a file is open: %v, want busy", err)
		}
		must(t, h.storage.Unmount(ctx, name, true))
		if left, err := mountsBelow(root); err != nil || len(left) > 0 {
			t.Errorf("after a forced unmount there is %+v (%v)", left, err)
		}
		if h.storage.Kind() != StorageZFS {
			must(t, h.storage.Destroy(ctx, name))
			release()
			return
		}
		// A dataset is not destroyed under those who use it, out of sight or not.
		if err := h.storage.Destroy(ctx, name); !errors.Is(err, jail.ErrBusy) {
			t.Errorf("destroy while a process is in it: %v, want busy", err)
		}
		release()
		h.destroy(t, name)
	})
}

// occupy keeps a clone busy until release: by an open file, on ZFS by a process that is in it. The zfs-fuse of the tests
// never forgets a file that was open when it was detached.
func occupy(t *testing.T, h *testHost, root string) (release func()) {
	t.Helper()
	if h.storage.Kind() != StorageZFS {
		held, err := os.Open(filepath.Join(root, "bin/sh"))
		must(t, err)
		return func() { must(t, held.Close()) }
	}
	cmd := exec.Command(testenv.Tool(t, "sleep"), "600")
	cmd.Dir = filepath.Join(root, "bin")
	must(t, cmd.Start())
	return sync.OnceFunc(func() {
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	})
}

func TestUnmountTakesWhatIsMountedIntoTheCloneFirst(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx, name := context.Background(), nameOf(t, h, 1)
		root, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
		must(t, err)
		for _, d := range []string{"tmp", "tmp/a b", "tmp", "home"} { // the third covers the first two
			must(t, os.MkdirAll(filepath.Join(root, d), 0o755))
			must(t, unix.Mount("tmpfs", filepath.Join(root, d), "tmpfs", 0, ""))
		}
		resources, err := h.storage.List(ctx)
		must(t, err)
		if n := len(slices.DeleteFunc(slices.Clone(resources), func(x jail.HostResource) bool { return x.Kind != jail.ResourceMount })); n < 5 {
			t.Errorf("%d mounts are listed, want the clone's and four in it: %+v", n, resources)
		}
		if err := h.storage.Unmount(ctx, name, false); err != nil {
			t.Errorf("unmount: %v", err)
			must(t, h.storage.Unmount(ctx, name, true))
		}
		h.destroy(t, name)
	})
}

// zfs-fuse once called a clone busy for ever, because a folder in it had been opened to unmount what was mounted there, and the
// daemon had not heard that it was closed when the clone was unmounted.
func TestUnmountOpensNothingInTheClone(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx, name := context.Background(), nameOf(t, h, 1)
		root, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
		must(t, err)
		must(t, os.MkdirAll(filepath.Join(root, "tmp/in"), 0o755))
		must(t, unix.Mount("tmpfs", filepath.Join(root, "tmp/in"), "tmpfs", 0, ""))
		watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		must(t, err)
		defer unix.Close(watch)
		for _, dir := range []string{"", "tmp"} {
			_, err := unix.InotifyAddWatch(watch, filepath.Join(root, dir), unix.IN_OPEN)
			must(t, err)
		}
		must(t, h.storage.Unmount(ctx, name, false))
		events := make([]byte, 4096)
		n, err := unix.Read(watch, events)
		if !errors.Is(err, unix.EAGAIN) { // nothing happened to a subvolume, which is mounted as a whole
			must(t, err)
		}
		for at := 0; at < n; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&events[at]))
			if event.Mask&unix.IN_OPEN != 0 {
				t.Error("a folder of the clone was opened")
			}
			at += unix.SizeofInotifyEvent + int(event.Len)
		}
		h.destroy(t, name)
	})
}

func TestRemovingWhatIsNotThereSucceeds(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx, name := context.Background(), nameOf(t, h, 9)
		must(t, h.storage.Unmount(ctx, name, false))
		must(t, h.storage.Unmount(ctx, name, true))
		must(t, h.storage.Destroy(ctx, name))
	})
}

func TestCloneRefusesWhatIsNoTemplate(t *testing.T) {
	onEachStorage(t, func(t *testing.T, h *testHost) {
		ctx := context.Background()
		dir := h.storage.templates.Path()
		for name, make := range map[string]func(path string) error{
			"linked": func(p string) error { return os.Symlink("/etc", p) },
			"file":   func(p string) error { return os.WriteFile(p, nil, 0o644) },
		} {
			must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
			must(t, make(filepath.Join(dir, name, rootfsFolder)))
			defer func() { must(t, os.RemoveAll(filepath.Join(dir, name))) }()
			if _, err := h.storage.Clone(ctx, nameOf(t, h, 1), jail.Spec{Template: name}); err == nil {
				t.Errorf("a template whose root file system is a %s was cloned", name)
			}
		}
		for _, tt := range []struct{ name, template, code string }{
			{string(nameOf(t, h, 1)), "absent", problem.TemplateMissing},
			{string(nameOf(t, h, 1)), "../../etc", problem.BadTemplate},
			{string(nameOf(t, h, 1)), "", problem.BadTemplate},
			{"../x", "tiny", problem.BadName},
			{"bzzzz00001", "tiny", problem.BadName},
		} {
			if _, err := h.storage.Clone(ctx, jail.Name(tt.name), jail.Spec{Template: tt.template}); problem.CodeOf(err) != tt.code {
				t.Errorf("clone %q of %q: %v, want code %s", tt.name, tt.template, err, tt.code)
			}
		}
		if err := h.storage.Destroy(ctx, "../x"); problem.CodeOf(err) != problem.BadName {
			t.Errorf("destroy ../x: %v", err)
		}
		if err := h.storage.Unmount(ctx, "../x", true); problem.CodeOf(err) != problem.BadName {
			t.Errorf("unmount ../x: %v", err)
		}
	})
}

func TestStorageSeesItsOwnInstallationOnly(t *testing.T) {
	h := newTestHost(t)
	for _, other := range []string{"bzzzz00001", "lost+found", string(nameOf(t, h, 7)) + "0"} {
		must(t, os.Mkdir(filepath.Join(h.storage.jails.Path(), other), 0o700))
	}
	h.noTraces(t)
	must(t, os.Mkdir(filepath.Join(h.storage.jails.Path(), string(nameOf(t, h, 7))), 0o700))
	if resources := h.resources(t); len(resources) != 1 || resources[0].Kind != jail.ResourceClone || resources[0].Name != nameOf(t, h, 7) {
		t.Errorf("resources are %+v, want the planted folder", resources)
	}
	must(t, h.storage.Destroy(context.Background(), nameOf(t, h, 7)))
}

func TestSnapshotWithSubvolumesInsideHasDependents(t *testing.T) {
	h := newBtrfsHost(t)
	ctx, name := context.Background(), nameOf(t, h, 1)
	_, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
	must(t, err)
	nested := filepath.Join(h.storage.cloner.(*subvolumes).clones.Path(), string(name), "nested")
	must(t, h.storage.Trees().Make(nested))
	must(t, h.storage.Unmount(ctx, name, false))
	if err := h.storage.Destroy(ctx, name); !errors.Is(err, jail.ErrHasDependents) {
		t.Errorf("destroy: %v, want dependents", err)
	}
	must(t, h.storage.Trees().Remove(nested))
	must(t, h.storage.Destroy(ctx, name))
}

// On hosts with systemd every mount is shared, and what is mounted appears in the namespaces of other services.
func TestClonesOfASharedHostAreNotShared(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	shared, peer := filepath.Join(dir, "shared"), filepath.Join(dir, "peer")
	must(t, os.Mkdir(shared, 0o755))
	must(t, os.Mkdir(peer, 0o755))
	must(t, unix.Mount("tmpfs", shared, "tmpfs", 0, "mode=755"))
	must(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
	must(t, unix.Mount(shared, peer, "", unix.MS_BIND, "")) // what another service sees
	t.Cleanup(func() {
		must(t, errors.Join(unix.Unmount(peer, unix.MNT_DETACH), unix.Unmount(shared, unix.MNT_DETACH)))
	})
	ctx := context.Background()

	// Without the precaution the peer sees the mount: else this test could not fail.
	must(t, os.Mkdir(filepath.Join(shared, "plain"), 0o755))
	must(t, unix.Mount("tmpfs", filepath.Join(shared, "plain"), "tmpfs", 0, ""))
	if seen, err := mountsBelow(peer + "/plain"); err != nil || len(seen) == 0 {
		t.Fatalf("the peer does not see a shared mount: %v", err)
	}
	must(t, unix.Unmount(filepath.Join(shared, "plain"), 0))

	h := newTestHost(t, func(o *Options) { o.RunDir = filepath.Join(shared, "run") })
	for range 2 { // the second finds the folder as the first has left it
		s, err := NewStorage(h.o)
		must(t, err)
		_, err = s.Clone(ctx, nameOf(t, h, 1), jail.Spec{Template: "tiny"})
		must(t, err)
		if seen, err := mountsBelow(filepath.Join(peer, "run", jailsFolder, string(nameOf(t, h, 1)))); err != nil || len(seen) > 0 {
			t.Errorf("the clone is seen elsewhere: %+v (%v)", seen, err)
		}
		must(t, s.Unmount(ctx, nameOf(t, h, 1), false))
		must(t, s.Destroy(ctx, nameOf(t, h, 1)))
		must(t, s.Close())
	}
	if n, err := mountsBelow(filepath.Join(shared, "run", jailsFolder)); err != nil || len(n) != 1 {
		t.Errorf("the folder of jails is mounted %d times (%v), want once", len(n), err)
	}
}

// A storage that cannot be opened says why.
func TestStorageWhoseFolderOfClonesIsNone(t *testing.T) {
	data := filepath.Join(onBtrfs(t), "data")
	o := Options{Installation: "tnil", RunDir: filepath.Join(t.TempDir(), "run"), DataDir: data, Gateway: netip.MustParseAddr("10.213.0.1")}
	s, err := NewStorage(o)
	must(t, err)
	must(t, s.Close())
	clones := filepath.Join(data, clonesFolder)
	must(t, errors.Join(os.Remove(clones), os.WriteFile(clones, nil, 0o600)))
	if _, err := NewStorage(o); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("with a file in its place: %v", err)
	}
}

func TestTreesAreMadeAndRemoved(t *testing.T) {
	for _, kind := range []string{StorageOverlay, StorageBtrfs, StorageZFS} {
		t.Run(kind, func(t *testing.T) {
			testenv.Need(t, testenv.Root)
			dir, dataset := t.TempDir(), ""
			switch kind {
			case StorageBtrfs:
				dir = onBtrfs(t)
			case StorageZFS:
				if !testenv.OnZFS(t) {
					return
				}
				dataset = testenv.Pool(t, 128<<20)
			}
			trees, err := OpenTrees(dir, kind, dataset)
			must(t, err)
			path := filepath.Join(dir, "tree")
			must(t, trees.Make(path))
			if err := trees.Make(path); !errors.Is(err, fs.ErrExist) {
				t.Errorf("made twice: %v", err)
			}
			must(t, os.MkdirAll(filepath.Join(path, "a/b"), 0o755))
			if kind == StorageZFS { // as after a boot
				must(t, unix.Unmount(path, 0))
				// A ZFS that is a program of its own hears of that a moment later, and calls the place busy until then.
				testenv.Eventually(t, 10*time.Second, func() bool { return trees.Settle(path) == nil }, "the dataset is not mounted again")
			}
			for _, settled := range []string{path, path, filepath.Join(dir, "no", "parent"), filepath.Join(dir, "none")} {
				must(t, trees.Settle(settled))
			}
			if _, err := os.Stat(filepath.Join(path, "a/b")); err != nil {
				t.Errorf("a tree is not there after it was settled: %v", err)
			}
			must(t, os.Symlink(dir, filepath.Join(path, "a/out")))
			must(t, os.WriteFile(filepath.Join(dir, "stays"), nil, 0o644))
			must(t, trees.Remove(path))
			must(t, trees.Remove(path))
			must(t, trees.Remove(filepath.Join(dir, "no", "parent")))
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the tree is there still: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "stays")); err != nil {
				t.Errorf("a link was followed: %v", err)
			}
		})
	}
}
