package mcp

import (
	"context"
	"encoding/json"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// maxListed is how many open sessions the tool capabilities names.
const maxListed = 10

// abilities is what the tool capabilities answers. It has at most 1 KB.
type abilities struct {
	Targets  []string `json:"targets"`
	Browsers []string `json:"browsers"`
	Modes    []string `json:"credential_modes"`
	Access   []string `json:"access"`
	Record   []string `json:"record"`
	Eval     string   `json:"eval"`
	Limits   struct {
		TTL      string `json:"ttl,omitempty"`
		MaxTTL   string `json:"max_ttl,omitempty"`
		Idle     string `json:"idle,omitempty"`
		Sessions int    `json:"sessions,omitempty"`
		Steps    int    `json:"task_steps"`
		Task     string `json:"task_time"`
		Chars    int    `json:"max_chars"`
		Calls    int    `json:"calls_at_once"`
	} `json:"limits"`
	Open []openSession `json:"open_sessions"`
	More int           `json:"more_open_sessions,omitempty"`
	// Unavailable says why there are no sessions.
	Unavailable string `json:"sessions_unavailable,omitempty"`
}

type openSession struct {
	ID    string `json:"id"`
	Mode  string `json:"mode"`
	Label string `json:"label,omitempty"`
}

func (s *Server) capabilities(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	if _, err := arguments[noArguments](c.raw); err != nil {
		return nil, err
	}
	a := abilities{
		Targets: []string{}, Open: []openSession{},
		Browsers: []string{"shell", "full"}, Modes: []string{session.ModeClean, session.ModeOperator},
		Access: []string{"tools", "cdp"}, Record: []string{session.RecordOff, session.RecordTransient, session.RecordAudit},
		Eval: "not in operator sessions with access tools",
	}
	a.Limits.TTL, a.Limits.MaxTTL, a.Limits.Idle = span(s.Sessions.TTL), span(s.Sessions.MaxTTL), span(s.Sessions.Idle)
	a.Limits.Sessions, a.Limits.Steps, a.Limits.Task = s.Sessions.Max, maxSteps, span(maxTask)
	a.Limits.Chars, a.Limits.Calls = maxChars, maxAtOnce
	open, err := s.Backend.List(ctx, c.by)
	if err == nil {
		a.Targets = append(a.Targets, "session")
	} else {
		a.Unavailable = problem.CodeOf(err)
	}
	if s.Backend.Host() {
		a.Targets = append(a.Targets, "host")
	}
	for _, o := range open[:min(len(open), maxListed)] {
		a.Open = append(a.Open, openSession{o.ID, o.CredentialMode, line(o.Label, 20)})
	}
	a.More = len(open) - len(a.Open)
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	return answer(string(text)), nil
}

// span is a length of time as people write it; nothing for none.
func span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}
