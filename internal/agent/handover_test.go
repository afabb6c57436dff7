package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/store"
)

// movable are two machines whose agents keep their state where both reach it. takers are who takes agents of each.
func movable(t *testing.T) (l *land, first, second *machine, takers map[*machine][]string) {
	l, first, second, _ = machines(t)
	takers = map[*machine][]string{}
	for _, m := range []*machine{first, second} {
		m.o.Takers = func(context.Context) ([]string, error) { return takers[m], nil }
	}
	return l, first, second, takers
}

func TestTheAgentsOfAControlPlaneThatDrainsGoToAnother(t *testing.T) {
	l, first, second, takers := movable(t)
	move := func(m *machine) error { return m.moveAgents(l.ctx, map[agentKey]time.Time{}) }
	stand := func() {
		t.Helper()
		for _, m := range []*machine{first, second} {
			l.must(m.goOn(l.ctx, map[agentKey]time.Time{}))
			l.must(m.stand(l.ctx, map[agentKey]time.Time{}))
		}
	}
	runs := func(when string, onFirst, onSecond bool) {
		t.Helper()
		stand()
		if first.runs("a") != onFirst || second.runs("a") != onSecond {
			t.Errorf("%s: it runs on the first: %v, on the second: %v", when, first.runs("a"), second.runs("a"))
		}
	}
	leaving := func(when string, want int) {
		t.Helper()
		all, err := second.Leaving(l.ctx)
		if err != nil || all["n1"] != want || len(all) > want {
			t.Errorf("%s: %v leave, %v", when, all, err)
		}
	}
	_, err := first.Sync(l.ctx, l.admin, SyncRequest{Source: "clawbots.yml", Text: "clawbots: [{name: a}, {name: revoked}]", Dir: "/srv/bots/team"}, nil)
	l.must(err)
	l.must(l.who.RevokeAgent(l.ctx, l.admin, "default", "revoked"))
	stand()
	l.must(move(first))
	l.must(move(second))
	runs("while nobody drains", true, false)

	// The first drains. Its agent goes, and never runs on both.
	takers[first] = []string{"n2"}
	l.must(move(first))
	runs("given", false, false)
	leaving("given", 0)
	l.must(move(second))
	runs("taken", false, true)
	if of := first.keeper.token("a"); of == second.keeper.token("a") || second.keeper.token("a") == "" {
		t.Error("it has no token of its own")
	}
	if k, is := first.keeper.status("revoked"); !is || !k.Stopped {
		t.Error("one that may not run has gone as well")
	}
	takers[first] = nil
	l.must(move(first))
	l.must(move(second))
	runs("afterwards", false, true)
	node, err := first.otherNodeOf(l.ctx, "default", "a")
	if err != nil || node == nil || node.Name != "n2" {
		t.Errorf("it is at %+v, %v", node, err)
	}

	// Back, but the first drains before it has taken it: it goes on to whoever takes it then.
	takers[second] = []string{"n1"}
	l.must(move(second))
	takers[first], takers[second] = []string{"n2"}, nil
	l.must(move(first))
	l.must(move(second))
	runs("back and forth", false, true)

	// A jail that does not end is not given away; who waits is told that it has not gone. When nobody drains any more it stays as it is.
	takers[second] = []string{"n1"}
	second.keeper.step = func(op string) error {
		if op == "drop" {
			return errKilled
		}
		return nil
	}
	token := second.keeper.token("a")
	if err := move(second); err == nil {
		t.Error("it is given away, and its jail runs")
	}
	if all, err := first.Leaving(l.ctx); err != nil || all["n2"] != 1 {
		t.Errorf("%v leave, %v", all, err)
	}
	l.must(move(first))
	second.keeper.step, takers[second] = nil, nil
	l.must(move(second))
	runs("kept", false, true)
	if second.keeper.token("a") != token {
		t.Error("it was started anew")
	}
	if all, err := first.Leaving(l.ctx); err != nil || len(all) > 0 {
		t.Errorf("%v leave, %v", all, err)
	}

	// Cut between the end of its jail and the word that it is another's: it is started again where it was.
	l.must(second.markLeaving(l.ctx, "default"))
	l.must(second.keeper.Drop(l.ctx, "default", "a", jail.DropOptions{KeepState: true}))
	runs("cut", false, false)
	l.must(move(second))
	runs("after the cut", false, true)
}

// Where the state of agents is on the machine nothing goes anywhere, and of who is asked nothing is changed by a taker that cannot be asked.
func TestAgentsWhoseStateIsOnTheMachineStay(t *testing.T) {
	l, first, second, _ := machines(t)
	_, err := first.Declare(l.ctx, l.admin, "", func() (clawbots.Agent, error) { return clawbots.Agent{Name: "a"}, nil }, false, nil)
	l.must(err)
	l.must(first.moveAgents(l.ctx, map[agentKey]time.Time{}))
	l.must(second.moveAgents(l.ctx, map[agentKey]time.Time{}))
	first.o.Takers = func(context.Context) ([]string, error) { return nil, store.ErrNotFound }
	if err := first.moveAgents(l.ctx, map[agentKey]time.Time{}); err == nil || !first.runs("a") || second.runs("a") {
		t.Errorf("it went, and nobody could say to whom: %v", err)
	}
}

// Agents of one tenant are shared out, and tenants with one agent are, too.
func TestAgentsAreSharedOutAmongTakers(t *testing.T) {
	takers := []string{"n1", "n2", "n3"}
	of := map[string]int{}
	for n := range 9 {
		of[takerOf("acme", n, takers)]++
	}
	if of["n1"] != 3 || of["n2"] != 3 || of["n3"] != 3 {
		t.Errorf("nine agents go to %v", of)
	}
	firsts := map[string]int{}
	for n := range 60 {
		firsts[takerOf(fmt.Sprintf("tenant-%d", n), 0, takers)]++
	}
	if len(firsts) != 3 {
		t.Errorf("one agent each of 60 tenants goes to %v", firsts)
	}
	if to := takerOf("acme", 5, takers[:1]); to != "n1" {
		t.Errorf("the only taker is n1, not %s", to)
	}
}
