package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestToolsAreOfferedToThoseWhoMayUseThem(t *testing.T) {
	shared := config.MCPServer{Name: "shared", Command: []string{"/s"}, Tenants: []string{"*"}}
	w := newFixture(t, files(), shared)
	of := func(servers ...string) []string {
		out := []string{}
		for _, s := range servers {
			out = append(out, s+"__echo", s+"__other")
		}
		return out
	}
	elsewhere := operator()
	elsewhere.Tenant = "acme"
	viewer := operator()
	viewer.Role = identity.RoleViewer
	holder := operator().Within("s_1", identity.ScopeCDP, time.Time{})
	for _, c := range []struct {
		who  string
		by   identity.Principal
		want []string
	}{{"an agent that names one", agent(), of("files")}, {"an operator", operator(), of("files", "shared")}, {"an admin", admin(), of("files", "shared")},
		{"an operator of another tenant", elsewhere, of("shared")}, {"a viewer", viewer, of()}, {"the holder of a session's token", holder, of()},
		{"nobody", identity.Principal{}, of()}} {
		if got := w.names(c.by); !slices.Equal(got, c.want) {
			t.Errorf("%s is offered %v, want %v", c.who, got, c.want)
		}
		for _, name := range []string{"files__echo", "shared__echo"} {
			_, err := w.call(c.by, name)
			if may := slices.Contains(c.want, name); may != (err == nil) {
				t.Errorf("%s calls %s: %v", c.who, name, err)
			}
		}
	}
	w.given = nil
	if got := w.names(agent()); len(got) != 0 {
		t.Errorf("an agent that names none is offered %v", got)
	}
	if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("an agent that names none: %v", err)
	}
	// One of each server and caller that calls it: the agent, the operators, and an admin of both.
	if n := w.started(); n != 6 {
		t.Errorf("%d jails were made", n)
	}
}

func TestACallIsRecordedBeforeItIsMade(t *testing.T) {
	w := newFixture(t, files())
	if got, err := w.call(agent(), "files__echo"); got != "called echo" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if len(w.log.Begun()) != 2 || w.log.Begun()[0].Action != string(identity.ServerCall) || w.log.Begun()[0].Target != "files/files__echo" || w.log.Begun()[0].Actor != "agent:a_1" {
		t.Errorf("the intents are %+v", w.log.Begun())
	}
	if _, err := w.call(agent(), "files__echo"); err != nil || w.log.Begun()[2].Target != "files/echo" {
		t.Errorf("%v %+v", err, w.log.Begun())
	}
	if all := w.log.All(); len(all) != 3 || slices.ContainsFunc(all, func(e audittest.Event) bool { return e.Result != audit.OK }) {
		t.Errorf("the records are %+v", all)
	}
	w.log.Fail(problem.New(problem.AuditUnavailable, "", "no"))
	if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.AuditUnavailable {
		t.Errorf("%v", err)
	}
	calls := 0
	for _, s := range w.peer(0).seen {
		if s.Method == "tools/call" {
			calls++
		}
	}
	if calls != 2 {
		t.Errorf("%d calls were made, and two recorded", calls)
	}
}

func TestArgumentsReachTheServerAsTheyAre(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			var params struct{ Arguments json.RawMessage }
			_ = json.Unmarshal(s.Params, &params)
			p.text(s, string(params.Arguments))
		})
	}
	for given, want := range map[string]string{`{"a":[1,2.50,"x"],"b":{"c":null}}`: `{"a":[1,2.50,"x"],"b":{"c":null}}`, ``: `{}`, `null`: `{}`} {
		out, err := w.Call(t.Context(), agent(), "files__echo", json.RawMessage(given), nil)
		if err != nil || textOf(out) != want {
			t.Errorf("%s became %v, %v", given, out, err)
		}
	}
	for _, bad := range []string{`[]`, `"x"`, `{`, `{"a":1} {}`} {
		if _, err := w.Call(t.Context(), agent(), "files__echo", json.RawMessage(bad), nil); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestWhatIsNotOfferedCannotBeCalled(t *testing.T) {
	one := files()
	one.Tools = []string{"ech*"}
	none := config.MCPServer{Name: "none", Command: []string{"/s"}, Tools: []string{}}
	w := newFixture(t, one, none)
	if got := w.names(operator()); !slices.Equal(got, []string{"files__echo"}) {
		t.Errorf("offered are %v", got)
	}
	for _, name := range []string{"files__other", "none__echo", "gone__echo", "files__", "__echo", "files"} {
		if _, err := w.call(operator(), name); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// blocking is a server whose calls wait for the test.
func blocking(w *fixture) (arrived chan said, release chan struct{}) {
	arrived, release = make(chan said, 64), make(chan struct{})
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			arrived <- s
			select {
			case <-release:
			case <-p.killed:
			}
			p.text(s, "done")
		})
	}
	return arrived, release
}

