package sqlite_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Files that others write until the disk is full do not take the reserved bytes, and those that were used up are replaced when there is
// room again.
func TestWhatIsReservedCanBeWrittenOnAFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mount, umount := testenv.Tool(t, "mount"), testenv.Tool(t, "umount")
	const reserved = 8 << 20
	for name, want := range map[string]int64{"without": 0, "with": reserved} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			if out, err := exec.Command(mount, "-t", "tmpfs", "-o", "size=128m", "clawjail-test", disk).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() {
				if out, err := exec.Command(umount, disk).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
			db, err := sqlite.Open(t.Context(), filepath.Join(disk, "db"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}()
			if want > 0 {
				if err := db.Reserve(t.Context(), want); err != nil {
					t.Fatal(err)
				}
			}
			seq := int64(0)
			// write appends rows until there is no room, or the most, and says how many bytes their details have.
			write := func(limit int64) (n int64, err error) {
				for n < limit {
					next := row("n1", seq+1)
					next.Detail = make([]byte, 4<<10)
					if err := db.AppendAudit(t.Context(), []store.AuditRow{next}); err != nil {
						return n, err
					}
					seq++
					n += 4 << 10
				}
				return n, nil
			}
			if _, err := write(64 << 10); err != nil {
				t.Fatal(err)
			}
			hog := filepath.Join(disk, "hog")
			fill(t, hog)
			n, err := write(4 * reserved)
			if problem.CodeOf(err) != problem.DiskFull {
				t.Fatalf("the disk is not full: %v", err)
			}
			if n < want*3/4 || want == 0 && n > reserved/4 {
				t.Errorf("%d KiB were written on a full disk, %d KiB reserved", n>>10, want>>10)
			}
			if want == 0 {
				return
			}
			if err := os.Remove(hog); err != nil {
				t.Fatal(err)
			}
			if err := db.Reserve(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			fill(t, hog)
			if n, err := write(want / 2); err != nil {
				t.Errorf("what was used up is not replaced: %d KiB, %v", n>>10, err)
			}
			// Reserved bytes are not reserved again.
			before := size(t, filepath.Join(disk, "db"))
			if err := os.Remove(hog); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := db.Reserve(t.Context(), want/4); err != nil {
					t.Fatal(err)
				}
			}
			if after := size(t, filepath.Join(disk, "db")); after > before {
				t.Errorf("the database grew from %d to %d bytes", before, after)
			}
		})
	}
}

// fill makes a file longer until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.CopyN(f, zeros{}, 1<<30)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, sqlite.FileName))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
