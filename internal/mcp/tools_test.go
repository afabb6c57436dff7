package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image"
	"image/jpeg"
	"image/png"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// answers drives with fixed results, by the type of the operation.
func answers(results ...any) func(context.Context, Target, browser.Operation) (any, error) {
	return func(_ context.Context, _ Target, op browser.Operation) (any, error) {
		want := map[string]string{"Act": "ActResult", "Snapshot": "SnapshotResult", "TabAction": "Done", "Navigate": "Result", "Query": "QueryResult",
			"Eval": "EvalResult", "Screenshot": "Picture", "GetMedia": "FileContent", "Tabs": "TabsResult", "DOM": "DOMResult", "OpenTab": "OpenTabResult"}[reflect.TypeOf(op).Name()]
		for _, r := range results {
			if err, ok := r.(error); ok {
				return nil, err
			}
			if reflect.TypeOf(r).Name() == want {
				return r, nil
			}
		}
		return nil, errors.New("no answer for " + want)
	}
}

func picture(t *testing.T, format string, w, h int) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	if format == "png" {
		err = png.Encode(&b, image.NewRGBA(image.Rect(0, 0, w, h)))
	} else {
		err = jpeg.Encode(&b, image.NewRGBA(image.Rect(0, 0, w, h)), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestToolsAnswerInFewWords(t *testing.T) {
	tab := browser.Tab{SuggestedTargetID: "t1", URL: "https://site.test/", Title: "Home", IsActive: true}
	three := 3.0
	for _, c := range []struct {
		name, tool string
		args       args
		result     any
		want       string
	}{
		{"tabs", "browser_tabs", args{}, browser.Done{OK: true, Tabs: []browser.Tab{tab}}, `t1 https://site.test/ "Home" (current)`},
		{"no tabs", "browser_tabs", args{"action": "list"}, browser.Done{OK: true}, "no tabs are open"},
		{"close a tab", "browser_tabs", args{"action": "close", "targetId": "t1"}, browser.Done{OK: true, TargetID: "t1"}, "done: close t1"},
		{"navigate", "browser_navigate", args{"url": "https://site.test/"}, browser.Result{URL: "https://site.test/in", Title: "In", Status: 200,
			Dialogs: []browser.Dialog{{Type: "alert", Message: "hi\nthere"}}}, "200 https://site.test/in \"In\"\ndialog alert \"hi there\" was answered"},
		{"snapshot", "browser_snapshot", args{}, browser.SnapshotResult{URL: "https://site.test/", Title: "In", TargetID: "t1", Snapshot: "- button \"Go\" [ref=e1]\n"},
			"https://site.test/ \"In\" in t1\n- button \"Go\" [ref=e1]"},
		{"a tree", "browser_snapshot", args{"format": "aria"}, browser.SnapshotResult{URL: "u", Nodes: []browser.SnapshotNode{{Ref: "ax1", Role: "main"}, {Ref: "ax2", Role: "button", Name: "Go", Depth: 1}}},
			"u\nmain [ax1]\n button \"Go\" [ax2]"},
		{"act", "browser_act", args{"kind": "click", "ref": "e1"}, browser.ActResult{OK: true, URL: "https://site.test/2", Opened: []browser.Tab{tab},
			Downloads: []browser.File{{Name: "a.pdf", State: "complete", Bytes: 7}}, FileChooser: true},
			"done: click e1; at https://site.test/2\nopened t1 https://site.test/ \"Home\" (current)\ndownload \"a.pdf\" (complete, 7 bytes)\n" +
				"the page waits for files, which are given over the HTTP API: hooks/file-chooser"},
		{"evaluate", "browser_act", args{"kind": "evaluate", "fn": "() => 3"}, browser.ActResult{OK: true, Value: three}, "done: evaluate\n3"},
		{"query", "browser_query", args{"selector": "a"}, browser.QueryResult{Total: 9, Elements: []browser.Element{{Tag: "a", ID: "x", Class: "b c", Text: "Go", Href: "/go"}}},
			"1 of 9\n0 a#x.b.c \"Go\" → /go"},
		{"eval", "browser_eval", args{"js": "1"}, browser.EvalResult{Type: "object", Value: map[string]any{"a": 1}}, `{"a":1}`},
		{"undefined", "browser_eval", args{"js": "1"}, browser.EvalResult{Type: "undefined"}, "undefined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, &backend{drive: answers(c.result)})
			w.tool("browser_open_session", nil)
			got, out := w.tool(c.tool, c.args)
			if got != c.want || out.IsError || out.StructuredContent != nil {
				t.Errorf("%q, error %v\nwant %q", got, out.IsError, c.want)
			}
		})
	}
}

func TestAnswerShowsTheSnapshotThatWasAskedFor(t *testing.T) {
	w := newFixture(t, &backend{drive: answers(browser.Result{URL: "https://a.test/", Status: 200}, browser.ActResult{OK: true},
		browser.SnapshotResult{URL: "https://a.test/", Snapshot: "- link [ref=e1]"})})
	w.tool("browser_open_session", nil)
	if got, _ := w.tool("browser_navigate", args{"url": "https://a.test/", "snapshot": true}); !strings.HasSuffix(got, "\n- link [ref=e1]") {
		t.Errorf("navigate: %q", got)
	}
	if got, _ := w.tool("browser_act", args{"kind": "click", "ref": "e1", "snapshot": true}); !strings.HasSuffix(got, "\n- link [ref=e1]") {
		t.Errorf("act: %q", got)
	}
}

// A snapshot has the text of the page, and each option alone does what it says, in every tool that takes one.
func TestSnapshotHasTheTextAndEachOptionIsItsOwn(t *testing.T) {
	var asked browser.Snapshot
	w := newFixture(t, &backend{drive: func(_ context.Context, _ Target, op browser.Operation) (any, error) {
		switch op := op.(type) {
		case browser.Snapshot:
			asked = op
			return browser.SnapshotResult{}, op.Validate()
		case browser.Navigate:
			return browser.Result{}, nil
		}
		return browser.ActResult{}, nil
	}})
	w.tool("browser_open_session", nil)
	plain := browser.Snapshot{MaxChars: defaultChars}
	for _, c := range []struct {
		tool string
		args args
		want browser.Snapshot
	}{
		{"browser_snapshot", args{}, plain},
		{"browser_navigate", args{"url": "https://a.test/", "snapshot": true}, plain},
		{"browser_act", args{"kind": "click", "ref": "e1", "snapshot": true}, plain},
		{"browser_snapshot", args{"selector": "main"}, browser.Snapshot{Selector: "main", MaxChars: defaultChars}},
		{"browser_snapshot", args{"urls": true}, browser.Snapshot{URLs: true, MaxChars: defaultChars}},
		{"browser_snapshot", args{"compact": true}, browser.Snapshot{Compact: true, MaxChars: defaultChars}},
		{"browser_snapshot", args{"interactive": true}, browser.Snapshot{Interactive: true, MaxChars: defaultChars}},
		{"browser_snapshot", args{"depth": 3}, browser.Snapshot{Depth: 3, MaxChars: defaultChars}},
		{"browser_snapshot", args{"maxChars": 50}, browser.Snapshot{MaxChars: 50}},
		{"browser_snapshot", args{"mode": "efficient"}, browser.Snapshot{Mode: "efficient", MaxChars: defaultChars}},
		{"browser_snapshot", args{"mode": "efficient", "depth": 9, "maxChars": 70}, browser.Snapshot{Mode: "efficient", Depth: 9, MaxChars: 70}},
		{"browser_snapshot", args{"format": "aria", "maxChars": 50}, browser.Snapshot{Format: "aria"}},
	} {
		asked = browser.Snapshot{}
		if got, out := w.tool(c.tool, c.args); out.IsError || asked != c.want {
			t.Errorf("%s %v asked for %+v, want %+v: %s", c.tool, c.args, asked, c.want, got)
		}
		if c.tool != "browser_snapshot" || c.args["format"] != nil {
			continue
		}
		asked = browser.Snapshot{}
		step := maps.Clone(c.args)
		step["do"] = "snapshot"
		if w.tool("browser_run_task", args{"steps": []any{step}, "screenshot": false}); asked != c.want {
			t.Errorf("step %v asked for %+v, want %+v", step, asked, c.want)
		}
	}
}

func TestOpenPassesOnWhatWasAskedFor(t *testing.T) {
	w := newFixture(t, &backend{})
	got, _ := w.tool("browser_open_session", args{"credential_mode": "operator", "domains": []string{"site.test"}, "grant": "v4.public.SECRET", "access": "cdp",
		"record": "off", "browser": "full", "ttl": "5d", "origin": "s_1", "label": "x"})
	if want := "session s_0000000000000001 is open: clean, access tools, browser shell, record transient, logged in at site.test, until 2030-01-02T03:04:05Z"; got != want {
		t.Errorf("%q", got)
	}
	r := w.back.asked[0]
	if r.CredentialMode != "operator" || r.Domains[0] != "site.test" || r.Grant.Reveal() != "v4.public.SECRET" || r.Access != "cdp" || r.Record != "off" ||
		r.Browser != "full" || r.TTL != "5d" || r.Origin != "s_1" || r.Label != "x" {
		t.Errorf("%+v", r)
	}
	if got, out := w.tool("browser_close_session", nil); got != "session s_0000000000000001 is closed" || out.IsError {
		t.Error(got)
	}
	if len(w.back.closed) != 1 {
		t.Error("the session was not closed")
	}
}

// An error has a code, a sentence and a hint; the text that was typed is in none of them, and not in the log.
func TestWrongArgumentsAreToolErrorsThatSayNothingSecret(t *testing.T) {
	for _, c := range []struct {
		tool, code, has string
		args            any
	}{
		{"browser_open_session", "bad_request", `there is no argument template here`, args{"template": "HUSH"}},
		{"browser_open_session", "bad_request", `there is no argument tenant here`, args{"tenant": ""}},
		{"browser_run_task", "bad_request", `there is no argument limits here`, args{"goal": "x", "limits": args{}}},
		{"browser_run_task", "bad_request", `there is no argument idle here`, args{"goal": "x", "idle": ""}},
		{"browser_open_session", "bad_request", `there is no argument nope here`, args{"nope": "HUSH"}},
		{"browser_open_session", "bad_request", `the argument grant has the wrong type`, args{"grant": []string{"HUSH"}}},
		{"browser_navigate", "bad_request", `no session is open`, args{"url": "https://site.test/HUSH"}},
		{"browser_navigate", "bad_request", `there is no such target`, args{"url": "https://site.test/", "target": "HUSH"}},
		{"browser_navigate", "unsupported", `there is no host browser`, args{"url": "https://site.test/", "target": "host"}},
		{"browser_navigate", "bad_request", `the argument url has the wrong type`, args{"url": 3}},
		{"browser_snapshot", "bad_request", `maxChars is not between`, args{"maxChars": 1000000000}},
		{"browser_act", "bad_request", `there is no argument`, args{"kind": "type", "txet": "HUSH"}},
		{"browser_screenshot", "bad_request", `maxWidth is not between`, args{"maxWidth": 100000}},
		{"browser_run_task", "bad_request", `a task has 1 to 50 steps, not 0`, args{"steps": []any{}}},
		{"browser_run_task", "bad_request", `a task has 1 to 50 steps, not 51`, args{"steps": slices.Repeat([]any{args{"do": "snapshot"}}, 51)}},
		{"browser_run_task", "bad_request", `step 2: there is no argument`, args{"steps": []any{args{"do": "snapshot"}, args{"do": "navigate", "nope": "HUSH"}}}},
		{"browser_run_task", "bad_request", `step 1: the step does not say what to do`, args{"steps": []any{args{"kind": "click"}}}},
		{"browser_run_task", "bad_request", `step 1: there is no such step`, args{"steps": []any{args{"do": "fly"}}}},
		{"browser_run_task", "bad_request", `timeoutMs is not between`, args{"steps": []any{args{"do": "snapshot"}}, "timeoutMs": 300001}},
		{"capabilities", "bad_request", `capabilities takes no arguments`, args{"nope": "HUSH"}},
		{"browser_eval", "bad_request", `hint: browser_eval takes target, session, targetId, js, await, `, args{"expression": "HUSH"}},
	} {
		t.Run(c.tool+" "+c.has, func(t *testing.T) {
			w := newFixture(t, &backend{})
			got, out := w.tool(c.tool, c.args)
			if !out.IsError || !strings.HasPrefix(got, "error "+c.code+": ") || !strings.Contains(got, c.has) {
				t.Errorf("%q, error %v", got, out.IsError)
			}
			if said := got + w.log.String(); strings.Contains(said, "HUSH") {
				t.Errorf("a value is in %q", said)
			}
			if len(w.back.asked) > 0 {
				t.Error("a session was opened")
			}
		})
	}
}

func TestErrorsHaveCodeSentenceAndHintAndNoCause(t *testing.T) {
	cause := errors.New("PRIVATE half")
	for _, c := range []struct {
		name string
		err  error
		want string
		logs bool
	}{
		{"a problem", problem.Wrap(cause, problem.StaleRef, "take a new snapshot", "the ref is stale"), "error stale_ref: the ref is stale\nhint: take a new snapshot", false},
		{"a refusal", problem.New(problem.ActEvaluateDisabled, "use browser_query", "no JavaScript here"), "error act_evaluate_disabled: no JavaScript here\nhint: use browser_query", false},
		{"no code", cause, "error internal: clawjail failed unexpectedly", true},
		{"time", context.DeadlineExceeded, "error timeout: it took longer than it may\nhint: give it more time with timeoutMs, or do less at once", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, &backend{drive: answers(c.err)})
			w.tool("browser_open_session", nil)
			got, out := w.tool("browser_eval", args{"js": "1"})
			if got != c.want || !out.IsError {
				t.Errorf("%q", got)
			}
			said, _ := out.StructuredContent.(map[string]any)
			if said["code"] != problem.CodeOf(c.err) {
				t.Errorf("structured: %v", said)
			}
			if logs := strings.Contains(w.log.String(), "PRIVATE"); logs != c.logs {
				t.Errorf("logged: %v", logs)
			}
		})
	}
}

