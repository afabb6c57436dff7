package audit

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// tenRows is a closed log with some checkpoints, the last of row 10.
func tenRows(t *testing.T) *fixture {
	t.Helper()
	w := newFixture(t)
	w.keeper.got = make(chan struct{}, 100)
	w.options.CheckpointRows = 1
	l := w.open()
	for range 5 {
		w.begin(l, "a").End(Outcome{Result: OK})
		<-w.keeper.got
	}
	w.close(l)
	w.sound()
	return w
}

func wantFinding(t *testing.T, report Report, kind Kind, seq, until int64) {
	t.Helper()
	if bad := report.Bad(); bad == nil || bad.Kind != kind || bad.Seq != seq || bad.Until != until {
		t.Errorf("got %v, want %s of rows %d to %d", bad, kind, seq, until)
	}
}

func TestVerifyNamesTheFirstBadRow(t *testing.T) {
	w := tenRows(t)
	honest := w.store.all()
	with := func(change func(rows []store.AuditRow) []store.AuditRow) Report {
		w.store.set(func(m *memory) { m.rows = change(append([]store.AuditRow(nil), honest...)) })
		return w.verify()
	}
	wantFinding(t, with(func(rows []store.AuditRow) []store.AuditRow { rows[3].Actor = "x"; rows[6].Actor = "x"; return rows }), Edited, 4, 0)
	wantFinding(t, with(func(rows []store.AuditRow) []store.AuditRow { return append(rows[:3], rows[5:]...) }), Removed, 4, 5)
	wantFinding(t, with(func(rows []store.AuditRow) []store.AuditRow { return rows[2:] }), Removed, 1, 2)
	wantFinding(t, with(func(rows []store.AuditRow) []store.AuditRow { return rows[:8] }), Truncated, 9, 10)
	wantFinding(t, with(func(rows []store.AuditRow) []store.AuditRow { return nil }), Truncated, 1, 10)
	w.keeper = &keeper{} // a checkpoint of row 5 would say that it is that one
	wantFinding(t, with(func(rows []store.AuditRow) []store.AuditRow {
		rows[4].Actor = "x" // and its own hash alone
		hash, _ := rowHash(&rows[4], nil)
		rows[4].Hash = hash[:]
		return rows
	}), Misplaced, 5, 6)
}

// The checkpoints are what finds somebody who calculates the hashes again: without them the same log is sound.
func TestOnlyCheckpointsFindAChainThatWasWrittenAnew(t *testing.T) {
	w := tenRows(t)
	rows := w.store.all()
	rows[5].Actor = "nobody"
	rehash(rows, 5)
	w.store.set(func(m *memory) { m.rows = rows })
	report := w.verify()
	if bad := report.Bad(); bad == nil || bad.Kind != Rewritten || bad.Seq > 6 || bad.Until < 6 {
		t.Errorf("got %v", bad)
	}
	blind, err := Verify(t.Context(), w.store, nil, w.options.Key.Keys())
	if err != nil || !blind.OK() || blind.Nodes[0].Covered != 0 || blind.Nodes[0].Uncovered != 10 {
		t.Errorf("without checkpoints: %+v %v", blind, err)
	}
}

