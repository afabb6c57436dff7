package zfs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// These run the zfs of the host on a pool of their own.

func open(t *testing.T) *Datasets {
	t.Helper()
	d, err := New(hostcmd.Runner{}, testenv.Pool(t, 128<<20))
	must(t, err)
	must(t, d.Open(t.Context()))
	must(t, d.Open(t.Context()))
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// template makes a dataset with a file, and a snapshot of it.
func template(t *testing.T, d *Datasets) (name, dir string) {
	t.Helper()
	name, dir = Templates+"/x", filepath.Join(t.TempDir(), "x")
	must(t, d.Create(t.Context(), name, map[string]string{"mountpoint": dir}))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("of the template"), 0o644))
	must(t, d.Snapshot(t.Context(), name, "s"))
	must(t, d.Snapshot(t.Context(), name, "s"))
	t.Cleanup(func() { _ = d.Unmount(t.Context(), name, true) }) // or the temporary folder could not be removed
	return name, dir
}

func destroyed(t *testing.T, d *Datasets, name string) {
	t.Helper()
	var err error
	testenv.Eventually(t, 10*time.Second, func() bool { err = d.Destroy(t.Context(), name); return !errors.Is(err, jail.ErrBusy) }, "destroy %s", name)
	must(t, err)
}

func TestACloneIsMadeFoundAndDestroyed(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	d, ctx := open(t), t.Context()
	name, _ := template(t, d)
	place := filepath.Join(t.TempDir(), "clone")
	clone := map[string]string{"mountpoint": place, "canmount": "noauto", "atime": "off"}
	must(t, d.Clone(ctx, name+"@s", "jails/c", clone))
	if err := d.Clone(ctx, name+"@s", "jails/c", clone); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second clone of one name: %v", err)
	}
	if err := d.Clone(ctx, name+"@absent", "jails/d", clone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no snapshot: %v", err)
	}
	must(t, d.Mount(ctx, "jails/c"))
	must(t, d.Mount(ctx, "jails/c"))
	must(t, os.WriteFile(filepath.Join(place, "file"), []byte("of the clone"), 0o644))
	all, err := d.List(ctx, Jails)
	must(t, err)
	if len(all) != 1 || all[0].Name != "jails/c" || all[0].Mountpoint != place || all[0].Origin != name+"@s" || !all[0].Mounted {
		t.Errorf("listed as %+v", all)
	}
	if clones, err := d.Clones(ctx, name+"@s"); err != nil || !slices.Equal(clones, []string{"jails/c"}) {
		t.Errorf("clones %v (%v)", clones, err)
	}
	if snapshots, err := d.Snapshots(ctx, name); err != nil || !slices.Equal(snapshots, []string{name + "@s"}) {
		t.Errorf("snapshots %v (%v)", snapshots, err)
	}
	if v, err := d.Get(ctx, "jails/c", "atime"); err != nil || v != "off" {
		t.Errorf("atime is %q (%v)", v, err)
	}
	if err := d.Destroy(ctx, name+"@s"); !errors.Is(err, jail.ErrHasDependents) || errors.Is(err, jail.ErrBusy) {
		t.Errorf("destroy a snapshot with a clone: %v", err)
	}
	if err := d.Destroy(ctx, name); !errors.Is(err, jail.ErrHasDependents) {
		t.Errorf("destroy a dataset with a snapshot: %v", err)
	}
	must(t, d.Unmount(ctx, "jails/c", false))
	must(t, d.Unmount(ctx, "jails/c", false))
	destroyed(t, d, "jails/c")
	must(t, d.Destroy(ctx, "jails/c"))
	must(t, d.Unmount(ctx, "jails/c", true))
	must(t, d.Destroy(ctx, name+"@s"))
	must(t, d.Destroy(ctx, name+"@s"))
	must(t, d.Unmount(ctx, name, false))
	destroyed(t, d, name)
	if all, err := d.List(ctx, Templates); err != nil || len(all) > 0 {
		t.Errorf("left: %+v (%v)", all, err)
	}
}

func TestADatasetThatAProcessIsInGoesWhenTheProcessIsGone(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	d, ctx := open(t), t.Context()
	name, _ := template(t, d)
	place := filepath.Join(t.TempDir(), "clone")
	must(t, d.Clone(ctx, name+"@s", "jails/c", map[string]string{"mountpoint": place}))
	cmd := exec.Command(testenv.Tool(t, "sleep"), "600")
	cmd.Dir = place
	must(t, cmd.Start())
	for what, err := range map[string]error{"unmount": d.Unmount(ctx, "jails/c", false), "destroy": d.Destroy(ctx, "jails/c")} {
		if !errors.Is(err, jail.ErrBusy) || errors.Is(err, jail.ErrHasDependents) {
			t.Errorf("%s while a process is in it: %v, want busy", what, err)
		}
	}
	// By force it goes out of sight, and is there still.
	if err := d.Unmount(ctx, "jails/c", true); err != nil && !errors.Is(err, jail.ErrBusy) {
		t.Errorf("by force: %v", err)
	}
	if err := d.Destroy(ctx, "jails/c"); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("destroy: %v, want busy", err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	destroyed(t, d, "jails/c")
}

func TestAParentThatIsNotThereIsSaid(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	parent := testenv.Pool(t, 128<<20)
	d, err := New(hostcmd.Runner{}, parent+"/absent")
	must(t, err)
	err = d.Open(t.Context())
	p, ok := problem.As(err)
	if !ok || p.Code != problem.BadConfig || p.Hint != "make it: zfs create -o mountpoint=none "+parent+"/absent" {
		t.Errorf("%v", err)
	}
}
