package mcp

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// Foreign offers what MCP servers of others have, to those who may use them. Names of tools are told from our own by
// [mcpserver.Offered]; resources and prompts are all theirs. An error that is a *jsonrpc.Error is the server's. *mcpserver.Service is one.
type Foreign interface {
	// OffersFor lists what there is of a kind. View says what there is of each, as texts that are others when it is, and starts
	// nothing for it.
	OffersFor(ctx context.Context, by identity.Principal, kind mcpserver.Kind) (offers mcpserver.Offers, view string)
	View(ctx context.Context, by identity.Principal) (mcpserver.Views, error)
	// Watch has something in changed when they may be others, until stop. It is closed when they end.
	Watch(by identity.Principal) (changed <-chan struct{}, stop func())
	Call(ctx context.Context, by identity.Principal, name string, arguments json.RawMessage, tell mcpserver.Progress) (*sdk.CallToolResult, error)
	Read(ctx context.Context, by identity.Principal, uri string, tell mcpserver.Progress) (*sdk.ReadResourceResult, error)
	Prompt(ctx context.Context, by identity.Principal, name string, arguments map[string]string, tell mcpserver.Progress) (*sdk.GetPromptResult, error)
	Complete(ctx context.Context, by identity.Principal, asked *sdk.CompleteParams) (*sdk.CompleteResult, error)
}

// withForeign puts what others offer beside our own: it differs from caller to caller and changes while we run, which the
// protocol library's own tables do not.
func (s *Server) withForeign(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, request sdk.Request) (sdk.Result, error) {
		switch r := request.(type) {
		case *sdk.CallToolRequest:
			if mcpserver.Offered(r.Params.Name) {
				return s.handle(foreignTool(r.Params.Name))(ctx, r)
			}
		case *sdk.ReadResourceRequest:
			return asked(ctx, s, method, r.Session, r.Params, func(ctx context.Context, who *caller, tell mcpserver.Progress) (*sdk.ReadResourceResult, error) {
				return s.Foreign.Read(ctx, who.by, r.Params.URI, tell)
			})
		case *sdk.GetPromptRequest:
			return asked(ctx, s, method, r.Session, r.Params, func(ctx context.Context, who *caller, tell mcpserver.Progress) (*sdk.GetPromptResult, error) {
				return s.Foreign.Prompt(ctx, who.by, r.Params.Name, r.Params.Arguments, tell)
			})
		case *sdk.CompleteRequest:
			return asked(ctx, s, method, r.Session, r.Params, func(ctx context.Context, who *caller, _ mcpserver.Progress) (*sdk.CompleteResult, error) {
				return s.Foreign.Complete(ctx, who.by, r.Params)
			})
		case *sdk.SubscriptionsListenRequest:
			if who, known := ctx.Value(callerKey{}).(*caller); known && who.by.Kind != "" {
				return s.subscribed(ctx, who, r, next)
			}
		}
		out, err := next(ctx, method, request)
		if err != nil {
			return out, err
		}
		return s.withOffers(ctx, out), nil
	}
}

// withOffers adds to a list of ours what others offer. Ours has one page. A result that is no list stays as it is.
func (s *Server) withOffers(ctx context.Context, out sdk.Result) sdk.Result {
	who, known := ctx.Value(callerKey{}).(*caller)
	if !known {
		return out
	}
	of := func(kind mcpserver.Kind) mcpserver.Offers {
		ctx, cancel := until(ctx, who.gone)
		defer cancel()
		offers, view := s.Foreign.OffersFor(ctx, who.by, kind)
		who.talk.listed(kind, view)
		return offers
	}
	// Each list is the caller's own: a proxy must not answer another caller with it.
	const private = "private"
	switch listed := out.(type) {
	case *sdk.ListToolsResult:
		more := *listed
		more.Tools, more.CacheScope = append(append([]*sdk.Tool{}, listed.Tools...), of(mcpserver.Tools).Tools...), private
		return &more
	case *sdk.ListResourcesResult:
		more := *listed
		more.Resources, more.CacheScope = append([]*sdk.Resource{}, of(mcpserver.Resources).Resources...), private
		return &more
	case *sdk.ListResourceTemplatesResult:
		more := *listed
		more.ResourceTemplates, more.CacheScope = append([]*sdk.ResourceTemplate{}, of(mcpserver.Resources).Templates...), private
		return &more
	case *sdk.ListPromptsResult:
		more := *listed
		more.Prompts, more.CacheScope = append([]*sdk.Prompt{}, of(mcpserver.Prompts).Prompts...), private
		return &more
	}
	return out
}

// foreignTool is a row of the table of tools for a tool of another server.
func foreignTool(name string) tool {
	return tool{name: name, foreign: true, run: func(s *Server, ctx context.Context, c *call) (*sdk.CallToolResult, error) {
		return s.Foreign.Call(ctx, c.by, name, c.raw, func(done, of float64, message string) { c.progress(ctx, done, of, message) })
	}}
}

// asked asks a server of others what is no tool: within what a caller may do at the same time, with progress for who wants it, and with
// what went wrong as an error of the protocol.
func asked[R sdk.Result](ctx context.Context, s *Server, method string, session *sdk.ServerSession, params sdk.Params,
	ask func(ctx context.Context, who *caller, tell mcpserver.Progress) (R, error)) (sdk.Result, error) {
	var out R
	err := s.during(ctx, method, func(ctx context.Context, who *caller) (err error) {
		tell := progressTo(session, params)
		out, err = ask(ctx, who, func(done, of float64, message string) { tell(ctx, done, of, message) })
		return err
	})
	if err != nil {
		return nil, s.wrong(method, err)
	}
	return out, nil
}

// wrong is what went wrong with a request that is no call of a tool. The error of another's server is passed on.
func (s *Server) wrong(method string, err error) error {
	var theirs *jsonrpc.Error
	if errors.As(err, &theirs) {
		return theirs
	}
	said, text := s.words(method, err)
	data, err := json.Marshal(said)
	if err != nil {
		return err
	}
	out := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: text, Data: data}
	switch said["code"] {
	case problem.NotFound, problem.BadRequest:
		out.Code = jsonrpc.CodeInvalidParams
	}
	return out
}

// printedBy is what a server of others printed before something went wrong, where the caller may see it.
func printedBy(p *problem.Error) string {
	text, ok := p.Details["stderr"].(string)
	if !ok || text == "" {
		return ""
	}
	return "\nit printed: " + clip(text, maxError)
}
