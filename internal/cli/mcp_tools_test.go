package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/testenv"
)

// otherServers have one tool and one resource at a time, of which the control plane of a test hears when it is another one.
type otherServers struct {
	mcp.Backend
	mu       sync.Mutex
	tool     string
	resource string
	watchers map[chan struct{}]bool
	heard    chan struct{} // closed when progress was heard, which calls wait for
}

func (o *otherServers) OffersFor(ctx context.Context, by identity.Principal, kind mcpserver.Kind) (out mcpserver.Offers, _ string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch kind {
	case mcpserver.Tools:
		out.Tools = []*sdk.Tool{{Name: o.tool, InputSchema: json.RawMessage(`{"type":"object"}`)}}
	case mcpserver.Resources:
		out.Resources = []*sdk.Resource{{URI: o.resource}}
		out.Templates = []*sdk.ResourceTemplate{{URITemplate: "mcp+one+x:{y}"}}
	case mcpserver.Prompts:
		out.Prompts = []*sdk.Prompt{{Name: "one__ask"}}
	}
	return out, out.Sum(kind)
}

func (o *otherServers) View(ctx context.Context, by identity.Principal) (mcpserver.Views, error) {
	out := mcpserver.Views{}
	for _, kind := range mcpserver.Kinds() {
		_, out[kind] = o.OffersFor(ctx, by, kind)
	}
	return out, nil
}

func (o *otherServers) Watch(identity.Principal) (<-chan struct{}, func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := make(chan struct{}, 1)
	o.watchers[w] = true
	return w, func() { o.mu.Lock(); defer o.mu.Unlock(); delete(o.watchers, w) }
}

func (o *otherServers) Call(ctx context.Context, by identity.Principal, name string, raw json.RawMessage, tell mcpserver.Progress) (*sdk.CallToolResult, error) {
	tell(1, 2, "half")
	select {
	case <-o.heard:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: by.ID + " " + name + " " + string(raw)}}}, nil
}

func (o *otherServers) Read(_ context.Context, by identity.Principal, uri string, tell mcpserver.Progress) (*sdk.ReadResourceResult, error) {
	if uri == "mcp+one+gone" {
		return nil, &jsonrpc.Error{Code: -32002, Message: "the server says no"}
	}
	tell(1, 2, "read")
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, Text: by.ID}}, Cacheable: sdk.Cacheable{CacheScope: "private"}}, nil
}

func (o *otherServers) Prompt(_ context.Context, by identity.Principal, name string, arguments map[string]string, tell mcpserver.Progress) (*sdk.GetPromptResult, error) {
	tell(1, 2, "got")
	return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: by.ID + " " + name + " " + arguments["x"]}}}}, nil
}

func (o *otherServers) Complete(_ context.Context, by identity.Principal, asked *sdk.CompleteParams) (*sdk.CompleteResult, error) {
	out := &sdk.CompleteResult{}
	out.Completion.Values = []string{by.ID + " " + asked.Ref.Name + " " + asked.Argument.Value}
	return out, nil
}

// become gives it another tool and another resource, if they are not empty.
func (o *otherServers) become(tool, resource string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tool, o.resource = cmp.Or(tool, o.tool), cmp.Or(resource, o.resource)
	for w := range o.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

func (o *otherServers) listening() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.watchers)
}

// answers serves /mcp at an address, to one key, until the answer is called.
func (o *otherServers) answers(t *testing.T, at string) (addr string, stop func()) {
	t.Helper()
	type who struct{}
	server, err := mcp.New(mcp.Options{Backend: o, Foreign: o, Log: slog.New(slog.DiscardHandler),
		Principal: func(ctx context.Context) identity.Principal {
			by, _ := ctx.Value(who{}).(identity.Principal)
			return by
		}})
	if err != nil {
		t.Fatal(err)
	}
	inner := server.Handler()
	listener, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp" && r.Header.Get("Authorization") == "Bearer the-key" {
			r = r.WithContext(context.WithValue(r.Context(), who{}, identity.Principal{Kind: identity.KindAgent, ID: "a_1", TokenID: "t"}))
		}
		inner.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(listener) }()
	return listener.Addr().String(), func() { _ = s.Close(); <-served }
}

