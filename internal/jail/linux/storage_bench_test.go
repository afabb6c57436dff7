//go:build linux

package linux

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// BenchmarkStorage reports the medians of making and removing a clone, in milliseconds, on each kind of storage. With
// zfs they are those of zfs-fuse where the kernel has no ZFS: programs are started, and a daemon mounts.
func BenchmarkStorage(b *testing.B) {
	b.Run(StorageOverlay, func(b *testing.B) { benchmarkStorage(b, newTestHost(b)) })
	b.Run(StorageBtrfs, func(b *testing.B) { benchmarkStorage(b, newBtrfsHost(b)) })
	b.Run(StorageZFS, func(b *testing.B) {
		if testenv.OnZFS(b) {
			benchmarkStorage(b, newZFSHost(b))
		}
	})
}

func benchmarkStorage(b *testing.B, h *testHost) {
	ctx := context.Background()
	var clone, unmount, destroy []time.Duration
	for b.Loop() {
		h.number++
		name := nameOf(b, h, h.number)
		began := time.Now()
		_, err := h.storage.Clone(ctx, name, jail.Spec{Template: "tiny"})
		must(b, err)
		clone = append(clone, time.Since(began))
		began = time.Now()
		must(b, h.storage.Unmount(ctx, name, false))
		unmount = append(unmount, time.Since(began))
		began = time.Now()
		for err = h.storage.Destroy(ctx, name); errors.Is(err, jail.ErrBusy); err = h.storage.Destroy(ctx, name) {
			time.Sleep(time.Millisecond)
		}
		must(b, err)
		destroy = append(destroy, time.Since(began))
	}
	for name, took := range map[string][]time.Duration{"clone": clone, "unmount": unmount, "destroy": destroy} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, name+"-ms")
	}
}
