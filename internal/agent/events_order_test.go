package agent

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/ringlog"
)

// Kept lines are told in the order in which they were printed, with the time of that, to every reader at any time.
func TestWhatIsKeptIsToldInTheOrderOfItsTimes(t *testing.T) {
	began := time.Unix(1000, 0)
	now := began
	s := newSource(t, 1<<20)
	for n := range s.logs {
		log, err := ringlog.Open(filepath.Join(t.TempDir(), "log"), ringlog.Options{Keep: 1 << 20, Now: func() time.Time { now = now.Add(time.Second); return now }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		s.logs[n] = log
	}
	s.print(t, 0, "one\n")
	s.print(t, 1, "two\nthree\n")
	s.print(t, 0, "fo")
	s.print(t, 1, "five\n")
	s.print(t, 0, "ur\nsix\n")
	s.becomes(runState{running: true})
	want := []string{"stdout one 1s", "stderr two 2s", "stderr three 2s", "stderr five 4s", "stdout four 5s", "stdout six 5s"}

	told := func(after string) (out, ids []string) {
		t.Helper()
		err := readEvents(t.Context(), s, after, false, time.Now, func(e Event) error {
			if e.Type == EventText {
				out, ids = append(out, brief(e)+" "+e.At.Sub(began).String()), append(ids, e.ID)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out, ids
	}
	got, ids := told("")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A reader that goes on after any of them hears the rest, in the same order.
	for n, id := range ids {
		if rest, _ := told(id); !cmp.Equal(rest, want[n+1:]) && len(rest)+len(want[n+1:]) > 0 {
			t.Errorf("after %s: %q", want[n], rest)
		}
	}
	f := follow(t, s, "")
	f.expect(t, "stdout one", "stderr two", "stderr three", "stderr five", "stdout four", "stdout six")
	s.print(t, 1, "seven\n")
	f.expect(t, "stdout one", "stderr two", "stderr three", "stderr five", "stdout four", "stdout six", "stderr seven")
}
