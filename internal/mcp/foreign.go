package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// Foreign offers the tools of MCP servers of others, to those who may use them. Their names are told from our own by
// [toolserver.Offered]. *toolserver.Service is one.
type Foreign interface {
	// ToolsFor lists tools. View says what they are, as a text that is another one when they are, and starts nothing for it.
	ToolsFor(ctx context.Context, by identity.Principal) (tools []*sdk.Tool, view string)
	View(ctx context.Context, by identity.Principal) (string, error)
	// Watch has something in changed when they may be others, until stop. It is closed when they end.
	Watch(by identity.Principal) (changed <-chan struct{}, stop func())
	Call(ctx context.Context, by identity.Principal, name string, arguments json.RawMessage, tell toolserver.Progress) (*sdk.CallToolResult, error)
}

// withForeign puts the tools of others beside our own: they differ from caller to caller and change while we run, which the
// protocol library's table of tools does not.
func (s *Server) withForeign(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, request sdk.Request) (sdk.Result, error) {
		switch r := request.(type) {
		case *sdk.CallToolRequest:
			if method == "tools/call" && toolserver.Offered(r.Params.Name) {
				return s.handle(foreignTool(r.Params.Name))(ctx, r)
			}
		case *sdk.ListToolsRequest:
			out, err := next(ctx, method, request)
			listed, ok := out.(*sdk.ListToolsResult)
			who, known := ctx.Value(callerKey{}).(*caller)
			if err != nil || !ok || !known || listed.NextCursor != "" {
				return out, err
			}
			ctx, cancel := until(ctx, who.gone)
			defer cancel()
			foreign, view := s.Foreign.ToolsFor(ctx, who.by)
			who.talk.listed(view)
			more := *listed
			more.Tools = append(append([]*sdk.Tool{}, listed.Tools...), foreign...)
			return &more, nil
		case *sdk.SubscriptionsListenRequest:
			if who, known := ctx.Value(callerKey{}).(*caller); known && who.by.Kind != "" {
				return s.subscribed(ctx, who, r, next)
			}
		}
		return next(ctx, method, request)
	}
}

// foreignTool is a row of the table of tools for a tool of another server.
func foreignTool(name string) tool {
	return tool{name: name, run: func(s *Server, ctx context.Context, c *call) (*sdk.CallToolResult, error) {
		return s.Foreign.Call(ctx, c.by, name, c.raw, func(done, of float64, message string) { c.progress(ctx, done, of, message) })
	}}
}

// printedBy is what a server of others printed before something went wrong, where the caller may see it.
func printedBy(p *problem.Error) string {
	text, ok := p.Details["stderr"].(string)
	if !ok || text == "" {
		return ""
	}
	return "\nit printed: " + clip(text, maxError)
}
