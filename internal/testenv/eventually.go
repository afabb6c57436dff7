package testenv

import (
	"testing"
	"time"
)

// pollEvery is short enough not to slow a test down, and long enough not to keep a core busy.
const pollEvery = 2 * time.Millisecond

// Patience is by how much a deadline that only catches what hangs is longer than it takes on a machine that has the time.
const Patience = 4

// Eventually waits until cond is true, and fails the test when that takes longer than [Patience] times d. It asks at once, then again
// every 2 ms, and one last time when d is over. cond is called from the test's goroutine.
func Eventually(t testing.TB, d time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	if waitFor(Patience*d, cond) {
		return
	}
	t.Fatalf("not within "+(Patience*d).String()+": "+format, args...)
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
