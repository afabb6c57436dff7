package health

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
)

// fakeHost is a host daemon that is only described.
type fakeHost struct {
	slow          time.Duration
	asked, reaped atomic.Int64
	gone          atomic.Bool
}

func (f *fakeHost) Info(ctx context.Context) (hostd.Info, error) {
	f.asked.Add(1)
	time.Sleep(f.slow) // of the test's own clock: others come meanwhile
	if f.gone.Load() {
		return hostd.Info{}, errors.New("nobody answers")
	}
	return hostd.Info{Jails: 3}, ctx.Err()
}

func (f *fakeHost) Templates(context.Context) ([]hostd.Template, error) {
	return []hostd.Template{{Name: "browser", Digest: "sha256:ab"}, {Name: "old", Problem: "it was changed"}}, nil
}

func (f *fakeHost) Reap(_ context.Context, o jail.ReapOptions) (jail.ReapReport, error) {
	f.reaped.Add(1)
	if !o.DryRun {
		panic("looking removes something")
	}
	return jail.ReapReport{Findings: []jail.Finding{{Name: "cj-1", Resource: &jail.HostResource{Kind: jail.ResourceClone, ID: "/clones/1"}, Reason: "nobody's"}, {Name: "cj-2", Reason: "its owner is gone"}}}, nil
}

func TestTheMachineIsAskedOnceForAllWhoLook(t *testing.T) {
	proc := t.TempDir()
	for name, text := range map[string]string{"loadavg": "0.52 0.40 0.31 2/345 678\n", "meminfo": "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n"} {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		host := &fakeHost{slow: 10 * time.Millisecond}
		m := NewWatch(host, proc, time.Now, slog.New(slog.DiscardHandler))
		m.proc = proc
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				got, err := m.Look(t.Context())
				if err != nil || !got.Reachable || got.Jails != 3 || got.Load != 0.52 || got.MemoryTotal != 16000000<<10 || got.MemoryFree != 8000000<<10 || got.DiskTotal <= 0 {
					t.Errorf("%+v %v", got, err)
				}
				if len(got.Templates) != 2 || got.Templates[1].Problem != "it was changed" || len(got.Orphans) != 2 || got.Orphans[0] != "clone /clones/1 (nobody's)" {
					t.Errorf("%+v", got)
				}
			})
		}
		all.Wait()
		if host.asked.Load() != 1 {
			t.Errorf("asked %d times", host.asked.Load())
		}
		for range 4 {
			time.Sleep(6 * time.Second)
			if _, err := m.Look(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if host.asked.Load() != 5 || host.reaped.Load() != 1 {
			t.Errorf("asked %d times, looked for orphans %d times", host.asked.Load(), host.reaped.Load())
		}
		host.gone.Store(true)
		time.Sleep(6 * time.Second)
		if got, err := m.Look(t.Context()); err != nil || got.Reachable || got.MemoryTotal == 0 {
			t.Errorf("%+v %v", got, err)
		}
	})
}

func TestASystemThatSaysNothingOfItselfHasNoNumbers(t *testing.T) {
	m := NewWatch(&fakeHost{}, filepath.Join(t.TempDir(), "none"), time.Now, slog.New(slog.DiscardHandler))
	m.proc = t.TempDir()
	got, err := m.Look(t.Context())
	if err != nil || got.Load != 0 || got.MemoryTotal != 0 || got.DiskTotal != 0 || !got.Reachable {
		t.Errorf("%+v %v", got, err)
	}
}
