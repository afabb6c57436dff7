package safepath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testFolder(t *testing.T) *Folder {
	t.Helper()
	f, err := MakeTrusted(filepath.Join(t.TempDir(), "f"), 0o755)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

func TestFolderIsNeverLeft(t *testing.T) {
	f := testFolder(t)
	must(t, os.Symlink("/etc", filepath.Join(f.Path(), "link")))
	must(t, os.WriteFile(filepath.Join(f.Path(), "file"), nil, 0o600))
	for _, rel := range []string{"..", "../..", "/etc", "link", "link/passwd", "a/../../x", "/proc/self/root"} {
		if fd, err := f.Open(rel, unix.O_RDONLY, 0); err == nil {
			t.Errorf("opened %s", rel)
			must(t, unix.Close(fd))
		}
	}
	must(t, os.Symlink("/tmp/clawjail-must-not-appear", filepath.Join(f.Path(), "dangling")))
	for _, name := range []string{"file", "link", "dangling", "../x"} {
		if err := f.Create(name, []byte("x"), 0o600, -1); err == nil {
			t.Errorf("created %s", name)
		}
	}
	must(t, f.Create("new", []byte("x"), 0o640, -1))
	if st, err := os.Stat(filepath.Join(f.Path(), "new")); err != nil || st.Mode() != 0o640 {
		t.Errorf("the new file has mode %v (%v)", st.Mode(), err)
	}
}

func TestOnlyTrustedFoldersAreUsed(t *testing.T) {
	dir := t.TempDir()
	for mode, good := range map[os.FileMode]bool{0o755: true, 0o700: true, 0o775: false, 0o757: false, 0o777: false} {
		must(t, os.Chmod(dir, mode))
		f, err := MakeTrusted(dir, 0o755)
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
		if _, err := MakeTrusted(dir, 0o755); err == nil {
			t.Error("a folder of another user was trusted")
		}
	}
}

func TestFoldersThatAreMadeAreFinishedAndOthersLeftAlone(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	f, err := OpenTrusted(dir)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	must(t, os.Mkdir(filepath.Join(dir, "there"), 0o750))
	must(t, unix.Mkdir(filepath.Join(dir, "half"), Unfinished)) // by a process that was killed
	must(t, unix.Mkdir(filepath.Join(dir, "swapped"), Unfinished))
	must(t, os.WriteFile(filepath.Join(dir, "swapped/file"), nil, 0o600))
	for name, want := range map[string]struct {
		uid  uint32
		mode uint32
		err  error
	}{"there": {0, 0o750, nil}, "half": {1000, 0o755, nil}, "new": {1000, 0o755, nil}, "swapped": {0, Unfinished, unix.ENOTEMPTY}} {
		sub, err := f.Give(name, 0o755, 1000)
		if !errors.Is(err, want.err) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			must(t, sub.Close())
		}
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, name), &st))
		if st.Uid != want.uid || uint32(st.Mode)&0o7777 != want.mode {
			t.Errorf("%s is of %d with mode %o", name, st.Uid, st.Mode&0o7777)
		}
	}
}

// Two agents that share a folder are made at once, and the first has a file in it before the second has looked.
func TestAFolderMayBeGivenTwiceAtOnce(t *testing.T) {
	f := testFolder(t)
	for n := range 300 {
		name := fmt.Sprint("shared", n)
		var wait sync.WaitGroup
		for who := range 4 {
			wait.Go(func() {
				dir, err := f.Give(name, 0o755, os.Geteuid())
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				if err := errors.Join(dir.Create(fmt.Sprint("file", who), nil, 0o600, -1), dir.Close()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wait.Wait()
	}
}

func TestWhatLiesInThePlaceOfAFolderIsNamed(t *testing.T) {
	f := testFolder(t)
	must(t, os.Symlink(".", filepath.Join(f.Path(), "link")))
	must(t, os.WriteFile(filepath.Join(f.Path(), "file"), nil, 0o600))
	must(t, unix.Mkfifo(filepath.Join(f.Path(), "pipe"), 0o600))
	for name, want := range map[string]error{"link": unix.ELOOP, "link/x": unix.ELOOP, "file": unix.ENOTDIR, "pipe": unix.ENOTDIR, "pipe/x": unix.ENOTDIR} {
		for way, open := range map[string]func() (*Folder, error){
			"Folder": func() (*Folder, error) { return f.Folder(name) }, "Ensure": func() (*Folder, error) { return f.Ensure(name, 0o700, -1) },
			"Give": func() (*Folder, error) { return f.Give(name, 0o700, os.Geteuid()) },
		} {
			if _, err := open(); !errors.Is(err, ErrPlanted) || !errors.Is(err, want) {
				t.Errorf("%s of %s: %v, want %v", way, name, err, want)
			}
		}
	}
}

func TestWhatIsMissingIsMadeOnceAndWithItsMode(t *testing.T) {
	f := testFolder(t)
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	for range 2 {
		dir, err := f.Ensure("/a/b", 0o755, -1)
		must(t, err)
		o, err := dir.Owned()
		must(t, errors.Join(err, dir.Close()))
		if o.Mode != 0o755 || o.UID != os.Geteuid() {
			t.Errorf("it is of %d with mode %o", o.UID, o.Mode)
		}
	}
	if err := f.Make("a", 0o755, -1); !errors.Is(err, os.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if err := f.Make("x/y", 0o755, -1); err == nil || f.Remove("a/b") == nil {
		t.Error("a path was taken for a name")
	}
	if names, err := f.Names(1); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestTwoWhoRemoveTheSameTreeAgree(t *testing.T) {
	f := testFolder(t)
	for range 300 {
		must(t, os.MkdirAll(filepath.Join(f.Path(), "tree/in"), 0o700))
		other := make(chan error)
		go func() { other <- f.RemoveAll("tree") }()
		must(t, f.RemoveAll("tree"))
		must(t, <-other)
	}
}