func TestCallsAtTheSameTimeAreBounded(t *testing.T) {
	shared := files()
	shared.Shared = true
	w := newFixture(t, shared)
	arrived, release := blocking(w)
	var work sync.WaitGroup
	begin := func(id string, n int) {
		by := agent()
		by.ID = id
		for range n {
			work.Go(func() {
				if _, err := w.call(by, "files__echo"); err != nil {
					t.Error(err)
				}
			})
		}
		for range n {
			<-arrived
		}
	}
	begin("a_1", callsOfCaller)
	if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("one more of an agent: %v", err)
	}
	for n := 2; n <= callsOfServer/callsOfCaller; n++ {
		begin(fmt.Sprintf("a_%d", n), callsOfCaller)
	}
	other := agent()
	other.ID = "a_99"
	if _, err := w.call(other, "files__echo"); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("one more of a server: %v", err)
	}
	close(release)
	work.Wait()
	if _, err := w.call(other, "files__echo"); err != nil {
		t.Errorf("after the others: %v", err)
	}
}

func TestACanceledCallIsCanceledAtTheServer(t *testing.T) {
	w := newFixture(t, files())
	arrived, release := blocking(w)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := w.Call(ctx, agent(), "files__echo", nil, nil)
		failed <- err
	}()
	<-arrived
	cancel()
	if err := <-failed; problem.CodeOf(err) != problem.Canceled {
		t.Errorf("%v", err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return w.peer(0).heard("notifications/cancelled") }, "the server has not heard of it")
	close(release)
	if _, err := w.call(agent(), "files__echo"); err != nil || w.started() != 1 {
		t.Errorf("the next call: %v, with %d jails", err, w.started())
	}
}

func TestACallThatSaysNothingEndsAndOneThatGoesOnDoesNot(t *testing.T) {
	w := newFixture(t, files())
	w.pace.call = time.Second
	release := make(chan struct{})
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			if s.tool() == "other" {
				return // it answers pings, and not this
			}
			for n := range 8 {
				p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":%d,"total":8,"message":"step\u001b[2J"}}`, s.token(), n)
				select {
				case <-time.After(150 * time.Millisecond): // the promise is about time: longer than a silent call may take
				case <-release:
				}
			}
			p.text(s, "done")
		})
	}
	defer close(release)
	var told []string
	out, err := w.Call(t.Context(), agent(), "files__echo", nil, func(done, of float64, message string) {
		told = append(told, fmt.Sprintf("%v/%v %s", done, of, message))
	})
	if err != nil || textOf(out) != "done" {
		t.Errorf("%v, %v", out, err)
	}
	if len(told) == 0 || told[0] != "0/8 step[2J" {
		t.Errorf("told was %q", told)
	}
	if _, err := w.call(agent(), "files__other"); problem.CodeOf(err) != problem.Timeout {
		t.Errorf("the silent call: %v", err)
	}
	if w.started() != 1 || w.running() != 1 {
		t.Error("a server that answers pings was ended")
	}
	// Where its declaration says so, a call may be silent for longer.
	for silence, code := range map[time.Duration]string{0: problem.Timeout, 4 * time.Second: ""} {
		patient := files()
		patient.Silence = silence
		w := newFixture(t, patient)
		w.pace.call = 300 * time.Millisecond
		w.behave = func(p *peer) {
			p.serve(func(p *peer, s said) { time.Sleep(600 * time.Millisecond); echo(p, s) })
		}
		if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != code {
			t.Errorf("with a silence of %s: %v", silence, err)
		}
	}
}

func TestAServerThatHangsIsEndedAndOthersGoOn(t *testing.T) {
	w := newFixture(t, files(), config.MCPServer{Name: "good", Command: []string{"/s"}})
	if _, err := w.call(operator(), "good__echo"); err != nil {
		t.Fatal(err)
	}
	ordinary := w.pace
	w.pace.call, w.pace.pong = time.Second, 50*time.Millisecond
	w.behave = func(p *peer) {
		stuck := make(chan struct{})
		go func() { <-p.killed; close(stuck) }()
		p.oneByOne = true
		p.serve(func(*peer, said) { <-stuck })
	}
	if _, err := w.call(operator(), "files__echo"); problem.CodeOf(err) != problem.Timeout {
		t.Errorf("the call: %v", err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return w.running() == 1 }, "the jail of the hanging server is still there")
	w.pace.call, w.pace.pong = ordinary.call, ordinary.pong
	if _, err := w.call(operator(), "good__echo"); err != nil {
		t.Errorf("another server: %v", err)
	}
}

func TestACrashIsToldAndTheServerStartedAgain(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			if s.tool() == "other" {
				_, _ = p.err.WriteString("out of cheese\n")
				p.exit()
				return
			}
			echo(p, s)
		})
	}
	if _, err := w.call(operator(), "files__echo"); err != nil {
		t.Fatal(err)
	}
	_, err := w.call(operator(), "files__other")
	p, ok := problem.As(err)
	if !ok || p.Code != problem.JailFailed || !strings.Contains(p.Message, "ended: status 3") || !strings.Contains(fmt.Sprint(p.Details[detailStderr]), "cheese") {
		t.Errorf("an operator is told %v", err)
	}
	if got, err := w.call(agent(), "files__echo"); err != nil || got != "called echo" || w.started() != 2 {
		t.Errorf("the next call: %q, %v, with %d jails", got, err, w.started())
	}
	if p, ok = problem.As(second(w.call(agent(), "files__other"))); !ok || p.Details != nil || strings.Contains(p.Error(), "cheese") {
		t.Errorf("an agent is told %+v", p)
	}
}

