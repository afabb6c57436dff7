// Package wake has a signal for a goroutine that waits until there is something to do.
package wake

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
