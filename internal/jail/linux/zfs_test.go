//go:build linux

package linux

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func (h *testHost) datasets() *datasets { return h.storage.cloner.(*datasets) }

func (h *testHost) clone(t testing.TB, n int) (jail.Name, string) {
	t.Helper()
	name := nameOf(t, h, n)
	root, err := h.storage.Clone(context.Background(), name, jail.Spec{Template: "tiny"})
	must(t, err)
	return name, root
}

func (h *testHost) endClone(t testing.TB, name jail.Name) {
	t.Helper()
	must(t, h.storage.Unmount(context.Background(), name, false))
	h.destroy(t, name)
}

// A daemon that was killed between two commands leaves such a dataset.
func TestNothingIsLeftOfADatasetThatWasNeverMounted(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h, ctx := newZFSHost(t), context.Background()
	d, tree := h.datasets(), filepath.Join(h.storage.templates.Path(), "tiny", rootfsFolder)
	for n, mountpoint := range []string{filepath.Join(h.storage.jails.Path(), string(nameOf(t, h, 0)), writeMount), "none"} {
		name := nameOf(t, h, n)
		if n == 0 {
			must(t, os.MkdirAll(mountpoint, 0o700)) // killed later than without the folder
		}
		must(t, d.tree.Clone(ctx, tree, datasetOf(name), map[string]string{"mountpoint": mountpoint, "canmount": "noauto"}))
		resources, err := h.storage.List(ctx)
		must(t, err)
		found := false
		for _, x := range resources {
			found = found || x.Kind == jail.ResourceClone && x.Name == name && x.ID == d.zfs.Full(datasetOf(name))
		}
		if !found {
			t.Errorf("the dataset is not among the resources %+v", resources)
		}
		h.endClone(t, name)
		h.noTraces(t)
	}
}

func TestDatasetsOfOthersAreNotSeen(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h, ctx := newZFSHost(t), context.Background()
	for _, other := range []string{"jails/bzzzz00001", "jails/bzzzz00001/" + string(nameOf(t, h, 1)), "jails/x"} {
		must(t, h.datasets().zfs.Create(ctx, other, map[string]string{"mountpoint": "none"}))
	}
	h.noTraces(t)
}

// The operator mounts, or makes, something below a clone: it is not ours to destroy.
func TestACloneWithADatasetBelowHasDependents(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h, ctx := newZFSHost(t), context.Background()
	name, root := h.clone(t, 1)
	below := datasetOf(name) + "/below"
	must(t, h.datasets().zfs.Create(ctx, below, map[string]string{"mountpoint": "none"}))
	must(t, h.storage.Unmount(ctx, name, false))
	var err error
	testenv.Eventually(t, 10*time.Second, func() bool {
		err = h.storage.Destroy(ctx, name)
		return !errors.Is(err, jail.ErrBusy)
	}, "destroy")
	if !errors.Is(err, jail.ErrHasDependents) {
		t.Errorf("destroy: %v, want dependents", err)
	}
	must(t, h.datasets().zfs.Destroy(ctx, below))
	h.destroy(t, name)
	if _, err := os.Lstat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is there still: %v", err)
	}
}

func TestATemplateWithLiveClonesIsNotRemoved(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h := newZFSHost(t)
	name, root := h.clone(t, 1)
	tree := filepath.Join(h.storage.templates.Path(), "tiny", rootfsFolder)
	err := h.storage.Trees().Remove(tree)
	if !errors.Is(err, jail.ErrHasDependents) || problem.CodeOf(err) != problem.TemplateInUse {
		t.Errorf("remove: %v, want dependents and %s", err, problem.TemplateInUse)
	}
	for _, file := range []string{filepath.Join(root, "bin/sh"), filepath.Join(tree, "bin/sh")} {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("it was harmed: %v", err)
		}
	}
	h.endClone(t, name)
}