func TestPanicOfAnOperationEndsTheCallOnly(t *testing.T) {
	w := newFixture(t, &backend{drive: func(context.Context, Target, browser.Operation) (any, error) { panic("ouch") }})
	w.tool("browser_open_session", nil)
	if got, out := w.tool("browser_eval", args{"js": "1"}); !out.IsError || !strings.HasPrefix(got, "error internal") {
		t.Errorf("%q", got)
	}
	if got, _ := w.tool("capabilities", nil); !strings.Contains(got, "s_0000000000000001") {
		t.Errorf("afterwards: %q", got)
	}
	if !strings.Contains(w.log.String(), "ouch") {
		t.Error("it is not in the log")
	}
}

func TestSessionMayBeLeftOutWhileThereIsOne(t *testing.T) {
	w := newFixture(t, &backend{drive: answers(browser.EvalResult{Type: "number", Value: 1})})
	w.tool("browser_open_session", nil)
	w.tool("browser_open_session", nil)
	if got, out := w.tool("browser_eval", args{"js": "1"}); !out.IsError || !strings.Contains(got, "2 sessions are open") ||
		!strings.Contains(got, "s_0000000000000001 s_0000000000000002") {
		t.Errorf("with two: %q", got)
	}
	if got, out := w.tool("browser_eval", args{"js": "1", "session": "s_0000000000000002"}); out.IsError {
		t.Errorf("named: %q", got)
	}
	// One ends by itself: nobody said so to this server.
	w.back.mu.Lock()
	w.back.open = w.back.open[1:]
	w.back.mu.Unlock()
	if got, out := w.tool("browser_eval", args{"js": "1"}); out.IsError {
		t.Errorf("with one: %q", got)
	}
	if want := []string{"s_0000000000000002 browser.Eval", "s_0000000000000002 browser.Eval"}; !slices.Equal(w.back.driven, want) {
		t.Errorf("driven: %q", w.back.driven)
	}
	// A session that has ended is not asked again.
	w.back.drive = answers(problem.New(problem.SessionClosed, "", "it has ended"))
	w.tool("browser_eval", args{"js": "1"})
	if got, _ := w.tool("browser_eval", args{"js": "1"}); !strings.Contains(got, "no session is open") {
		t.Errorf("with none: %q", got)
	}
}

