//go:build linux

package linux

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// BenchmarkJail reports the median of every stage of a jail's life in milliseconds. The run directory is on a tmpfs, as
// it is on every host with systemd.
func BenchmarkJail(b *testing.B) {
	for _, runtime := range []string{RuntimeCrun, RuntimeRunc} {
		b.Run(runtime, func(b *testing.B) {
			dir, err := os.MkdirTemp("/dev/shm", "clawjail-bench-")
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					b.Error(err)
				}
			})
			h := newTestHost(b, func(o *Options) { o.Runtime, o.RunDir = runtime, dir })
			if _, err := h.runtime.Ready(context.Background()); err != nil {
				b.Fatal(err)
			}
			stages := map[string][]time.Duration{}
			stage := func(name string, f func() error) {
				b.Helper()
				began := time.Now()
				if err := f(); err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				stages[name] = append(stages[name], time.Since(began))
			}
			for b.Loop() {
				measureOne(b, h, stage)
			}
			for name, took := range stages {
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, name+"-ms")
			}
		})
	}
}

func measureOne(b *testing.B, h *testHost, stage func(string, func() error)) {
	b.Helper()
	ctx := context.Background()
	h.number++
	spec := probeSpec(jail.KindBrowser)
	name, err := jail.NewName(spec.Kind, h.o.Installation, h.number)
	if err != nil {
		b.Fatal(err)
	}
	p := jail.Placement{Name: name, Spec: spec, Lease: jail.Lease{Index: h.number, UID: 210_000}}
	p.Profile = jail.ProfileFor(spec, p.Lease).With(h.runtime.Means())
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _, _, _ = null.Close(), in.Close(), out.Close() }()
	var proc jail.Process
	stage("clone", func() (err error) { p.Root, err = h.storage.Clone(ctx, name, spec); return err })
	stage("limit", func() error { return h.limiter.Apply(ctx, name, spec.Tenant(), spec.Limits) })
	stage("start", func() (err error) {
		proc, err = h.runtime.Start(ctx, p, [3]*os.File{in, null, null})
		return err
	})
	stage("verify", func() error { _, err := h.runtime.Observe(ctx, p, proc); return err })
	stage("begin", func() error { return h.runtime.Begin(ctx, p, proc) })
	stage("usage", func() error { _, err := h.limiter.Usage(ctx, name, proc); return err })
	stage("kill", func() error { return h.runtime.Kill(ctx, name, proc) })
	stage("unmount", func() error { return h.storage.Unmount(ctx, name, false) })
	stage("stop", func() error { return h.runtime.Stop(ctx, name) })
	stage("unlimit", func() error { return h.limiter.Remove(ctx, name) })
	stage("destroy", func() error { return h.storage.Destroy(ctx, name) })
}
