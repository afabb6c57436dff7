//go:build linux

package linux

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// median of some durations, in milliseconds.
func median(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Microseconds()) / 1000
}

// BenchmarkVolume makes a volume that never was, mounts it, and makes it again for the next jail. The figures are medians.
func BenchmarkVolume(b *testing.B) {
	h, _ := newAgentHost(b)
	ctx := context.Background()
	var fresh, kept []time.Duration
	for b.Loop() {
		spec := agentSpec(fmt.Sprintf("bot-%d", h.number))
		spec.Agent.State = 1 << 30
		for _, took := range []*[]time.Duration{&fresh, &kept} {
			p := h.place(b, spec)
			began := time.Now()
			if err := h.storage.Mount(ctx, p); err != nil {
				b.Fatal(err)
			}
			*took = append(*took, time.Since(began))
			h.end(b, p.Name, jail.Process{})
		}
	}
	b.ReportMetric(median(fresh), "fresh-ms")
	b.ReportMetric(median(kept), "kept-ms")
}

// BenchmarkTwentyAgents makes twenty jails with new volumes at once, without their networks, and destroys them.
func BenchmarkTwentyAgents(b *testing.B) {
	for _, runtime := range []string{RuntimeCrun, RuntimeRunc} {
		b.Run(runtime, func(b *testing.B) {
			testenv.Tool(b, runtime)
			h, root := newAgentHost(b, func(o *Options) { o.Runtime = runtime })
			if _, err := h.runtime.Ready(context.Background()); err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				var all sync.WaitGroup
				started := make([]jail.Placement, 20)
				for i := range started {
					h.number++
					number := h.number
					all.Go(func() {
						spec := agentSpec(fmt.Sprintf("bot-%d", number), jail.Mount{Source: root + "/team", Target: jail.WorkspaceDir})
						spec.Agent.State = 1 << 30
						p, err := h.makeAgent(spec, number)
						started[i] = p
						if err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
				took = append(took, time.Since(began))
				for _, p := range started {
					h.end(b, p.Name, jail.Process{})
				}
			}
			b.ReportMetric(median(took), "twenty-ms")
		})
	}
}

// makeAgent makes a jail up to the moment when its program begins.
func (h *testHost) makeAgent(spec jail.Spec, number int) (p jail.Placement, err error) {
	ctx := context.Background()
	p = jail.Placement{Spec: spec, Lease: jail.Lease{Index: number, UID: 210_000 + uint32(number)}}
	if p.Name, err = jail.NewName(spec.Kind, h.o.Installation, number); err != nil {
		return p, err
	}
	p.Profile = jail.ProfileFor(spec, p.Lease).With(h.runtime.Means())
	if p.Root, err = h.storage.Clone(ctx, p.Name, spec); err != nil {
		return p, err
	}
	if err := h.storage.Mount(ctx, p); err != nil {
		return p, err
	}
	if err := h.limiter.Apply(ctx, p.Name, spec.Tenant(), spec.Limits); err != nil {
		return p, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return p, err
	}
	defer func() { _ = null.Close() }()
	proc, err := h.runtime.Start(ctx, p, [3]*os.File{null, null, null})
	if err != nil {
		return p, err
	}
	o, err := h.runtime.Observe(ctx, p, proc)
	if err != nil {
		return p, err
	}
	if diff := p.Profile.Compare(o); len(diff) > 0 {
		return p, fmt.Errorf("not confined as declared: %q", diff)
	}
	return p, h.runtime.Begin(ctx, p, proc)
}

// BenchmarkExec measures from the call to the first byte that the program prints, and to its end. The figures are medians.
func BenchmarkExec(b *testing.B) {
	for _, runtime := range []string{RuntimeCrun, RuntimeRunc} {
		b.Run(runtime, func(b *testing.B) {
			testenv.Tool(b, runtime)
			h, _ := newAgentHost(b, func(o *Options) { o.Runtime = runtime })
			j := h.startAgent(b, agentSpec("one"), nil)
			var first, end []time.Duration
			for b.Loop() {
				r, w, err := os.Pipe()
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now()
				x, err := h.runtime.Exec(context.Background(), j.place, j.proc, shell("echo x"), [3]*os.File{nil, w, nil})
				if err != nil {
					b.Fatal(err)
				}
				var one [1]byte
				if _, err := r.Read(one[:]); err != nil {
					b.Fatal(err)
				}
				first = append(first, time.Since(began))
				if _, err := x.Wait(context.Background()); err != nil {
					b.Fatal(err)
				}
				end = append(end, time.Since(began))
				_, _ = r.Close(), w.Close()
			}
			b.ReportMetric(median(first), "first-byte-ms")
			b.ReportMetric(median(end), "ended-ms")
		})
	}
}
