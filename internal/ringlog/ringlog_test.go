package ringlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("RINGLOG_TEST_CHILD"); dir != "" {
		child(dir)
	}
	goleak.VerifyTestMain(m)
}

const segment = 64 << 10

func open(t testing.TB, dir string, keep int64) *ringlog.Log {
	t.Helper()
	l, err := ringlog.Open(dir, ringlog.Options{Keep: keep, Segment: segment})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have closed it
	return l
}

// all reads everything that is kept.
func all(t testing.TB, r ringlog.Reader) (data []byte, first int64) {
	t.Helper()
	at := int64(0)
	for i := 0; ; i++ {
		c, err := r.Read(t.Context(), at, 1<<20, 0)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = c.Offset
		}
		if len(c.Data) == 0 {
			return data, first
		}
		data = append(data, c.Data...)
		at = c.Offset + int64(len(c.Data))
	}
}

func TestOptionsReportEverythingAtOnce(t *testing.T) {
	o := ringlog.Options{Segment: -1}
	err := o.Validate()
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("keep")) || !bytes.Contains([]byte(err.Error()), []byte("segments")) {
		t.Errorf("the error is %v", err)
	}
	if _, err := ringlog.Open(t.TempDir(), ringlog.Options{}); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("a log that keeps nothing was opened: %v", err)
	}
}

// A log is compared with a byte slice through writes, pipes, reads and being opened again.
func TestLogIsTheNewestPartOfTheStream(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "ringlog")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		o := ringlog.Options{Keep: rapid.Int64Range(1, 4*segment).Draw(t, "keep"), Segment: segment}
		l, err := ringlog.Open(filepath.Join(dir, "log"), o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		var stream []byte
		next := byte(0)
		make := func(n int) []byte {
			p := bytes.Repeat([]byte{next}, n)
			for i := range p {
				p[i] = byte(i*7) + next
			}
			next++
			return p
		}
		check := func(r ringlog.Reader, offset int64, limit int) {
			c, err := r.Read(context.Background(), offset, limit, 0)
			if err != nil {
				t.Fatal(err)
			}
			end := int64(len(stream))
			if c.End != end {
				t.Fatalf("the end is %d, written were %d", c.End, end)
			}
			if have := c.End - c.First; have < min(o.Keep, end) || have >= o.Keep+2*segment {
				t.Fatalf("%d bytes are kept of %d, to be kept were %d", have, end, o.Keep)
			}
			want := offset
			if want < 0 {
				want = max(end+want, 0)
			}
			want = min(max(want, c.First), end)
			if c.Offset != want {
				t.Fatalf("a read at %d of [%d,%d) came from %d", offset, c.First, end, c.Offset)
			}
			if c.Offset < end && len(c.Data) == 0 || len(c.Data) > limit {
				t.Fatalf("%d bytes at %d of %d, limit %d", len(c.Data), c.Offset, end, limit)
			}
			if !bytes.Equal(c.Data, stream[c.Offset:c.Offset+int64(len(c.Data))]) {
				t.Fatalf("the %d bytes at %d are others than were written", len(c.Data), c.Offset)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				p := make(rapid.IntRange(0, 3*segment).Draw(rt, "size"))
				if n, err := l.Write(p); n != len(p) || err != nil {
					rt.Fatal(n, err)
				}
				stream = append(stream, p...)
			},
			"splice": func(rt *rapid.T) {
				p := make(rapid.IntRange(1, segment).Draw(rt, "size"))
				r, w, err := os.Pipe()
				if err != nil {
					rt.Fatal(err)
				}
				defer r.Close()
				if _, err := w.Write(p[:min(len(p), 60<<10)]); err != nil {
					rt.Fatal(err)
				}
				_ = w.Close()
				for {
					if _, err := l.Splice(r, rapid.IntRange(1, segment).Draw(rt, "most")); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						rt.Fatal(err)
					}
				}
				stream = append(stream, p[:min(len(p), 60<<10)]...)
			},
			"read": func(rt *rapid.T) {
				check(l, rapid.Int64Range(-int64(len(stream))-10, int64(len(stream))+10).Draw(rt, "offset"), rapid.IntRange(1, 2*segment).Draw(rt, "limit"))
			},
			"read by another": func(rt *rapid.T) {
				check(ringlog.OpenReader(filepath.Join(dir, "log")), rapid.Int64Range(-10, int64(len(stream))).Draw(rt, "offset"), segment)
			},
			"open again": func(rt *rapid.T) {
				if err := l.Close(); err != nil {
					rt.Fatal(err)
				}
				check(l, 0, segment) // a closed log can be read
				if l, err = ringlog.Open(filepath.Join(dir, "log"), o); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(*rapid.T) { check(l, 0, segment) },
		})
	})
}

