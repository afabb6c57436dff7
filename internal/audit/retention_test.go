package audit

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// aging is a fixture whose clock is set by the test.
func aging(t *testing.T) (*fixture, *atomic.Int64) {
	w := newFixture(t)
	var hours atomic.Int64
	w.options.Now = func() time.Time { return day.Add(time.Duration(hours.Load()) * time.Hour) }
	return w, &hours
}

func (w *fixture) trim(l *Log, r Retention) Trimmed {
	w.t.Helper()
	out, err := l.Trim(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestRetentionLeavesATombstoneThatVerifyHonours(t *testing.T) {
	w, hours := aging(t)
	l := w.open()
	for h := range 10 {
		hours.Store(int64(h))
		w.begin(l, "a").End(Outcome{Result: OK})
	}
	w.close(l)
	l = w.open()
	if got := w.trim(l, Retention{OlderThan: day}); got != (Trimmed{Node: "n1"}) {
		t.Errorf("nothing is old, and %+v went", got)
	}
	if got, want := w.trim(l, Retention{OlderThan: day.Add(3 * time.Hour), Actor: "operator:1", Why: "3 hours"}), (Trimmed{"n1", 1, 6, 6}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	w.sound()
	if got, want := w.trim(l, Retention{OlderThan: day.Add(5 * time.Hour)}), (Trimmed{"n1", 7, 10, 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	hours.Store(100)
	if got, want := w.trim(l, Retention{OlderThan: day.Add(99 * time.Hour)}), (Trimmed{"n1", 11, 21, 11}); got != want { // the first tombstone goes too
		t.Errorf("got %+v, want %+v", got, want)
	}
	w.close(l)
	report := w.verify()
	if n := report.Nodes[0]; !report.OK() || n.From != 22 || n.Trimmed != 21 {
		t.Errorf("got %+v", n)
	}
	w.close(w.open())

	// One row more than the tombstone says is a removal.
	rows := w.store.all()
	w.store.set(func(m *memory) { m.rows = rows[1:] })
	if w.verify().OK() {
		t.Error("a row that no tombstone speaks of is gone, and all is well")
	}
	// Without the tombstone, what it excuses is a removal.
	w.store.set(func(m *memory) { m.rows = rows[:1] })
	if w.verify().OK() {
		t.Error("rows are gone without a tombstone, and all is well")
	}
}

func TestATombstoneNeedsTheKey(t *testing.T) {
	w, hours := aging(t)
	l := w.open()
	for h := range 4 {
		hours.Store(int64(h))
		w.begin(l, "a").End(Outcome{Result: OK})
	}
	w.trim(l, Retention{OlderThan: day.Add(time.Hour), Why: "old"})
	w.close(l)
	w.sound()
	// Somebody without the key removes two rows more, and makes the tombstone say so. There are no checkpoints.
	rows := w.store.all()
	grave := &rows[len(rows)-1]
	tomb, err := readTombstone(*grave, w.options.Key.Keys())
	if err != nil {
		t.Fatal(err)
	}
	tomb.To, tomb.Hash = 4, hexHash(rows[1].Hash)
	grave.Detail = tomb.detail().bytes()
	hash, _ := rowHash(grave, nil)
	grave.Hash = hash[:]
	w.store.set(func(m *memory) { m.rows = rows[2:] })
	report, err := Verify(t.Context(), w.store, nil, w.options.Key.Keys())
	if err != nil || report.OK() {
		t.Errorf("%+v %v", report, err)
	}
}

func TestRetentionSparesWhatIsUnderWay(t *testing.T) {
	w, hours := aging(t)
	l := w.open()
	w.begin(l, "a").End(Outcome{Result: OK})
	p := w.begin(l, "long")
	hours.Store(5)
	w.begin(l, "b").End(Outcome{Result: OK})
	w.close(l)
	l = w.open() // closes it as unknown: of hour 5
	hours.Store(6)
	q := w.begin(l, "longer")
	w.begin(l, "c").End(Outcome{Result: OK})
	hours.Store(9)
	if got, want := w.trim(l, Retention{OlderThan: day.Add(8 * time.Hour)}), (Trimmed{"n1", 1, 6, 6}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	q.End(Outcome{Result: OK})
	_ = p
	w.close(l)
	w.sound()
}

func TestRetentionThatWasInterruptedIsNoRemoval(t *testing.T) {
	w, hours := aging(t)
	l := w.open()
	for range 30 {
		l.Note(Event{Action: "a"})
	}
	w.close(l)
	hours.Store(2)
	broken := &failing{memory: w.store, after: 7}
	w.options.Store = broken
	l = w.open()
	if _, err := l.Trim(t.Context(), Retention{OlderThan: day.Add(time.Hour)}); err == nil {
		t.Fatal("the database fails, and Trim does not say so")
	}
	w.sound()
	if n := w.verify().Nodes[0]; n.From != 8 {
		t.Fatalf("got %+v", n)
	}
	broken.after = 0
	if got, want := w.trim(l, Retention{OlderThan: day.Add(time.Hour)}), (Trimmed{"n1", 8, 30, 23}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	w.close(l)
	w.sound()
}

// failing removes only some of the rows, and fails.
type failing struct {
	*memory
	after int64
}

func (f *failing) TrimAudit(ctx context.Context, node string, upTo int64, duty store.Duty) (int, error) {
	if f.after == 0 {
		return f.memory.TrimAudit(ctx, node, upTo, duty)
	}
	n, err := f.memory.TrimAudit(ctx, node, f.after, duty)
	return n, errors.Join(err, store.Unavailable(errors.New("stopped")))
}

func TestRetentionDoesNotHideARemoval(t *testing.T) {
	w, hours := aging(t)
	l := w.open()
	for range 10 {
		l.Note(Event{Action: "a"})
	}
	w.close(l)
	w.store.set(func(m *memory) { m.rows = m.rows[3:] })
	l = w.open()
	hours.Store(2)
	_, err := l.Trim(t.Context(), Retention{OlderThan: day.Add(time.Hour)})
	wantCode(t, err, problem.AuditBroken)
	if len(w.store.all()) != 7 {
		t.Error("rows were removed")
	}
}

func TestTheIntentsOfANodeThatIsGoneAreClosedByAnother(t *testing.T) {
	w, _ := aging(t)
	l := w.open()
	for _, action := range []string{"done", "open"} { // the second waits for the outcome of the first
		pending, err := l.Begin(t.Context(), Intent{Action: action, Actor: "operator:1", Session: "s1", Target: "example.com"})
		if err != nil {
			t.Fatal(err)
		}
		if action == "done" {
			pending.End(Outcome{Result: OK})
		}
	}
	second := newFixture(t)
	second.options.Store, second.options.Key, second.options.Checkpoints, second.options.Now = w.store, w.options.Key, w.keeper, w.options.Now
	second.options.Node = "n2"
	other := second.open()
	for n, want := range []int{1, 0} {
		if closed, err := other.CloseIntents(t.Context(), "n1"); err != nil || closed != want {
			t.Errorf("time %d: %d were closed, want %d (%v)", n, closed, want, err)
		}
	}
	rows := w.store.all()
	if last := rows[len(rows)-1]; last.Node != "n2" || last.Phase != PhaseOutcome || last.Action != "open" || last.Result != string(Unknown) || last.Session != "s1" || last.Target != "example.com" {
		t.Errorf("the outcome is %+v", last)
	}
	second.close(other)
	w.close(l)
	w.sound()
}

func TestTheRowsOfANodeThatIsGoneAreTrimmedByAnother(t *testing.T) {
	w, hours := aging(t)
	l := w.open()
	for range 10 {
		l.Note(Event{Action: "a"})
	}
	w.close(l)
	second := newFixture(t)
	second.options.Store, second.options.Key, second.options.Checkpoints, second.options.Now = w.store, w.options.Key, w.keeper, w.options.Now
	second.options.Node = "n2"
	l = second.open()
	hours.Store(2)
	if got, want := second.trim(l, Retention{OlderThan: day.Add(time.Hour), Node: "n1"}), (Trimmed{"n1", 1, 9, 9}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	second.close(l)
	w.sound()
	w.store.set(func(m *memory) { m.rows = m.rows[:1] }) // without n2, whose tombstone it is
	if w.verify().OK() {
		t.Error("rows are gone without a tombstone, and all is well")
	}
}
