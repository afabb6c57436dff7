package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// others offer two tools, the second to the agent a alone, a template, and more to whom more is given: a tool with __ in its name, a
// resource with +, a prompt with ?.
type others struct {
	called []string

	mu       sync.Mutex
	more     map[string]string
	watchers map[chan struct{}]bool
}

func (o *others) OffersFor(ctx context.Context, by identity.Principal, kind mcpserver.Kind) (out mcpserver.Offers, view string) {
	schema := json.RawMessage(`{"type":"object"}`)
	o.mu.Lock()
	more := o.more[by.ID]
	o.mu.Unlock()
	switch kind {
	case mcpserver.Tools:
		out.Tools = append(out.Tools, &sdk.Tool{Name: "one__echo", InputSchema: schema})
		if by.ID == "a" {
			out.Tools = append(out.Tools, &sdk.Tool{Name: "two__echo", InputSchema: schema})
		}
		if strings.Contains(more, "__") {
			out.Tools = append(out.Tools, &sdk.Tool{Name: more, InputSchema: schema})
		}
	case mcpserver.Resources:
		out.Templates = append(out.Templates, &sdk.ResourceTemplate{URITemplate: "mcp+one+x:{y}"})
		if strings.Contains(more, "+") {
			out.Resources = append(out.Resources, &sdk.Resource{URI: more})
		}
	case mcpserver.Prompts:
		if strings.Contains(more, "?") {
			out.Prompts = append(out.Prompts, &sdk.Prompt{Name: more})
		}
	}
	views, _ := o.View(ctx, by)
	return out, views[kind]
}

func (o *others) View(_ context.Context, by identity.Principal) (mcpserver.Views, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := mcpserver.Views{}
	for kind, mark := range map[mcpserver.Kind]string{mcpserver.Tools: "__", mcpserver.Resources: "+", mcpserver.Prompts: "?"} {
		out[kind] = "view "
		if more := o.more[by.ID]; strings.Contains(more, mark) {
			out[kind] += more
		}
	}
	return out, nil
}

func (o *others) Watch(identity.Principal) (<-chan struct{}, func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := make(chan struct{}, 1)
	if o.watchers == nil {
		o.watchers = map[chan struct{}]bool{}
	}
	o.watchers[w] = true
	return w, func() { o.mu.Lock(); defer o.mu.Unlock(); delete(o.watchers, w) }
}

// give gives an agent one thing more, in the place of what it was given before, and wakes everybody.
func (o *others) give(to, more string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = map[string]string{}
	}
	o.more[to] = more
	for w := range o.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// end is what the service of the tools does when it ends.
func (o *others) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for w := range o.watchers {
		close(w)
		delete(o.watchers, w)
	}
}

func (o *others) listening() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.watchers)
}

func (o *others) Call(_ context.Context, by identity.Principal, name string, raw json.RawMessage, tell mcpserver.Progress) (*sdk.CallToolResult, error) {
	o.called = append(o.called, by.ID+" "+name+" "+string(raw))
	tell(1, 2, "half")
	switch name {
	case "one__panics":
		panic("of the test")
	case "one__fails":
		return nil, problem.New(problem.JailFailed, "look", "it ended").With("stderr", "no module")
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "echoed"}}}, nil
}

func (o *others) Read(_ context.Context, by identity.Principal, uri string, tell mcpserver.Progress) (*sdk.ReadResourceResult, error) {
	o.called = append(o.called, by.ID+" "+uri)
	tell(1, 2, "half")
	switch uri {
	case "mcp+one+panics":
		panic("of the test")
	case "mcp+one+gone":
		return nil, problem.New(problem.NotFound, "look", "it is not there")
	case "mcp+one+refused":
		return nil, &jsonrpc.Error{Code: -32002, Message: "the server says no"}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, Text: "read"}}, Cacheable: sdk.Cacheable{CacheScope: "private"}}, nil
}

func (o *others) Prompt(_ context.Context, by identity.Principal, name string, arguments map[string]string, tell mcpserver.Progress) (*sdk.GetPromptResult, error) {
	tell(1, 2, "half")
	if name == "one?gone" {
		return nil, problem.New(problem.NotFound, "look", "it is not there")
	}
	return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: by.ID + " " + name + " " + arguments["x"]}}}}, nil
}

func (o *others) Complete(_ context.Context, by identity.Principal, asked *sdk.CompleteParams) (*sdk.CompleteResult, error) {
	out := &sdk.CompleteResult{}
	out.Completion.Values = []string{by.ID + " " + asked.Ref.Name + asked.Ref.URI + " " + asked.Argument.Value}
	return out, nil
}

func TestPromptsOfOthersAreListedAndGotAndCompleted(t *testing.T) {
	o := new(others)
	d := newDoorWith(t, Options{Backend: new(backend), Foreign: o})
	o.give("a", "one?p")
	for who, want := range map[string]int{"a": 1, "b": 0} {
		c := d.client(t, who)
		if can := c.InitializeResult().Capabilities; can.Prompts == nil || !can.Prompts.ListChanged || can.Completions == nil {
			t.Errorf("it says that it can %+v", can)
		}
		listed, err := c.ListPrompts(t.Context(), nil)
		if err != nil || len(listed.Prompts) != want {
			t.Errorf("%s: %+v, %v", who, listed, err)
		}
		out, err := c.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "one?p", Arguments: map[string]string{"x": "y"}})
		if err != nil || out.Messages[0].Content.(*sdk.TextContent).Text != who+" one?p y" {
			t.Errorf("%s: %+v, %v", who, out, err)
		}
		for _, ref := range []sdk.CompleteReference{{Type: "ref/prompt", Name: "one?p"}, {Type: "ref/resource", URI: "mcp+one+x:{y}"}} {
			values, err := c.Complete(t.Context(), &sdk.CompleteParams{Ref: &ref, Argument: sdk.CompleteParamsArgument{Name: "y", Value: "v"}})
			if err != nil || len(values.Completion.Values) != 1 || values.Completion.Values[0] != who+" "+ref.Name+ref.URI+" v" {
				t.Errorf("%s: %+v, %v", who, values, err)
			}
		}
	}
	var said *jsonrpc.Error
	if _, err := d.client(t, "a").GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "one?gone"}); !errors.As(err, &said) || said.Code != jsonrpc.CodeInvalidParams {
		t.Errorf("what is not there: %v", err)
	}
}

