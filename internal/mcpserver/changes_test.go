package mcpserver

import (
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/testenv"
)

// hears waits until the view of a principal is another one, and says what it is.
func (w *fixture) hears(by identity.Principal, changed <-chan struct{}, before string) string {
	w.t.Helper()
	for {
		if now := w.view(by); now != before {
			return now
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			w.t.Fatalf("%s hears of no change", by.Actor())
		}
	}
}

func (w *fixture) view(by identity.Principal) string {
	w.t.Helper()
	view, err := w.View(w.t.Context(), by)
	if err != nil {
		w.t.Fatal(err)
	}
	return view[Tools]
}

func TestChangesAreToldToThoseWhoseToolsChange(t *testing.T) {
	w := newFixture(t, files(), config.MCPServer{Name: "other", Command: []string{"/s"}})
	w.pace.listGap = time.Millisecond
	changed, stop := w.Watch(agent())
	defer stop()
	elsewhere := agent()
	elsewhere.ID, elsewhere.Tenant = "a_2", "acme"
	theirs, stopTheirs := w.Watch(elsewhere)
	defer stopTheirs()
	_, seen := w.OffersFor(t.Context(), agent(), Tools)
	if w.view(agent()) != seen {
		t.Fatal("what was listed is not what there is")
	}

	// The server says that its list is another one, and it is.
	p := w.peer(0)
	say := func(tools string) {
		p.setTools(tools)
		p.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	}
	lists := func() int { return p.times("tools/list") }
	say(`{"tools":[{"name":"new","inputSchema":{"type":"object"}},{"name":"old","inputSchema":{"type":"object"}}]}`)
	seen = w.hears(agent(), changed, seen)

	// It says so, and the list is the same in another order. Then what it says of a tool is another thing.
	before := lists()
	say(`{"tools":[{"name":"old","inputSchema":{"type":"object"}},{"name":"new","inputSchema":{"type":"object"}}]}`)
	testenv.Eventually(t, 10*time.Second, func() bool { return lists() > before }, "it is not asked")
	say(`{"tools":[{"name":"old","inputSchema":{"type":"object"}},{"name":"new","description":"x","inputSchema":{"type":"object"}}]}`)
	seen = w.hears(agent(), changed, seen)

	// A server that the agent may not use is no matter of its own, however it changes. To an operator it is.
	ofOperator := w.view(operator())
	if _, err := w.call(operator(), "other__echo"); err != nil {
		t.Fatal(err)
	}
	if w.view(operator()) == ofOperator {
		t.Error("an operator's tools have changed, and the view is the same")
	}
	if w.view(agent()) != seen {
		t.Error("an agent sees a change of a server that it may not use")
	}

	// One is added, changed and removed, and one is given to the agent and taken from it.
	added := config.MCPServer{Name: "more", Command: []string{"/one"}}
	w.given = []string{"files", "more"}
	if _, err := w.Add(t.Context(), admin(), added); err != nil {
		t.Fatal(err)
	}
	seen = w.hears(agent(), changed, seen)
	if _, now := w.OffersFor(t.Context(), agent(), Tools); now == seen {
		t.Error("the tools of the one that was added are not known by now")
	}
	seen = w.hears(agent(), changed, seen)
	added.Tools = []string{}
	if _, err := w.Add(t.Context(), admin(), added); err != nil {
		t.Fatal(err)
	}
	seen = w.hears(agent(), changed, seen)
	if err := w.Remove(t.Context(), admin(), "more"); err != nil {
		t.Fatal(err)
	}
	seen = w.hears(agent(), changed, seen)
	for _, given := range [][]string{{"files", "other"}, nil, {"files"}} {
		w.given = given
		w.Changed()
		seen = w.hears(agent(), changed, seen)
	}

	// Another tenant heard of what is everybody's, and sees nothing of it.
	if w.view(elsewhere) != w.view(identity.Principal{}) {
		t.Error("another tenant sees something")
	}
	for len(theirs) > 0 {
		<-theirs
	}
	say(`{"tools":[]}`)
	w.hears(agent(), changed, seen)
	if len(theirs) > 0 {
		t.Error("another tenant is woken by a server that is not its own")
	}
}

func TestWhoListensHearsOfTheEnd(t *testing.T) {
	w := newFixture(t, files())
	changed, stop := w.Watch(agent())
	defer stop()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range changed {
	}
	late, stopLate := w.Watch(agent())
	defer stopLate()
	if _, more := <-late; more {
		t.Error("who comes late waits for ever")
	}
}

// A server that is started again with another list is followed too.
func TestARestartWithAnotherListIsAChange(t *testing.T) {
	w := newFixture(t, files())
	changed, stop := w.Watch(agent())
	defer stop()
	_, seen := w.OffersFor(t.Context(), agent(), Tools)
	w.behave = func(p *peer) {
		p.setTools(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"third","inputSchema":{"type":"object"}}]}`)
		p.serve(echo)
	}
	w.peer(0).exit()
	testenv.Eventually(t, 10*time.Second, func() bool { return w.running() == 0 }, "it is still there")
	if w.view(agent()) != seen {
		t.Error("that it does not run is taken for a change")
	}
	if _, err := w.call(agent(), "files__echo"); err != nil {
		t.Fatal(err)
	}
	w.hears(agent(), changed, seen)
}

// A listing goes by servers that were read a moment before, and that may have been declared anew since.
func TestWhoListsServersAsTheyWereTakesNothingFromThoseThatAre(t *testing.T) {
	w := newFixture(t, files())
	if _, err := w.call(agent(), "files__echo"); err != nil {
		t.Fatal(err)
	}
	servers, _, err := w.usable(t.Context(), agent(), agent().Tenant)
	if err != nil || len(servers) != 1 {
		t.Fatalf("%+v, %v", servers, err)
	}
	before := servers[0]
	before.Command = []string{"/before"}
	if w.catalogFor(before, agent().Tenant, agent()) != nil {
		t.Error("something is known of a server as it was")
	}
	if w.catalogFor(servers[0], agent().Tenant, agent()) == nil {
		t.Error("nothing is known any more of the server as it is")
	}
	if _, err := w.call(agent(), "files__echo"); err != nil || w.started() != 1 {
		t.Errorf("it was started %d times, want once; %v", w.started(), err)
	}
}
