package guard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/cdp"
)

// TestNoClientGetsIntoTheWorldOfClawjail lets a client name it, and guess its number.
func TestNoClientGetsIntoTheWorldOfClawjail(t *testing.T) {
	conn, mux := open(t, shell(t))
	g, err := New(Options{Mode: Clean})
	if err != nil {
		t.Fatal(err)
	}
	u, bare := join(t, mux, g), join(t, mux, nil)
	target, session := u.page("")
	var attached struct {
		ID string `json:"sessionId"`
	}
	must := func(session, method string, params map[string]any, result any) {
		t.Helper()
		if err := conn.Session(session).Call(within(t), method, params, result); err != nil {
			t.Fatal(err)
		}
	}
	must("", "Target.attachToTarget", map[string]any{"targetId": target, "flatten": true}, &attached)
	var world struct {
		ID int `json:"executionContextId"`
	}
	must(attached.ID, "Page.createIsolatedWorld", map[string]any{"frameId": target, "worldName": cdp.OwnWorld}, &world)
	must(attached.ID, "Runtime.evaluate", map[string]any{"contextId": world.ID, "expression": "own = 'ours'"}, nil)

	// Without the guard a client sees it, and reads what is in it.
	other := bare.attach(target)
	bare.must(other, "Runtime.enable", `{}`)
	bare.until("the world", func(m message) bool { return strings.Contains(string(m.Params), `"name":"clawjail"`) })
	if got := bare.must(other, "Runtime.evaluate", fmt.Sprintf(`{"contextId":%d,"expression":"own"}`, world.ID)); !strings.Contains(string(got), "ours") {
		t.Fatalf("without the guard: %s", got)
	}

	// A number that nobody told the client is none, also before it listens.
	for id := range 3 * world.ID {
		if m := u.call(session, "Runtime.evaluate", fmt.Sprintf(`{"contextId":%d,"expression":"own"}`, id)); m.Error == nil {
			t.Errorf("context %d answered %s", id, m.Result)
		}
	}
	u.must(session, "Runtime.enable", `{}`)
	mine := find([]byte(u.must(session, "Page.createIsolatedWorld", fmt.Sprintf(`{"frameId":%q,"worldName":"mine"}`, target))), "executionContextId")
	told := u.until("the world of the client's own", func(m message) bool { return strings.Contains(string(m.Params), `"name":"mine"`) })
	unique := findText(find([]byte(told.Params), "context"), "uniqueId")
	for _, where := range []string{fmt.Sprintf(`"contextId":%s`, mine), fmt.Sprintf(`"uniqueContextId":%q`, unique), `"silent":true`} {
		u.must(session, "Runtime.evaluate", fmt.Sprintf(`{%s,"expression":"1"}`, where))
	}
	u.must(session, "Runtime.callFunctionOn", fmt.Sprintf(`{"executionContextId":%s,"functionDeclaration":"() => 1"}`, mine))
	for _, c := range [][2]string{
		{"Page.createIsolatedWorld", fmt.Sprintf(`{"frameId":%q,"worldName":"clawjail"}`, target)},
		{"Page.createIsolatedWorld", fmt.Sprintf(`{"frameId":%q,"world\u004eame":"claw\u006aail"}`, target)},
		{"Page.addScriptToEvaluateOnNewDocument", `{"source":"own = 1","worldName":"clawjail"}`},
		{"Runtime.addBinding", `{"name":"tell","executionContextName":"clawjail"}`},
		{"Runtime.addBinding", fmt.Sprintf(`{"name":"tell","executionContextId":%d}`, world.ID)},
		{"Runtime.evaluate", fmt.Sprintf(`{"contextId":%d,"expression":"own"}`, world.ID)},
		{"Runtime.evaluate", fmt.Sprintf(`{"contextId":%d.0,"expression":"own"}`, world.ID)},
		{"Runtime.callFunctionOn", fmt.Sprintf(`{"executionContextId":%d,"functionDeclaration":"() => own"}`, world.ID)},
		{"Runtime.compileScript", fmt.Sprintf(`{"executionContextId":%d,"expression":"own","sourceURL":"","persistScript":true}`, world.ID)},
		{"DOM.resolveNode", fmt.Sprintf(`{"backendNodeId":1,"executionContextId":%d}`, world.ID)},
	} {
		if m := u.call(session, c[0], c[1]); m.Error == nil ||
			!strings.Contains(m.Error.Message, "clawjail's own") && !strings.Contains(m.Error.Message, "Cannot find context") {
			t.Errorf("%s %s answered %s %+v", c[0], c[1], m.Result, m.Error)
		}
	}
	for _, m := range u.received {
		if strings.Contains(string(m.Params), `"clawjail"`) {
			t.Errorf("the client was told %s", m.Params)
		}
	}
	// The id of a client's context is not known any more in another document.
	u.must(session, "Page.navigate", `{"url":"data:text/html,two"}`)
	u.event("Runtime.executionContextsCleared")
	if m := u.call(session, "Runtime.evaluate", fmt.Sprintf(`{"contextId":%s,"expression":"1"}`, mine)); m.Error == nil {
		t.Errorf("the context of a document that is gone answered %s", m.Result)
	}
}
