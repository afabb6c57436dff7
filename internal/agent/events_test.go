package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
	"github.com/clawjail/clawjail/internal/testenv"
)

// testSource is something with real logs, whose state the test decides about.
type testSource struct {
	logs [2]*ringlog.Log

	mu      sync.Mutex
	now     runState
	changed chan struct{}
	away    int // questions that find nobody there
	asked   int
}

func newSource(t testing.TB, keep int64) *testSource {
	t.Helper()
	s := &testSource{changed: make(chan struct{})}
	for n := range s.logs {
		log, err := ringlog.Open(filepath.Join(t.TempDir(), string(streamOf(n))), ringlog.Options{Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		s.logs[n] = log
		t.Cleanup(func() {
			if err := log.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

func (s *testSource) gone() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.away > 0 {
		s.away--
		return problem.New(problem.HostdUnreachable, "", "nobody is there")
	}
	return nil
}

func (s *testSource) read(ctx context.Context, stream jail.Stream, offset int64, limit int, wait time.Duration) (jail.LogChunk, error) {
	if err := s.gone(); err != nil {
		return jail.LogChunk{}, err
	}
	n := 0
	if stream == jail.Stderr {
		n = 1
	}
	c, err := s.logs[n].Read(ctx, offset, limit, wait)
	return jail.LogChunk{Data: c.Data, Offset: c.Offset, First: c.First, End: c.End, Marks: s.logs[n].Marks(c)}, err
}

func (s *testSource) state(ctx context.Context, after uint64) (runState, error) {
	if err := s.gone(); err != nil {
		return runState{}, err
	}
	for {
		s.mu.Lock()
		now, changed := s.now, s.changed
		s.mu.Unlock()
		if now.version != after {
			return now, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return runState{}, ctx.Err()
		}
	}
}

func (s *testSource) becomes(l runState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.version = s.now.version + 1
	s.now = l
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *testSource) print(t testing.TB, stream int, text string) {
	t.Helper()
	if _, err := s.logs[stream].Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// brief is an event in a word.
func brief(e Event) string {
	switch e.Type {
	case EventJSON:
		return string(e.Stream) + " " + string(e.JSON)
	case EventText:
		return string(e.Stream) + " " + e.Text
	case EventMissed:
		return fmt.Sprintf("missed %d of %s", e.Missed, e.Stream)
	}
	return string(e.Type)
}

// listener takes events, and keeps what they were.
type listener struct {
	mu   sync.Mutex
	seen []string
	last string
	stop func()
	done chan error
}

func follow(t *testing.T, s source, after string) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{stop: cancel, done: make(chan error, 1), last: after}
	go func() {
		l.done <- readEvents(ctx, s, after, true, time.Now, func(e Event) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.seen, l.last = append(l.seen, brief(e)), e.ID
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-l.done:
		case <-time.After(20 * time.Second):
			t.Error("it did not end")
		}
	})
	return l
}

func (l *listener) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.seen...)
}

func (l *listener) expect(t *testing.T, want ...string) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() bool { return cmp.Equal(l.all(), want) }, "not told of %q", want)
	if diff := cmp.Diff(want, l.all()); diff != "" {
		t.Fatal(diff)
	}
}

func TestEventsAreToldAsTheyHappen(t *testing.T) {
	s := newSource(t, 1<<20)
	began := time.Now()
	s.becomes(runState{running: true, began: began})
	l := follow(t, s, "")
	l.expect(t, "started")
	s.print(t, 0, "one\n{\"type\":\"two\"}\n")
	l.expect(t, "started", "stdout one", `stdout {"type":"two"}`)
	s.print(t, 1, "three\npart")
	l.expect(t, "started", "stdout one", `stdout {"type":"two"}`, "stderr three")
	// A line without its end is told when nothing follows, before the exit.
	s.becomes(runState{exit: &jail.Exit{Code: 3, At: began.Add(time.Second)}, over: true})
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	l.done <- nil
	l.expect(t, "started", "stdout one", `stdout {"type":"two"}`, "stderr three", "stderr part", "exit")
}

