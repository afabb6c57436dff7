package testenv

import (
	"testing"
	"time"
)

// pollEvery is short enough not to slow a test down, and long enough not to keep a core busy.
const pollEvery = 2 * time.Millisecond

// Eventually waits until cond is true, and fails the test when that takes longer than d. It asks at once, then again
// every 2 ms, and one last time when d is over. cond is called from the test's goroutine.
func Eventually(t testing.TB, d time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	if waitFor(d, cond) {
		return
	}
	t.Fatalf("not within "+d.String()+": "+format, args...)
}

func waitFor(d time.Duration, cond func() bool) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if cond() {
			return true
		}
		select {
		case <-deadline.C:
			return cond()
		case <-tick.C:
		}
	}
}
