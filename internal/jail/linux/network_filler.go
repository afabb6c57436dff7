//go:build linux

package linux

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/problem"
)

// After a slot could not be made the filler pauses, twice as long each time.
const (
	fillerFirstPause = 250 * time.Millisecond
	fillerLastPause  = 30 * time.Second
)

// Start begins to make slots ahead. It is called once, after the leases of the journal were claimed.
func (n *Network) Start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ready == 0 || n.closed || n.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	n.filler.Add(1)
	go func() {
		defer n.filler.Done()
		n.fill(ctx)
	}()
}

// refill tells the filler that a slot is missing. It never waits.
func (n *Network) refill() { n.wake.Send() }

// fill keeps the queue full until its context ends. One slot at a time: the kernel does this work under one lock
// anyway, and the jail that is starting at this moment needs that lock too.
func (n *Network) fill(ctx context.Context) {
	pause := fillerFirstPause
	for ctx.Err() == nil {
		if n.Prepared() >= n.ready {
			select {
			case <-ctx.Done():
			case <-n.wake:
			}
			continue
		}
		err := n.fillOne(ctx)
		if err == nil {
			pause = fillerFirstPause
			continue
		}
		if ctx.Err() != nil {
			return
		}
		// An exhausted pool is told to whoever asks for a jail; here it only means waiting.
		if problem.CodeOf(err) != problem.PoolExhausted {
			n.log.Warn("a network slot could not be made ahead", "error", err, "again_in", pause)
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, fillerLastPause)
	}
}

func (n *Network) fillOne(ctx context.Context) error {
	l, err := n.prepare(ctx, slotMaking)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.states[l.Index] = slotReady
	n.queue = append(n.queue, l)
	return nil
}