func TestAFollowerGoesOnWhereItWas(t *testing.T) {
	s := newSource(t, 1<<20)
	began := time.Now().Add(-time.Minute)
	s.becomes(runState{running: true, began: began})
	s.print(t, 0, "one\n")
	l := follow(t, s, "")
	l.expect(t, "started", "stdout one")
	l.stop()
	s.print(t, 0, "two\n")
	s.becomes(runState{running: true, began: began.Add(2 * time.Second), exit: &jail.Exit{At: began.Add(time.Second)}})
	again := follow(t, s, l.last)
	again.expect(t, "exit", "started", "stdout two")
	third := follow(t, s, again.last)
	s.print(t, 0, "three\n")
	third.expect(t, "stdout three")
	// From now on, whatever was.
	fourth := follow(t, s, Newest)
	testenv.Eventually(t, 20*time.Second, func() bool {
		s.print(t, 0, "four\n") // until it is there to be told
		return len(fourth.all()) > 0
	}, "it waits for ever")
	if got := fourth.all()[0]; got != "stdout four" {
		t.Error(got)
	}
}

func TestASlowReaderIsToldWhatItMissed(t *testing.T) {
	s := newSource(t, 64<<10)
	s.becomes(runState{running: true, began: time.Now()})
	line := strings.Repeat("a", 99) + "\n"
	s.print(t, 0, line)
	var id string
	err := readEvents(t.Context(), s, "", false, time.Now, func(e Event) error { id = e.ID; return nil })
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		s.print(t, 0, line)
	}
	var missed, read int64
	err = readEvents(t.Context(), s, id, false, time.Now, func(e Event) error {
		switch {
		case e.Type == EventMissed:
			missed += e.Missed
		case e.Type == EventText && e.Cut:
			read += int64(len(e.Text)) + 1 // the end of a line whose beginning is missed
		case e.Type == EventText && e.Text+"\n" == line:
			read += int64(len(line))
		default:
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	if err != nil || missed == 0 || missed+read != 10_000*int64(len(line)) {
		t.Errorf("%d bytes missed and %d read of %d, %v", missed, read, 10_000*len(line), err)
	}
}

// A reader that takes nothing keeps nobody from printing.
func TestNobodyWaitsForAReader(t *testing.T) {
	s := newSource(t, 64<<10)
	s.becomes(runState{running: true, began: time.Now()})
	s.print(t, 0, "first\n")
	release := make(chan struct{})
	var missed int64
	var last string
	done := make(chan error, 1)
	enough := errors.New("enough")
	go func() {
		done <- readEvents(t.Context(), s, "", true, time.Now, func(e Event) error {
			<-release
			missed += e.Missed
			if last = e.Text; last == "last" {
				return enough
			}
			return nil
		})
	}()
	for range 20_000 {
		s.print(t, 0, strings.Repeat("b", 100)+"\n")
	}
	s.print(t, 0, "last\n")
	close(release)
	if err := <-done; !errors.Is(err, enough) || missed == 0 {
		t.Errorf("%v, %d bytes missed", err, missed)
	}
}

func TestEventsGoOnWhenTheHostDaemonWasAway(t *testing.T) {
	s := newSource(t, 1<<20)
	s.becomes(runState{running: true, began: time.Now()})
	s.away = 5
	l := follow(t, s, "")
	s.print(t, 0, "one\n")
	testenv.Eventually(t, 20*time.Second, func() bool { return len(l.all()) == 2 }, "it gave up")
	s.mu.Lock()
	s.away = 3
	s.mu.Unlock()
	s.print(t, 0, "two\n")
	testenv.Eventually(t, 20*time.Second, func() bool { return len(l.all()) == 3 }, "it gave up")
}

func TestWhatIsAskedForOnceHasAnEnd(t *testing.T) {
	s := newSource(t, 1<<20)
	began := time.Now()
	s.becomes(runState{running: true, began: began})
	s.print(t, 0, "one\ntwo")
	var got []string
	emit := func(e Event) error { got = append(got, brief(e)); return nil }
	if err := readEvents(t.Context(), s, "", false, time.Now, emit); err != nil {
		t.Fatal(err)
	}
	// A line that is not over is for later.
	if diff := cmp.Diff([]string{"started", "stdout one"}, got); diff != "" {
		t.Error(diff)
	}
	s.becomes(runState{began: began, exit: &jail.Exit{At: began.Add(time.Second)}, over: true})
	got = nil
	if err := readEvents(t.Context(), s, "", false, time.Now, emit); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"started", "stdout one", "stdout two", "exit"}, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"x", "1-2"} {
		if err := readEvents(t.Context(), s, bad, false, time.Now, emit); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%q: %v", bad, err)
		}
	}
	refuse := errors.New("refuse")
	if err := readEvents(t.Context(), s, "", false, time.Now, func(Event) error { return refuse }); !errors.Is(err, refuse) {
		t.Error(err)
	}
}

