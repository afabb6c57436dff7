package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/store"
)

func spillRow(id string) store.AuditRow {
	return store.AuditRow{Time: day, ID: id, Phase: PhaseIntent, Action: "session.close", Detail: []byte("{}")}
}

func reopen(t *testing.T, s *spill) *spill {
	t.Helper()
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s, err := openSpill(s.path, minSpill, "n1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

func newSpill(t *testing.T) *spill {
	t.Helper()
	s, err := openSpill(filepath.Join(t.TempDir(), "spill"), minSpill, "n1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

func TestTheSpillFileTakesItsSpaceAtOnce(t *testing.T) {
	s := newSpill(t)
	var stat unix.Stat_t
	if err := unix.Stat(s.path, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Size != minSpill || stat.Blocks*512 < minSpill || stat.Mode&0o777 != 0o600 {
		t.Errorf("size %d, %d blocks, mode %o", stat.Size, stat.Blocks, stat.Mode)
	}
}

func TestTheSpillFileKeepsRecordsInTheirOrder(t *testing.T) {
	s := newSpill(t)
	for i := range 5 {
		if err := s.add(spillRow(fmt.Sprint(i)), kindEnding); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s)
	rows, next, err := s.read(0, 3)
	if err != nil || len(rows) != 3 || rows[0].ID != "0" || rows[2].ID != "2" || rows[0].Action != "session.close" || !rows[0].Time.Equal(day) {
		t.Fatalf("%+v %v", rows, err)
	}
	if emptied, err := s.empty(next, 0); emptied || err != nil {
		t.Errorf("emptied %v with records that nobody read, %v", emptied, err)
	}
	rows, next, err = s.read(next, 10)
	if err != nil || len(rows) != 2 {
		t.Fatalf("%+v %v", rows, err)
	}
	if emptied, err := s.empty(next, 0); !emptied || err != nil {
		t.Fatalf("emptied %v, %v", emptied, err)
	}
	s = reopen(t, s)
	if s.waiting() {
		t.Error("records come back")
	}
	if err := s.add(spillRow("new"), kindEnding); err != nil { // the old ones still stand behind it
		t.Fatal(err)
	}
	if records, _, _ := reopen(t, s).numbers(); records != 1 {
		t.Errorf("%d records, want 1", records)
	}
}

func TestTheOldestRecordsStayInAFullSpillFile(t *testing.T) {
	s := newSpill(t)
	kept := 0
	large := func() store.AuditRow {
		r := spillRow(fmt.Sprint(kept))
		r.Detail = NewDetail(Fields{"a": strings.Repeat("x", 3000)}).bytes()
		return r
	}
	for s.add(large(), kindEnding) == nil {
		kept++
	}
	if err := s.add(spillRow("small and late"), kindEnding); err == nil {
		t.Error("a record took the place of an older one")
	}
	s = reopen(t, s)
	records, lost, _ := s.numbers()
	if int(records) != kept || lost != 2 {
		t.Errorf("%d records and %d lost, want %d and 2", records, lost, kept)
	}
	if rows, _, err := s.read(0, 1); err != nil || rows[0].ID != "0" {
		t.Errorf("%+v %v", rows, err)
	}
}

func TestARecordThatWasWrittenInPartEndsTheFile(t *testing.T) {
	s := newSpill(t)
	for i := range 3 {
		if err := s.add(spillRow(fmt.Sprint(i)), kindEnding); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	// Also when what stands there is still JSON.
	if _, err := s.file.WriteAt([]byte("session.other"), int64(bytes.LastIndex(data, []byte("session.close")))); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if records, _, _ := s.numbers(); records != 2 {
		t.Errorf("%d records, want 2", records)
	}
}

func TestHalfAHeaderIsNone(t *testing.T) {
	s := newSpill(t)
	if err := s.add(spillRow("a"), kindEnding); err != nil {
		t.Fatal(err)
	}
	for s.add(spillRow("b"), kindNote) == nil { // writes a header when it ends
	}
	at := int64(s.count%2) * secondSlot
	if _, err := s.file.WriteAt(make([]byte, slotSize/2), at); err != nil {
		t.Fatal(err)
	}
	before, _, generation := s.numbers()
	s = reopen(t, s)
	if records, lost, gen := s.numbers(); records != before || lost != 0 || gen != generation {
		t.Errorf("%d records, %d lost, generation %d", records, lost, gen)
	}
}

func TestASpillFileOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "open")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"open", "link"} {
		if s, err := openSpill(filepath.Join(dir, name), minSpill, "n1"); err == nil {
			_ = s.close()
			t.Errorf("%s is taken", name)
		}
	}
}

func FuzzSpillFile(f *testing.F) {
	f.Add([]byte{}, int64(spillStart))
	f.Add([]byte("ADUT"), int64(0))
	f.Fuzz(func(t *testing.T, junk []byte, at int64) {
		s := newSpill(t)
		for i := range 3 {
			if err := s.add(spillRow(fmt.Sprint(i)), kindEnding); err != nil {
				t.Fatal(err)
			}
		}
		if at < 0 || at+int64(len(junk)) > minSpill {
			return
		}
		if _, err := s.file.WriteAt(junk, at); err != nil {
			t.Fatal(err)
		}
		path := s.path
		_ = s.close()
		s, err := openSpill(path, minSpill, "n1")
		if err != nil {
			return
		}
		defer s.close()
		rows, next, err := s.read(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if r.Action != "session.close" {
				t.Errorf("a record that nobody wrote: %+v", r)
			}
		}
		if emptied, err := s.empty(next, s.lost); !emptied || err != nil {
			t.Errorf("%v %v", emptied, err)
		}
	})
}
