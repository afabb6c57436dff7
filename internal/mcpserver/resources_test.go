package mcpserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// whole lets a server have everything that a server can have.
func whole(p *peer) {
	p.can = `{"tools":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"prompts":{"listChanged":true},"completions":{}}`
	p.set("resources/list", `{"resources":[{"uri":"file:///a.txt","name":"a","description":"one\r\u202e","mimeType":"text/plain","size":3}]}`)
	p.set("resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"file:///{path}","name":"any"}]}`)
}

// answers is what a whole server answers besides its lists: a resource with its own URI, and a tool that links to one.
func answers(p *peer, s said) {
	var params struct{ URI string }
	_ = json.Unmarshal(s.Params, &params)
	switch s.Method {
	case "resources/read":
		if params.URI == "file:///gone" {
			p.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32002,"message":"no such\u001b[31m thing"}}`, s.ID)
			return
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":1,"total":2,"message":"half"}}`, s.token())
		p.result(s, fmt.Sprintf(`{"contents":[{"uri":%q,"mimeType":"text/plain","text":"read"},null,{"uri":"file:///b","blob":"AAE="},{"uri":"file:///empty"}]}`, params.URI))
	case "prompts/list":
		p.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, s.ID)
	case "tools/call":
		p.result(s, `{"content":[{"type":"resource_link","uri":"file:///a.txt","name":"a"},{"type":"resource","resource":{"uri":"file:///b","text":"b"}}]}`)
	}
}

func serveWhole(p *peer) {
	whole(p)
	p.serve(answers)
}

func TestOfferedURIsComeBackAsTheyWere(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		server, uri := rapid.StringMatching(`[a-z0-9][a-z0-9-]{0,19}`).Draw(t, "server"), rapid.String().Draw(t, "uri")
		gotServer, got := ownURI(offeredURI(server, uri))
		if properURI(uri) && (gotServer != server || got != uri) || !properURI(uri) && gotServer != "" {
			t.Fatalf("%q of %q became %q of %q", uri, server, got, gotServer)
		}
	})
	for _, none := range []string{"", "file:///a", "mcp+files", "mcp+files+", "mcp+files+a\nb", "x+files+a"} {
		if server, uri := ownURI(none); server != "" || uri != "" {
			t.Errorf("%q is %q of %q", none, uri, server)
		}
	}
}

func TestResourcesAreOfferedAndRead(t *testing.T) {
	w := newFixture(t, files(), config.MCPServer{Name: "other", Command: []string{"/s"}})
	w.behave = serveWhole
	offers, _ := w.OffersFor(t.Context(), operator(), Resources)
	var uris []string
	for _, r := range offers.Resources {
		uris = append(uris, r.URI)
	}
	if !slices.Equal(uris, []string{"mcp+files+file:///a.txt", "mcp+other+file:///a.txt"}) || len(offers.Templates) != 2 ||
		offers.Templates[0].URITemplate != "mcp+files+file:///{path}" || offers.Tools != nil {
		t.Fatalf("offered are %q, %+v", uris, offers)
	}
	if r := offers.Resources[0]; r.Name != "a" || r.Description != "one" || r.MIMEType != "text/plain" || r.Size != 3 {
		t.Errorf("described as %+v", r)
	}
	if offers, _ := w.OffersFor(t.Context(), agent(), Resources); len(offers.Resources) != 1 {
		t.Errorf("an agent is offered %+v", offers)
	}
	var told []string
	out, err := w.Read(t.Context(), agent(), "mcp+files+file:///x?key=secret#y", func(done, of float64, message string) { told = append(told, message) })
	if err != nil || len(out.Contents) != 3 || out.CacheScope != "private" || out.Contents[0].URI != "mcp+files+file:///x?key=secret#y" || out.Contents[0].Text != "read" ||
		string(out.Contents[1].Blob) != "\x00\x01" || out.Contents[2].Blob == nil {
		t.Fatalf("%+v, %v", out, err)
	}
	if !slices.Equal(told, []string{"half"}) {
		t.Errorf("told was %q", told)
	}
	// It is on record, with what it is and without its query.
	if at := slices.IndexFunc(w.log.Begun(), func(in audit.Intent) bool { return in.Action == "mcp_server.read" }); at < 0 ||
		w.log.Begun()[at].Target != "mcp+files+file:///x" || w.log.Begun()[at].Actor != agent().Actor() {
		t.Errorf("recorded is %+v", w.log.Begun())
	}
	// A resource that a tool links to can be read.
	called, err := w.Call(t.Context(), agent(), "files__echo", nil, nil)
	if err != nil || called.Content[0].(*sdk.ResourceLink).URI != "mcp+files+file:///a.txt" || called.Content[1].(*sdk.EmbeddedResource).Resource.URI != "mcp+files+file:///b" {
		t.Errorf("%+v, %v", called, err)
	}
	var said *jsonrpc.Error
	if _, err := w.Read(t.Context(), agent(), "mcp+files+file:///gone", nil); !errors.As(err, &said) || said.Code != -32002 ||
		said.Message != "the MCP server files refused (-32002): no such[31m thing" {
		t.Errorf("what is not there: %v", err)
	}
	// When it cannot be recorded, it is not read.
	w.log.Fail(problem.New(problem.Internal, "", "full"))
	reads := w.peer(0).times("resources/read") + w.peer(1).times("resources/read")
	if _, err := w.Read(t.Context(), agent(), "mcp+files+file:///x", nil); problem.CodeOf(err) != problem.Internal {
		t.Errorf("without a record: %v", err)
	}
	if now := w.peer(0).times("resources/read") + w.peer(1).times("resources/read"); now != reads {
		t.Error("it was read without a record")
	}
}

