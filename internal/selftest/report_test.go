package selftest

import (
	"testing"
	"time"
)

func TestASummaryTakesTheNearestRank(t *testing.T) {
	for n, want := range map[int]Stage{
		1: {P50: 1, P95: 1, Max: 1}, 2: {P50: 1, P95: 2, Max: 2}, 3: {P50: 2, P95: 3, Max: 3}, 20: {P50: 10, P95: 19, Max: 20}, 100: {P50: 50, P95: 95, Max: 100},
	} {
		var times []time.Duration
		for i := range n {
			times = append(times, time.Duration(n-i)*time.Millisecond)
		}
		if got := summary(times); got != want {
			t.Errorf("of %d: %+v, want %+v", n, got, want)
		}
	}
}
