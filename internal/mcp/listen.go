package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
)

// A client that wants to know when its lists change listens: with GET, which the versions of the protocol with sessions have,
// or with the method subscriptions/listen of later ones. Both are streams of events, and what is said on them is the same.
const (
	methodListen = "subscriptions/listen"
	// beatEvery is how often a stream says that it is still there.
	beatEvery = 15 * time.Second
	// tellGap is the least time between two notifications. Changes meanwhile are told in one more.
	tellGap = time.Second
	// readTimeout is how long a listener may take to read what it is sent.
	readTimeout = 30 * time.Second
)

// changedNote is what is said of a kind. It carries nothing, but of which request it is the answer: the list does.
func changedNote(kind mcpserver.Kind, meta string) string {
	if meta != "" {
		meta = `,"params":{"_meta":` + meta + `}`
	}
	return `{"jsonrpc":"2.0","method":"notifications/` + string(kind) + `/list_changed"` + meta + `}`
}

// events writes a stream of events, of which one is written at a time. It takes the place of a ResponseWriter.
type events struct {
	http.ResponseWriter
	control *http.ResponseController
	mu      sync.Mutex
	// begun is closed when something was written.
	begun chan struct{}
	once  sync.Once
}

func newEvents(w http.ResponseWriter) *events {
	return &events{ResponseWriter: w, control: http.NewResponseController(w), begun: make(chan struct{})}
}

// Write implements io.Writer. A reader that does not read for a while gets an error, and nothing more.
func (e *events) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.write(b)
}

func (e *events) write(b []byte) (int, error) {
	// By the system's clock, which is the connection's. Writers of tests have no connection.
	_ = e.control.SetWriteDeadline(time.Now().Add(readTimeout))
	defer e.once.Do(func() { close(e.begun) })
	n, err := e.ResponseWriter.Write(b)
	if err == nil {
		_ = e.control.SetWriteDeadline(time.Time{}) // the connection is used again
	}
	return n, err
}

// FlushError is for http.ResponseController.
func (e *events) FlushError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flush()
}

func (e *events) flush() error {
	_ = e.control.SetWriteDeadline(time.Now().Add(readTimeout))
	err := e.control.Flush()
	if err == nil {
		_ = e.control.SetWriteDeadline(time.Time{})
	}
	return err
}

// send writes text and sees to it that it leaves.
func (e *events) send(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.write([]byte(text)); err != nil {
		return err
	}
	return e.flush()
}

// tells sends that a list has changed, as an event.
func (e *events) tells(meta string) func(mcpserver.Kind) error {
	return func(kind mcpserver.Kind) error {
		return e.send("event: message\ndata: " + changedNote(kind, meta) + "\n\n")
	}
}

// stay says that the stream is still there.
func (e *events) stay() error { return e.send(": still here\n\n") }

// ear is what a conversation is listened to with.
type ear struct {
	// listed has something when the client has listed something.
	listed chan struct{}
	cancel context.CancelFunc
}

// listen answers a GET with the stream of a conversation. There is one of each: a client that comes again has lost the one
// before, which is ended.
func (s *Server) listen(w http.ResponseWriter, r *http.Request, who *caller, id string) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	own := who.talk.hear(cancel)
	if own == nil {
		return noConversation()
	}
	defer who.talk.deafen(own)
	changed, stop := s.Foreign.Watch(who.by)
	defer stop()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := newEvents(w)
	hello := ": you hear of changes here\n\n"
	if r.Header.Get("Mcp-Protocol-Version") >= "2025-11-25" {
		// An event without data, from which clients of these versions say that they go on. Where they do, they are told what they have
		// missed whatever they say; and that a stream got this far lets them come back as often as it breaks.
		hello = "id: " + rand.Text() + "\ndata:\n\n"
	}
	if out.send(hello) != nil {
		return nil // the listener has gone
	}
	owner := keyOf(who.by)
	l := listener{s: s, by: who.by, kinds: mcpserver.Kinds(), changed: changed, listed: own.listed, seen: who.talk.seen, tell: out.tells(""), beat: func() error {
		if s.conversations.find(id, owner) == nil {
			return noConversation()
		}
		return out.stay()
	}}
	l.run(ctx)
	return nil
}

// listener tells one client of changes.
type listener struct {
	s       *Server
	by      identity.Principal
	kinds   []mcpserver.Kind // of what it wants to hear
	changed <-chan struct{}
	// listed is nil, and seen answers nothing, where it is not known what the client has listed.
	listed <-chan struct{}
	seen   func() mcpserver.Views
	// tell says that what there is of a kind has changed, and beat that it still listens. An error is the end.
	tell func(mcpserver.Kind) error
	beat func() error
}

