package hostd

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAFullDiskIsSaidAndLeavesTheRecordBefore(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	dir := filepath.Join(mount, "journal")
	j := openJournal(t, dir, nil)
	before := record("btest00001")
	if err := j.Put(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	fill, err := os.Create(filepath.Join(mount, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	_ = fill.Close()
	after := before
	after.State = jail.StateReady
	for range 3 {
		if err := j.Put(t.Context(), after); !hasCode(err, problem.DiskFull) {
			t.Fatalf("put on a full disk: %v", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("files in the journal: %v, %v", entries, err)
	}
	if records, damaged := load(t, j); len(records) != 1 || len(damaged) != 0 || records[0].State != jail.StateStarted {
		t.Errorf("the record before is not as it was: %v %v", records, damaged)
	}
	if err := j.Delete(t.Context(), before.Name); err != nil {
		t.Errorf("delete on a full disk: %v", err)
	}
}
