package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRemovalFollowsNoLinkAndEntersNoMount(t *testing.T) {
	testenv.Need(t, testenv.Root)
	f := testFolder(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "stays"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(f.Path(), "tree/deep/mounted"), 0o700))
	must(t, os.Symlink(outside, filepath.Join(f.Path(), "tree/link")))
	mounted := filepath.Join(f.Path(), "tree/deep/mounted")
	must(t, unix.Mount(outside, mounted, "", unix.MS_BIND, ""))
	if err := f.RemoveAll("tree"); !errors.Is(err, ErrMounted) {
		t.Errorf("a tree with a mount in it was removed: %v", err)
	}
	must(t, unix.Unmount(mounted, 0))
	must(t, f.RemoveAll("tree"))
	must(t, f.RemoveAll("tree"))
	if _, err := os.Stat(filepath.Join(outside, "stays")); err != nil {
		t.Errorf("something outside was removed: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(f.Path(), "tree")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is there still: %v", err)
	}
}
