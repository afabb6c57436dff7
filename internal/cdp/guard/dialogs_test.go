package guard

import (
	"fmt"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// A client has the dialogs of a page from when it asks for the events of the page until it wants none, its session ends, or
// it ends itself; once, however often it asks.
func TestWhoAsksForThePagesEventsHasItsDialogs(t *testing.T) {
	owned := map[string]int{}
	g, err := New(Options{Mode: Clean, Dialogs: func(page string) func() {
		owned[page]++
		return func() { owned[page]-- }
	}})
	if err != nil {
		t.Fatal(err)
	}
	attach := func(session, target, kind string) {
		t.Helper()
		if !g.Event(&cdp.Message{Method: "Target.attachedToTarget", Params: jsontext.Value(fmt.Sprintf(
			`{"sessionId":%q,"waitingForDebugger":false,"targetInfo":{"targetId":%q,"type":%q,"title":"","url":"https://example.com/","attached":true}}`,
			session, target, kind))}) {
			t.Fatalf("the client is not told of %s", target)
		}
	}
	say := func(session, method string) {
		g.Command(&cdp.Message{Kind: cdp.Command, SessionID: session, Method: method, Params: jsontext.Value(`{}`)})
	}
	want := func(when string, page, other int) {
		t.Helper()
		if owned["page"] != page || owned["other"] != other || owned["frame"] != 0 {
			t.Errorf("%s: %v", when, owned)
		}
	}
	attach("s1", "page", "page")
	attach("s2", "page", "page")
	attach("s3", "other", "page")
	attach("s4", "frame", "iframe")
	want("who is attached only", 0, 0)
	for _, session := range []string{"s1", "s1", "s2", "s3", "s4"} {
		say(session, "Page.enable")
	}
	want("who asks", 2, 1)
	say("s1", "Page.disable")
	say("s1", "Page.disable")
	want("who wants them no more", 1, 1)
	g.Event(&cdp.Message{Method: "Target.detachedFromTarget", Params: jsontext.Value(`{"sessionId":"s2"}`)})
	want("whose session has ended", 0, 1)
	say("s1", "Page.enable")
	g.Ended()
	want("who has ended", 0, 0)
}
