//go:build linux

package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

func testFolder(t *testing.T) *folder {
	t.Helper()
	f, err := trustedFolder(filepath.Join(t.TempDir(), "f"), 0o755)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

func TestFolderIsNeverLeft(t *testing.T) {
	f := testFolder(t)
	must(t, os.Symlink("/etc", filepath.Join(f.path, "link")))
	must(t, os.WriteFile(filepath.Join(f.path, "file"), nil, 0o600))
	for _, rel := range []string{"..", "../..", "/etc", "link", "link/passwd", "a/../../x", "/proc/self/root"} {
		if fd, err := f.open(rel, unix.O_RDONLY, 0); err == nil {
			t.Errorf("opened %s", rel)
			must(t, unix.Close(fd))
		}
	}
	must(t, os.Symlink("/tmp/clawjail-must-not-appear", filepath.Join(f.path, "dangling")))
	for _, name := range []string{"file", "link", "dangling", "../x"} {
		if err := f.create(name, []byte("x"), 0o600, -1, -1); err == nil {
			t.Errorf("created %s", name)
		}
	}
	must(t, f.create("new", []byte("x"), 0o640, -1, -1))
	if st, err := os.Stat(filepath.Join(f.path, "new")); err != nil || st.Mode() != 0o640 {
		t.Errorf("the new file has mode %v (%v)", st.Mode(), err)
	}
}

func TestOnlyTrustedFoldersAreUsed(t *testing.T) {
	dir := t.TempDir()
	for mode, good := range map[os.FileMode]bool{0o755: true, 0o700: true, 0o775: false, 0o757: false, 0o777: false} {
		must(t, os.Chmod(dir, mode))
		f, err := trustedFolder(dir, 0o755)
		if (err == nil) != good {
			t.Errorf("a folder with mode %o: %v", mode, err)
		}
		if err == nil {
			must(t, f.Close())
		}
	}
	if os.Geteuid() == 0 && !testing.Short() {
		must(t, os.Chmod(dir, 0o755))
		must(t, os.Chown(dir, 1234, 0))
		if _, err := trustedFolder(dir, 0o755); err == nil {
			t.Error("a folder of another user was trusted")
		}
	}
}

func TestRemovalFollowsNoLinkAndEntersNoMount(t *testing.T) {
	testenv.Need(t, testenv.Root)
	f := testFolder(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "stays"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(f.path, "tree/deep/mounted"), 0o700))
	must(t, os.Symlink(outside, filepath.Join(f.path, "tree/link")))
	mounted := filepath.Join(f.path, "tree/deep/mounted")
	must(t, unix.Mount(outside, mounted, "", unix.MS_BIND, ""))
	if err := f.removeAll("tree"); err == nil {
		t.Error("a tree with a mount in it was removed")
	}
	must(t, unix.Unmount(mounted, 0))
	must(t, f.removeAll("tree"))
	must(t, f.removeAll("tree"))
	if _, err := os.Stat(filepath.Join(outside, "stays")); err != nil {
		t.Errorf("something outside was removed: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(f.path, "tree")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is there still: %v", err)
	}
}