// An offset behind the end is of a log that was removed meanwhile.
func TestALogThatBeganAnewIsReadFromThere(t *testing.T) {
	s := newSource(t, 1<<20)
	s.becomes(runState{running: true, began: time.Unix(1, 0)})
	s.print(t, 0, "old\n")
	l := follow(t, s, position{out: place{offset: 1 << 40}, mark: math.MaxInt64}.String())
	testenv.Eventually(t, 20*time.Second, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.asked > 3 }, "it does not ask")
	testenv.Eventually(t, 20*time.Second, func() bool {
		s.print(t, 0, "new\n") // until it is there
		return len(l.all()) > 0
	}, "it waits for ever")
	if got := l.all()[0]; got != "stdout new" {
		t.Error(got)
	}
}

// BenchmarkEventPath is lines from a program's pipe to its files, read as events meanwhile.
func BenchmarkEventPath(b *testing.B) {
	lines := sampleLines(10_000)
	for _, test := range []struct {
		name string
		slow bool
	}{{"reader", false}, {"slow_reader", true}} {
		b.Run(test.name, func(b *testing.B) {
			s := newSource(b, 1<<30)
			s.becomes(runState{running: true, began: time.Now()})
			out, in, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			var told, written int
			enough := make(chan int, 1)
			done := make(chan error, 1)
			go func() {
				done <- readEvents(ctx, s, "", true, time.Now, func(e Event) error {
					if test.slow {
						<-ctx.Done()
						return ctx.Err()
					}
					if e.Type == EventJSON {
						told++
					}
					select {
					case written = <-enough:
					default:
					}
					if written > 0 && told >= written {
						return errors.New("all")
					}
					return nil
				})
			}()
			pumped := make(chan struct{})
			go func() {
				defer close(pumped)
				for {
					if _, err := s.logs[0].Splice(out, 256<<10); err != nil {
						return
					}
				}
			}()
			b.SetBytes(int64(len(lines)))
			count, began := 0, time.Now()
			for b.Loop() {
				if _, err := in.Write(lines); err != nil {
					b.Fatal(err)
				}
				count += 10_000
			}
			_ = in.Close() // the end of it
			<-pumped
			filed := time.Since(began)
			if s.logs[0].End() != int64(count/10_000*len(lines)) {
				b.Fatal("bytes were lost")
			}
			if !test.slow {
				enough <- count
				s.print(b, 0, "end\n")
				<-done
				if told != count {
					b.Fatalf("%d of %d lines were told", told, count)
				}
				b.ReportMetric(float64(told)/time.Since(began).Seconds(), "told/s")
			}
			stop()
			if test.slow {
				<-done
			}
			_ = out.Close() // read to its end
			b.ReportMetric(float64(count)/filed.Seconds(), "lines/s")
		})
	}
}