func TestResourcesOfOthersAreNotThere(t *testing.T) {
	silent, named, both := files(), files(), files()
	silent.Name, silent.Resources = "silent", new(bool)
	named.Name, named.Tools = "named", []string{"echo"}
	yes := true
	both.Name, both.Tools, both.Resources = "both", []string{"echo"}, &yes
	w := newFixture(t, files(), config.MCPServer{Name: "other", Command: []string{"/s"}}, silent, named, both)
	w.behave = serveWhole
	w.given = []string{"files", "silent", "named", "both"}
	offers, _ := w.OffersFor(t.Context(), agent(), Resources)
	if len(offers.Resources) != 2 || offers.Resources[0].URI != "mcp+both+file:///a.txt" {
		t.Errorf("offered are %+v", offers.Resources)
	}
	for uri, code := range map[string]string{"mcp+files+file:///x": "", "mcp+both+file:///x": "", "mcp+other+file:///x": problem.NotFound, "mcp+silent+file:///x": problem.NotFound,
		"mcp+named+file:///x": problem.NotFound, "mcp+nosuch+file:///x": problem.NotFound, "file:///x": problem.NotFound, "": problem.NotFound} {
		if _, err := w.Read(t.Context(), agent(), uri, nil); problem.CodeOf(err) != code {
			t.Errorf("%q: %v", uri, err)
		}
	}
	nobody := identity.Principal{Kind: identity.KindAgent, ID: "a_9", Tenant: "acme", TokenID: "t"}
	if _, err := w.Read(t.Context(), nobody, "mcp+files+file:///x", nil); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("another tenant: %v", err)
	}
	// A server without resources is asked for none, and its links stay as they are.
	plain := newFixture(t, files())
	plain.behave = func(p *peer) { p.serve(answers) }
	if _, err := plain.Read(t.Context(), agent(), "mcp+files+file:///x", nil); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("of a server without resources: %v", err)
	}
	called, err := plain.Call(t.Context(), agent(), "files__echo", nil, nil)
	if err != nil || called.Content[0].(*sdk.ResourceLink).URI != "file:///a.txt" || plain.peer(0).heard("resources/list") || plain.peer(0).heard("resources/read") {
		t.Errorf("%+v, %v", called, err)
	}
}

