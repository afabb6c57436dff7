//go:build linux

package main

import (
	"maps"
	"slices"
	"testing"
)

const printed = `goos: linux
goarch: amd64
pkg: github.com/clawjail/clawjail/internal/jail/linux
=== RUN   BenchmarkJail
BenchmarkJail
BenchmarkJail/crun
BenchmarkJail/crun-2 	       1	 239521785 ns/op	         0.2980 clone-ms
--- BENCH: BenchmarkJail/crun-2
    time=2026-11-22T22:38:08.279Z level=INFO msg="OCI runtime" runtime=/usr/bin/crun
BenchmarkFirewallAdd
BenchmarkFirewallAdd-2   	      43	       114.6 p50-µs	       577.1 p95-µs
--- SKIP: BenchmarkFirewallAdd
BenchmarkStorage/overlay-2   	     100	   6805107 ns/op	  25.50 MB/s	     222 B/op	       4 allocs/op
BenchmarkStorage/zfs
    storage_bench_test.go:22: there is no zfs
--- SKIP: BenchmarkStorage/zfs
    storage_bench_test.go:22: there is no zfs
PASS
`

func TestWhatGoBenchmarksPrintBecomesFigures(t *testing.T) {
	values, units, skipped := printedBy("internal/jail/linux", printed+printed) // in two rounds
	want := map[string]struct {
		unit  string
		value float64
	}{
		"start: Go, jail/linux Jail/crun":            {"ns", 239521785},
		"start: Go, jail/linux Jail/crun, clone":     {"ms", 0.298},
		"network: Go, jail/linux FirewallAdd, p50":   {"µs", 114.6},
		"network: Go, jail/linux FirewallAdd, p95":   {"µs", 577.1},
		"clones: Go, jail/linux Storage/overlay":     {"ns", 6805107},
		"clones: Go, jail/linux Storage/overlay, MB": {"MB/s", 25.5},
	}
	for name, w := range want {
		if got := values[name]; !slices.Equal(got, []float64{w.value, w.value}) || units[name] != w.unit {
			t.Errorf("%s: %v %s", name, got, units[name])
		}
	}
	if len(values) != len(want) {
		t.Errorf("figures: %q", slices.Sorted(maps.Keys(values)))
	}
	if want := map[string]string{"clones: Go, jail/linux Storage/zfs": "storage_bench_test.go:22: there is no zfs"}; !maps.Equal(skipped, want) {
		t.Errorf("left out: %q", skipped)
	}
}

func TestBenchmarkIsOfTheSubjectOfItsPackage(t *testing.T) {
	for full, want := range map[[2]string]string{
		{"internal/hostd", "Call"}:           "start: Go, hostd Call",
		{"internal/hostd/agents", "X"}:       "agents: Go, hostd/agents X",
		{"internal/browser", "SnapshotAI"}:   "snapshot: Go, browser SnapshotAI",
		{"internal/new", "Something"}:        "new: Go, new Something",
		{"internal/policy/redact", "Stream"}: "gateway: Go, policy/redact Stream",
	} {
		if got := goName(full[0], full[1]); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}
