package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

// numbered is one of many agents, each of which has its own tenant or that of all.
func numbered(n int, tenant string) identity.Principal {
	return identity.Principal{Kind: identity.KindAgent, ID: fmt.Sprintf("a_%s%d", tenant, n), Name: fmt.Sprintf("bot%d", n), Tenant: tenant, TokenID: "t"}
}

// counting is a server that has in mind how often it was called.
func counting(p *peer) {
	var mu sync.Mutex
	n := 0
	p.serve(func(p *peer, s said) {
		mu.Lock()
		defer mu.Unlock()
		n++
		p.text(s, fmt.Sprintf("call %d", n))
	})
}

// says calls a tool, whose answer must be this.
func (w *fixture) says(by identity.Principal, tool, want string) {
	w.t.Helper()
	if got, err := w.call(by, tool); err != nil || got != want {
		w.t.Errorf("%s: %s says %q, %v; want %q", by.Name, tool, got, err, want)
	}
}

// places gives the servers so few places, of so many tenants.
func (w *fixture) places(whole int64, tenants int) {
	w.Service.running = quota.NewGate(quota.GateOptions{Kind: quota.Servers(), Whole: whole, Tenants: func() int { return tenants }})
}

func TestAServerHoldsTheStateOfOneCaller(t *testing.T) {
	both := config.MCPServer{Name: "both", Command: []string{"/s"}, Shared: true}
	w := newFixture(t, files(), both)
	w.given = []string{"files", "both"}
	w.behave = counting
	a, b := numbered(1, "default"), numbered(2, "default")
	for n := 1; n <= 2; n++ {
		for _, by := range []identity.Principal{a, b, operator(), admin()} {
			w.says(by, "files__echo", fmt.Sprintf("call %d", n))
		}
	}
	w.says(a, "both__echo", "call 1")
	w.says(b, "both__echo", "call 2") // as it is declared
	if w.started() != 5 {
		t.Errorf("%d jails were made", w.started())
	}
	list, err := w.List(t.Context(), operator(), "")
	if err != nil {
		t.Fatal(err)
	}
	var runs []string
	for _, s := range list {
		for _, i := range s.Instances {
			runs = append(runs, fmt.Sprintf("%s of %q (%s) for %s: %s %t", s.Name, i.Owner, i.Name, i.Tenant, i.State, i.Since.IsZero()))
		}
	}
	want := []string{`both of "" () for default: running false`, `files of "admin" () for default: running false`, `files of "operator:o_1" () for default: running false`,
		`files of "agent:a_default1" (bot1) for default: running false`, `files of "agent:a_default2" (bot2) for default: running false`}
	if !slices.Equal(runs, want) {
		t.Errorf("what runs: %q", runs)
	}
	// Another tenant is told of its own alone, and an admin of all tenants of each.
	elsewhere := operator()
	elsewhere.Tenant = "acme"
	if _, err := w.Add(t.Context(), admin(), config.MCPServer{Name: "all", Command: []string{"/s"}, Tenants: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	w.says(elsewhere, "all__echo", "call 1")
	w.says(operator(), "all__echo", "call 1")
	for _, c := range []struct {
		by    identity.Principal
		named string
		want  int
	}{{elsewhere, "", 1}, {operator(), "", 1}, {admin(), "", 2}, {admin(), "acme", 1}} {
		list, err := w.List(t.Context(), c.by, c.named)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, s := range list {
			if s.Name == "all" {
				n = len(s.Instances)
			}
		}
		if n != c.want {
			t.Errorf("%s sees %d instances, want %d", c.by.Actor(), n, c.want)
		}
	}
}

func TestAServerBesideAnAgentStaysUntilItIsEnded(t *testing.T) {
	server := files()
	server.Agent = "bot"
	w := newFixture(t, server)
	w.o.Keeper = w
	for range 2 {
		if out, err := w.Call(t.Context(), agent(), "files__echo", nil, nil); err != nil || out.IsError {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	if n := w.started(); n != 1 {
		t.Errorf("%d were started", n)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-w.peer(0).killed:
	default:
		t.Error("it was not ended")
	}
}

func TestAServerEndsWhenItIsOld(t *testing.T) {
	server := files()
	server.Agent = "bot"
	w := newFixture(t, server)
	w.o.Keeper, w.pace.life = w, 200*time.Millisecond
	for n := range 2 {
		if out, err := w.Call(t.Context(), agent(), "files__echo", nil, nil); err != nil || out.IsError {
			t.Fatalf("%+v, %v", out, err)
		}
		<-w.peer(n).killed
	}
}

func TestListingStartsOneOfEachServer(t *testing.T) {
	w := newFixture(t, files())
	var work sync.WaitGroup
	for n := range 20 {
		work.Go(func() {
			if got := w.names(numbered(n, "default")); len(got) != 2 {
				t.Errorf("offered are %v", got)
			}
		})
	}
	work.Wait()
	if got := w.names(numbered(99, "default")); len(got) != 2 || w.started() != 1 {
		t.Errorf("offered are %v, with %d jails", got, w.started())
	}
}

func TestIdleInstancesMakeRoom(t *testing.T) {
	w := newFixture(t, files())
	w.places(3, 1)
	w.behave = counting
	a := func(n int) identity.Principal { return numbered(n, "default") }
	for n := range 3 {
		w.says(a(n), "files__echo", "call 1")
	}
	w.says(a(0), "files__echo", "call 2") // the second is the one that was called least lately now
	w.says(a(3), "files__echo", "call 1")
	w.says(a(0), "files__echo", "call 3")
	w.says(a(2), "files__echo", "call 2")
	if w.started() != 4 || w.running() != 3 {
		t.Errorf("%d were started and %d run", w.started(), w.running())
	}
	w.says(a(1), "files__echo", "call 1") // started again
	if w.started() != 5 || w.running() != 3 {
		t.Errorf("%d were started and %d run", w.started(), w.running())
	}
}

func TestAStartThatWaitsForAPlaceSaysWhyItEnds(t *testing.T) {
	w := newFixture(t, files())
	w.places(1, 1)
	leave, err := w.enterPlace(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	ends := &run{ending: true, gone: make(chan struct{})}
	w.Service.mu.Lock()
	w.runs[ends] = "default"
	w.Service.mu.Unlock()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errChanged)
	if _, err := w.enterPlace(ctx, "default"); !errors.Is(err, errChanged) {
		t.Errorf("it says %v", err)
	}
	w.Service.mu.Lock()
	delete(w.runs, ends)
	w.Service.mu.Unlock()
}

func TestWhatIsCalledMakesNoRoom(t *testing.T) {
	w := newFixture(t, files())
	w.places(2, 1)
	arrived, release := blocking(w)
	var work sync.WaitGroup
	for n := range 2 {
		work.Go(func() { w.says(numbered(n, "default"), "files__echo", "done") })
		<-arrived
	}
	// As often as would be taken for a server that crashes.
	for range maxCrashes + 1 {
		if _, err := w.call(numbered(9, "default"), "files__echo"); problem.CodeOf(err) != problem.PoolExhausted {
			t.Errorf("one more: %v", err)
		}
	}
	close(release)
	work.Wait()
	w.says(numbered(9, "default"), "files__echo", "done")
	if w.started() != 3 || w.running() != 2 {
		t.Errorf("%d were started and %d run", w.started(), w.running())
	}
}

// A tenant's own make room first, and others' only where it is they who have its place.
func TestATenantsOwnMakeRoomFirst(t *testing.T) {
	server := files()
	server.Tenants = []string{"*"}
	w := newFixture(t, server)
	w.places(5, 2) // four of one tenant
	w.behave = counting
	w.says(numbered(0, "old"), "files__echo", "call 1")
	for n := range 6 {
		w.says(numbered(n, "new"), "files__echo", "call 1")
	}
	w.says(numbered(0, "old"), "files__echo", "call 2") // though it was idle for longest
	w.says(numbered(1, "old"), "files__echo", "call 1")
	if w.running() != 5 {
		t.Errorf("%d run", w.running())
	}
	// One of its own made room for that, and four of the other are still there.
	for n := 2; n < 6; n++ {
		w.says(numbered(n, "new"), "files__echo", "call 2")
	}
	// A third tenant has none of its own to end.
	w.says(numbered(0, "third"), "files__echo", "call 1")
}

func TestManyCallersLeaveNothingBehind(t *testing.T) {
	w := newFixture(t, files())
	w.places(4, 1)
	var work sync.WaitGroup
	next := make(chan int)
	for range 8 {
		work.Go(func() {
			for n := range next {
				// All places may be in use in this moment.
				if _, err := w.call(numbered(n, "default"), "files__echo"); err != nil && problem.CodeOf(err) != problem.PoolExhausted {
					t.Error(err)
				}
			}
		})
	}
	for n := range 300 {
		next <- n
	}
	close(next)
	work.Wait()
	testenv.Eventually(t, 10*time.Second, func() bool { return w.running() <= 4 }, "more run than there are places")
	w.Service.mu.Lock()
	defer w.Service.mu.Unlock()
	if len(w.instances) > 4 || len(w.runs) > 4 || len(w.callers) != 0 {
		t.Errorf("%d instances, %d runs and %d callers are known", len(w.instances), len(w.runs), len(w.callers))
	}
}

func TestAnInstanceEndsWithItsOwner(t *testing.T) {
	w := newFixture(t, files())
	w.behave = counting
	old, other := agent(), numbered(2, "default")
	w.says(old, "files__echo", "call 1")
	w.says(other, "files__echo", "call 1")
	w.revoke(old.ID)
	testenv.Eventually(t, 10*time.Second, func() bool { return w.running() == 1 }, "the server of an agent that has gone runs on")
	w.says(other, "files__echo", "call 2")
	// Another agent of the same name is another agent.
	again := old
	again.ID = "a_77"
	w.says(again, "files__echo", "call 1")
}

func TestCrashesAreOfWhoCalled(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			if s.tool() == "other" {
				p.exit()
				return
			}
			echo(p, s)
		})
	}
	wild, mild := numbered(1, "default"), numbered(2, "default")
	w.says(mild, "files__echo", "called echo")
	for range maxCrashes {
		if _, err := w.call(wild, "files__other"); problem.CodeOf(err) != problem.JailFailed {
			t.Fatalf("%v", err)
		}
	}
	before := w.started()
	if _, err := w.call(wild, "files__echo"); problem.CodeOf(err) != problem.JailFailed || w.started() != before {
		t.Errorf("after %d crashes: %v", maxCrashes, err)
	}
	w.says(mild, "files__echo", "called echo")
	w.says(numbered(3, "default"), "files__echo", "called echo")
}

// A program that does not start is not started again for everybody who would like to have it.
func TestAServerThatDoesNotStartIsLeftAloneForAll(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) { p.exit() }
	for n := range 20 {
		if _, err := w.call(numbered(n, "default"), "files__echo"); problem.CodeOf(err) != problem.JailFailed {
			t.Errorf("%v", err)
		}
	}
	if w.started() != maxCrashes {
		t.Errorf("%d jails were made", w.started())
	}
	w.Service.mu.Lock()
	defer w.Service.mu.Unlock()
	if len(w.instances) != 0 {
		t.Errorf("%d instances are known, of which none runs", len(w.instances))
	}
}

