package session

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Scope is what a token lets its holder do; see [identity.Scope].
type Scope = identity.Scope

// Token is good for one session, for a while, and within its scope. It ends with the session, and with the key of who
// made it.
type Token struct {
	Token     string    `json:"token" doc:"shown once"`
	Scope     Scope     `json:"scope" enum:"view,control,cdp"`
	Session   string    `json:"session"`
	ExpiresAt time.Time `json:"expires_at"`
}

const (
	// TokenPrefix is the beginning of every token for a session.
	TokenPrefix = "cjses_"
	// DefaultTokenLife is how long a token is good when nobody says, MaxTokenLife the most.
	DefaultTokenLife = time.Hour
	MaxTokenLife     = 24 * time.Hour
	// maxTokens is how many tokens one session may have that are good.
	maxTokens = 200
)

// token is what is kept of one: not the token.
type token struct {
	session string
	by      identity.Principal // who made it, within its scope
}

// IssueToken makes a token for a session. A zero life is DefaultTokenLife.
func (s *Service) IssueToken(ctx context.Context, by identity.Principal, id string, scope Scope, life time.Duration) (Token, error) {
	if !scope.Valid() {
		return Token{}, problem.New(problem.BadRequest, "they are view, control and cdp", "%s is not a scope", quote(string(scope)))
	}
	if life == 0 {
		life = DefaultTokenLife
	}
	if life < time.Second || life > MaxTokenLife {
		return Token{}, problem.New(problem.BadLimit, "leave it out for "+DefaultTokenLife.String(), "a life of %s is not between 1s and %s", life, MaxTokenLife)
	}
	r, _, done, err := s.use(ctx, by, identity.SessionToken, id)
	if err != nil {
		return Token{}, err
	}
	defer done()
	if scope == identity.ScopeCDP {
		if err := s.mayAttach(r, by, identity.SessionToken); err != nil {
			return Token{}, err
		}
	}
	out := Token{Token: TokenPrefix + rand.Text() + rand.Text(), Scope: scope, Session: id, ExpiresAt: s.Now().Add(life).UTC()}
	err = s.record(ctx, r, by, identity.SessionToken, "", audit.Fields{"scope": string(scope), "ttl_s": int(life.Seconds())}, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.state != StateReady {
			return problem.New(problem.SessionClosed, "open a new one", "session %s is ending", id)
		}
		if s.expireTokens(id) >= maxTokens {
			return problem.New(problem.RateLimited, "use one that you have, or give them a shorter life", "session %s has %d tokens that are good", id, maxTokens)
		}
		s.tokens[sha256.Sum256([]byte(out.Token))] = token{session: id, by: by.Within(id, scope, out.ExpiresAt)}
		return nil
	})
	if err != nil {
		return Token{}, fmt.Errorf("make a token: %w", err)
	}
	return out, nil
}

// Redeem is who holds a token. The code is unauthorized when it is not good, or not any more. Whether the key behind it
// still is, the caller asks.
func (s *Service) Redeem(_ context.Context, presented string) (identity.Principal, error) {
	sum := sha256.Sum256([]byte(presented))
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tokens[sum] // by its hash: nothing is learned from how long it takes
	r := s.sessions[t.session]
	if !ok || r == nil || r.state != StateReady || !s.Now().Before(t.by.ExpiresAt) {
		return identity.Principal{}, problem.New(problem.Unauthorized, "make a new one; it is good for one session, while that is open",
			"the token for a session is not good, or not any more")
	}
	return t.by, nil
}

// expireTokens forgets the tokens that are not good any more, and says how many a session has. The caller holds s.mu.
func (s *Service) expireTokens(session string) (count int) {
	now := s.Now()
	for sum, t := range s.tokens {
		r := s.sessions[t.session]
		switch {
		case !now.Before(t.by.ExpiresAt), r == nil, r.state != StateReady:
			delete(s.tokens, sum)
		case t.session == session:
			count++
		}
	}
	return count
}

// mayAttach refuses DevTools clients where the session's access is tools.
func (s *Service) mayAttach(r *session, by identity.Principal, op identity.Operation) error {
	if r.plan.access == grant.AccessCDP {
		return nil
	}
	return s.refuse(r, by, op, "cdp", problem.New(problem.Forbidden, "use the tools; or open a session with access cdp, and a grant that allows it",
		"session %s has the access tools, so DevTools clients cannot attach", r.id))
}
