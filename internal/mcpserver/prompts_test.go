package mcpserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// promptly is a whole server that has prompts, and answers with what it was asked.
func promptly(p *peer) {
	whole(p)
	p.set("prompts/list", fmt.Sprintf(`{"prompts":[
		{"name":"plain","description":"one\u202e","arguments":[{"name":"who","description":"a\u0007b","required":true}]},
		{"name":"with space"},{"name":"plain"},{"name":""},{"name":"bad\nname"},{"name":"bad argument","arguments":[{"name":"\u200b"}]},
		{"name":"many","arguments":[%s{"name":"x"}]},null]}`, strings.Repeat(`{"name":"x"},`, maxPromptArguments)))
	p.serve(func(p *peer, s said) {
		switch s.Method {
		case "prompts/get":
			p.result(s, fmt.Sprintf(`{"description":"d\u001b[2J","messages":[{"role":"system","content":{"type":"text","text":%q}},null,
				{"role":"assistant","content":{"type":"text","text":"hidden\udb40\udc41 here"}},
				{"role":"user","content":{"type":"resource","resource":{"uri":"file:///a","text":"x\u202ey"}}}]}`, s.tool()+" "+string(s.Params)))
		case "completion/complete":
			p.result(s, fmt.Sprintf(`{"completion":{"values":[%q,"a\u0000b",%q%s],"total":-7}}`, s.Params, strings.Repeat("x", maxCompletion+1), strings.Repeat(`,"v"`, maxCompletions)))
		default:
			answers(p, s)
		}
	})
}

func TestPromptsAreOfferedAndGot(t *testing.T) {
	w := newFixture(t, files(), config.MCPServer{Name: "other", Command: []string{"/s"}})
	w.behave = promptly
	offers, _ := w.OffersFor(t.Context(), operator(), Prompts)
	var names []string
	for _, p := range offers.Prompts {
		names = append(names, p.Name)
	}
	if len(names) != 4 || names[0] != "files__plain" || !strings.HasPrefix(names[1], "files__with_space_") || names[2] != "other__plain" {
		t.Fatalf("offered are %q", names)
	}
	if p := offers.Prompts[0]; p.Description != "one" || len(p.Arguments) != 1 || p.Arguments[0].Description != "ab" || !p.Arguments[0].Required {
		t.Errorf("described as %+v", p)
	}
	if offers, _ := w.OffersFor(t.Context(), agent(), Prompts); len(offers.Prompts) != 2 {
		t.Errorf("an agent is offered %+v", offers)
	}
	out, err := w.Prompt(t.Context(), agent(), names[1], map[string]string{"who": "ann"}, nil)
	if err != nil || len(out.Messages) != 3 || out.Description != "d[2J" {
		t.Fatalf("%+v, %v", out, err)
	}
	for n, want := range []struct{ role, text string }{{"user", "with space "}, {"assistant", "hidden here"}, {"user", "xy"}} {
		text := ""
		switch c := out.Messages[n].Content.(type) {
		case *sdk.TextContent:
			text = c.Text
		case *sdk.EmbeddedResource:
			text = c.Resource.Text
			if c.Resource.URI != "mcp+files+file:///a" {
				t.Errorf("embedded is %q", c.Resource.URI)
			}
		}
		if string(out.Messages[n].Role) != want.role || !strings.HasPrefix(text, want.text) || n == 0 && !strings.Contains(text, `"who":"ann"`) {
			t.Errorf("message %d is %q of %q", n, text, out.Messages[n].Role)
		}
	}
	if at := slices.IndexFunc(w.log.Begun(), func(in audit.Intent) bool { return in.Action == "mcp_server.prompt" }); at < 0 || w.log.Begun()[at].Target != "files/with space" {
		t.Errorf("recorded is %+v", w.log.Begun())
	}
	for name, code := range map[string]string{"files__plain": "", "files__bad": problem.NotFound, "other__plain": problem.NotFound, "nosuch__plain": problem.NotFound,
		"files__\n": problem.NotFound, "plain": problem.NotFound} {
		if _, err := w.Prompt(t.Context(), agent(), name, nil, nil); problem.CodeOf(err) != code {
			t.Errorf("%q: %v", name, err)
		}
	}
	nobody := identity.Principal{Kind: identity.KindAgent, ID: "a_9", Tenant: "acme", TokenID: "t"}
	if _, err := w.Prompt(t.Context(), nobody, "files__plain", nil, nil); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("another tenant: %v", err)
	}
}