// Hostile entries of lists are left out, and cost neither the tools nor the good entries beside them.
func TestHostileListsAreMadeHarmless(t *testing.T) {
	many := func(n int, entry string) string {
		var out []string
		for i := range n {
			out = append(out, strings.ReplaceAll(entry, "#", fmt.Sprint(i)))
		}
		return strings.Join(out, ",")
	}
	for name, c := range map[string]struct {
		list string
		want int
		asks int // -1: not looked at
	}{
		"good":               {`{"resources":[{"uri":"file:///good","name":"x"}]}`, 1, 1},
		"of no URI":          {`{"resources":[{"uri":"file:///good","name":"x"},{"uri":"","name":"x"},{"uri":"a\nb","name":"x"},{"uri":"a\u202eb","name":"x"},null]}`, 1, 1},
		"twice":              {`{"resources":[{"uri":"file:///good","name":"x"},{"uri":"file:///good","name":"y"}]}`, 1, 1},
		"long":               {fmt.Sprintf(`{"resources":[{"uri":"file:///good","name":"x","description":%q},{"uri":%q,"name":"x"}]}`, strings.Repeat("é", 1<<20), strings.Repeat("u", maxURI+1)), 1, 1},
		"more than is taken": {`{"resources":[` + many(maxResources+9, `{"uri":"file:///#","name":"x"}`) + `]}`, maxResources, 1},
		"far too many":       {`{"resources":[` + many(100_000, `{"uri":"u#"}`) + `]}`, 0, 2},
		"of a wrong type":    {`{"resources":{"uri":7}}`, 0, 2},
		"the same cursor":    {`{"resources":[{"uri":"file:///good","name":"x"}],"nextCursor":"again"}`, 1, 2},
		"no answer":          {``, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, files())
			w.pace.soon, w.pace.listGap = 200*time.Millisecond, time.Millisecond
			if c.list != "" {
				w.pace.soon = w.pace.list - time.Second
			}
			w.behave = func(p *peer) {
				whole(p)
				p.set("resources/list", c.list)
				p.set("resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"file:///{path}","name":"any"}]}`)
				p.serve(answers)
			}
			if got := w.names(agent()); len(got) != 2 {
				t.Errorf("the tools are %v", got)
			}
			offers, _ := w.OffersFor(t.Context(), agent(), Resources)
			if len(offers.Resources) != c.want {
				t.Errorf("%d are offered, want %d", len(offers.Resources), c.want)
			}
			for _, r := range offers.Resources {
				if len(r.Description) > maxDescription {
					t.Errorf("a description has %d bytes", len(r.Description))
				}
			}
			testenv.Eventually(t, 20*time.Second, func() bool { return w.peer(0).times("resources/list") == c.asks }, "it is not asked so often")
			if _, err := w.call(agent(), "files__echo"); err != nil || w.started() != 1 {
				t.Errorf("a call: %v, with %d jails", err, w.started())
			}
		})
	}
}

// Cursors that go round end.
func TestCursorsThatGoRoundEnd(t *testing.T) {
	asked, made := 0, 0
	same := func(n *int) *int { made++; return n }
	got, err := pages("x", 10, same, func(cursor string) ([]*int, string, error) {
		if made != asked {
			t.Errorf("of %d pages %d entries were made small when the next was asked for", asked, made)
		}
		asked++
		return []*int{&asked, nil}, map[string]string{"": "a", "a": "b", "b": "a"}[cursor], nil
	})
	if err != nil || asked != maxPages || len(got) != maxPages {
		t.Errorf("%d, %d, %v", asked, len(got), err)
	}
	asked = 0
	if _, err = pages("x", 10, same, func(string) ([]*int, string, error) {
		asked++
		return slices.Repeat([]*int{&asked}, 81), fmt.Sprint(asked), nil
	}); err != nil || asked != 1 {
		t.Errorf("%d, %v", asked, err)
	}
}

