package agent

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// machine is one of several that share the database of a land.
type machine struct {
	*Service
	keeper *memoryKeeper
}

// machines are two, with the names n1 and n2. change changes what the database says of a control plane.
func machines(t *testing.T) (l *land, first, second *machine, change func(name string, f func(*store.Node))) {
	nodes := map[string]*store.Node{}
	change = func(name string, f func(*store.Node)) {
		if nodes[name] == nil {
			nodes[name] = &store.Node{Name: name}
		}
		f(nodes[name])
	}
	for _, name := range []string{"n1", "n2"} {
		change(name, func(*store.Node) {})
	}
	var options Options
	l = newLand(t, func(o *Options) {
		o.Nodes = func(context.Context) (all []store.Node, err error) {
			for _, n := range nodes {
				all = append(all, *n)
			}
			return all, nil
		}
		options = *o
	})
	keeper := newMemoryKeeper()
	options.Node, options.Keeper, options.Gateway, options.Dir = "n2", keeper, &gate{callers: map[netip.Addr]gateway.Caller{}}, filepath.Join(l.dir, "n2")
	other, err := New(options)
	l.must(err)
	t.Cleanup(func() { l.must(other.Close(l.ctx)) })
	return l, &machine{l.Service, l.keeper}, &machine{other, keeper}, change
}

func (m *machine) runs(name string) bool {
	k, is := m.keeper.status(name)
	return is && !k.Stopped
}

func TestAnAgentIsOnOneMachine(t *testing.T) {
	l, first, second, change := machines(t)
	sync := func(m *machine, text string, change ...func(*SyncRequest)) (Plan, error) {
		r := SyncRequest{Source: "clawbots.yml", Text: text, Dir: "/srv/bots/team"}
		for _, f := range change {
			f(&r)
		}
		return m.Sync(l.ctx, l.admin, r, nil)
	}
	look := func(m *machine) {
		l.must(m.goOn(l.ctx, map[agentKey]time.Time{}))
		l.must(m.stand(l.ctx, map[agentKey]time.Time{}))
	}
	plan, err := sync(first, "clawbots: [{name: a}, {name: shared}]")
	l.want("the first", plan, err, "create a", "create shared")
	plan, err = sync(second, "clawbots: [{name: b}]")
	l.want("the second", plan, err, "create b")

	// The file of one machine says nothing of the agents of another.
	plan, err = sync(second, "clawbots: [{name: b}]", prune)
	l.want("the second, which prunes", plan, err, "unchanged b")
	look(first)
	look(second)
	if !first.runs("a") || !first.runs("shared") || !second.runs("b") || second.runs("a") || first.runs("b") {
		t.Error("they do not run where they were made")
	}
	all, err := second.List(l.ctx, l.admin, "")
	l.must(err)
	for _, s := range all {
		if want := map[string]string{"a": "n1", "shared": "n1"}[s.Name]; s.Node != want || (s.Jail == nil) != (want != "") || s.Unfinished {
			t.Errorf("the second lists %+v", s)
		}
	}

	// Everything that would be done to its jail is refused, and says where to ask. The machine that has it does it.
	for what, do := range map[string]func(m *machine) error{
		"sync": func(m *machine) error { _, err := sync(m, "clawbots: [{name: a}]", dryRun); return err },
		"declare": func(m *machine) error {
			_, err := m.Declare(l.ctx, l.admin, "", func() (clawbots.Agent, error) { return clawbots.Agent{Name: "a"}, nil }, true, nil)
			return err
		},
		"adopt":    func(m *machine) error { _, err := sync(m, "clawbots: [{name: a}]", dryRun, adopt); return err },
		"restart":  func(m *machine) error { return m.RestartAgent(l.ctx, l.admin, "", "a") },
		"token":    func(m *machine) error { return m.RotateToken(l.ctx, l.admin, "", "a", time.Minute) },
		"type":     func(m *machine) error { _, err := m.Type(l.ctx, l.admin, "", "a", "", []byte("x")); return err },
		"log":      func(m *machine) error { _, err := m.ReadLog(l.ctx, l.admin, jail.LogRequest{Name: "a"}); return err },
		"programs": func(m *machine) error { _, err := m.Processes(l.ctx, l.admin, "", "a"); return err },
	} {
		err := do(second)
		if err == nil || !strings.Contains(err.Error(), "on the machine of the control plane n1") {
			t.Errorf("%s at the other: %v", what, err)
		}
		l.must(do(first))
	}
	l.wantCode("remove", second.RemoveAgent(l.ctx, l.admin, "", "a", RemoveOptions{}), problem.Conflict)
	if _, err := l.db.Agent(l.ctx, "default", "a"); err != nil {
		t.Errorf("what was refused has removed its identity: %v", err)
	}

	// Who is asked for it forwards that to its control plane, while that can be asked.
	node := func(what string, m *machine, name, want string) {
		t.Helper()
		got, err := m.NodeOf(l.ctx, "default", name)
		if err != nil || got != want {
			t.Errorf("%s: %s is at %q, want %q: %v", what, name, got, want, err)
		}
	}
	node("without an address", second, "a", "")
	change("n1", func(n *store.Node) { n.PeerAddress = "10.0.0.1:18790" })
	node("with one", second, "a", "n1")
	node("its own", second, "b", "")
	node("that of nobody", second, "nobody", "")
	node("where it is", first, "a", "")
	change("n1", func(n *store.Node) { n.LostAt = l.clock() })
	node("lost", second, "a", "")
	change("n1", func(n *store.Node) { *n = store.Node{Name: "n1"} })

	// A machine that does not come back.
	for name, set := range map[string]func(*store.Node){
		"lost":    func(n *store.Node) { n.LostAt = l.clock() },
		"stopped": func(n *store.Node) { n.StoppedAt = l.clock() },
	} {
		change("n1", set)
		if _, err := sync(second, "clawbots: [{name: a}, {name: b}]"); problem.CodeOf(err) == "" {
			t.Errorf("%s: it is taken over, and nobody has said so", name)
		}
		change("n1", func(n *store.Node) { *n = store.Node{Name: "n1"} })
	}
	change("n1", func(n *store.Node) { n.LostAt = l.clock() })
	plan, err = sync(second, "clawbots: [{name: a}, {name: b}]", adopt)
	l.want("adopted", plan, err, "restart a", "unchanged b")
	if !second.runs("a") || second.keeper.token("a") == first.keeper.token("a") {
		t.Error("it does not run with a token of its own")
	}
	plan, err = sync(second, "clawbots: [{name: a}, {name: b}]", prune, adopt)
	l.want("adopted, and only what the file has", plan, err, "unchanged a", "unchanged b")

	// When the machine comes back, its jail is stopped, and it is as any other.
	change("n1", func(n *store.Node) { n.LostAt = time.Time{} })
	look(first)
	look(second)
	if first.runs("a") || !second.runs("a") || !first.runs("shared") {
		t.Error("it runs on both, or nowhere")
	}
	l.wantCode("restart where it was", first.RestartAgent(l.ctx, l.admin, "", "a"), problem.Conflict)
	plan, err = sync(first, "clawbots: [{name: shared}]", prune)
	l.want("the first, which prunes", plan, err, "unchanged shared")

	// An agent of a machine that is lost is removed anywhere; of one that has stopped it is asked for there.
	change("n2", func(n *store.Node) { n.StoppedAt = l.clock() })
	l.wantCode("removed while its machine is stopped", first.RemoveAgent(l.ctx, l.admin, "", "a", RemoveOptions{}), problem.Conflict)
	change("n2", func(n *store.Node) { n.StoppedAt, n.LostAt = time.Time{}, l.clock() })
	l.must(first.RemoveAgent(l.ctx, l.admin, "", "a", RemoveOptions{}))
	look(second)
	if second.runs("a") {
		t.Error("its jail runs on")
	}
}

