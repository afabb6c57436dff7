package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

func openTest(t *testing.T, path string) *File {
	t.Helper()
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(Unprotect(path), f.Close()); err != nil {
			t.Error(err)
		}
	})
	return f
}

func readAll(t *testing.T, path string) (seqs []int64, damaged []int) {
	t.Helper()
	for n, err := range ReadFile(path) {
		var line *LineError
		if errors.As(err, &line) {
			damaged = append(damaged, line.Line)
		} else if err != nil {
			t.Fatal(err)
		} else {
			seqs = append(seqs, n.Seq)
		}
	}
	return seqs, damaged
}

func TestNotesAreAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoints")
	k := newTestKey(t)
	for seq := int64(1); seq <= 3; seq++ {
		f := openTest(t, path) // a daemon that starts again goes on where it was
		if err := f.Append(t.Context(), line(t, k.Note("n1", seq, [HashSize]byte{}, at))); err != nil {
			t.Fatal(err)
		}
		if err := f.Append(t.Context(), []byte("not a note")); err == nil {
			t.Error("what is not a note is appended")
		}
		if err := f.Append(t.Context(), append(line(t, k.Note("n1", seq, [HashSize]byte{}, at)), '\n')); err == nil {
			t.Error("two lines are one note")
		}
	}
	seqs, damaged := readAll(t, path)
	if len(seqs) != 3 || seqs[2] != 3 || damaged != nil {
		t.Errorf("%v %v", seqs, damaged)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := openTest(t, path).Append(ctx, line(t, k.Note("n1", 9, [HashSize]byte{}, at))); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestEverybodyMayReadTheNotesWhateverTheUmask(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoints")
	defer unix.Umask(unix.Umask(0o077))
	for range 2 { // the second time, it may be append-only already
		openTest(t, path)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o644 {
			t.Errorf("mode %04o", info.Mode().Perm())
		}
	}
}

func TestHalfALineDoesNotSpoilTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoints")
	k := newTestKey(t)
	whole := line(t, k.Note("n1", 1, [HashSize]byte{}, at))
	if err := os.WriteFile(path, append(append(bytes.Clone(whole), '\n'), whole[:50]...), 0o600); err != nil {
		t.Fatal(err)
	}
	f := openTest(t, path)
	for seq := int64(2); seq <= 3; seq++ {
		if err := f.Append(t.Context(), line(t, k.Note("n1", seq, [HashSize]byte{}, at))); err != nil {
			t.Fatal(err)
		}
	}
	if seqs, damaged := readAll(t, path); len(seqs) != 3 || seqs[2] != 3 || len(damaged) != 1 || damaged[0] != 2 {
		t.Errorf("%v %v", seqs, damaged)
	}
}

func TestAFullDiskLeavesTheNotesBefore(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	path := filepath.Join(mount, "checkpoints")
	f := openTest(t, path)
	k := newTestKey(t)
	var err error
	seq := int64(0)
	for err == nil {
		seq++
		err = f.Append(t.Context(), line(t, k.Note("n1", seq, [HashSize]byte{}, at)))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT, "size=128k"); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(t.Context(), line(t, k.Note("n1", seq+1, [HashSize]byte{}, at))); err != nil {
		t.Fatal(err)
	}
	seqs, damaged := readAll(t, path)
	if int64(len(seqs)) != seq || seqs[len(seqs)-1] != seq+1 || len(damaged) > 1 {
		t.Errorf("%d notes of %d, damaged %v", len(seqs), seq, damaged)
	}
}

// appendable makes a file system that has append-only files, which that of the temporary folder need not have: ext4 in a
// file.
func appendable(t *testing.T) string {
	t.Helper()
	image, mount := filepath.Join(t.TempDir(), "image"), t.TempDir()
	script := `truncate -s 8M "$1" && mkfs.ext4 -q -F "$1" && mount -o loop "$1" "$2"`
	testenv.Tool(t, "mkfs.ext4")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", image, mount)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/sbin:/usr/bin:/bin")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a file system with append-only files: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return mount
}

func TestWhatIsAppendedCannotBeChangedEvenByRoot(t *testing.T) {
	testenv.Need(t, testenv.Root)
	path := filepath.Join(appendable(t), "checkpoints")
	// Root may do all of it to a file that is not protected.
	plain := path + ".plain"
	if err := os.WriteFile(plain, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(plain, 0); err != nil {
		t.Fatal(err)
	}
	if w, err := os.OpenFile(plain, os.O_WRONLY, 0); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if err := os.Remove(plain); err != nil {
		t.Fatal(err)
	}
	f := openTest(t, path)
	if !f.Protected() {
		t.Fatal("the file is not append-only, on a file system that has such files")
	}
	if err := f.Append(t.Context(), line(t, newTestKey(t).Note("n1", 1, [HashSize]byte{}, at))); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("cut off: %v", err)
	}
	if w, err := os.OpenFile(path, os.O_WRONLY, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("opened to be written over: %v", errors.Join(err, w.Close()))
	}
	if err := os.Remove(path); !errors.Is(err, unix.EPERM) {
		t.Errorf("removed: %v", err)
	}
	for range 2 { // the second time there is nothing to do
		if err := Unprotect(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Errorf("it is still protected: %v", err)
	}
}

func TestUnprotectLeavesAloneWhatIsNotAFileOfNotes(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	openTest(t, target)
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir} {
		if err := Unprotect(path); err == nil {
			t.Errorf("%s is taken", path)
		}
	}
	if err := Unprotect(filepath.Join(dir, "missing")); err != nil {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestAFileSystemWithoutAppendOnlyFilesWillDo(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mount := t.TempDir()
	if err := unix.Mount("ramfs", mount, "ramfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(mount, "checkpoints")
	f := openTest(t, path)
	if f.Protected() {
		t.Fatal("ramfs has append-only files; this test needs another file system")
	}
	if err := f.Append(t.Context(), line(t, newTestKey(t).Note("n1", 1, [HashSize]byte{}, at))); err != nil {
		t.Error(err)
	}
	if err := Unprotect(path); err != nil {
		t.Error(err)
	}
}

func TestAFileThatOthersCouldChangeIsRefused(t *testing.T) {
	dir := t.TempDir()
	open, world, linked, target := filepath.Join(dir, "open"), filepath.Join(dir, "world"), filepath.Join(dir, "linked"), filepath.Join(dir, "target")
	for path, mode := range map[string]os.FileMode{open: 0o620, world: 0o602, linked: 0o600, target: 0o600} {
		if err := errors.Join(os.WriteFile(path, nil, mode), os.Chmod(path, mode)); err != nil { // whatever the umask
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Link(linked, linked+"2"), os.Symlink(target, filepath.Join(dir, "symlink")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, world, linked, filepath.Join(dir, "symlink"), filepath.Join(dir, "fifo"), dir} {
		if f, err := OpenFile(path); err == nil {
			_ = f.Close()
			t.Errorf("%s is taken", path)
		}
	}
}
