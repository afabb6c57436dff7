package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// sessionHeader has the id of a conversation.
const sessionHeader = "Mcp-Session-Id"

// Handler serves MCP over streamable HTTP. Its caller has authenticated the request and put the principal into its
// context. A request from a page of another origin, and one to a loopback address under another name, is refused here as
// well. GET listens to a conversation, where there are tools that may change (405 where not), and DELETE ends it.
func (s *Server) Handler() http.Handler {
	inner := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.sdk }, &sdk.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true,
	})
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.serve(w, r, inner); err != nil {
			writeProblem(w, err)
		}
	}))
}

// serve finds out whose conversation a request belongs to and hands it on. An error is of a request that was not.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, inner http.Handler) error {
	var by identity.Principal
	if s.Principal != nil {
		by = s.Principal(r.Context())
	}
	if by.Kind == "" {
		return problem.New(problem.Unauthorized, "send a key: Authorization: Bearer …", "the caller is not authenticated")
	}
	key := keyOf(by)
	leave, err := s.requests.enter(key)
	if err != nil {
		return err
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	who := &caller{by: by, gone: r.Context()}
	if id := r.Header.Get(sessionHeader); id != "" {
		if who.talk = s.conversations.find(id, key); who.talk == nil {
			return noConversation()
		}
		if r.Method == http.MethodDelete {
			s.conversations.end(id)
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
		if r.Method == http.MethodGet && s.Foreign != nil && listens(r) {
			release, err := s.listeners.enter(key)
			if err != nil {
				return err
			}
			defer release()
			leave() // a listener may make as many calls as others
			return s.listen(w, r, who, id)
		}
	}
	if r.Method == http.MethodPost {
		first, err := messageOf(w, r)
		if err != nil {
			return err
		}
		if id := first.session(); id != "" && s.Elsewhere != nil {
			var failed error
			away, err := s.Elsewhere(r, id, func(err error) { failed = err })
			if away != nil {
				there := r.Clone(r.Context())
				there.Header.Del(sessionHeader) // there is no such conversation there, and the call names all that it needs
				there.Body = first.body()
				if away.ServeHTTP(w, there); failed == nil {
					return nil
				}
				err = failed
			}
			who.refused = err
		}
		switch id, ok := idOf(first.ID); {
		case who.talk != nil:
		case first.Method == methodListen && ok && s.Foreign != nil:
			release, err := s.listeners.enter(key)
			if err != nil {
				return err
			}
			defer release()
			leave()
			who.events, who.id = newEvents(w), id
			w = who.events
		case first.Method == "initialize":
			id, talk := s.conversations.begin(key, by.Tenant)
			who.talk = talk
			w.Header().Set(sessionHeader, id)
		}
	}
	inner.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, who)))
	return nil
}

// listens says whether a GET is for a stream of events.
func listens(r *http.Request) bool {
	return strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/event-stream")
}

func noConversation() error {
	return problem.New(problem.NotFound, "initialize again, without "+sessionHeader, "there is no such MCP session")
}

// message is what is looked at of one before the protocol library has it.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	text   []byte
}

// body is one that the message can be read from.
func (m message) body() io.ReadCloser { return io.NopCloser(bytes.NewReader(m.text)) }

// session is the browser session that a call of one of our tools names; empty when it names none.
func (m message) session() string {
	var of struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	var named closeArguments
	if m.Method != "tools/call" || json.Unmarshal(m.Params, &of) != nil || mcpserver.Offered(of.Name) || json.Unmarshal(of.Arguments, &named) != nil {
		return ""
	}
	return named.Session
}

// messageOf looks at the message of a request. The body can be read again after it.
func messageOf(w http.ResponseWriter, r *http.Request) (first message, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return first, errTooLarge
		}
		return first, problem.Wrap(err, problem.BadRequest, "", "the body cannot be read")
	}
	if json.Unmarshal(body, &first) != nil {
		first = message{} // what is no such message is for the protocol to refuse
	}
	first.text = body
	r.Body = first.body()
	return first, nil
}

var errTooLarge = problem.New(problem.BadRequest, "send less at once", "the body has more than %d bytes", maxBody)

// writeProblem writes what went wrong before the protocol began, as RFC 9457 has it.
func writeProblem(w http.ResponseWriter, err error) {
	p, _ := problem.As(err)
	if p == nil {
		p = problem.New(problem.CodeOf(err), "", problem.Unexpected)
	}
	status := problem.Status(p.Code)
	if errors.Is(err, errTooLarge) {
		status = http.StatusRequestEntityTooLarge
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	answer := map[string]any{"title": http.StatusText(status), "status": status, "code": p.Code, "detail": p.Message}
	if p.Hint != "" {
		answer["hint"] = p.Hint
	}
	_ = json.NewEncoder(w).Encode(answer) // a client that has gone needs no answer
}