func adopt(r *SyncRequest) { r.Adopt = true }

// A removal is gone on with where the agent is.
func TestRemovalsOfOtherMachinesAreLeftToThem(t *testing.T) {
	l, first, second, _ := machines(t)
	_, err := first.Declare(l.ctx, l.admin, "", func() (clawbots.Agent, error) { return clawbots.Agent{Name: "a"}, nil }, false, nil)
	l.must(err)
	l.keeper.step = func(op string) error {
		if op == "drop" {
			return errKilled
		}
		return nil
	}
	if err := first.RemoveAgent(l.ctx, l.admin, "", "a", RemoveOptions{}); err == nil {
		t.Fatal("it is removed")
	}
	l.must(second.goOn(l.ctx, map[agentKey]time.Time{}))
	declared, err := first.declarations(l.ctx, "default")
	l.must(err)
	if d := declared["a"]; d == nil || d.Removing == nil || !first.runs("a") {
		t.Fatalf("another machine has gone on with it: %+v", d)
	}
	l.keeper.step = nil
	l.must(first.goOn(l.ctx, map[agentKey]time.Time{}))
	if _, is := first.keeper.status("a"); is {
		t.Error("it is still there")
	}
}

// Versions of before did not write down where an agent is.
func TestAgentsOfNoMachineAreOfTheOneThatHasTheirJail(t *testing.T) {
	l, first, second, _ := machines(t)
	_, err := first.Declare(l.ctx, l.admin, "", func() (clawbots.Agent, error) { return clawbots.Agent{Name: "a"}, nil }, false, nil)
	l.must(err)
	declared, err := first.declarations(l.ctx, "default")
	l.must(err)
	e := declared["a"].entry
	e.Body = []byte(strings.Replace(string(e.Body), `"node":"n1",`, "", 1))
	if len(e.Body) == len(declared["a"].entry.Body) {
		t.Fatalf("it does not say where the agent is: %s", e.Body)
	}
	l.must(l.db.UpdateEntry(l.ctx, e))
	l.must(second.goOn(l.ctx, map[agentKey]time.Time{}))
	l.must(first.goOn(l.ctx, map[agentKey]time.Time{}))
	l.wantCode("restart at the other", second.RestartAgent(l.ctx, l.admin, "", "a"), problem.Conflict)
	l.must(first.RestartAgent(l.ctx, l.admin, "", "a"))
}
