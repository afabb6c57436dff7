package hostd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestNotesLeaveRoomOnTheDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=128m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	path := filepath.Join(mount, "checkpoints")
	f := newFixture(t, func(o *Options) { o.Checkpoints = path })
	c, key := NewClient(f.socket, nil), newNoteKey(t)
	resize := func(size string) {
		t.Helper()
		if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AppendCheckpoint(t.Context(), key.note(t, 1)); err != nil {
		t.Fatal(err)
	}
	resize("64m")
	if err := c.AppendCheckpoint(t.Context(), key.note(t, 2)); !hasCode(err, problem.DiskFull) {
		t.Errorf("with less than the reserve left: %v", err)
	}
	resize("128m")
	if err := c.AppendCheckpoint(t.Context(), key.note(t, 3)); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if got := noted(t, path); len(got) != 2 || got[1] != 3 {
		t.Errorf("the notes are %v", got)
	}
}

func TestNotesCannotBeTakenBackNotEvenBetweenTwoRuns(t *testing.T) {
	testenv.Need(t, testenv.Root)
	socket, key := newSocket(t), newNoteKey(t)
	path := filepath.Join(filepath.Dir(socket), "checkpoints")
	for seq := range int64(2) {
		f := startServer(t, jailtest.NewHost(), socket, nil)
		if err := NewClient(socket, nil).AppendCheckpoint(t.Context(), key.note(t, seq+1)); err != nil {
			t.Fatal(err)
		}
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		if !appendOnlyHere(t, filepath.Dir(socket)) {
			testenv.Missing(t, "a file system with append-only files", "set TMPDIR to a folder on ext4, xfs or btrfs")
		}
		if err := os.Truncate(path, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("cut off: %v", err)
		}
		if err := os.Remove(path); !errors.Is(err, unix.EPERM) {
			t.Errorf("removed: %v", err)
		}
	}
	if got := noted(t, path); len(got) != 2 {
		t.Errorf("the notes are %v", got)
	}
}

// appendOnlyHere says whether the file system of a folder has append-only files.
func appendOnlyHere(t *testing.T, dir string) bool {
	t.Helper()
	probe := filepath.Join(dir, "probe")
	f, err := checkpoint.OpenFile(probe)
	if err != nil {
		t.Fatal(err)
	}
	here := f.Protected()
	if err := errors.Join(f.Close(), checkpoint.Unprotect(probe), os.Remove(probe)); err != nil {
		t.Fatal(err)
	}
	return here
}