func TestPromptsThatAreNotOfferedAreNotAskedFor(t *testing.T) {
	named := files()
	named.Tools = []string{"echo"}
	w := newFixture(t, named)
	w.behave = promptly
	if offers, _ := w.OffersFor(t.Context(), agent(), Prompts); len(offers.Prompts) != 0 || len(w.names(agent())) != 1 || w.peer(0).heard("prompts/list") {
		t.Errorf("offered are %+v", offers)
	}
	if _, err := w.Prompt(t.Context(), agent(), "files__plain", nil, nil); problem.CodeOf(err) != problem.NotFound || w.peer(0).heard("prompts/get") {
		t.Errorf("%v", err)
	}
	yes := true
	named.Prompts = &yes
	w = newFixture(t, named)
	w.behave = promptly
	if offers, _ := w.OffersFor(t.Context(), agent(), Prompts); len(offers.Prompts) != 2 {
		t.Errorf("where it is said: %+v", offers)
	}
}

// Operators see what there is of a server, and which list it does not give.
func TestATestSaysWhatAServerOffers(t *testing.T) {
	w := newFixture(t, files())
	w.behave = promptly
	r, err := w.Test(t.Context(), admin(), "", "files")
	if err != nil || r.Problem != "" || len(r.Tools) != 2 || len(r.Resources) != 1 || len(r.Templates) != 1 || len(r.Prompts) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	counts := func() [3]int {
		t.Helper()
		all, err := w.List(t.Context(), admin(), "")
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return [3]int{all[0].Tools, all[0].Resources, all[0].Prompts}
	}
	if got := counts(); got != [3]int{-1, -1, -1} {
		t.Errorf("before it is known: %v", got)
	}
	w.names(agent())
	if got := counts(); got != [3]int{2, 2, 2} {
		t.Errorf("there are %v", got)
	}
	w.behave = func(p *peer) {
		whole(p)
		p.set("prompts/list", `{"prompts":"\u001b[31m"}`)
		p.serve(answers)
	}
	if r, err = w.Test(t.Context(), admin(), "", "files"); err != nil || r.Code != problem.JailFailed || !strings.Contains(r.Problem, "list its prompts") || len(r.Tools) != 2 || len(r.Resources) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCompletionsComeFromTheServerThatIsMeant(t *testing.T) {
	w := newFixture(t, files(), config.MCPServer{Name: "other", Command: []string{"/s"}})
	w.behave = promptly
	ask := func(ref sdk.CompleteReference) (*sdk.CompleteResult, error) {
		return w.Complete(t.Context(), agent(), &sdk.CompleteParams{Ref: &ref, Argument: sdk.CompleteParamsArgument{Name: "who", Value: "a"},
			Context: &sdk.CompleteContext{Arguments: map[string]string{"x": "y"}}})
	}
	w.OffersFor(t.Context(), agent(), Prompts)
	for _, c := range []struct {
		ref               sdk.CompleteReference
		own, code, target string
	}{
		{sdk.CompleteReference{Type: "ref/prompt", Name: "files__plain"}, `"name":"plain"`, "", "files/plain"},
		{sdk.CompleteReference{Type: "ref/resource", URI: "mcp+files+file:///{path}"}, `"uri":"file:///{path}"`, "", "mcp+files+file:///{path}"},
		{sdk.CompleteReference{Type: "ref/prompt", Name: "other__plain"}, "", problem.NotFound, ""},
		{sdk.CompleteReference{Type: "ref/resource", URI: "mcp+other+file:///{path}"}, "", problem.NotFound, ""},
		{sdk.CompleteReference{Type: "ref/resource", URI: "file:///{path}"}, "", problem.NotFound, ""},
	} {
		out, err := ask(c.ref)
		if problem.CodeOf(err) != c.code {
			t.Errorf("%+v: %v", c.ref, err)
		}
		if err != nil {
			continue
		}
		if v := out.Completion; len(v.Values) != maxCompletions || !v.HasMore || v.Total != 0 || !strings.Contains(v.Values[0], c.own) || !strings.Contains(v.Values[0], `"x":"y"`) || v.Values[1] != "v" {
			t.Errorf("%+v: %+v", c.ref, v)
		}
		if !slices.ContainsFunc(w.log.Begun(), func(in audit.Intent) bool { return in.Action == "mcp_server.complete" && in.Target == c.target }) {
			t.Errorf("recorded is %+v", w.log.Begun())
		}
	}
	if _, err := w.Complete(t.Context(), agent(), &sdk.CompleteParams{}); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("of nothing: %v", err)
	}
	// A server that has no such answers is not asked for any.
	plain := newFixture(t, files())
	plain.behave = func(p *peer) {
		whole(p)
		p.can = `{"tools":{},"resources":{}}`
		p.serve(answers)
	}
	out, err := plain.Complete(t.Context(), agent(), &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/resource", URI: "mcp+files+file:///{path}"}, Argument: sdk.CompleteParamsArgument{Name: "path"}})
	if err != nil || out.Completion.Values == nil || len(out.Completion.Values) != 0 || plain.peer(0).heard("completion/complete") {
		t.Errorf("%+v, %v", out, err)
	}
}
