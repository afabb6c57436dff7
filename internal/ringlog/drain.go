package ringlog

import (
	"os"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxDrain is how much is moved at once.
	maxDrain = 256 << 10
	// drainRate and drainBurst are how many bytes a second are taken from a pipe, and how many at once after a rest. Taking
	// any costs as much as drainCost bytes. The log's keeper does that work, and the program that prints is not charged.
	drainRate, drainBurst = 8 << 20, 8 << 20
	drainCost             = 16 << 10
)

// Drain moves what comes out of a pipe with Splice, until its other end is closed, or from is closed or past its deadline. A
// program that prints more than 8 MiB, or more often than 512 times a second, waits when its pipe is full.
func (l *Log) Drain(from *os.File) error {
	pace := rate.NewLimiter(drainRate, drainBurst)
	for {
		n, err := l.Splice(from, maxDrain)
		if err != nil {
			return err
		}
		time.Sleep(pace.ReserveN(time.Now(), int(n)+drainCost).Delay())
	}
}