func TestResourcesOfOthersAreListedAndRead(t *testing.T) {
	o := new(others)
	d := newDoorWith(t, Options{Backend: new(backend), Foreign: o})
	o.give("a", "mcp+one+x:1")
	for who, want := range map[string]int{"a": 1, "b": 0} {
		c := d.client(t, who)
		if can := c.InitializeResult().Capabilities.Resources; can == nil || !can.ListChanged || can.Subscribe {
			t.Errorf("it says that it can %+v", can)
		}
		listed, err := c.ListResources(t.Context(), nil)
		if err != nil || len(listed.Resources) != want || listed.CacheScope != "private" {
			t.Errorf("%s: %+v, %v", who, listed, err)
		}
		templates, err := c.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(templates.ResourceTemplates) != 1 {
			t.Errorf("%s: %+v, %v", who, templates, err)
		}
		out, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "mcp+one+x:1"})
		if err != nil || out.Contents[0].Text != "read" || o.called[len(o.called)-1] != who+" mcp+one+x:1" {
			t.Errorf("%s: %+v, %v, %q", who, out, err, o.called)
		}
	}
	c := d.client(t, "a")
	for uri, want := range map[string]jsonrpc.Error{
		"mcp+one+gone":    {Code: jsonrpc.CodeInvalidParams, Message: "error not_found: it is not there\nhint: look"},
		"mcp+one+refused": {Code: -32002, Message: "the server says no"},
		"mcp+one+panics":  {Code: jsonrpc.CodeInternalError, Message: "error internal: clawjail failed unexpectedly"},
	} {
		var said *jsonrpc.Error
		if _, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); !errors.As(err, &said) || said.Code != want.Code || said.Message != want.Message {
			t.Errorf("%s: %v", uri, err)
		}
	}
	// No update would be told, so no subscription is offered.
	_, _, body := d.send(t, "a", d.begin(t, "a"), `{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"mcp+one+x:1"}}`)
	if !strings.Contains(body, fmt.Sprint(jsonrpc.CodeMethodNotFound)) {
		t.Errorf("it subscribes to a resource: %s", body)
	}
}

func TestToolsOfOthersAreBesideOurOwn(t *testing.T) {
	o := new(others)
	w := newFixtureWith(t, Options{Backend: new(backend), Foreign: o})
	listed, err := w.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
	}
	if !slices.Contains(names, "one__echo") || !slices.Contains(names, "browser_navigate") || slices.Contains(names, "two__echo") {
		t.Errorf("listed are %v", names)
	}
	if got, out := w.tool("one__echo", args{"a": 1}); got != "echoed" || out.IsError {
		t.Errorf("%q", got)
	}
	if got, out := w.tool("one__fails", nil); !out.IsError || got != "error jail_failed: it ended\nhint: look\nit printed: no module" {
		t.Errorf("%q", got)
	}
	if got, out := w.tool("one__panics", nil); !out.IsError || !strings.Contains(got, "clawjail failed unexpectedly") {
		t.Errorf("%q", got)
	}
	if len(o.called) != 3 || o.called[0] != ` one__echo {"a":1}` {
		t.Errorf("called were %q", o.called)
	}
	if strings.Contains(w.log.String(), `"a":1`) {
		t.Error("arguments are in the log")
	}
	// Our own tools have no such names, so that neither hides the other.
	for _, tool := range append(tools(), accessTool()) {
		if mcpserver.Offered(tool.name) {
			t.Errorf("%s is taken for a tool of others", tool.name)
		}
	}
}

func TestProgressOfOthersIsPassedOn(t *testing.T) {
	w := newFixtureWith(t, Options{Backend: new(backend), Foreign: new(others)})
	params := &sdk.CallToolParams{Name: "one__echo", Arguments: args{}}
	params.SetProgressToken("p")
	if _, err := w.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if got := <-w.said; got != "1/2 half" {
		t.Errorf("said was %q", got)
	}
}

// The caller is the one of this very request, over HTTP too.
func TestToolsOfOthersAreThoseOfTheCaller(t *testing.T) {
	d := newDoorWith(t, Options{Backend: new(backend), Foreign: new(others)})
	for who, want := range map[string]int{"a": 2, "b": 1} {
		listed, err := d.client(t, who).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, tool := range listed.Tools {
			if mcpserver.Offered(tool.Name) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s is offered %d, want %d", who, n, want)
		}
	}
}

func TestWithoutOthersThereAreNone(t *testing.T) {
	w := newFixtureWith(t, Options{Backend: new(backend)})
	if _, err := w.CallTool(t.Context(), &sdk.CallToolParams{Name: "one__echo", Arguments: args{}}); err == nil {
		t.Error("a tool that is not there was called")
	}
}