// `clawjail mcp` has the tools of other servers that /mcp has, hears of changes there, and comes back when the control plane does.
func TestMCPHasTheToolsOfOtherServersAndHearsOfChanges(t *testing.T) {
	o := &otherServers{tool: "one__echo", resource: "mcp+one+x:1", watchers: map[chan struct{}]bool{}, heard: make(chan struct{})}
	addr, stop := o.answers(t, "127.0.0.1:0")
	defer func() { stop() }()
	t.Setenv("CLAWJAIL_CONFIG", settings(t, t.TempDir()))
	t.Setenv(urlVariable, "http://"+addr)
	t.Setenv(keyVariable, "the-key")

	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	var errs bytes.Buffer
	root := New("v1.2.3")
	root.SetArgs([]string{"mcp"})
	root.SetIn(toServer)
	root.SetOut(fromServer)
	root.SetErr(&errs)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	changed := make(chan string, 10)
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ToolListChangedHandler:     func(context.Context, *sdk.ToolListChangedRequest) { changed <- "tools" },
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { changed <- "resources" },
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			if r.Params.Message == "half" {
				close(o.heard)
			}
		},
	}).Connect(ctx, &sdk.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lists := func(tool string) {
		t.Helper()
		listed, err := c.ListTools(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, one := range listed.Tools {
			names = append(names, one.Name)
		}
		if !slices.Contains(names, tool) || !slices.Contains(names, "browser_navigate") || len(names) != len(slices.Compact(slices.Sorted(slices.Values(names)))) {
			t.Errorf("listed are %q, want %s", names, tool)
		}
	}
	// The client hears as well of tools that are found after it has come.
	hears := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			select {
			case got = <-changed:
			case <-ctx.Done():
				t.Fatalf("it hears of no change of %s", want)
			}
		}
	}
	listsResource := func(uri string) {
		t.Helper()
		listed, err := c.ListResources(ctx, nil)
		if err != nil || len(listed.Resources) != 1 || listed.Resources[0].URI != uri {
			t.Errorf("listed are %+v, %v, want %s", listed, err, uri)
		}
	}
	lists("one__echo")
	params := &sdk.CallToolParams{Name: "one__echo", Arguments: map[string]any{"a": 1}}
	params.SetProgressToken("p")
	out, err := c.CallTool(ctx, params)
	if err != nil || out.IsError || out.Content[0].(*sdk.TextContent).Text != `a_1 one__echo {"a":1}` {
		t.Errorf("%+v, %v", out, err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return o.listening() == 1 }, "it does not listen")
	o.become("two__echo", "")
	hears("tools")
	lists("two__echo")
	listsResource("mcp+one+x:1")
	if templates, err := c.ListResourceTemplates(ctx, nil); err != nil || len(templates.ResourceTemplates) != 1 {
		t.Errorf("%+v, %v", templates, err)
	}
	read, err := c.ReadResource(ctx, &sdk.ReadResourceParams{URI: "mcp+one+x:1"})
	if err != nil || read.Contents[0].Text != "a_1" || read.Contents[0].URI != "mcp+one+x:1" {
		t.Errorf("%+v, %v", read, err)
	}
	var said *jsonrpc.Error
	if _, err := c.ReadResource(ctx, &sdk.ReadResourceParams{URI: "mcp+one+gone"}); !errors.As(err, &said) || said.Code != -32002 || said.Message != "the server says no" {
		t.Errorf("what is not there: %v", err)
	}
	if prompts, err := c.ListPrompts(ctx, nil); err != nil || len(prompts.Prompts) != 1 || prompts.Prompts[0].Name != "one__ask" {
		t.Errorf("%+v, %v", prompts, err)
	}
	if got, err := c.GetPrompt(ctx, &sdk.GetPromptParams{Name: "one__ask", Arguments: map[string]string{"x": "y"}}); err != nil ||
		got.Messages[0].Content.(*sdk.TextContent).Text != "a_1 one__ask y" {
		t.Errorf("%+v, %v", got, err)
	}
	if values, err := c.Complete(ctx, &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/prompt", Name: "one__ask"}, Argument: sdk.CompleteParamsArgument{Name: "x", Value: "v"}}); err != nil ||
		len(values.Completion.Values) != 1 || values.Completion.Values[0] != "a_1 one__ask v" {
		t.Errorf("%+v, %v", values, err)
	}
	o.become("", "mcp+one+x:2")
	hears("resources")
	listsResource("mcp+one+x:2")
	// The control plane is started again, and knows nothing of who listened.
	stop()
	o.become("three__echo", "")
	_, stop = o.answers(t, addr)
	hears("tools")
	lists("three__echo")
	c.Close()
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return o.listening() == 0 }, "it still listens")
}
