package testenv

import (
	"sync"
	"time"
)

// Clock stands still until a test moves it.
type Clock struct {
	mu sync.Mutex
	at time.Time
}

// NewClock is at a time.
func NewClock(at time.Time) *Clock { return &Clock{at: at} }

// Now is the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// Forward moves it.
func (c *Clock) Forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}
