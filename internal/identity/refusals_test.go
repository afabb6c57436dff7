package identity

import (
	"strconv"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Who asks for what they may not, as often as they can, does not fill the audit log, and what is left out is counted there.
func TestWhoIsRefusedAllTheTimeDoesNotFillTheLog(t *testing.T) {
	w := newWorld(t)
	_, _, bot := w.agent("acme", "bot")
	_, _, twin := w.agent("acme", "twin")
	refused := func(p Principal, times int) (written int) {
		before := len(w.log.events)
		for range times {
			if err := w.Authorize(t.Context(), p, VaultStatus, ""); problem.CodeOf(err) != problem.Forbidden {
				t.Fatal(err)
			}
		}
		return len(w.log.events) - before
	}
	const left = 123
	if n := refused(bot, refusalsAtOnce+left); n != refusalsAtOnce {
		t.Errorf("%d refusals of one agent are written", n)
	}
	if n := refused(twin, 5); n != 5 {
		t.Errorf("%d of 5 refusals of another are written", n)
	}
	w.clock.move(time.Second)
	if n := refused(bot, 10); n != refusalsPerSecond {
		t.Errorf("a second later %d are written", n)
	}
	found := ""
	for _, e := range w.log.events {
		found += e.Facts["left_out"]
	}
	if found != strconv.Itoa(left) {
		t.Errorf("what was left out is said to be %q, and was %d", found, left)
	}
	// Of how many one remembers this is bounded.
	for n := range refusersMost + 10 {
		w.refusals.write(strconv.Itoa(n), w.clock.now())
	}
	if n := len(w.refusals.by); n != refusersMost {
		t.Errorf("%d are remembered", n)
	}
}
