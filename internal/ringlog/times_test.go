package ringlog_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/ringlog"
)

// ticking is a clock that goes on by a second with each look.
func ticking() func() time.Time {
	now := time.Unix(1000, 0)
	return func() time.Time { now = now.Add(time.Second); return now }
}

// timesOf says of every byte that a reader has when it was written, in seconds; "-" where nobody knows.
func timesOf(t *testing.T, r ringlog.Reader) string {
	t.Helper()
	var out strings.Builder
	for at := int64(0); ; {
		c, err := r.Read(context.Background(), at, 7, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Data) == 0 {
			return out.String()
		}
		marks := r.Marks(c)
		for n, b := range c.Data {
			time := "-"
			for _, m := range marks {
				if m.Offset < c.Offset || m.Offset >= c.Offset+int64(len(c.Data)) {
					t.Errorf("a mark at %d of what is from %d to %d", m.Offset, c.Offset, c.Offset+int64(len(c.Data)))
				}
				if m.Offset <= c.Offset+int64(n) {
					time = fmt.Sprint(m.At/1e9 - 1000)
				}
			}
			fmt.Fprintf(&out, "%c%s ", b, time)
		}
		at = c.Offset + int64(len(c.Data))
	}
}

func TestEveryByteHasTheTimeAtWhichItWasWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	now := ticking()
	open := func() *ringlog.Log {
		t.Helper()
		l, err := ringlog.Open(dir, ringlog.Options{Keep: 1 << 20, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	write := func(l *ringlog.Log, text string) {
		t.Helper()
		if _, err := l.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	l := open()
	write(l, "ab")
	write(l, "c")
	const first = "a1 b1 c2 "
	if got := timesOf(t, l); got != first {
		t.Errorf("of a log that is open: %s", got)
	}
	if got := timesOf(t, ringlog.OpenReader(dir)); got != first {
		t.Errorf("of its files: %s", got)
	}
	// It goes on where it was, also when the last mark was torn.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := timesOf(t, l); got != first {
		t.Errorf("of a log that is closed: %s", got)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.times"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	f, err := os.OpenFile(names[0], os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("torn")
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	l = open()
	write(l, "d")
	if got := timesOf(t, l); got != first+"d3 " {
		t.Errorf("after a mark that was torn: %s", got)
	}
	// Without the marks there is everything else.
	if err := os.WriteFile(names[0], []byte(strings.Repeat("\xff", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := timesOf(t, l); got != "a- b- c- d- " {
		t.Errorf("with damaged marks: %s", got)
	}
	if err := os.Remove(names[0]); err != nil {
		t.Fatal(err)
	}
	if got := timesOf(t, ringlog.OpenReader(dir)); got != "a- b- c- d- " {
		t.Errorf("without marks: %s", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ringlog.Remove(dir); err != nil {
		t.Error(err)
	}
}

// Marks go with the bytes that they are of, and have a bound of their own.
func TestMarksAreBoundedAndGoWithTheirBytes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l, err := ringlog.Open(dir, ringlog.Options{Keep: 128 << 10, Now: ticking()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 600 << 10 {
		if _, err := l.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	segments, err1 := filepath.Glob(filepath.Join(dir, "*.log"))
	times, err2 := filepath.Glob(filepath.Join(dir, "*.times"))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	for n := range segments {
		segments[n] = strings.TrimSuffix(segments[n], "log") + "times"
	}
	if !slices.Equal(segments, times) || len(times) < 2 {
		t.Errorf("%q have marks, of %q", times, segments)
	}
	for _, name := range times {
		info, err := os.Stat(name)
		if err != nil || info.Size() > (1024+64<<10/128)*16 {
			t.Errorf("%s has %d bytes, %v", name, info.Size(), err)
		}
	}
	c, err := l.Read(context.Background(), math.MaxInt64, 1, 0)
	if err == nil {
		c, err = l.Read(context.Background(), c.End-1, 1, 0)
	}
	if err != nil || len(l.Marks(c)) != 1 {
		t.Errorf("the last byte has the marks %v, %v", l.Marks(c), err)
	}
	// Times of bytes that are gone are removed when a log is opened.
	stray := filepath.Join(dir, "0000000000000000000.times")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := ringlog.Open(dir, ringlog.Options{Keep: 128 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := os.Stat(stray); !os.IsNotExist(err) {
		t.Errorf("marks of nothing stay: %v", err)
	}
}
