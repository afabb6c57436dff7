package ringlog_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/ringlog"
)

var line = append(bytes.Repeat([]byte("x"), 119), '\n')

// BenchmarkWrite writes one line at a time.
func BenchmarkWrite(b *testing.B) {
	l := open(b, filepath.Join(b.TempDir(), "log"), 16<<20)
	for b.Loop() {
		if _, err := l.Write(line); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}

// BenchmarkSplice is the whole way of a line of an agent: written to a pipe on its own, and moved to the file.
func BenchmarkSplice(b *testing.B) {
	l, err := ringlog.Open(filepath.Join(b.TempDir(), "log"), ringlog.Options{Keep: 16 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	printed := make(chan error, 1)
	count := b.N
	go func() {
		var err error
		for range count {
			if _, err = w.Write(line); err != nil {
				break
			}
		}
		printed <- errors.Join(err, w.Close())
	}()
	b.ResetTimer()
	for {
		if _, err := l.Splice(r, 1<<20); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(count)/b.Elapsed().Seconds(), "lines/s")
	if err := <-printed; err != nil {
		b.Fatal(err)
	}
	if want := int64(count * len(line)); l.End() != want {
		b.Fatalf("%d bytes of %d arrived", l.End(), want)
	}
}
