package testenv

import (
	"testing"
	"time"
)

// The pauses between two looks begin short, not to slow a test down, and grow, not to keep a core busy: what is asked may
// be a whole command or a walk through a folder.
const firstPause, longestPause = 2 * time.Millisecond, 50 * time.Millisecond

// Patience is by how much a deadline that only catches what hangs is longer than it takes on a machine that has the time.
const Patience = 4

// Eventually waits until cond is true, and fails the test when that takes longer than [Patience] times d. It asks at once, then again
// after growing pauses of 2 to 50 ms, and one last time when the time is over. cond is called from the test's goroutine.
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
	for pause := firstPause; !cond(); pause = min(pause*3/2, longestPause) {
		select {
		case <-deadline.C:
			return cond()
		case <-time.After(pause):
		}
	}
	return true
}
