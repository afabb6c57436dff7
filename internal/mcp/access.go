package mcp

import (
	"context"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Access takes the questions of agents to the operator. *egress.Book is one.
type Access interface {
	// Ask returns when the question is answered, or wait is over.
	Ask(ctx context.Context, by identity.Principal, kind egress.AccessKind, target, reason string, wait time.Duration) (egress.AccessRequest, error)
	// AccessRequest is what became of a question.
	AccessRequest(ctx context.Context, by identity.Principal, id string, wait time.Duration) (egress.AccessRequest, error)
}

// maxAccessWait is the longest wait for an operator's answer, in seconds.
const maxAccessWait = 300

type accessArguments struct {
	Kind   egress.AccessKind `json:"kind"`
	Target string            `json:"target"`
	Reason string            `json:"reason"`
	ID     string            `json:"id"`
	Wait   int               `json:"wait_seconds"`
}

// accessTool is offered where somebody takes the questions.
func accessTool() tool {
	return tool{name: "request_access", about: "Ask the operator for a host, tool, service or account that was refused. Say why. Ask the same again, or give id alone, to hear the answer.",
		takes: []string{`"kind":{"enum":["host","tool","service","account"]}`,
			`"target":{"type":"string","description":"host: example.com or a URL; tool: GET https://… SERVICE; service: its name; account: its domain"}`,
			`"reason":{"type":"string"}`,
			`"id":{"type":"string","description":"of an earlier request"}`,
			`"wait_seconds":{"type":"integer","description":"for the answer, at most 300; default 0"}`},
		run: (*Server).requestAccess}
}

func (s *Server) requestAccess(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, err := arguments[accessArguments](c.raw)
	if err != nil {
		return nil, err
	}
	if a.Wait < 0 || a.Wait > maxAccessWait {
		return nil, problem.New(problem.BadRequest, "give 0 to 300", "wait_seconds is out of range")
	}
	asks := a.Kind != "" || a.Target != "" || a.Reason != ""
	if asks == (a.ID != "") {
		return nil, problem.New(problem.BadRequest, "give kind, target and reason to ask, or id alone to hear the answer", "the request has neither an id alone, nor a kind, target and reason alone")
	}
	wait := time.Duration(a.Wait) * time.Second
	var r egress.AccessRequest
	if asks {
		r, err = s.Access.Ask(ctx, c.by, a.Kind, a.Target, a.Reason, wait)
	} else {
		r, err = s.Access.AccessRequest(ctx, c.by, a.ID, wait)
	}
	if err != nil {
		return nil, err
	}
	return answer(accessText(r)), nil
}

// accessText is what a model is told of its question.
func accessText(r egress.AccessRequest) string {
	var text string
	switch r.State {
	case egress.AccessApproved:
		text = "approved; try again now"
	case egress.AccessRefused:
		text = "refused; do not ask for it again"
	case egress.AccessExpired:
		text = "nobody answered; go on without it"
	default:
		text = "not answered yet (" + line(r.ID, 64) + "); go on with something else, and ask the same again later, or with this id, to hear the answer"
	}
	if r.Answer != "" {
		text += "\noperator: " + line(r.Answer, 500)
	}
	return text
}