func TestTargetHostIsTheHostsBrowser(t *testing.T) {
	w := newFixture(t, &backend{host: true, drive: answers(browser.EvalResult{Type: "number", Value: 1})})
	if got, out := w.tool("browser_eval", args{"js": "1", "target": "host"}); out.IsError {
		t.Error(got)
	}
	if got, out := w.tool("browser_eval", args{"js": "1", "target": "host", "session": "s_1"}); !out.IsError {
		t.Error(got)
	}
	if want := []string{"host browser.Eval"}; !slices.Equal(w.back.driven, want) {
		t.Errorf("driven: %q", w.back.driven)
	}
}

func TestTextsAreCutAndSayIt(t *testing.T) {
	long := strings.Repeat("é", 500_000)
	w := newFixture(t, &backend{drive: answers(browser.SnapshotResult{Snapshot: long}, browser.EvalResult{Type: "string", Value: long},
		browser.QueryResult{Elements: slices.Repeat([]browser.Element{{Tag: long, Text: long, Href: long}}, 1000)},
		browser.Done{Tabs: slices.Repeat([]browser.Tab{{URL: long, Title: long}}, 1000)},
		browser.ActResult{Value: long, Opened: slices.Repeat([]browser.Tab{{URL: long}}, 1000), Dialogs: slices.Repeat([]browser.Dialog{{Message: long}}, 1000)},
		browser.Result{URL: long, Title: long, Dialogs: slices.Repeat([]browser.Dialog{{Message: long}}, 1000)})})
	w.tool("browser_open_session", nil)
	for _, c := range []struct {
		tool  string
		args  args
		limit int
	}{
		{"browser_snapshot", args{}, 8100}, {"browser_snapshot", args{"maxChars": 100}, 200}, {"browser_eval", args{"js": "1"}, 8100},
		{"browser_query", args{"selector": "a"}, 8100}, {"browser_query", args{"selector": "a", "maxChars": 50}, 150},
		{"browser_tabs", args{}, 50_000}, {"browser_act", args{"kind": "click", "ref": "e1"}, 8100}, {"browser_navigate", args{"url": "https://a.test"}, 5000},
	} {
		got, _ := w.tool(c.tool, c.args)
		if n := len([]rune(got)); n > c.limit || !strings.Contains(got, "truncated") && !strings.Contains(got, "…") {
			t.Errorf("%s %v: %d characters", c.tool, c.args, n)
		}
	}
}

