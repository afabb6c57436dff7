package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// toolsPatience bounds a question to the control plane for what it offers.
	toolsPatience = 20 * time.Second
	// The pauses between two attempts to reach it grow from the first to the last.
	firstPause, lastPause = time.Second, 30 * time.Second
)

// mcpTools is what other MCP servers offer, which the control plane runs and offers to whoever has the key. It listens there for
// changes, and connects again when the connection is lost.
type mcpTools struct {
	control func() (*client.Client, error)
	of      *sdk.Client
	// dirty has something when the control plane says that something has changed.
	dirty chan struct{}

	connecting sync.Mutex // held while it is connected
	mu         sync.Mutex
	session    *sdk.ClientSession
	views      mcpserver.Views // of what was found last
	watchers   map[chan struct{}]bool
	progress   map[string]*telling
}

func newMCPTools(version string, control func() (*client.Client, error)) *mcpTools {
	t := &mcpTools{control: control, dirty: make(chan struct{}, 1), views: mcpserver.Offers{}.Views(), watchers: map[chan struct{}]bool{}, progress: map[string]*telling{}}
	stir := func() {
		select {
		case t.dirty <- struct{}{}:
		default: // it is known already
		}
	}
	t.of = sdk.NewClient(&sdk.Implementation{Name: "clawjail", Version: version}, &sdk.ClientOptions{
		Capabilities:                &sdk.ClientCapabilities{},
		ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { stir() },
		ResourceListChangedHandler:  func(context.Context, *sdk.ResourceListChangedRequest) { stir() },
		PromptListChangedHandler:    func(context.Context, *sdk.PromptListChangedRequest) { stir() },
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
		return false // what is asked for says so
	}
	lost := make(chan struct{})
	go func() { // ends with the session, which run closes
		defer close(lost)
		_ = session.Wait() // why it was lost does not matter
	}()
	defer func() { t.drop(session); <-lost }()
	for {
		for _, kind := range mcpserver.Kinds() {
			if _, err := t.list(ctx, session, kind); err != nil {
				return true
			}
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

// list asks for what there is of a kind. Watchers hear when the list differs from the one before.
func (t *mcpTools) list(ctx context.Context, session *sdk.ClientSession, kind mcpserver.Kind) (mcpserver.Offers, error) {
	ctx, cancel := context.WithTimeout(ctx, toolsPatience)
	defer cancel()
	out, err := listOf(ctx, session, kind)
	if err != nil {
		return mcpserver.Offers{}, err
	}
	view := out.Sum(kind)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.views[kind] == view {
		return out, nil
	}
	t.views[kind] = view
	for w := range t.watchers {
		select {
		case w <- struct{}{}:
		default: // it is known already
		}
	}
	return out, nil
}

// listOf lists what of a kind is of other servers, by name.
func listOf(ctx context.Context, session *sdk.ClientSession, kind mcpserver.Kind) (out mcpserver.Offers, err error) {
	switch kind {
	case mcpserver.Tools:
		for tool, err := range session.Tools(ctx, nil) {
			if err != nil {
				return out, err
			}
			if mcpserver.Offered(tool.Name) { // the others are our own
				out.Tools = append(out.Tools, tool)
			}
		}
	case mcpserver.Resources:
		if out.Resources, err = gather(session.Resources(ctx, nil)); err == nil {
			out.Templates, err = gather(session.ResourceTemplates(ctx, nil))
		}
	case mcpserver.Prompts:
		out.Prompts, err = gather(session.Prompts(ctx, nil))
	}
	return out.Sorted(), err
}

// gather is all of a list, or the first error.
func gather[T any](all iter.Seq2[T, error]) (out []T, err error) {
	for one, err := range all {
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// OffersFor implements mcp.Foreign. Without a control plane there is nothing.
func (t *mcpTools) OffersFor(ctx context.Context, _ identity.Principal, kind mcpserver.Kind) (mcpserver.Offers, string) {
	var out mcpserver.Offers
	if session, err := t.connected(ctx); err == nil {
		out, _ = t.list(ctx, session, kind) // nothing, then
	}
	return out, out.Sum(kind)
}

// View implements mcp.Foreign.
func (t *mcpTools) View(context.Context, identity.Principal) (mcpserver.Views, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.views), nil
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

// Call implements mcp.Foreign. A refusal is a result of the control plane; it is passed on as it is.
func (t *mcpTools) Call(ctx context.Context, _ identity.Principal, name string, arguments json.RawMessage, tell mcpserver.Progress) (*sdk.CallToolResult, error) {
	params := &sdk.CallToolParams{Name: name}
	if len(arguments) > 0 {
		params.Arguments = arguments
	}
	return pass(ctx, t, tell, params, (*sdk.ClientSession).CallTool)
}

// Read implements mcp.Foreign.
func (t *mcpTools) Read(ctx context.Context, _ identity.Principal, uri string, tell mcpserver.Progress) (*sdk.ReadResourceResult, error) {
	return pass(ctx, t, tell, &sdk.ReadResourceParams{URI: uri}, (*sdk.ClientSession).ReadResource)
}

// Prompt implements mcp.Foreign.
func (t *mcpTools) Prompt(ctx context.Context, _ identity.Principal, name string, arguments map[string]string, tell mcpserver.Progress) (*sdk.GetPromptResult, error) {
	return pass(ctx, t, tell, &sdk.GetPromptParams{Name: name, Arguments: arguments}, (*sdk.ClientSession).GetPrompt)
}

// Complete implements mcp.Foreign.
func (t *mcpTools) Complete(ctx context.Context, _ identity.Principal, asked *sdk.CompleteParams) (*sdk.CompleteResult, error) {
	return pass(ctx, t, nil, &sdk.CompleteParams{Ref: asked.Ref, Argument: asked.Argument, Context: asked.Context}, (*sdk.ClientSession).Complete)
}

// pass passes a request on to the control plane. A refusal there is its error of the protocol.
func pass[P sdk.Params, R any](ctx context.Context, t *mcpTools, tell mcpserver.Progress, params P, send func(*sdk.ClientSession, context.Context, P) (R, error)) (R, error) {
	var nothing R
	session, err := t.connected(ctx)
	if err != nil {
		return nothing, unanswered(err)
	}
	if goes, ok := any(params).(sdk.RequestParams); ok && tell != nil {
		token := rand.Text()
		goes.SetProgressToken(token)
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
	out, err := send(session, ctx, params)
	var said *jsonrpc.Error
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return nothing, context.Cause(ctx)
	case errors.As(err, &said):
		return nothing, said
	case errors.Is(err, sdk.ErrSessionMissing), errors.Is(err, sdk.ErrConnectionClosed):
		t.drop(session)
	}
	return nothing, unanswered(err)
}

// unanswered is the error of a call that has no result.
func unanswered(err error) error {
	if _, ok := problem.As(err); ok {
		return err
	}
	return problem.Wrap(fmt.Errorf("ask the control plane: %w", err), problem.ControlPlaneUnreachable, "list what there is, and try again",
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
	to mcpserver.Progress // nil then
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
