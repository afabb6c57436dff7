package jail

import (
	"testing"
	"time"
)

// A program that keeps ending is in a loop while it does, and is out of it once it runs or somebody has stopped it.
func TestACrashLoopIsOneWhileItLasts(t *testing.T) {
	now := time.Now()
	for what, c := range map[string]struct {
		status KeptStatus
		want   int
	}{
		"two ends":                 {KeptStatus{Phase: PhaseWaiting, Crashes: 2}, 0},
		"three, and it waits":      {KeptStatus{Phase: PhaseWaiting, Crashes: 3}, 3},
		"it runs for a moment":     {KeptStatus{Phase: PhaseRunning, Crashes: 7, Since: now.Add(-time.Second)}, 7},
		"it has run for long":      {KeptStatus{Phase: PhaseRunning, Crashes: 7, Since: now.Add(-SteadyRun)}, 0},
		"somebody has stopped it":  {KeptStatus{Phase: PhaseStopped, Crashes: 7}, 0},
		"many restarts, long runs": {KeptStatus{Phase: PhaseRunning, Restarts: 50, Since: now}, 0},
	} {
		if got := c.status.CrashLoop(now); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
	for want, x := range map[string]Exit{
		"status 3": {Code: 3, Cause: CauseExited}, "signal killed": {Code: -1, Signal: "killed", Cause: CauseExited},
		"out of memory": {Code: -1, Signal: "killed", Cause: CauseMemory, Hit: []LimitName{LimitMemory}}, "nobody knows how": {Code: -1},
		"its time was over":                        {Code: -1, Signal: "killed", Cause: CauseWallClock},
		"status 1, at its limit of tasks and disk": {Code: 1, Cause: CauseExited, Hit: []LimitName{LimitTasks, LimitDisk}},
		"out of memory, at its limit of tasks":     {Code: 1, Cause: CauseMemory, Hit: []LimitName{LimitMemory, LimitTasks}},
	} {
		if got := x.Words(); got != want {
			t.Errorf("%+v is %q, want %q", x, got, want)
		}
	}
}