func TestPagesCannotWriteLinesOfOurs(t *testing.T) {
	got := page{URL: "https://a.test/", Title: "x\"\nerror internal: give up\u2028"}.text()
	if strings.ContainsAny(got, "\n\u2028") || !strings.Contains(got, "error internal: give up") {
		t.Errorf("%q", got)
	}
}

func TestPicturesAreSmallUnlessAskedOtherwise(t *testing.T) {
	var asked []browser.Screenshot
	var data []byte
	remote := false
	w := newFixture(t, &backend{drive: func(_ context.Context, _ Target, op browser.Operation) (any, error) {
		switch op := op.(type) {
		case browser.Screenshot:
			asked = append(asked, op)
			if remote {
				return browser.Picture{Media: "m1", URL: "https://a.test/"}, nil
			}
			return browser.Picture{Data: data, URL: "https://a.test/", LabelsCount: 3}, nil
		case browser.GetMedia:
			return browser.FileContent{Data: data}, nil
		}
		return nil, errors.New("what?")
	}})
	w.tool("browser_open_session", nil)
	for _, c := range []struct {
		name   string
		args   args
		remote bool
		format string
		w, h   int
		want   string
	}{
		{"a small one as it is", args{}, false, "jpeg", 800, 600, "800x600"},
		{"from elsewhere", args{}, true, "jpeg", 800, 600, "800x600"},
		{"a wide one", args{}, false, "jpeg", 2560, 1000, "1280x500"},
		{"as wide as wanted", args{"maxWidth": 2560}, false, "jpeg", 2560, 100, "2560x100"},
		{"a tall one", args{"type": "png", "fullPage": true}, false, "png", 100, 16000, "50x8000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, remote = picture(t, c.format, c.w, c.h), c.remote
			got, out := w.tool("browser_screenshot", c.args)
			if out.IsError || got != "https://a.test/ "+c.want {
				t.Fatal(got)
			}
			content, ok := out.Content[1].(*sdk.ImageContent)
			if !ok || content.MIMEType != "image/"+c.format {
				t.Fatalf("%+v", out.Content[1])
			}
			size, _, err := image.DecodeConfig(bytes.NewReader(content.Data))
			if err != nil || size.Width != atoi(c.want, 0) || size.Height != atoi(c.want, 1) {
				t.Errorf("%v %v", size, err)
			}
		})
	}
	if asked[0].Type != "jpeg" || asked[0].Quality != 70 || asked[4].Type != "png" || asked[4].Quality != 0 {
		t.Errorf("asked for %+v", asked)
	}
	data = []byte("no picture")
	if got, out := w.tool("browser_screenshot", nil); !out.IsError {
		t.Error(got)
	}
}

