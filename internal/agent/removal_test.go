package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
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
		l.must(l.goOn(l.ctx, map[agentKey]time.Time{}))
		agents, err := l.byName(l.ctx)
		l.must(err)
		kept, err := l.keptOf(l.ctx, "default")
		l.must(err)
		declared, err = l.declarations(l.ctx, "default")
		l.must(err)
		_, isAgent := agents[agentKey{"default", "bot"}]
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

// A new agent whose making is killed after any of its steps is whole or gone, without anybody asking again.
func TestAnAgentWhoseMakingIsKilledAnywhereIsWholeOrGone(t *testing.T) {
	l := newLand(t)
	whole, gone, unfinished := 0, 0, 0
	for at := 0; ; at++ {
		l.begin()
		l.kill(at)
		_, err := l.declare(clawbots.Agent{Name: "bot", Allow: []clawbots.Rule{{Target: "example.com"}}}, false)
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		done := err == nil
		l.begin()
		before, err := l.List(l.ctx, l.admin, "")
		l.must(err)
		if slices.ContainsFunc(before, func(s Status) bool { return s.Unfinished }) {
			unfinished++
		}
		l.must(l.goOn(l.ctx, map[agentKey]time.Time{}))
		all, err := l.List(l.ctx, l.admin, "")
		l.must(err)
		declared, err := l.declarations(l.ctx, "default")
		l.must(err)
		switch {
		case len(all) == 1 && all[0].ID != "" && all[0].Jail != nil && !all[0].Unfinished && declared["bot"].Done:
			whole++
		case len(all) == 0 && len(declared) == 0 && !done:
			gone++
		default:
			t.Errorf("killed at step %d: %+v", at, all)
		}
		if done {
			break
		}
		if len(all) > 0 {
			l.must(l.RemoveAgent(l.ctx, l.admin, "", "bot", RemoveOptions{}))
		}
	}
	if whole < 2 || gone < 5 || unfinished < 5 {
		t.Errorf("%d were whole, %d gone and %d unfinished: this shows little", whole, gone, unfinished)
	}
}

// The jails of a tenant may outlive it: the database may be an older one.
func TestAKeptJailOfATenantThatDoesNotExistCanBeRemoved(t *testing.T) {
	before := newLand(t)
	acme := before.operator("acme", identity.RoleAdmin)
	_, err := before.Sync(before.ctx, acme, SyncRequest{Source: "clawbots.yml", Text: "clawbots: [{name: bot}]", Dir: "/srv/bots/team"}, nil)
	before.must(err)
	l := newLand(t, func(o *Options) { o.Keeper = before.keeper })
	kept := func() int {
		all, err := l.keptOf(l.ctx, "acme")
		l.must(err)
		return len(all)
	}
	if kept() != 1 {
		t.Fatalf("%d jails are kept: the test would show nothing", kept())
	}
	remove := func(by identity.Principal, name string) error {
		return l.RemoveAgent(l.ctx, by, "acme", name, RemoveOptions{})
	}
	l.wantCode("by a stranger", remove(l.operator("rival", identity.RoleAdmin), "bot"), problem.NotFound)
	if err := remove(l.admin, "other"); problem.CodeOf(err) != problem.NotFound || !strings.Contains(err.Error(), `no tenant "acme"`) {
		t.Errorf("an agent that is not there: %v", err)
	}
	if kept() != 1 {
		t.Error("it is gone by those who may not remove it")
	}
	l.must(remove(l.admin, "bot"))
	if kept() != 0 {
		t.Error("it is there still")
	}
}

// What somebody else has made stays: an identity that was there before, or has come meanwhile, and what another node is making.
func TestWhatOthersHaveMadeIsNotTakenBack(t *testing.T) {
	l := newLand(t)
	failing := problem.New(problem.DiskFull, "", "the host daemon has no room")
	l.keeper.step = func(op string) error {
		if op == "keep" {
			return failing
		}
		return nil
	}
	_, _, err := l.who.CreateAgent(l.ctx, l.admin, "default", "before", identity.NeverExpires)
	l.must(err)
	for _, name := range []string{"before", "new", "meanwhile", "elsewhere"} {
		_, err := l.declare(clawbots.Agent{Name: name}, false)
		l.wantCode(name, err, problem.DiskFull)
		declared, err := l.declarations(l.ctx, "default")
		l.must(err)
		switch d := declared[name]; name {
		case "meanwhile":
			l.must(l.db.DeleteAgent(l.ctx, d.ID))
			_, _, err := l.who.CreateAgent(l.ctx, l.admin, "default", name, identity.NeverExpires)
			l.must(err)
		case "elsewhere":
			d.Maker = "n2"
			l.must(l.put(l.ctx, "default", d))
		}
	}
	l.must(l.goOn(l.ctx, map[agentKey]time.Time{}))
	agents, err := l.byName(l.ctx)
	l.must(err)
	var are []string
	for at := range agents {
		are = append(are, at.name)
	}
	slices.Sort(are)
	if want := []string{"before", "elsewhere", "meanwhile"}; !slices.Equal(are, want) {
		t.Errorf("there are %v, want %v", are, want)
	}
	// And it can be finished.
	l.keeper.step = l.step
	for _, name := range []string{"before", "new", "meanwhile", "elsewhere"} {
		_, err := l.declare(clawbots.Agent{Name: name}, false)
		l.must(err)
	}
	all, err := l.List(l.ctx, l.admin, "")
	l.must(err)
	if len(all) != 4 || slices.ContainsFunc(all, func(s Status) bool { return s.Unfinished || s.Jail == nil || s.ID == "" }) {
		t.Errorf("they are %+v", all)
	}
}
