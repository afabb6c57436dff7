package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/session"
)

func (s *Server) openSession(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	r, err := arguments[session.OpenRequest](c.raw)
	if err != nil {
		return nil, err
	}
	opened, err := s.Backend.Open(ctx, c.by, r)
	if err != nil {
		return nil, err
	}
	c.talk.opened(opened.ID)
	return answer(sessionText(opened)), nil
}

// sessionText says in a line what was opened.
func sessionText(o session.Session) string {
	var b strings.Builder
	fmt.Fprintf(&b, "session %s is open: %s, access %s, browser %s, record %s", o.ID, o.CredentialMode, o.Access, o.Browser, o.Record)
	if len(o.Domains) > 0 {
		b.WriteString(", logged in at " + line(strings.Join(o.Domains, " "), 400))
	}
	if o.ExpiresAt != nil {
		b.WriteString(", until " + o.ExpiresAt.UTC().Format(time.RFC3339))
	}
	for n, r := range o.NeedsRefresh {
		if n == maxChanges {
			break
		}
		b.WriteString("\nneeds refresh: somebody has to log in again at " + line(r.Domain, 100))
	}
	return b.String()
}

func (s *Server) closeSession(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	a, err := arguments[closeArguments](c.raw)
	if err != nil {
		return nil, err
	}
	id, err := s.sessionOf(ctx, c, a.Session)
	if err != nil {
		return nil, err
	}
	closed, err := s.Backend.Close(ctx, c.by, id)
	if err != nil {
		return nil, err
	}
	c.talk.closed(id)
	return answer("session " + line(closed.ID, 40) + " is closed"), nil
}
