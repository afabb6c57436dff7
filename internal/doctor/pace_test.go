package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheMachinesPaceIsThatOfItsPrograms(t *testing.T) {
	for name, test := range map[string]struct {
		takes []time.Duration
		err   error
		want  float64
	}{
		"an ordinary machine":      {[]time.Duration{1, 2, 1, 3, 2}, nil, 1},
		"one that was busy once":   {[]time.Duration{2, 900, 1, 800, 2}, nil, 1},
		"one in an emulator":       {[]time.Duration{20, 24, 20, 900, 18}, nil, 5},
		"one that hardly moves":    {[]time.Duration{3000, 3000, 3000, 3000, 3000}, nil, mostPace},
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
	if got := Pace(t.Context(), time.Now); got < 1 || got > mostPace {
		t.Errorf("this machine has the pace %v", got)
	}
}

func TestLimitsOfTimeGrowWithTheMachine(t *testing.T) {
	for _, name := range []string{"it", rendererCheck} {
		synctest.Test(t, func(t *testing.T) {
			e := &exam{Options{Pace: 3}, Host{}}
			began := time.Now()
			told := time.Duration(0)
			e.Slow = func(_ string, bound time.Duration) { told = bound }
			r := e.examine(t.Context(), check{name, false, func(ctx context.Context, _ *exam) Result {
				<-ctx.Done()
				return failed(ctx.Err())
			}})
			want := 3 * (check{name: name}).bound()
			if took := time.Since(began); took != want || told != want || r.Status != Fail {
				t.Errorf("%s ended after %s, and %s was told: %+v", name, took, told, r)
			}
		})
	}
	var text strings.Builder
	if err := (Report{Pace: 3}).Write(&text, false); err != nil || !strings.Contains(text.String(), "3 times") {
		t.Errorf("the report does not say it: %v, %s", err, text.String())
	}
	text.Reset()
	if err := (Report{Pace: 1}).Write(&text, false); err != nil || strings.Contains(text.String(), "times") {
		t.Errorf("of an ordinary machine the report says %s, %v", text.String(), err)
	}
}
