package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/toolserver"
)

const (
	// toolsPatience bounds a question to the control plane for its tools.
	toolsPatience = 20 * time.Second
	// The pauses between two attempts to reach it grow from the first to the last.
	firstPause, lastPause = time.Second, 30 * time.Second
)

// mcpTools are the tools of other MCP servers, which the control plane runs and offers to whoever has the key. It listens there for
// changes, and connects again when the connection is lost.
type mcpTools struct {
	control func() (*client.Client, error)
	of      *sdk.Client
	// dirty has something when the control plane says that the tools have changed.
	dirty chan struct{}

	connecting sync.Mutex // held while it is connected
	mu         sync.Mutex
	session    *sdk.ClientSession
	view       string // of the tools that were found last
	watchers   map[chan struct{}]bool
	progress   map[string]*telling
}

func newMCPTools(version string, control func() (*client.Client, error)) *mcpTools {
	t := &mcpTools{control: control, dirty: make(chan struct{}, 1), view: toolserver.SumOf(nil), watchers: map[chan struct{}]bool{}, progress: map[string]*telling{}}
	t.of = sdk.NewClient(&sdk.Implementation{Name: "clawjail", Version: version}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			select {
			case t.dirty <- struct{}{}:
			default: // it is known already
			}
		},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { t.tell(r.Params) },
	})
	return t
}

// run listens until ctx ends.
func (t *mcpTools) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		if t.follow(ctx) {
			pause = firstPause
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
		pause = min(2*pause, lastPause)
	}
	t.mu.Lock()
	session := t.session
	t.mu.Unlock()
	if session != nil {
		_ = session.Close() // the control plane forgets it by itself, too
	}
}

// follow listens until the connection is lost, and says whether there was one.
func (t *mcpTools) follow(ctx context.Context) (was bool) {
	session, err := t.connected(ctx)
	if err != nil {
		return false // the tools say so when they are asked for
	}
	lost := make(chan struct{})
	go func() { // ends with the session, which run closes
		defer close(lost)
		_ = session.Wait() // why it was lost does not matter
	}()
	defer func() { t.drop(session); <-lost }()
	for {
		if _, err := t.list(ctx, session); err != nil {
			return true
		}
		select {
		case <-t.dirty:
		case <-lost:
			return true
		case <-ctx.Done():
			return true
		}
	}
}

// connected is the connection to the control plane, made if there is none.
func (t *mcpTools) connected(ctx context.Context) (*sdk.ClientSession, error) {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.mu.Lock()
	session := t.session
	t.mu.Unlock()
	if session != nil {
		return session, nil
	}
	c, err := t.control()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, toolsPatience)
	defer cancel()
	if session, err = c.MCP(ctx, t.of); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.session = session
	return session, nil
}

// drop forgets a connection that is lost.
func (t *mcpTools) drop(session *sdk.ClientSession) {
	t.mu.Lock()
	if t.session == session {
		t.session = nil
	}
	t.mu.Unlock()
	_ = session.Close() // it is lost already, or not wanted
}

// list asks for the tools. Who watches hears when they are others than those that were found before.
func (t *mcpTools) list(ctx context.Context, session *sdk.ClientSession) ([]*sdk.Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, toolsPatience)
	defer cancel()
	var out []*sdk.Tool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if toolserver.Offered(tool.Name) { // the others are our own
			out = append(out, tool)
		}
	}
	slices.SortFunc(out, func(a, b *sdk.Tool) int { return cmp.Compare(a.Name, b.Name) })
	view := toolserver.SumOf(out)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view == view {
		return out, nil
	}
	t.view = view
	for w := range t.watchers {
		select {
		case w <- struct{}{}:
		default: // it is known already
		}
	}
	return out, nil
}

// ToolsFor implements mcp.Foreign. Without a control plane there are none.
func (t *mcpTools) ToolsFor(ctx context.Context, _ identity.Principal) ([]*sdk.Tool, string) {
	session, err := t.connected(ctx)
	if err != nil {
		return nil, toolserver.SumOf(nil)
	}
	tools, err := t.list(ctx, session)
	if err != nil {
		return nil, toolserver.SumOf(nil)
	}
	return tools, toolserver.SumOf(tools)
}

// View implements mcp.Foreign.
func (t *mcpTools) View(context.Context, identity.Principal) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view, nil
}

// Watch implements mcp.Foreign.
func (t *mcpTools) Watch(identity.Principal) (changed <-chan struct{}, stop func()) {
	w := make(chan struct{}, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watchers[w] = true
	return w, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, w)
	}
}

// Call implements mcp.Foreign. What is refused is the control plane's result; it is passed on as it is.
func (t *mcpTools) Call(ctx context.Context, _ identity.Principal, name string, arguments json.RawMessage, tell toolserver.Progress) (*sdk.CallToolResult, error) {
	session, err := t.connected(ctx)
	if err != nil {
		return nil, unanswered(err)
	}
	params := &sdk.CallToolParams{Name: name}
	if len(arguments) > 0 {
		params.Arguments = arguments
	}
	if tell != nil {
		token := rand.Text()
		params.SetProgressToken(token)
		told := &telling{to: tell}
		t.mu.Lock()
		t.progress[token] = told
		t.mu.Unlock()
		defer func() {
			t.mu.Lock()
			delete(t.progress, token)
			t.mu.Unlock()
			told.end()
		}()
	}
	out, err := session.CallTool(ctx, params)
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, sdk.ErrSessionMissing), errors.Is(err, sdk.ErrConnectionClosed):
		t.drop(session)
	}
	return nil, unanswered(err)
}

// unanswered is the error of a call that has no result.
func unanswered(err error) error {
	if _, ok := problem.As(err); ok {
		return err
	}
	return problem.Wrap(fmt.Errorf("call a tool at the control plane: %w", err), problem.ControlPlaneUnreachable, "list the tools, and try again",
		"the control plane did not answer the call; whether it was made is not known")
}

// tell passes progress on to who called.
func (t *mcpTools) tell(p *sdk.ProgressNotificationParams) {
	token, ok := p.ProgressToken.(string)
	if !ok {
		return
	}
	t.mu.Lock()
	told := t.progress[token]
	t.mu.Unlock()
	if told != nil {
		told.tell(p)
	}
}

// telling is who hears of the progress of a call, until the call has returned.
type telling struct {
	mu sync.Mutex
	to toolserver.Progress // nil then
}

func (t *telling) tell(p *sdk.ProgressNotificationParams) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to != nil {
		t.to(p.Progress, p.Total, p.Message)
	}
}

func (t *telling) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to = nil
}
