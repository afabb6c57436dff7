// Package wake has what goroutines wait for that have something to do later: a signal, and time.
package wake

import (
	"context"
	"time"
)

// Signal is received by one of those who wait for it. What is sent while nobody receives it is one signal.
type Signal chan struct{}

// New makes a Signal.
func New() Signal { return make(Signal, 1) }

// Send does not wait.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default: // there is one that nobody has received
	}
}

// Sleep waits for so long, and says false when ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
