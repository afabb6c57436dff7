package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// others offer two tools, the second to the agent a alone, and more to whom more is given.
type others struct {
	called []string

	mu       sync.Mutex
	more     map[string]string
	watchers map[chan struct{}]bool
}

func (o *others) ToolsFor(ctx context.Context, by identity.Principal) ([]*sdk.Tool, string) {
	schema := json.RawMessage(`{"type":"object"}`)
	out := []*sdk.Tool{{Name: "one__echo", InputSchema: schema}}
	if by.ID == "a" {
		out = append(out, &sdk.Tool{Name: "two__echo", InputSchema: schema})
	}
	o.mu.Lock()
	if more := o.more[by.ID]; more != "" {
		out = append(out, &sdk.Tool{Name: more, InputSchema: schema})
	}
	o.mu.Unlock()
	view, _ := o.View(ctx, by)
	return out, view
}

func (o *others) View(_ context.Context, by identity.Principal) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return "view " + o.more[by.ID], nil
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

// give gives an agent one more tool, and wakes everybody.
func (o *others) give(to, tool string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = map[string]string{}
	}
	o.more[to] = tool
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

func (o *others) Call(_ context.Context, by identity.Principal, name string, raw json.RawMessage, tell toolserver.Progress) (*sdk.CallToolResult, error) {
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

func TestToolsOfOthersAreBesideOurOwn(t *testing.T) {
	o := new(others)
	w := newWorldWith(t, Options{Backend: new(backend), Foreign: o})
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
	if got, out := w.tool("one__panics", nil); !out.IsError || !strings.Contains(got, "something went wrong inside clawjail") {
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
		if toolserver.Offered(tool.name) {
			t.Errorf("%s is taken for a tool of others", tool.name)
		}
	}
}

func TestProgressOfOthersIsPassedOn(t *testing.T) {
	w := newWorldWith(t, Options{Backend: new(backend), Foreign: new(others)})
	params := &sdk.CallToolParams{Name: "one__echo", Arguments: args{}}
	params.SetProgressToken("p")
	if _, err := w.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if got := <-w.said; got != "1/2 half" {
		t.Errorf("said was %q", got)
	}
}

// Who asks is who asks now, over HTTP too.
func TestToolsOfOthersAreThoseOfTheCaller(t *testing.T) {
	d := newDoorWith(t, Options{Backend: new(backend), Foreign: new(others)})
	for who, want := range map[string]int{"a": 2, "b": 1} {
		listed, err := d.client(t, who).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, tool := range listed.Tools {
			if toolserver.Offered(tool.Name) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s is offered %d, want %d", who, n, want)
		}
	}
}

func TestWithoutOthersThereAreNone(t *testing.T) {
	w := newWorldWith(t, Options{Backend: new(backend)})
	if _, err := w.CallTool(t.Context(), &sdk.CallToolParams{Name: "one__echo", Arguments: args{}}); err == nil {
		t.Error("a tool that is not there was called")
	}
}
