package audit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// unprotect makes a file of checkpoints one that can be removed.
func unprotect(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^0x20) // not every file system has it
	}
}

// smallDisk mounts one.
func smallDisk(t *testing.T) string {
	t.Helper()
	testenv.Need(t, testenv.Root)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	return mount
}

// fill leaves no space. The file is removed to make some.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "fill")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFullDiskStopsActionsAndNoEnding(t *testing.T) {
	dir := smallDisk(t)
	db, file, key, l, err := openReal(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	defer file.Close()
	before, err := l.Begin(t.Context(), Intent{Action: "session.open", Session: "s0"})
	if err != nil {
		t.Fatal(err)
	}
	full := fill(t, dir)
	for n := 0; err == nil && n < 100_000; n++ { // the database has some space of its own
		var p Pending
		if p, err = l.Begin(t.Context(), Intent{Action: "session.open"}); err == nil {
			p.End(Outcome{Result: OK})
		}
	}
	wantCode(t, err, problem.AuditUnavailable)
	var pending []string
	for range 20 {
		p := l.BeginEnding(Intent{Action: "session.close", Session: "s1"})
		p.End(Outcome{Result: OK})
		pending = append(pending, idOf(p))
	}
	before.End(Outcome{Result: Failed})
	testenv.Eventually(t, 10*time.Second, func() bool { return l.Status().Spilled >= 41 }, "the endings are not in the file")
	if s := l.Status(); !s.Down || s.Lost != 0 {
		t.Errorf("status %+v", s)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return l.Status().Spilled == 0 }, "the endings do not join")
	p, err := l.Begin(t.Context(), Intent{Action: "session.open"})
	if err != nil {
		t.Fatal(err)
	}
	p.End(Outcome{Result: OK})
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for _, id := range pending {
		row, err := db.FindAudit(t.Context(), id)
		if err != nil || row.Seq <= last {
			t.Fatalf("ending %s: row %d behind %d, %v", id, row.Seq, last, err)
		}
		last = row.Seq
	}
	open, err := db.OpenIntents(t.Context(), "n1")
	if err != nil || len(open) != 0 {
		t.Errorf("%d intents stay open, %v", len(open), err)
	}
	report, err := Verify(t.Context(), db, checkpoint.ReadFile(filepath.Join(dir, "checkpoints")), key.Keys())
	if err != nil || !report.OK() {
		t.Errorf("%v %v", report.Bad(), err)
	}
}

func TestEndingsOnAFullDiskSurviveAKill(t *testing.T) {
	dir := smallDisk(t)
	db, file, _, l, err := openReal(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(t.Context()), file.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	// A child that opens the database needs a little space for it, so the disk is full but for that.
	full := fill(t, dir)
	if err := os.Truncate(full, fileSize(t, full)-128<<10); err != nil {
		t.Fatal(err)
	}
	acknowledged := readLines(killed(t, "endings", dir, 27*200, soon(testenv.Dice(t))))
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	inspect(t, dir)
	if db, file, _, l, err = openReal(dir); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	defer file.Close()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spilled := 0
	for _, id := range acknowledged {
		row, err := db.FindAudit(t.Context(), id)
		if err != nil {
			t.Fatalf("the record of an ending that went on: %v", err)
		}
		if string(row.Detail) != "{}" {
			spilled++
		}
	}
	if spilled == 0 {
		t.Error("no record came from the file: the test looks at nothing")
	}
	t.Logf("%d endings, %d of them from the file", len(acknowledged), spilled)
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
