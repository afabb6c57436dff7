package audit

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

func benchLog(b *testing.B) (*sqlite.DB, *Log, *checkpoint.Key, string) {
	b.Helper()
	dir := folder(b)
	db, file, key, l, err := openReal(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = l.Close(context.Background())
		_, _ = file.Close(), db.Close()
	})
	return db, l, key, filepath.Join(dir, "checkpoints")
}

func benchIntent() Intent {
	return Intent{
		Action: "session.open", Tenant: "default", Actor: "operator:01jx", Session: "s-01jx", Target: "https://example.com/",
		Detail: NewDetail(Fields{"domains": []string{"example.com", "example.org"}, "cookie_count": 12}),
	}
}

// One intent, with nobody else about.
func BenchmarkIntentAlone(b *testing.B) {
	_, l, _, _ := benchLog(b)
	for b.Loop() {
		if _, err := l.Begin(b.Context(), benchIntent()); err != nil {
			b.Fatal(err)
		}
	}
}

// One action after another: the outcome of one is written before the intent of the next.
func BenchmarkActionsOneByOne(b *testing.B) {
	_, l, _, _ := benchLog(b)
	for b.Loop() {
		p, err := l.Begin(b.Context(), benchIntent())
		if err != nil {
			b.Fatal(err)
		}
		p.End(Outcome{Result: OK})
	}
}

// Many callers at once, who all wait for their record.
func BenchmarkIntentsOfManyCallers(b *testing.B) {
	_, l, _, _ := benchLog(b)
	const callers = 512
	var wait sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wait.Go(func() {
			for range b.N/callers + 1 {
				if _, err := l.Begin(context.Background(), benchIntent()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	b.ReportMetric(float64((b.N/callers+1)*callers)/b.Elapsed().Seconds(), "rows/s")
}

// Verifying a log in the database, with its checkpoints.
func BenchmarkVerify(b *testing.B) {
	db, l, key, path := benchLog(b)
	const rows = 20_000
	for i := range rows {
		l.Note(Event{Action: "host.denied", Result: Refused, Tenant: "default", Actor: "agent:01jx", Target: "example.com:443"})
		if n := l.options.QueueRows; i%(n/2) == 0 {
			if err := l.Event(b.Context(), Event{Action: "a"}); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := l.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	var walked int64
	for b.Loop() {
		report, err := Verify(b.Context(), db, checkpoint.ReadFile(path), key.Keys())
		if err != nil || !report.OK() {
			b.Fatal(report.Bad(), err)
		}
		walked += report.Nodes[0].Rows
	}
	b.ReportMetric(float64(walked)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkSeal is the cost of the log itself, without a database.
func BenchmarkSeal(b *testing.B) {
	w := &writer{options: Options{Node: "n1"}}
	row, err := intentRow(benchIntent())
	if err != nil {
		b.Fatal(err)
	}
	rows := make([]store.AuditRow, groupRows)
	for b.Loop() {
		for i := range rows {
			rows[i] = row
			stamp(&rows[i], day)
		}
		w.end = w.seal(rows)
	}
	b.ReportMetric(float64(b.N)*groupRows/b.Elapsed().Seconds(), "rows/s")
}
