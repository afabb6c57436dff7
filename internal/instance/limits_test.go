package instance

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
)

func TestASlowMachinesInstanceIsWaitedFor(t *testing.T) {
	for slow, want := range map[pace.Pace]string{0: "not ready after 30s", 1: "not ready after 30s", 3: ""} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			i := &Instance{Options: Options{Pace: slow}}
			err := i.await(t.Context(), nil, func(context.Context) bool { return time.Since(began) > 80*time.Second })
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("at the pace %v: %v, want %q", slow, err, want)
			}
		})
	}
}
