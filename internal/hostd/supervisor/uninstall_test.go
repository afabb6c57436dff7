//go:build linux

package supervisor

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/testenv"
)

// uninstalling is an uninstall with folders that have files of others in them.
func uninstalling(t *testing.T, files ...string) (UninstallOptions, func(name string) bool) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := config.Default()
	c.DataDir, c.RunDir, c.User = filepath.Join(dir, "data"), filepath.Join(dir, "run"), "cjun-nobody-has-it"
	c.TemplatesDir = filepath.Join(c.DataDir, "templates")
	there := func(name string) bool { _, err := os.Lstat(filepath.Join(dir, name)); return err == nil }
	return UninstallOptions{Data: true, Host: hostd.RunOptions{Config: c, Substrate: hostd.ThisHost(), Version: "test", Now: time.Now,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}}, there
}

func TestUninstallRemovesNoDataWhereNoInstallationIs(t *testing.T) {
	o, there := uninstalling(t, "data/cache/theirs", "data/database/theirs")
	u, err := Uninstall(t.Context(), o)
	if err != nil || len(u.Removed) != 0 || len(u.Kept) != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, name := range []string{"data/cache/theirs", "data/database/theirs"} {
		if !there(name) {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestUninstallRemovesOnlyItsOwnFromTheFolderOfSockets(t *testing.T) {
	o, there := uninstalling(t, "run/hostd.lock", "run/console/x", "run/theirs")
	u, err := Uninstall(t.Context(), o)
	if err != nil || len(u.Kept) != 1 || !there("run/theirs") || there("run/hostd.lock") || there("run/console") {
		t.Errorf("%+v, %v", u, err)
	}
	if err := os.Remove(filepath.Join(o.Host.Config.RunDir, "theirs")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Host.Config.RunDir, "hostd.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Uninstall(t.Context(), o); err != nil || there("run") {
		t.Errorf("the folder is there: %v, %v", there("run"), err)
	}
}

// TestUninstallRemovesWhatBackupsAndRestoresLeft has what each of them leaves: it has keys and accounts in it.
func TestUninstallRemovesWhatBackupsAndRestoresLeft(t *testing.T) {
	o, there := uninstalling(t, "data/"+hostd.BackupDir+"/copy", "data/replaced-20260102T030405Z/control/vault.key", "data/replaced-by-me/x",
		"data/"+hostd.RestoredConfig)
	u := Uninstalled{}
	c := o.Host.Config
	entries, err := os.ReadDir(c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := u.entries(t.Context(), o, entries)
	if err != nil || foreign != "replaced-by-me" || !there("data/replaced-by-me/x") {
		t.Errorf("somebody else's: %q, %v", foreign, err)
	}
	for _, name := range []string{hostd.BackupDir, "replaced-20260102T030405Z", hostd.RestoredConfig} {
		if there("data/" + name) {
			t.Errorf("%s is left", name)
		}
	}
}

// A data folder on a partition, or a volume, of its own is mounted by the operator, and stays so.
func TestTheFileSystemThatTheDataIsOnIsNotLeftOver(t *testing.T) {
	testenv.Need(t, testenv.Root)
	c := config.Default()
	c.DataDir, c.RunDir = filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "run")
	c.TemplatesDir = filepath.Join(c.DataDir, "templates")
	mount := func(path string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(path, 0o755), syscall.Mount("tmpfs", path, "tmpfs", 0, "size=64k")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(path, syscall.MNT_DETACH) }) // a test that fails earlier leaves none either
	}
	left := func() (mounts []string) {
		t.Helper()
		things, err := onHost(t.Context(), c, hostd.Installation{ID: "zz9z"})
		if err != nil {
			t.Fatal(err)
		}
		for _, thing := range things {
			if thing.Kind == "mount" {
				mounts = append(mounts, thing.ID)
			}
		}
		return mounts
	}
	mount(c.DataDir)
	if got := left(); len(got) != 0 {
		t.Errorf("left over is %q", got)
	}
	ofAJail := filepath.Join(c.DataDir, "clones", "bzz9z00001")
	mount(ofAJail)
	if got := left(); len(got) != 1 || got[0] != ofAJail {
		t.Errorf("of a jail's mount it says %q", got)
	}
}

// TestUninstallKeepsWorkspacesWithSomethingMountedInThem has a folder of the operator's mounted where agents have theirs.
func TestUninstallKeepsWorkspacesWithSomethingMountedInThem(t *testing.T) {
	o, there := uninstalling(t, "data/workspaces/disk/x", "mine/photo", "data/workspace-roots")
	c := o.Host.Config
	mine, at := filepath.Join(filepath.Dir(c.DataDir), "mine"), filepath.Join(c.Workspaces(), "disk")
	if err := syscall.Mount(mine, at, "", syscall.MS_BIND, ""); err != nil {
		testenv.Missing(t, "mounts", err.Error())
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := syscall.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	entries, err := os.ReadDir(c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	u := Uninstalled{}
	foreign, err := u.entries(t.Context(), o, entries)
	if err != nil || foreign != "workspaces" || len(u.Kept) != 1 || !there("mine/photo") || there("data/workspace-roots") {
		t.Errorf("%q, %+v, %v; the operator's own is there: %v", foreign, u, err, there("mine/photo"))
	}
	unmount()
	if foreign, err = u.entries(t.Context(), o, entries); err != nil || foreign != "" || there("data/workspaces") || !there("mine/photo") {
		t.Errorf("without the mount: %q, %v, %v", foreign, err, there("data/workspaces"))
	}
}