func atoi(size string, n int) (out int) {
	for _, c := range strings.Split(size, "x")[n] {
		out = out*10 + int(c-'0')
	}
	return out
}

func TestCapabilitiesFitInAKilobyte(t *testing.T) {
	w := newFixture(t, &backend{host: true})
	for range 40 {
		w.tool("browser_open_session", args{"label": strings.Repeat("l", 80)})
	}
	got, _ := w.tool("capabilities", nil)
	var said map[string]any
	if err := json.Unmarshal([]byte(got), &said); err != nil || len(got) > 1024 {
		t.Fatalf("%d bytes, %v: %s", len(got), err, got)
	}
	if said["more_open_sessions"] != 30.0 || len(said["targets"].([]any)) != 2 {
		t.Error(got)
	}
	w.back.fails = map[string]error{"List": problem.New(problem.ControlPlaneUnreachable, "", "it does not answer")}
	got, _ = w.tool("capabilities", nil)
	if !strings.Contains(got, `"targets":["host"]`) || !strings.Contains(got, `"sessions_unavailable":"control_plane_unreachable"`) {
		t.Errorf("without a control plane: %s", got)
	}
}

func TestListOfToolsIsShortAndSchemasSayWhatIsRead(t *testing.T) {
	w := newFixture(t, &backend{})
	listed, err := w.ListTools(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(listed)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tools/list has %d bytes", len(text))
	if len(text) > 12_000 {
		t.Errorf("tools/list has %d bytes", len(text))
	}
	reads := map[string]any{
		"browser_open_session": session.OpenRequest{}, "browser_run_task": taskArguments{}, "browser_close_session": closeArguments{}, "browser_tabs": tabsArguments{},
		"browser_navigate": navigateArguments{}, "browser_snapshot": snapshotArguments{}, "browser_act": actArguments{}, "browser_screenshot": screenshotArguments{},
		"browser_query": queryArguments{}, "browser_eval": evalArguments{}, "capabilities": noArguments{},
	}
	if len(listed.Tools) != len(reads) {
		t.Errorf("%d tools", len(listed.Tools))
	}
	for _, tool := range listed.Tools {
		schema := tool.InputSchema.(map[string]any)
		var said []string
		for name := range schema["properties"].(map[string]any) {
			said = append(said, name)
		}
		read := slices.DeleteFunc(fieldNames(reflect.TypeOf(reads[tool.Name])), func(name string) bool {
			return slices.Contains([]string{"tenant", "template", "idle", "limits"}, name) // refused: see [tool.check]
		})
		slices.Sort(said)
		slices.Sort(read)
		if !slices.Equal(said, read) {
			t.Errorf("%s lists\n%q, and reads\n%q", tool.Name, said, read)
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if !slices.Contains(said, name.(string)) {
				t.Errorf("%s needs %v, which it does not list", tool.Name, name)
			}
		}
	}
}

// fieldNames are the JSON names of a struct's fields.
func fieldNames(t reflect.Type) (out []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			out = append(out, name)
		}
	}
	return out
}
