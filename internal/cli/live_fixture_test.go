package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// change changes a session that is there, and returns it.
func (s *inMemory) change(id string, change func(*session.Session) error) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	if err := change(out); err != nil {
		return session.Session{}, err
	}
	return *out, nil
}

// TakeOver finds the browser of the session with the label theirs in the hand of another.
func (s *inMemory) TakeOver(_ context.Context, by identity.Principal, id string, force bool) (session.Session, error) {
	return s.change(id, func(out *session.Session) error {
		if out.Label == "theirs" && !force {
			return problem.New(problem.Conflict, "give --force", "another has it")
		}
		out.Control = &session.Control{By: by.Actor(), Name: "ann\x1b[2J", Since: time.Unix(1e9, 0)}
		return nil
	})
}

// HandBack finds a password in the pages of the session with the label theirs.
func (s *inMemory) HandBack(_ context.Context, _ identity.Principal, id string, anyway bool) (session.Session, error) {
	return s.change(id, func(out *session.Session) error {
		if out.Label == "theirs" && !anyway {
			return problem.New(problem.Conflict, "give --anyway", "a password stands in tab t1")
		}
		out.Control = nil
		return nil
	})
}

func (s *inMemory) Watch(context.Context, identity.Principal, string) (*session.Live, error) {
	return nil, problem.New(problem.Forbidden, "", "there is no browser")
}

func (s *inMemory) Thumbnail(context.Context, identity.Principal, string) ([]byte, time.Time, error) {
	return nil, time.Time{}, problem.New(problem.NotFound, "", "there is no browser")
}

func (s *inMemory) OpenRefresh(ctx context.Context, by identity.Principal, r session.RefreshRequest) (session.Session, error) {
	if r.Domain == "localhost" {
		return session.Session{}, problem.New(problem.BadDomain, "write one such as example.com", "localhost is not a registrable domain")
	}
	opened, err := s.Open(ctx, by, session.OpenRequest{Tenant: r.Tenant, Label: r.URL})
	if err != nil {
		return session.Session{}, err
	}
	return s.change(opened.ID, func(out *session.Session) error {
		expires := time.Now().Add(session.RefreshLife)
		out.CredentialMode, out.Domains, out.ExpiresAt = session.ModeRefresh, []string{r.Domain}, &expires
		return nil
	})
}

func (s *inMemory) Seen(context.Context, identity.Principal, string) (session.Seen, error) {
	return session.Seen{}, nil
}

func (s *inMemory) EndPermitted(string, grant.Access) int { return 0 }

// Tokens are two, whatever was issued.
func (s *inMemory) Tokens(_ context.Context, _ identity.Principal, id string) ([]session.IssuedToken, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(id); err != nil {
		return nil, err
	}
	var out []session.IssuedToken
	for n, scope := range []session.Scope{identity.ScopeView, identity.ScopeCDP} {
		at := time.Unix(int64(1e9+n), 0).UTC()
		out = append(out, session.IssuedToken{ID: fmt.Sprintf("st_%d", n+1), Scope: scope, By: "admin", CreatedAt: at, ExpiresAt: at.Add(time.Hour)})
	}
	return out, nil
}

func (s *inMemory) RevokeToken(_ context.Context, _ identity.Principal, id, token string) error {
	if token != "st_1" && token != "st_2" {
		return problem.New(problem.NotFound, "list them: clawjail session tokens "+id, "session %s has no valid token %s", id, token)
	}
	return nil
}
