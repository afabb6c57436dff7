package audit

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVariable); mode != "" {
		child(mode)
		return
	}
	goleak.VerifyTestMain(m)
}

// fixture is a log with what it needs.
type fixture struct {
	t       testing.TB
	store   *memory
	keeper  *keeper
	options Options
	counted int // rows that settled leaves out
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	dir := t.TempDir()
	key, err := checkpoint.LoadKey(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, store: &memory{}, keeper: &keeper{}}
	w.options = Options{
		Store: w.store, Node: "n1", SpillPath: filepath.Join(dir, "spill"), SpillSize: minSpill, Key: key, Checkpoints: w.keeper,
	}
	return w
}

func (w *fixture) open() *Log {
	w.t.Helper()
	l, err := Open(context.Background(), w.options)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func (w *fixture) close(l *Log) {
	w.t.Helper()
	if err := l.Close(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) verify() Report {
	w.t.Helper()
	report, err := Verify(context.Background(), w.options.Store, w.keeper.notes(), w.options.Key.Keys())
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

// sound fails the test when the log is not as it was written.
func (w *fixture) sound() {
	w.t.Helper()
	if bad := w.verify().Bad(); bad != nil {
		w.t.Errorf("an honest log is said to be bad: %v", bad)
	}
}

// settled waits until there are so many rows, besides those that were counted: outcomes come by themselves.
func (w *fixture) settled(l *Log, rows int) {
	w.t.Helper()
	for {
		changed := l.changed.next()
		if len(w.store.all()) >= w.counted+rows {
			return
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			w.t.Fatalf("there are %d rows", len(w.store.all()))
		}
	}
}

func idOf(p Pending) string { return p.(*pending).intent.ID }

func (w *fixture) begin(l *Log, action string) Pending {
	w.t.Helper()
	p, err := l.Begin(context.Background(), Intent{Action: action, Tenant: "default", Actor: "admin"})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	if problem.CodeOf(err) != code {
		t.Errorf("got %v (code %s), want the code %s", err, problem.CodeOf(err), code)
	}
}

func phases(rows []store.AuditRow) []string {
	var out []string
	for _, r := range rows {
		out = append(out, r.Phase+" "+r.Action+" "+r.Result)
	}
	return out
}

func wantRows(t testing.TB, rows []store.AuditRow, want ...string) {
	t.Helper()
	if got := phases(rows); !slices.Equal(got, want) {
		t.Errorf("rows:\n got %q\nwant %q", got, want)
	}
}

var day = time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC)