func second[T any](_ T, err error) error { return err }

func TestAServerThatKeepsCrashingIsLeftAlone(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) { p.exit() }
	for range maxCrashes {
		if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.JailFailed {
			t.Fatalf("%v", err)
		}
	}
	_, err := w.call(agent(), "files__echo")
	if p, ok := problem.As(err); !ok || !strings.Contains(p.Message, "not started again") || !strings.Contains(p.Hint, "tried again after") {
		t.Errorf("%v", err)
	}
	if w.started() != maxCrashes {
		t.Errorf("%d jails were made", w.started())
	}
	list, err := w.List(t.Context(), operator(), "")
	if err != nil || list[0].State != StatePaused || list[0].Problem == "" {
		t.Errorf("it is listed as %+v, %v", list, err)
	}
	// The pause ends.
	w.pace.window = time.Nanosecond
	w.behave = nil
	if _, err := w.call(agent(), "files__echo"); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

func TestAnIdleServerEndsAndItsToolsAreStillListed(t *testing.T) {
	w := newFixture(t, files())
	w.o.Servers[0].Idle = 20 * time.Millisecond // less than a declaration may say
	if got := w.names(agent()); len(got) != 2 {
		t.Fatalf("offered are %v", got)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return w.running() == 0 }, "it is still there")
	if got := w.names(agent()); len(got) != 2 || w.started() != 1 {
		t.Errorf("offered are %v, with %d jails", got, w.started())
	}
	if _, err := w.call(agent(), "files__echo"); err != nil || w.started() != 2 {
		t.Errorf("a call: %v, with %d jails", err, w.started())
	}
	if list, err := w.List(t.Context(), operator(), ""); err != nil || list[0].Problem != "" {
		t.Errorf("ending it was taken for a crash: %+v, %v", list, err)
	}
}

func TestAServerThatIsUsedIsNotIdle(t *testing.T) {
	w := newFixture(t, files())
	w.o.Servers[0].Idle = 20 * time.Millisecond // less than a declaration may say
	arrived, release := blocking(w)
	failed := make(chan error, 1)
	go func() { failed <- second(w.call(agent(), "files__echo")) }()
	<-arrived
	select {
	case err := <-failed:
		t.Fatalf("the call ended: %v", err)
	case <-time.After(200 * time.Millisecond): // the promise is about time
	}
	close(release)
	if err := <-failed; err != nil || w.started() != 1 {
		t.Errorf("%v, with %d jails", err, w.started())
	}
}

func TestASlowStartDelaysNobodyElsesList(t *testing.T) {
	w := newFixture(t, files(), config.MCPServer{Name: "slow", Command: []string{"/s"}})
	hold := make(chan struct{})
	var once sync.Mutex
	n := 0
	w.behave = func(p *peer) {
		once.Lock()
		n++
		first := n == 1
		once.Unlock()
		if first {
			select {
			case <-hold:
			case <-p.killed:
			}
		}
		p.serve(echo)
	}
	got := w.names(operator())
	if len(got) != 2 {
		t.Errorf("while one starts, offered are %v", got)
	}
	close(hold)
	testenv.Eventually(t, 10*time.Second, func() bool { return len(w.names(operator())) == 4 }, "the slow one is not offered")
}

func TestAChangedListIsFollowed(t *testing.T) {
	w := newFixture(t, files())
	w.pace.listGap = time.Millisecond
	if got := w.names(agent()); len(got) != 2 {
		t.Fatalf("%v", got)
	}
	p := w.peer(0)
	p.setTools(`{"tools":[{"name":"new","inputSchema":{"type":"object"}}]}`)
	p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	testenv.Eventually(t, 5*time.Second, func() bool { return slices.Equal(w.names(agent()), []string{"files__new"}) }, "the list is the old one")
	if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("a tool that is gone: %v", err)
	}
}

func TestWhatAServerRefusesIsAnAnswer(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			p.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no \u001b[31mway"}}`, s.ID)
		})
	}
	out, err := w.Call(t.Context(), agent(), "files__echo", nil, nil)
	if err != nil || !out.IsError || textOf(out) != "the MCP server files refused (-32000): no [31mway" {
		t.Errorf("%v, %v", out, err)
	}
	if e := w.log.Last(t); e.Result != audit.Failed || e.Outcome.String() != `{"code":"refused_by_server","server_code":-32000}` {
		t.Errorf("recorded %+v", e)
	}
}

func TestAClosedServiceStartsNothing(t *testing.T) {
	w := newFixture(t, files())
	if _, err := w.call(agent(), "files__echo"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil || w.running() != 0 {
		t.Errorf("%v, with %d jails", err, w.running())
	}
	if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.ShuttingDown {
		t.Errorf("%v", err)
	}
	if got, _ := w.OffersFor(t.Context(), agent(), Tools); got.Tools != nil {
		t.Errorf("%v", got)
	}
}
