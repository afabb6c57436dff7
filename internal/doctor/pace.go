package doctor

import (
	"context"
	"slices"
	"time"
)

const (
	// usualStart is what the start of a program that does nothing takes on an ordinary machine, with room: two milliseconds are
	// usual there, in an emulator it is twenty and more.
	usualStart = 4 * time.Millisecond
	// starts is how many are measured. The middle one counts, so that a moment in which the machine does something else does not.
	starts = 5
	// mostPace is the most by which a limit of time grows: nobody waits longer for a check that hangs.
	mostPace = 12
)

// Pace is how many times longer than usual this machine takes now, as the start of a program does: 1 on an ordinary machine, more on
// one that is emulated or busy. Limits of time grow with it.
func Pace(ctx context.Context, now func() time.Time) float64 {
	return measure(now, func() error {
		_, err := command(ctx, "true")
		return err
	})
}

// measure is Pace for any start. A start that fails says nothing about the machine's speed.
func measure(now func() time.Time, start func() error) float64 {
	var took []time.Duration
	for range starts {
		began := now()
		if start() != nil {
			return 1
		}
		took = append(took, now().Sub(began))
	}
	slices.Sort(took)
	return min(max(float64(took[starts/2])/float64(usualStart), 1), mostPace)
}

// longer is a limit of time of an ordinary machine, on one of this pace. Less than 1 is not measured, and is 1.
func longer(limit time.Duration, pace float64) time.Duration {
	return time.Duration(float64(limit) * min(max(pace, 1), mostPace)).Round(100 * time.Millisecond)
}
