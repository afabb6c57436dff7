// Package mcp is the face for agents that speak the Model Context Protocol: the tools with which they open sessions and
// drive browsers, over HTTP and over standard input and output.
//
// The package promises:
//
//   - It decides nothing. The [Backend] decides who may do what, what is recorded and what a browser does.
//   - A call acts as the principal of its own request, never as that of an earlier one.
//   - An answer is small: a line for what was done, at most 8000 characters of a page unless more is asked for, pictures
//     as JPEG of at most 1280 pixels. A text that is cut says so.
//   - A failure is the result of a tool with a code, a sentence and a hint, so that a model understands it and does
//     not try again what cannot work. Of a request that is no call of a tool it is an error of the protocol that says the same. Causes
//     are for the log.
//   - Arguments are in no log and in no error: a grant or a password may be among them.
//   - A call ends with its client, except over a connection that the protocol lets a client leave.
//
// HTTP is stateless: every request carries its own key and makes a protocol session of its own, which ends with it.
// Nothing can be taken over then, a key that is not good any more ends everything at once, and clients of all versions of
// the protocol are served, those without sessions too. The one thing that a later call leans on, which browser session the
// client has opened, is kept beside it in a bounded table: see [conversations]. A listener hears when a list has become another
// one for its principal: see [listener].
package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

// Target is whose browser an operation is for: the host's, or a session's.
type Target struct {
	Host    bool
	Session string
}

// Backend does what the tools ask for. Its errors are problems with a code.
type Backend interface {
	Open(ctx context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error)
	Close(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	// List returns the open sessions that the principal may see.
	List(ctx context.Context, by identity.Principal) ([]session.Session, error)
	// Drive runs an operation, and returns what its Run does.
	Drive(ctx context.Context, by identity.Principal, t Target, op browser.Operation) (any, error)
	// Host says whether there is a browser of the host's to drive.
	Host() bool
}

// Options configure a Server.
type Options struct {
	Backend Backend
	// Access takes what agents ask for. Nil: they cannot ask.
	Access Access
	// Tasks reaches goals. Nil: tasks have steps alone.
	Tasks Tasks
	// Foreign has what MCP servers of others offer. Nil: there are none.
	Foreign Foreign
	// Principal is who made a request, from the request's context. It is needed for [Server.Handler].
	Principal func(ctx context.Context) identity.Principal
	// Tag is what the ids of conversations begin with, so that other control planes know whose they are; see [store.NodeTag]. May be empty.
	Tag string
	// Elsewhere is who answers a request about a browser session of another control plane, or tells failed why it does not. It is nil for other
	// sessions. May be nil.
	Elsewhere func(r *http.Request, session string, failed func(error)) (http.Handler, error)
	// Version is that of the program.
	Version string
	// Sessions are bounds that the tool capabilities tells. A bound that is zero is left out.
	Sessions Bounds
	Log      *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Bounds are those of browser sessions.
type Bounds struct {
	TTL, MaxTTL, Idle time.Duration
	Max               int // open at the same time
}

// Limits of what clients may do.
const (
	maxBody = 1 << 20 // bytes of a request
	// maxAtOnce is how many requests, and how many calls, of one principal run at the same time.
	maxAtOnce = 16
)

// Server serves the tools.
type Server struct {
	Options
	sdk           *sdk.Server
	conversations *conversations
	requests      *turnstile
	calls         *turnstile
	listeners     *turnstile
	// beat and gap are those of listeners, which tests shorten.
	beat, gap time.Duration
}

// instructions are what a model is told once.
const instructions = "Browsers in disposable jails. Open a session, navigate, take a snapshot (refs such as e12), act by ref, " +
	"snapshot again when the page changed. Known steps, or a goal in words: browser_run_task does all of it in one call. " +
	"Errors with a hint do not go away by trying again."

// New makes a Server.
func New(o Options) (*Server, error) {
	if o.Backend == nil || o.Log == nil {
		return nil, errors.New("mcp: the backend or the log is missing")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{Options: o, conversations: newConversations(o.Tag, o.Now), requests: newTurnstile(maxAtOnce), calls: newTurnstile(maxAtOnce),
		listeners: newTurnstile(maxConversationsOf), beat: beatEvery, gap: tellGap}
	can := &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: o.Foreign != nil}}
	if o.Foreign != nil { // which servers a caller has may change at any time
		can.Resources, can.Prompts = &sdk.ResourceCapabilities{ListChanged: true}, &sdk.PromptCapabilities{ListChanged: true}
		can.Completions = &sdk.CompletionCapabilities{}
	}
	// Its log would have parts of requests.
	s.sdk = sdk.NewServer(&sdk.Implementation{Name: "clawjail", Version: o.Version}, &sdk.ServerOptions{Instructions: instructions, Capabilities: can})
	offered := tools()
	if o.Access != nil {
		offered = append(offered, accessTool())
	}
	for _, t := range offered {
		s.sdk.AddTool(t.declared(), s.handle(t))
	}
	if o.Foreign != nil {
		s.sdk.AddReceivingMiddleware(s.withForeign)
	}
	return s, nil
}

// caller is who makes a call, and what it leans on.
type caller struct {
	by identity.Principal
	// talk is nil for a client whose version of the protocol has no sessions.
	talk *conversation
	// gone is done when nobody waits for the answer any more.
	gone context.Context
	// events is the answer to a client that listens with subscriptions/listen, and id that of its request, as JSON.
	events *events
	id     string
	// refused is why the call cannot be made. May be nil.
	refused error
}

// callerKey finds the caller in a context. The protocol library keeps the values of a context and not its end.
type callerKey struct{}

// Serve serves one client over a pair of pipes until the input ends, ctx does, or the client breaks the protocol. Nothing
// else may write to out. The principal of all calls is the zero one: the backend has a key of its own.
func (s *Server) Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	talk := new(conversation)
	ctx = context.WithValue(ctx, callerKey{}, &caller{talk: talk, gone: ctx})
	if s.Foreign != nil {
		telling, cancel := context.WithCancel(ctx)
		var told sync.WaitGroup
		defer told.Wait()
		defer cancel()
		own := talk.hear(cancel)
		told.Go(func() { s.announce(telling, talk, own) })
	}
	if err := s.sdk.Run(ctx, &sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: maxBody}); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.EPIPE) {
			return nil // it has gone without waiting for the answer to a request that lasts, such as one to listen
		}
		return fmt.Errorf("serve MCP: %w", err)
	}
	return nil
}