// run tells until ctx or the service of others' servers ends, the client does not read, or it may not listen any more. It tells of
// a list that differs from the one that the client has listed, or, where it has listed none, from the one when it began to listen.
func (l listener) run(ctx context.Context) {
	told := mcpserver.Views{}
	maps.Copy(told, l.seen())
	beat := time.NewTicker(l.s.beat)
	defer beat.Stop()
	var pause <-chan time.Time
	for {
		if pause == nil {
			select { // what the client has listed by now is older than what is looked at next
			case <-l.listed:
				maps.Copy(told, l.seen())
			default:
			}
			now, err := l.s.Foreign.View(ctx, l.by)
			if err != nil && ctx.Err() == nil {
				l.s.Log.Warn("look whether lists have changed", "error", err) // it is tried again with the next beat
			}
			for _, kind := range l.kinds {
				switch {
				case err != nil || told[kind] == now[kind]:
				case told[kind] == "":
					told[kind] = now[kind]
				default:
					if l.tell(kind) != nil {
						return
					}
					told[kind], pause = now[kind], time.After(l.s.gap)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case _, more := <-l.changed:
			if !more {
				return
			}
		case <-l.listed:
			maps.Copy(told, l.seen())
		case <-pause:
			pause = nil
		case <-beat.C:
			if l.beat() != nil {
				return
			}
		}
	}
}

// subscribed serves a client that listens with subscriptions/listen. The protocol library answers it and says what is listened
// to; the notifications go into the same answer.
func (s *Server) subscribed(ctx context.Context, who *caller, r *sdk.SubscriptionsListenRequest, next sdk.MethodHandler) (sdk.Result, error) {
	if who.events == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: methodListen + " is sent by itself"}
	}
	ctx, cancel := until(ctx, who.gone)
	defer cancel()
	if kinds := wanted(r.Params.Notifications); len(kinds) > 0 {
		changed, stop := s.Foreign.Watch(who.by)
		defer stop()
		meta := fmt.Sprintf(`{%q:%s}`, sdk.MetaKeySubscriptionID, who.id)
		l := listener{s: s, by: who.by, kinds: kinds, changed: changed, seen: func() mcpserver.Views { return nil }, tell: who.events.tells(meta), beat: who.events.stay}
		var telling sync.WaitGroup
		defer telling.Wait()
		defer cancel()
		telling.Go(func() {
			defer cancel()
			select {
			case <-who.events.begun: // the first that is said is what is listened to
				l.run(ctx)
			case <-ctx.Done():
			}
		})
	}
	return next(ctx, methodListen, r)
}

// wanted are the kinds of whose changes a client wants to hear.
func wanted(n *sdk.NotificationSubscriptions) (out []mcpserver.Kind) {
	if n == nil {
		return nil
	}
	wants := map[mcpserver.Kind]bool{mcpserver.Tools: n.ToolsListChanged, mcpserver.Resources: n.ResourcesListChanged, mcpserver.Prompts: n.PromptsListChanged}
	for _, kind := range mcpserver.Kinds() {
		if wants[kind] {
			out = append(out, kind)
		}
	}
	return out
}

// announce tells the one client of [Server.Serve] of changes, once it has listed something, until ctx ends.
func (s *Server) announce(ctx context.Context, talk *conversation, own *ear) {
	select {
	case <-own.listed:
	case <-ctx.Done():
		return
	}
	changed, stop := s.Foreign.Watch(identity.Principal{})
	defer stop()
	l := listener{s: s, kinds: mcpserver.Kinds(), changed: changed, listed: own.listed, seen: talk.seen, tell: s.stir, beat: func() error { return nil }}
	l.run(ctx)
}

// errNeverAsked is of what only stir puts in: requests for resources and prompts go to servers of others.
var errNeverAsked = errors.New("it is none that could be asked for")

// stir lets the protocol library say to every client that a list has changed, which it does when something of it was put in. Nothing
// of that is listed: see [Server.withOffers].
func (s *Server) stir(kind mcpserver.Kind) error {
	switch kind {
	case mcpserver.Tools:
		one := tools()[0]
		s.sdk.AddTool(one.declared(), s.handle(one)) // as it was
	case mcpserver.Resources:
		s.sdk.AddResource(&sdk.Resource{URI: "clawjail:changed", Name: "changed"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return nil, errNeverAsked
		})
	case mcpserver.Prompts:
		s.sdk.AddPrompt(&sdk.Prompt{Name: "changed"}, func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			return nil, errNeverAsked
		})
	}
	return nil
}

// idOf is the id of a request as it is sent back, and whether it is one.
func idOf(raw json.RawMessage) (string, bool) {
	var id any
	if json.Unmarshal(raw, &id) != nil {
		return "", false
	}
	switch id.(type) {
	case string, float64:
		return string(raw), true
	}
	return "", false
}
