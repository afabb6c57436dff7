package pace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheMachinesPaceIsThatOfItsPrograms(t *testing.T) {
	for name, test := range map[string]struct {
		takes []time.Duration
		err   error
		want  Pace
	}{
		"an ordinary machine":      {[]time.Duration{1, 2, 1, 3, 2}, nil, 1},
		"one that was busy once":   {[]time.Duration{2, 900, 1, 800, 2}, nil, 1},
		"one in an emulator":       {[]time.Duration{20, 24, 20, 900, 18}, nil, 5},
		"one that hardly moves":    {[]time.Duration{3000, 3000, 3000, 3000, 3000}, nil, Max},
		"one where nothing starts": {[]time.Duration{900, 900, 900, 900, 900}, errors.New("it does not start"), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			if got := measure(time.Now, func() error {
				time.Sleep(test.takes[n] * time.Millisecond)
				n++
				return test.err
			}); got != test.want {
				t.Errorf("%s has the pace %v, want %v", name, got, test.want)
			}
		})
	}
	if got := Measure(t.Context(), time.Now); got < 1 || got > Max {
		t.Errorf("this machine has the pace %v", got)
	}
}

func TestNoLimitGrowsBeyondItsBound(t *testing.T) {
	for p, want := range map[Pace]time.Duration{0: time.Minute, -3: time.Minute, 1: time.Minute, 2.5: 150 * time.Second, Max: 12 * time.Minute, 900: 12 * time.Minute} {
		if got := p.Longer(time.Minute); got != want {
			t.Errorf("at the pace %v a minute is %s, want %s", p, got, want)
		}
	}
}

func TestALimitGrowsWhenItHasPassedAndTheMachineIsSlow(t *testing.T) {
	for name, test := range map[string]struct {
		pace      Pace
		measuring time.Duration
		want      time.Duration
	}{
		"an ordinary machine":                      {1, 0, time.Minute},
		"a slow one":                               {3, 0, 3 * time.Minute},
		"one that hardly moves":                    {900, 0, 12 * time.Minute},
		"one where the measurement does not end":   {1, time.Hour, 12 * time.Minute},
		"one where it takes longer than the limit": {Max, 5 * time.Minute, 12 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, measured := time.Now(), 0
			late := func(limit time.Duration) error { return errors.New("not within " + limit.String()) }
			ctx, cancel := Within(t.Context(), time.Minute, func(ctx context.Context) Pace {
				measured++
				select {
				case <-time.After(test.measuring):
				case <-ctx.Done():
				}
				return test.pace
			}, late)
			defer cancel()
			<-ctx.Done()
			if took := time.Since(began); took != test.want || context.Cause(ctx).Error() != "not within "+test.want.String() || measured != 1 {
				t.Errorf("%s: it ended after %s, and says %v; measured %d times", name, took, context.Cause(ctx), measured)
			}
		})
	}
}

func TestWhatEndsInTimeIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := Within(t.Context(), time.Minute, func(context.Context) Pace {
			t.Error("it is measured")
			return 1
		}, func(time.Duration) error { return errors.New("late") })
		time.Sleep(59 * time.Second)
		cancel()
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("its cause is %v", context.Cause(ctx))
		}
	})
}