// Rows whose hashes are right may still be wrong.
func TestAChainStartsOnceAndGoesForward(t *testing.T) {
	w := tenRows(t)
	honest := w.store.all()
	blind := func(change func(rows []store.AuditRow)) Report {
		rows := append([]store.AuditRow(nil), honest...)
		change(rows)
		w.store.set(func(m *memory) { m.rows = rows })
		report, err := Verify(t.Context(), w.store, nil, w.options.Key.Keys())
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	wantFinding(t, blind(func(rows []store.AuditRow) {
		rows[4].Time = rows[3].Time.Add(-time.Hour)
		rehash(rows, 4)
	}), Misplaced, 5, 0)
	wantFinding(t, blind(func(rows []store.AuditRow) {
		rows[0].PrevHash = bytes.Repeat([]byte{1}, 32)
		hash, _ := rowHash(&rows[0], nil)
		rows[0].Hash = hash[:]
		rehash(rows, 1)
	}), Misplaced, 1, 0)
}

func TestCheckpointsThatGoBackAreFound(t *testing.T) {
	w := tenRows(t)
	rows := w.store.all()
	line, err := w.options.Key.Note("n1", 8, [32]byte(rows[7].Hash), day).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.keeper.Append(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, w.verify(), SetBack, 8, 10)
}

func TestATombstoneExcusesWhatItNames(t *testing.T) {
	hash := bytes.Repeat([]byte{1}, 32)
	grave := tombstone{Node: "n1", From: 5, To: 10, Hash: hexHash(hash)}
	for _, tt := range []struct {
		gap  gap
		want bool
	}{
		{gap{from: 5, to: 10, hash: hash}, true},
		{gap{from: 5, to: 9, hash: nil}, true}, // interrupted: row 10 is still there
		{gap{from: 7, to: 10, hash: hash}, true},
		{gap{from: 5, to: 10, hash: bytes.Repeat([]byte{2}, 32)}, false},
		{gap{from: 5, to: 11, hash: hash}, false},
		{gap{from: 4, to: 10, hash: hash}, false},
	} {
		if got := grave.excuses(tt.gap); got != tt.want {
			t.Errorf("%+v: %v", tt.gap, got)
		}
	}
}

func TestALineIsReadOnlyAsItIsWritten(t *testing.T) {
	var out bytes.Buffer
	if err := WriteRow(&out, Row{Node: "n", Seq: 1, Time: day, Detail: []byte(`{"a":1}`), Hash: []byte{1}, PrevHash: []byte{2}}); err != nil {
		t.Fatal(err)
	}
	good := strings.TrimSuffix(out.String(), "\n")
	if _, err := ReadRow([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		good + " ", strings.Replace(good, `"seq":1`, `"seq":1,"seq":1`, 1), strings.Replace(good, `"node"`, `"extra":1,"node"`, 1),
		strings.Replace(good, `"01"`, `"0A"`, 1), strings.Replace(good, `:00.000000Z`, `:00Z`, 1), strings.Replace(good, `{"a":1}`, `{"a": 1}`, 1),
		strings.Replace(good, `"hash"`, `"HASH"`, 1), "", "[]",
	} {
		if _, err := ReadRow([]byte(bad)); err == nil {
			t.Errorf("%s is a row", bad)
		}
	}
}

func TestRowsBehindTheLastCheckpointAreSaidToBeUncovered(t *testing.T) {
	w := tenRows(t)
	rows := w.store.all()
	rows = append(rows, rows[9])
	rows[10].ID = "forged"
	rehash(rows, 10)
	w.store.set(func(m *memory) { m.rows = rows })
	report := w.verify()
	if n := report.Nodes[0]; !report.OK() || n.Covered != 10 || n.Uncovered != 1 {
		t.Errorf("got %+v", n)
	}
}

func TestACheckpointOfAnotherKeyIsAFinding(t *testing.T) {
	w := tenRows(t)
	other, err := checkpoint.LoadKey(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := Verify(t.Context(), w.store, w.keeper.notes(), other.Keys())
	if err != nil || report.Bad() == nil || report.Bad().Kind != BadNote || report.Nodes[0].Covered != 0 {
		t.Errorf("%+v %v", report, err)
	}
	rows := w.store.all()
	forge := func(n checkpoint.Note) {
		line, err := n.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		_ = w.keeper.Append(t.Context(), line)
	}
	note := w.options.Key.Note("n1", 10, [32]byte(rows[9].Hash), day)
	note.Hash[0]++ // the signature is of another hash
	forge(note)
	wantFinding(t, w.verify(), BadNote, 10, 0)
}

func TestALogThatWasSetBackIsFound(t *testing.T) {
	w := tenRows(t)
	w.store.set(func(m *memory) { m.rows = m.rows[:6] }) // a backup
	w.close(w.open())
	l := w.open()
	for range 3 {
		w.begin(l, "b").End(Outcome{Result: OK})
	}
	w.close(l)
	if bad := w.verify().Bad(); bad == nil || bad.Seq > 7 {
		t.Errorf("got %v", bad)
	}
}

func TestDamagedLinesOfCheckpointsAreNamed(t *testing.T) {
	w := tenRows(t)
	w.keeper.lines.WriteString(`{"v":1,"node":"n1","se` + "\n")
	report := w.verify()
	if !report.OK() || len(report.Damaged) != 1 || report.Nodes[0].Covered != 10 {
		t.Errorf("%+v", report)
	}
}

func TestALogIsVerifiedWhileItGrows(t *testing.T) {
	w := newFixture(t)
	w.options.CheckpointRows = 1
	w.keeper.got = make(chan struct{}, 1000)
	l := w.open()
	w.begin(l, "a")
	<-w.keeper.got
	// The checkpoints are read behind the rows, and speak of one that was not there when the rows were read.
	passes := 0
	notes := func(yield func(checkpoint.Note, error) bool) {
		passes++
		seen := 0
		for note, err := range w.keeper.notes() {
			if seen++; !yield(note, err) {
				return
			}
		}
		if passes == 1 {
			return
		}
		w.begin(l, "b")
		<-w.keeper.got
		for note, err := range w.keeper.notes() {
			if seen--; seen < 0 && !yield(note, err) {
				return
			}
		}
	}
	report, err := Verify(t.Context(), w.store, notes, w.options.Key.Keys())
	if err != nil || !report.OK() || report.Nodes[0].Covered != 2 {
		t.Errorf("%+v %v", report, err)
	}
	w.close(l)
}

func TestAnExportCanBeVerified(t *testing.T) {
	w := tenRows(t)
	var out bytes.Buffer
	n, err := WriteExport(t.Context(), &out, w.store, "")
	if err != nil || n != 10 {
		t.Fatalf("%d rows, %v", n, err)
	}
	text := out.String()
	verify := func(text string) (Report, error) {
		return Verify(t.Context(), Export{strings.NewReader(text)}, w.keeper.notes(), w.options.Key.Keys())
	}
	if report, err := verify(text); err != nil || !report.OK() || report.Nodes[0].Covered != 10 {
		t.Errorf("%+v %v", report, err)
	}
	lines := strings.SplitAfter(text, "\n")
	for name, changed := range map[string]string{
		"edited":  strings.Replace(text, `"actor":"admin"`, `"actor":"other"`, 1),
		"removed": strings.Join(append(append([]string{}, lines[:4]...), lines[5:]...), ""),
		"swapped": strings.Join(append([]string{lines[1], lines[0]}, lines[2:]...), ""),
		"twice":   strings.Join(append([]string{lines[0]}, lines...), ""),
		"cut off": strings.Join(lines[:9], ""),
		"nothing": "",
	} {
		if report, err := verify(changed); err != nil || report.OK() {
			t.Errorf("%s: %+v %v", name, report, err)
		}
	}
	if _, err := verify(text[:len(text)-20]); err == nil {
		t.Error("half a line is a row")
	}
	first := `{"node":"n1","seq":1,"time":"`
	if !strings.HasPrefix(text, first) || !strings.Contains(lines[1], `"action":"a","result":"ok","tenant":"default","actor":"admin","session":"","jail":"","target":"","detail":{},"prev_hash":"`) {
		t.Errorf("the fields of a line are not in their order: %s", lines[1])
	}
}

func FuzzReadRow(f *testing.F) {
	row := Row{Node: "n", Seq: 1, Time: day, Detail: []byte(`{"a":1}`), Hash: []byte{1}, PrevHash: []byte{2}}
	var out bytes.Buffer
	if err := WriteRow(&out, row); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimSpace(out.Bytes()))
	f.Add([]byte(`{"node":"n"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		row, err := ReadRow(line)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := WriteRow(&again, row); err != nil || again.String() != string(line)+"\n" {
			t.Errorf("%q came back as %q, %v", line, again.String(), err)
		}
	})
}
