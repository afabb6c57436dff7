package doctor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