// The record and the answer of a start that is given up say why, and not that the server failed.
func TestAStartThatIsGivenUpSaysWhy(t *testing.T) {
	for code, giveUp := range map[string]func(w *fixture) error{
		problem.Unauthorized: func(w *fixture) error { w.revoke(agent().ID); return nil },
		problem.ShuttingDown: func(w *fixture) error { return w.Close(t.Context()) },
		problem.Conflict:     func(w *fixture) error { return w.Remove(t.Context(), admin(), "more") },
		problem.JailFailed:   func(w *fixture) error { w.peer(0).exit(); return nil },
	} {
		w := newFixture(t)
		w.given, w.pace.soon = []string{"more"}, time.Minute
		w.behave = func(p *peer) {
			p.set("tools/list", "") // it is not answered
			p.serve(echo)
		}
		if _, err := w.Add(t.Context(), admin(), config.MCPServer{Name: "more", Command: []string{"/one"}}); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { _, err := w.call(agent(), "more__echo"); answer <- err }()
		testenv.Eventually(t, 10*time.Second, func() bool { return w.started() == 1 && w.peer(0).heard("tools/list") }, "it is not asked for its tools")
		if err := giveUp(w); err != nil {
			t.Error(err)
		}
		if err := <-answer; problem.CodeOf(err) != code {
			t.Errorf("%s: the answer is %v", code, err)
		}
		recorded := func(e audittest.Event) bool {
			return e.Action == "mcp_server.start" && strings.Contains(e.Outcome.String(), code)
		}
		if all := w.log.All(); !slices.ContainsFunc(all, recorded) {
			t.Errorf("%s: recorded are %v", code, all)
		}
	}
}
