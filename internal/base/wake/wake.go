// Package wake has what goroutines wait for that have something to do later: a signal, time, and connections.
package wake

import (
	"context"
	"errors"
	"net"
	"time"
)

// Signal is received by one of those that wait for it. Signals that are sent while no receiver waits become one.
type Signal chan struct{}

// New makes a Signal.
func New() Signal { return make(Signal, 1) }

// Send does not wait.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default: // one is there that was not received yet
	}
}

// Closed says whether a channel that nothing is sent to is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
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

// Until asks again until the answer is yes, after a pause that is first so long, and then twice as long each time, but not longer than limit. It
// says false when ctx ended first.
func Until(ctx context.Context, first, limit time.Duration, yes func() bool) bool {
	for pause := first; !yes(); pause = min(2*pause, limit) {
		if !Sleep(ctx, pause) {
			return false
		}
	}
	return true
}

// Retry does something again while its errors are such, with the pauses of [Until], and returns the last one.
func Retry(ctx context.Context, first, limit time.Duration, again func(error) bool, do func() error) (err error) {
	Until(ctx, first, limit, func() bool {
		err = do()
		return err == nil || !again(err)
	})
	return err
}

// acceptPause is how long is waited when no connection can be taken. Asking at once does not help.
const acceptPause = 50 * time.Millisecond

// Accept waits for a connection until its listener is closed, or until stop. Any other error goes by, as a want of descriptors does: it is said once, and
// tried again.
func Accept[C net.Conn](accept func() (C, error), stop <-chan struct{}, say func(error)) (C, error) {
	for said := false; ; said = true {
		c, err := accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return c, err
		}
		if !said {
			say(err)
		}
		select {
		case <-time.After(acceptPause):
		case <-stop:
			return c, net.ErrClosed
		}
	}
}