// As `clawjail template build --replace` does: the folder of a build is renamed to the template's, and what was there is
// renamed away and removed.
func TestATemplateIsReplacedUnderALiveClone(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h, ctx := newZFSHost(t), context.Background()
	dir, trees := h.storage.templates.Path(), h.storage.Trees()
	name, root := h.clone(t, 1)
	building, old := filepath.Join(dir, ".building-tiny"), filepath.Join(dir, ".old-tiny")
	must(t, os.Mkdir(building, 0o755))
	must(t, trees.Make(filepath.Join(building, rootfsFolder)))
	must(t, os.WriteFile(filepath.Join(building, rootfsFolder, "new"), []byte("x"), 0o644))
	must(t, os.Rename(filepath.Join(dir, "tiny"), old))
	must(t, os.Rename(building, filepath.Join(dir, "tiny")))

	name2, root2 := h.clone(t, 2)
	if _, err := os.Stat(filepath.Join(root2, "new")); err != nil {
		t.Errorf("a clone of the new template: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "bin/sh")); err != nil {
		t.Errorf("the clone of the old one: %v", err)
	}
	if err := trees.Remove(filepath.Join(old, rootfsFolder)); !errors.Is(err, jail.ErrHasDependents) {
		t.Errorf("remove the old one: %v", err)
	}
	h.endClone(t, name)
	h.endClone(t, name2)
	must(t, trees.Remove(filepath.Join(old, rootfsFolder)))

	// After a boot nothing is mounted; who opens the storage mounts it, where it is now.
	tree := filepath.Join(dir, "tiny", rootfsFolder)
	dataset, err := h.datasets().tree.Dataset(ctx, tree)
	must(t, err)
	must(t, h.datasets().zfs.Unmount(ctx, dataset, false))
	must(t, h.storage.Ready(ctx))
	if _, err := os.Stat(filepath.Join(tree, "new")); err != nil {
		t.Errorf("after another start: %v", err)
	}
	if d, err := h.datasets().zfs.Look(ctx, dataset); err != nil || d.Mountpoint != tree || !d.Mounted {
		t.Errorf("it is %+v (%v)", d, err)
	}
}

func TestTemplatesOfTheTimeBeforeZFSAreRefused(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h, ctx := newZFSHost(t), context.Background()
	plain := filepath.Join(h.storage.templates.Path(), "plain", rootfsFolder)
	must(t, os.MkdirAll(plain, 0o755))
	if _, err := h.storage.Clone(ctx, nameOf(t, h, 1), jail.Spec{Template: "plain"}); problem.CodeOf(err) != problem.BadTemplate {
		t.Errorf("clone: %v", err)
	}
	must(t, h.storage.Trees().Remove(plain))
	if _, err := os.Lstat(plain); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there still: %v", err)
	}
}

func TestAFullPoolIsSaid(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	h, ctx := newZFSHost(t), context.Background()
	// One clone first, so that it is not the snapshot that there is no room for.
	name, _ := h.clone(t, 2)
	h.endClone(t, name)
	full := t.TempDir()
	must(t, h.datasets().zfs.Create(ctx, "full", map[string]string{"mountpoint": full}))
	t.Cleanup(func() { must(t, h.datasets().zfs.Unmount(ctx, "full", false)) })
	data := make([]byte, 1<<20)
	for size := len(data); size >= 4096; size /= 16 { // to the last block
		for i := 0; ; i++ {
			_, err := rand.Read(data)
			must(t, err)
			if err := os.WriteFile(filepath.Join(full, fmt.Sprintf("%d-%d", size, i)), data[:size], 0o600); errors.Is(err, unix.ENOSPC) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := h.storage.Clone(ctx, nameOf(t, h, 1), jail.Spec{Template: "tiny"}); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("clone: %v, want %s", err, problem.DiskFull)
	}
	h.noTraces(t)
}

func TestZFSNeedsADatasetThatIsThere(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	dataset := testenv.Pool(t, 128<<20)
	h := newTestHost(t, func(o *Options) { o.Storage, o.ZFSDataset = StorageZFS, dataset })
	must(t, h.storage.Ready(context.Background()))
	o := h.o
	o.ZFSDataset += "/absent"
	s, err := NewStorage(o)
	must(t, err)
	if err := s.Ready(context.Background()); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("%v, want %s", err, problem.BadConfig)
	}
	must(t, s.Close())
}

// The steps of the teardown, with all five parts: busy is repeated and forced, then left to the reaper, which comes again.
func TestAJailWhoseDatasetIsHeldIsGoneOnceItIsLetGo(t *testing.T) {
	if !testenv.OnZFS(t) || !onOwnHost(t) {
		return
	}
	h, ctx := newZFSHost(t), t.Context()
	i := install(t, h.o.Installation, "10.213.0.0/20", 0)
	life, err := jail.NewLifecycle(ctx, jail.Options{
		Installation: h.o.Installation, Pool: i.pool, Log: h.o.Log,
		Parts:   jail.Parts{Storage: h.storage, Network: i.network, Firewall: i.firewall, Runtime: h.runtime, Limiter: h.limiter, Means: h.runtime.Means()},
		Journal: jailtest.NewMemory(jailtest.NewHost()).Options().Journal,
	})
	must(t, err)
	t.Cleanup(life.Close)
	spec := jailtest.Subject{Template: "tiny"}.Spec("read x")
	j, err := life.Create(ctx, spec)
	must(t, err)
	t.Cleanup(j.Stdio.Close)
	release := occupy(t, h, filepath.Join(h.storage.jails.Path(), string(j.Name), rootMount))
	t.Cleanup(release)
	if err := life.Destroy(ctx, j.Name); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("destroy while a process is in the clone: %v, want busy", err)
	}
	left, err := life.HostResources(ctx)
	must(t, err)
	for _, x := range left { // everything else went, its address included
		if x.Kind != jail.ResourceClone && x.Kind != jail.ResourceRecord {
			t.Errorf("left is %+v", x)
		}
	}
	release()
	testenv.Eventually(t, 10*time.Second, func() bool {
		_, err = life.Reap(ctx, jail.ReapOptions{})
		left, err2 := life.HostResources(ctx)
		return err == nil && err2 == nil && len(left) == 0
	}, "reap")
}
