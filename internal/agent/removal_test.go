package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// A removal that is killed after any of its steps leaves an agent that is whole, or one that goes without anybody asking again.
func TestARemovalThatIsKilledAnywhereLeavesAllOrNothing(t *testing.T) {
	l := newLand(t)
	whole, finished := 0, 0
	for at := 0; ; at++ {
		l.begin()
		_, err := l.sync("clawbots: [{name: bot, allow: [example.com]}, {name: other}]")
		l.must(err)
		l.kill(at)
		err = l.RemoveAgent(l.ctx, l.admin, "", "bot", RemoveOptions{})
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		done := err == nil
		l.begin()
		declared, err := l.declarations(l.ctx, "default")
		l.must(err)
		d := declared["bot"]
		begun := d == nil || d.Removing != nil
		l.must(l.goOn(l.ctx, map[whose]time.Time{}))
		agents, err := l.byName(l.ctx)
		l.must(err)
		kept, err := l.keptOf(l.ctx, "default")
		l.must(err)
		declared, err = l.declarations(l.ctx, "default")
		l.must(err)
		_, isAgent := agents[whose{"default", "bot"}]
		_, isKept := kept["bot"]
		d = declared["bot"]
		is := fmt.Sprint(isAgent, isKept, d != nil && d.Done)
		switch {
		case is == "true true true" && !begun:
			whole++
		case is == "false false false" && d == nil && begun:
			finished++
		default:
			t.Errorf("killed at step %d: there are identity, jail and declaration: %s", at, is)
		}
		if len(agents) == 0 || len(kept) == 0 {
			t.Fatal("another agent is gone")
		}
		if done {
			break
		}
	}
	if whole == 0 || finished < 3 {
		t.Errorf("%d were whole and %d gone: this shows little", whole, finished)
	}
}