func TestReadWaits(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "log"), segment)
	came := make(chan ringlog.Chunk, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		c, err := l.Read(t.Context(), 0, 100, time.Minute)
		if err != nil {
			t.Error(err)
		}
		came <- c
	})
	if _, err := l.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if c := <-came; string(c.Data) != "hello" {
		t.Errorf("%q came", c.Data)
	}
	reading.Go(func() {
		c, err := l.Read(t.Context(), -0, 100, time.Minute)
		if err != nil || string(c.Data) != "hello" {
			t.Error(c, err)
		}
		if c, err = l.Read(t.Context(), 5, 100, time.Minute); err != nil || len(c.Data) > 0 {
			t.Error("a log that was closed gave", c, err)
		}
		came <- c
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-came
	reading.Wait()
	if _, err := l.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a closed log was written to: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Read(ended, 5, 100, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func TestReaderOfAnotherProcessWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	r := ringlog.OpenReader(dir)
	if c, err := r.Read(t.Context(), 0, 10, 0); err != nil || c.End != 0 {
		t.Fatal(c, err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		if c, err := r.Read(t.Context(), 0, 10, time.Minute); err != nil || string(c.Data) != "hello" {
			t.Error(c, err)
		}
	})
	l := open(t, dir, segment)
	if _, err := l.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	reading.Wait()
}

// Readers are never given other bytes than were written, however fast the log moves on below them.
func TestSlowReaderIsToldWhatItMissed(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "log"), segment)
	const lines = 200_000
	var working sync.WaitGroup
	for range 3 {
		working.Go(func() {
			at, missed := int64(0), int64(0)
			for at < lines*16 {
				c, err := l.Read(t.Context(), at, 10_000, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				missed += c.Offset - at
				for i, b := range c.Data {
					at := c.Offset + int64(i)
					if want := fmt.Sprintf("%015d\n", at/16)[at%16]; b != want {
						t.Errorf("byte %d is %q, not %q", at, b, want)
						return
					}
				}
				at = c.Offset + int64(len(c.Data))
			}
			if c, err := l.Read(t.Context(), 0, 1, 0); err != nil || c.Offset != c.First || c.Offset == 0 {
				t.Error("a reader at the beginning is not told that it is gone:", c.Offset, c.First, err)
			}
		})
	}
	for i := range lines {
		if _, err := fmt.Fprintf(l, "%015d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	working.Wait()
}

func TestOneProcessWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := open(t, dir, segment)
	if _, err := ringlog.Open(dir, ringlog.Options{Keep: 1}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a second writer gets %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, segment)
}

// A file or link in the folder of a log that is none of its own is not followed, not read and not written to.
func TestPlantedFilesAreNotFollowed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(outside, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "0000000000000000000.log")
	for name, plant := range map[string]func() error{
		"link":   func() error { return os.Symlink(outside, first) },
		"fifo":   func() error { return unix.Mkfifo(first, 0o600) },
		"folder": func() error { return os.Mkdir(first, 0o700) },
	} {
		if err := errors.Join(os.RemoveAll(first), plant()); err != nil {
			t.Fatal(err)
		}
		l := open(t, dir, segment)
		if _, err := l.Write([]byte("hello")); err != nil {
			t.Fatal(name, err)
		}
		if got, _ := all(t, l); string(got) != "hello" {
			t.Errorf("%s: %q was kept", name, got)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "mine" {
		t.Errorf("the file outside has %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "note"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ringlog.Remove(dir); err == nil {
		t.Error("a folder with something else in it was removed")
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "note")), ringlog.Remove(dir), ringlog.Remove(dir)); err != nil {
		t.Error(err)
	}
}

// A host that lost its power may have left a segment that is empty, or reaches into the next one.
func TestDamagedSegments(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if err := errors.Join(os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "0000000000000000000.log"), []byte("abcdef"), 0o600),
		os.WriteFile(filepath.Join(dir, "0000000000000000004.log"), []byte("EF"), 0o600),
		os.WriteFile(filepath.Join(dir, "0000000000000000010.log"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir, segment)
	if _, err := l.Write([]byte("kl")); err != nil {
		t.Fatal(err)
	}
	if got, first := all(t, l); string(got) != "abcdEFkl" || first != 0 {
		t.Errorf("%q from %d", got, first)
	}
	if c, err := l.Read(t.Context(), 7, 10, 0); err != nil || c.Offset != 10 || string(c.Data) != "kl" || c.End != 12 {
		t.Error("a read from a gap gives", c, err)
	}
}

// The last bytes were dropped: what is written after the log was opened again is not where they would have been.
func TestEndOutlivesWhatWasDropped(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	write := func(l *ringlog.Log, n int) {
		if _, err := l.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	reopened := func(l *ringlog.Log, killed bool) *ringlog.Log {
		end, was := l.End(), dir
		if killed { // what is on the disk now is what the next one finds
			dir = filepath.Join(t.TempDir(), "log")
			if err := os.CopyFS(dir, os.DirFS(was)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if c, err := ringlog.OpenReader(dir).Read(t.Context(), end+10, 1, 0); err != nil || c.End != end || c.Offset != end {
			t.Errorf("a reader of the folder is at %d of %d, not %d: %v", c.Offset, c.End, end, err)
		}
		if l = open(t, dir, 8*segment); l.End() != end {
			t.Errorf("opened again, the end is %d and was %d", l.End(), end)
		}
		return l
	}
	l := open(t, dir, 8*segment)
	write(l, segment)
	l = reopened(l, true) // nothing was dropped
	for _, killed := range []bool{true, false} {
		before := l.End()
		full := filepath.Join(dir, fmt.Sprintf("%019d.log", before)) // the next segment cannot be made
		if err := os.Mkdir(full, 0o700); err != nil {
			t.Fatal(err)
		}
		write(l, 5000)
		if l.End() != before+5000 || l.Dropped() != 5000 {
			t.Fatalf("the end is %d, %d were dropped", l.End(), l.Dropped())
		}
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		l = reopened(l, killed)
		write(l, segment)
	}
	if c, err := l.Read(t.Context(), segment, 1<<20, 0); err != nil || c.Offset != segment+5000 || len(c.Data) != segment {
		t.Error("over a gap comes", len(c.Data), "at", c.Offset, err)
	}
}

// A disk that was full between short writes leaves small segments: no more are kept than a folder of a log may have.
func TestSmallSegmentsAreFew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for n := range 1000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%019d.log", n*10)), []byte("short\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, dir, segment)
	if _, err := l.Write([]byte("last\n")); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 300 || len(files) < 200 {
		t.Errorf("%d files are there, %v", len(files), err)
	}
	if got, first := all(t, l); !bytes.HasSuffix(got, []byte("short\nlast\n")) || first == 0 {
		t.Errorf("%d bytes are kept from %d", len(got), first)
	}
}
