package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// sessionHeader has the id of a conversation.
const sessionHeader = "Mcp-Session-Id"

// Handler serves MCP over streamable HTTP. Whoever serves it has authenticated the request and put the principal into its
// context. A request from a page of another origin, and one to a loopback address under another name, is refused here as
// well. There is no stream beside the answers (GET is 405), and DELETE ends a conversation.
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
		return problem.New(problem.Unauthorized, "send a key: Authorization: Bearer …", "nobody is known to call")
	}
	key := keyOf(by)
	leave, err := s.requests.enter(key)
	if err != nil {
		return err
	}
	defer leave()
	who := &caller{by: by, gone: r.Context()}
	if id := r.Header.Get(sessionHeader); id != "" {
		if who.talk = s.conversations.find(id, key); who.talk == nil {
			return problem.New(problem.NotFound, "initialize again, without "+sessionHeader, "there is no such MCP session")
		}
		if r.Method == http.MethodDelete {
			s.conversations.end(id)
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
	}
	if r.Method == http.MethodPost && who.talk == nil {
		starts, err := initializes(w, r)
		if err != nil {
			return err
		}
		if starts {
			id, talk := s.conversations.begin(key, by.Tenant)
			who.talk = talk
			w.Header().Set(sessionHeader, id)
		}
	}
	inner.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, who)))
	return nil
}

// initializes says whether a request begins a conversation. The body can be read again after it.
func initializes(w http.ResponseWriter, r *http.Request) (bool, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return false, errTooLarge
		}
		return false, problem.Wrap(err, problem.BadRequest, "", "the body cannot be read")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var message struct {
		Method string `json:"method"`
	}
	// What is no such message is for the protocol to refuse.
	return json.Unmarshal(body, &message) == nil && message.Method == "initialize", nil
}

var errTooLarge = problem.New(problem.BadRequest, "send less at once", "the body has more than %d bytes", maxBody)

// writeProblem writes what went wrong before the protocol began, as RFC 9457 has it.
func writeProblem(w http.ResponseWriter, err error) {
	p, _ := problem.As(err)
	if p == nil {
		p = problem.New(problem.CodeOf(err), "", "something went wrong")
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
