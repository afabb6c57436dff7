package cli

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestStatusWaitsForASlowMachine(t *testing.T) {
	for slow, want := range map[pace.Pace]string{1: problem.Timeout, 5: ""} {
		synctest.Test(t, func(t *testing.T) {
			s, err := soon(t.Context(), statusLimit, func(context.Context) pace.Pace { return slow }, func(ctx context.Context) (health.Status, error) {
				select {
				case <-time.After(4 * statusLimit):
					return health.Status{ControlPlane: true}, nil
				case <-ctx.Done():
					return health.Status{}, ctx.Err()
				}
			})
			if problem.CodeOf(err) != want || s.ControlPlane != (want == "") {
				t.Errorf("at the pace %v: %+v, %v", slow, s, err)
			}
		})
	}
}
