// Package pace finds out how slow a machine is now, and has limits of time grow with that, so that they catch what hangs and not
// what is slow.
//
// It promises that no limit grows by more than [Most], whatever is measured.
package pace

import (
	"context"
	"os/exec"
	"slices"
	"time"
)

const (
	// usualStart is what the start of a program that does nothing takes on an ordinary machine, with room: two milliseconds are
	// usual there, in an emulator it is twenty and more.
	usualStart = 4 * time.Millisecond
	// starts is how many are measured. The middle one counts, so that a moment in which the machine does something else does not.
	starts = 5
)

// Pace is how many times longer than on an ordinary machine things take. Less than 1 is not measured, and is 1.
type Pace float64

// Most is the largest factor by which a limit of time grows, so that no caller waits longer for something that hangs.
const Max Pace = 12

// Measure is the pace of this machine now, as the start of a program has it: 1 on an ordinary machine, more on one that is emulated
// or busy. It takes some milliseconds of an ordinary machine.
func Measure(ctx context.Context, now func() time.Time) Pace {
	file, err := exec.LookPath("/usr/bin/true")
	if err != nil {
		file = "/bin/true"
	}
	return measure(now, func() error {
		cmd := exec.CommandContext(ctx, file)
		cmd.Env, cmd.Dir = []string{}, "/"
		return cmd.Run()
	})
}

// measure is Measure for any start. A start that fails says nothing about the machine's speed.
func measure(now func() time.Time, start func() error) Pace {
	var took []time.Duration
	for range starts {
		began := now()
		if start() != nil {
			return 1
		}
		took = append(took, now().Sub(began))
	}
	slices.Sort(took)
	return min(max(Pace(took[starts/2])/Pace(usualStart), 1), Max)
}

// Longer is a limit of time of an ordinary machine, on one of this pace.
func (p Pace) Longer(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * float64(min(max(p, 1), Max))).Round(100 * time.Millisecond)
}

// Within is a context that ends after a limit of time of an ordinary machine. The pace is measured only when that has passed, and the
// context goes on for as long as the limit is then, Most times the limit at most. Its cause is what late says of that.
// The caller cancels it.
func Within(ctx context.Context, limit time.Duration, measure func(context.Context) Pace, late func(limit time.Duration) error) (context.Context, context.CancelFunc) {
	maximum := Max.Longer(limit)
	ctx, stop := context.WithTimeoutCause(ctx, maximum, late(maximum))
	within, end := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-within.Done():
			return
		case <-timer.C:
		}
		longer := measure(within).Longer(limit)
		timer.Reset(longer - limit)
		select {
		case <-within.Done():
		case <-timer.C:
			end(late(longer))
		}
	}()
	return within, func() {
		end(nil)
		stop()
		<-done
	}
}