// When the resources of a server change, who may use it hears of that, and of nothing else.
func TestChangesOfResourcesAreTold(t *testing.T) {
	w := newFixture(t, files())
	w.pace.listGap = time.Millisecond
	w.behave = serveWhole
	changed, stop := w.Watch(agent())
	defer stop()
	offers, seen := w.OffersFor(t.Context(), agent(), Resources)
	if now, err := w.View(t.Context(), agent()); err != nil || now[Resources] != seen || len(offers.Resources) != 1 {
		t.Fatalf("%v, %v", now, err)
	}
	tools := w.view(agent())
	p := w.peer(0)
	p.set("resources/templates/list", `{"resourceTemplates":[]}`)
	p.say(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
	for {
		now, err := w.View(t.Context(), agent())
		if err != nil {
			t.Fatal(err)
		}
		if now[Resources] != seen {
			break
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatal("nobody hears of it")
		}
	}
	if w.view(agent()) != tools {
		t.Error("the tools have changed")
	}
	// It does not answer any more: what is known stays.
	p.set("resources/list", `{"resources":7}`)
	lists := p.times("tools/list")
	p.say(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
	testenv.Eventually(t, 10*time.Second, func() bool { return p.times("tools/list") > lists }, "it is not asked")
	if again, _ := w.OffersFor(t.Context(), agent(), Resources); len(again.Resources) != 1 {
		t.Errorf("offered are %+v", again)
	}
}

// Resources that a server has for one caller are listed to no other, and go with the instance.
func TestResourcesOfOneCallerAreListedToNobodyElse(t *testing.T) {
	for _, shared := range []bool{false, true} {
		server := files()
		server.Shared = shared
		w := newFixture(t, server)
		w.pace.listGap = time.Millisecond
		w.behave = func(p *peer) {
			whole(p)
			p.serve(func(p *peer, s said) {
				answers(p, s)
				if s.Method == "tools/call" {
					p.set("resources/list", `{"resources":[{"uri":"note:secret","name":"n"}]}`)
					p.setTools(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`)
					p.say(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
				}
			})
		}
		other := agent()
		other.ID = "a_2"
		has := func(by identity.Principal) bool {
			offers, _ := w.OffersFor(t.Context(), by, Resources)
			return len(offers.Resources) == 1 && offers.Resources[0].URI == "mcp+files+note:secret"
		}
		theirs := w.names(other)
		before, err := w.View(t.Context(), other)
		if err != nil || has(other) || len(theirs) != 2 {
			t.Fatalf("%v, %v", theirs, err)
		}
		changed, stop := w.Watch(agent())
		if _, err := w.call(agent(), "files__echo"); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() bool { return has(agent()) && len(w.names(other)) == 1 }, "its owner is not offered it, or the tools are not everybody's")
		if len(changed) == 0 {
			t.Error("its owner does not hear of it")
		}
		stop()
		after, err := w.View(t.Context(), other)
		if err != nil || has(other) != shared || (after[Resources] == before[Resources]) == shared {
			t.Errorf("shared %t: another one has it: %t, %v", shared, has(other), err)
		}
		if shared {
			continue
		}
		changed, stop = w.Watch(agent())
		for n := range w.started() {
			w.peer(n).exit()
		}
		testenv.Eventually(t, 10*time.Second, func() bool { return w.running() == 0 && !has(agent()) }, "it is there without the instance")
		if len(changed) == 0 {
			t.Error("its owner does not hear of the end")
		}
		stop()
	}
}

// Reads have the bounds that calls have, together with them.
func TestReadsAreBoundedAsCallsAre(t *testing.T) {
	w := newFixture(t, files())
	arrived, release := make(chan said, 64), make(chan struct{})
	w.behave = func(p *peer) {
		whole(p)
		p.serve(func(p *peer, s said) {
			arrived <- s
			select {
			case <-release:
			case <-p.killed:
			}
			answers(p, s)
		})
	}
	var work sync.WaitGroup
	for range callsOfCaller {
		work.Go(func() {
			if _, err := w.Read(t.Context(), agent(), "mcp+files+file:///x", nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range callsOfCaller {
		<-arrived
	}
	if _, err := w.Read(t.Context(), agent(), "mcp+files+file:///x", nil); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("one more: %v", err)
	}
	if _, err := w.call(agent(), "files__echo"); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("a call beside them: %v", err)
	}
	close(release)
	work.Wait()
}
