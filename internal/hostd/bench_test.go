package hostd

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
)

// BenchmarkCall is what the socket costs: a call that does nothing.
func BenchmarkCall(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		if _, err := c.Info(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate is a jail that costs nothing but one process, made over the socket and directly: the difference is
// the host daemon's.
func BenchmarkCreate(b *testing.B) {
	life, err := jail.NewLifecycle(b.Context(), jailtest.NewMemory(jailtest.NewHost()).Options())
	if err != nil {
		b.Fatal(err)
	}
	defer life.Close()
	for name, d := range map[string]jail.Driver{"socket": benchClient(b), "direct": life} {
		b.Run(name, func(b *testing.B) {
			s := spec("exec cat")
			s.Program.Argv = []string{"/bin/cat"}
			for b.Loop() {
				j, err := d.Create(b.Context(), s)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				j.Stdio.Close()
				if err := d.Destroy(b.Context(), j.Name); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func benchClient(b *testing.B) *Client {
	b.Helper()
	f := startServer(b, jailtest.NewHost(), filepath.Join(b.TempDir(), "s"), func(o *Options) { o.Grace = time.Hour })
	c := NewClient(f.socket, slog.New(slog.DiscardHandler))
	if err := c.Hold(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}
