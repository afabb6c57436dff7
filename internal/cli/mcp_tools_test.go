package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// otherServers have one tool at a time, of which the control plane of a test hears when it is another one.
type otherServers struct {
	mcp.Backend
	mu       sync.Mutex
	tool     string
	watchers map[chan struct{}]bool
	heard    chan struct{} // closed when progress was heard, which calls wait for
}

func (o *otherServers) ToolsFor(ctx context.Context, by identity.Principal) ([]*sdk.Tool, string) {
	view, _ := o.View(ctx, by)
	return []*sdk.Tool{{Name: view, InputSchema: json.RawMessage(`{"type":"object"}`)}}, view
}

func (o *otherServers) View(context.Context, identity.Principal) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tool, nil
}

func (o *otherServers) Watch(identity.Principal) (<-chan struct{}, func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := make(chan struct{}, 1)
	o.watchers[w] = true
	return w, func() { o.mu.Lock(); defer o.mu.Unlock(); delete(o.watchers, w) }
}

func (o *otherServers) Call(ctx context.Context, by identity.Principal, name string, raw json.RawMessage, tell toolserver.Progress) (*sdk.CallToolResult, error) {
	tell(1, 2, "half")
	select {
	case <-o.heard:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: by.ID + " " + name + " " + string(raw)}}}, nil
}

func (o *otherServers) become(tool string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tool = tool
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
	o := &otherServers{tool: "one__echo", watchers: map[chan struct{}]bool{}, heard: make(chan struct{})}
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
	changed := make(chan struct{}, 10)
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
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
	hears := func() {
		t.Helper()
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("it hears of no change")
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
	o.become("two__echo")
	hears()
	lists("two__echo")
	// The control plane is started again, and knows nothing of who listened.
	stop()
	o.become("three__echo")
	_, stop = o.answers(t, addr)
	hears()
	lists("three__echo")
	c.Close()
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return o.listening() == 0 }, "it still listens")
}
