package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Scope is what a token lets its holder do; see [identity.Scope].
type Scope = identity.Scope

// Token is good for one session, for a while, and within its scope. It ends with the session, and with the key of its
// maker.
type Token struct {
	ID        string    `json:"id" doc:"names it where it is listed and revoked"`
	Token     string    `json:"token" doc:"shown once"`
	Scope     Scope     `json:"scope" enum:"view,control,cdp"`
	Session   string    `json:"session"`
	ExpiresAt time.Time `json:"expires_at"`
}

const (
	// TokenPrefix is the beginning of every token for a session.
	TokenPrefix = "cjses_"
	// DefaultTokenLife is how long a token is good by default, MaxTokenLife the most.
	DefaultTokenLife = time.Hour
	MaxTokenLife     = 24 * time.Hour
	// maxTokens is how many tokens one session may have that are good.
	maxTokens = 200
)

// token is what is kept of one: not the token.
type token struct {
	session string
	by      identity.Principal // the principal that made it, within its scope
	created time.Time
	uses    *usePeriod // what is done with it; over when it was revoked
}

// IssuedToken is a token for a session without the token.
type IssuedToken struct {
	ID        string    `json:"id"`
	Scope     Scope     `json:"scope" enum:"view,control,cdp"`
	By        string    `json:"by" doc:"maker of the token, as the audit log names principals"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// IssueToken makes a token for a session. A zero life is DefaultTokenLife.
func (svc *Service) IssueToken(ctx context.Context, by identity.Principal, id string, scope Scope, life time.Duration) (Token, error) {
	if !scope.Valid() {
		return Token{}, problem.New(problem.BadRequest, "they are view, control and cdp", "%s is not a scope", quote(string(scope)))
	}
	if life == 0 {
		life = DefaultTokenLife
	}
	if life < time.Second || life > MaxTokenLife {
		return Token{}, problem.New(problem.BadLimit, "leave it out for "+DefaultTokenLife.String(), "a life of %s is not between 1s and %s", life, MaxTokenLife)
	}
	s, _, err := svc.ready(ctx, by, identity.SessionToken, id)
	if err != nil {
		return Token{}, err
	}
	if err := svc.notRefresh(s, by, identity.SessionToken, "token"); err != nil {
		return Token{}, err
	}
	if scope == identity.ScopeCDP {
		if err := svc.mayAttach(s, by, identity.SessionToken); err != nil {
			return Token{}, err
		}
	}
	within := by.Within(id, scope, svc.Now().Add(life)) // or with the key that makes it, if that ends before
	out := Token{ID: "st_" + strings.ToLower(rand.Text()[:16]), Token: TokenPrefix + rand.Text() + rand.Text(), Scope: scope, Session: id, ExpiresAt: within.ExpiresAt.UTC()}
	within.SessionToken = out.ID
	err = svc.record(ctx, s, by, identity.SessionToken, "", audit.Fields{"token_id": out.ID, "scope": string(scope), "ttl_s": int(life.Seconds())}, func() error {
		svc.mu.Lock()
		defer svc.mu.Unlock()
		if s.state != StateReady {
			return endingProblem(id)
		}
		if scope == identity.ScopeCDP && s.takeover != nil {
			return takenOver(s)
		}
		if svc.expireTokens(id) >= maxTokens {
			return problem.New(problem.RateLimited, "use one that you have, or give them a shorter life", "session %s has %d valid tokens already", id, maxTokens)
		}
		svc.tokens[sha256.Sum256([]byte(out.Token))] = token{session: id, by: within, created: svc.Now().UTC(), uses: newUsePeriod()}
		s.used = svc.Now()
		return nil
	})
	if err != nil {
		return Token{}, fmt.Errorf("make a token: %w", err)
	}
	return out, nil
}

// Redeem returns the principal that a token stands for. The code is unauthorized for an invalid or expired token. The caller
// checks whether the key behind it is still valid.
func (svc *Service) Redeem(_ context.Context, presented string) (identity.Principal, error) {
	sum := sha256.Sum256([]byte(presented))
	svc.mu.Lock()
	defer svc.mu.Unlock()
	t, ok := svc.tokens[sum] // by its hash: nothing is learned from how long it takes
	s := svc.sessions[t.session]
	if !ok || s == nil || s.state != StateReady || identity.Left(t.by.ExpiresAt, svc.Now()) <= 0 {
		return identity.Principal{}, problem.New(problem.Unauthorized, "make a new one; it works for one session, while that is open",
			"invalid or expired session token")
	}
	return t.by, nil
}

// managed says whether somebody may know of the token, and end it: an agent those alone that it has made itself. It could put
// out a viewer that watches it otherwise.
func (t token) managed(by identity.Principal) bool {
	return by.Kind != identity.KindAgent || t.by.Actor() == by.Actor()
}

// Tokens lists the tokens of a session that are good, oldest first; to an agent those that it has made.
func (svc *Service) Tokens(ctx context.Context, by identity.Principal, id string) ([]IssuedToken, error) {
	s, err := svc.permitted(ctx, by, identity.SessionToken, id)
	if err != nil {
		return nil, err
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	svc.expireTokens(s.id)
	out := []IssuedToken{}
	for _, t := range svc.tokens {
		if t.session == s.id && t.managed(by) {
			out = append(out, IssuedToken{ID: t.by.SessionToken, Scope: t.by.Scope, By: t.by.Actor(), CreatedAt: t.created, ExpiresAt: t.by.ExpiresAt.UTC()})
		}
	}
	slices.SortFunc(out, func(a, b IssuedToken) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return out, nil
}

// RevokeToken ends a token, and returns when nothing is open with it. A session that its holder has in hand stays so, until
// somebody takes it over with force or hands it back anyway.
func (svc *Service) RevokeToken(ctx context.Context, by identity.Principal, id, named string) error {
	s, err := svc.permitted(ctx, by, identity.SessionToken, id)
	if err != nil {
		return err
	}
	svc.mu.Lock()
	svc.expireTokens(s.id)
	var revoked *[sha256.Size]byte
	for sum, t := range svc.tokens {
		if t.session == s.id && t.by.SessionToken == named && t.managed(by) {
			revoked = &sum
		}
	}
	svc.mu.Unlock()
	if revoked == nil {
		return problem.New(problem.NotFound, "list them", "session %s has no valid token %s", s.id, quote(named))
	}
	// Nothing may stop an ending.
	record := svc.Records.BeginEnding(svc.intent(s, by.Actor(), string(identity.SessionToken), "", audit.Fields{"tool": "revoke", "token_id": named}))
	svc.mu.Lock()
	uses := svc.tokens[*revoked].uses
	delete(svc.tokens, *revoked)
	var clients []*attachment
	for a := range s.attached {
		if a.by.SessionToken != named {
			continue
		}
		if a.Devtools == nil { // it is just attaching, and will see
			why := error(errTokenRevoked)
			a.cutFor.Store(&why)
			continue
		}
		clients = append(clients, a)
	}
	for l := range s.lives {
		if l.by.SessionToken == named {
			l.end(errTokenRevoked)
		}
	}
	if uses != nil { // no other call has revoked it
		uses.finish(errTokenRevoked)
	}
	svc.mu.Unlock()
	for _, a := range clients {
		a.cut(errTokenRevoked)
	}
	if uses != nil {
		select {
		case <-uses.idle:
		case <-ctx.Done(): // it is over all the same
		}
	}
	record.End(outcome(nil, nil))
	return nil
}

// tokenGood says whether a principal's token for a session was not revoked since it was looked at. The caller holds svc.mu.
func (svc *Service) tokenGood(by identity.Principal) bool {
	return by.SessionToken == "" || svc.usesOf(by) != nil
}

// usesOf is what is done with a principal's token for a session; nil when that is not good any more. The caller holds svc.mu.
func (svc *Service) usesOf(by identity.Principal) *usePeriod {
	for _, t := range svc.tokens {
		if t.by.SessionToken == by.SessionToken {
			return t.uses
		}
	}
	return nil
}

// expireTokens forgets the tokens that are not good any more, and says how many a session has. The caller holds svc.mu.
func (svc *Service) expireTokens(session string) (count int) {
	now := svc.Now()
	for sum, t := range svc.tokens {
		s := svc.sessions[t.session]
		switch {
		case identity.Left(t.by.ExpiresAt, now) <= 0, s == nil, s.state != StateReady:
			delete(svc.tokens, sum)
		case t.session == session:
			count++
		}
	}
	return count
}

// mayAttach refuses DevTools clients where the session's access is tools.
func (svc *Service) mayAttach(s *session, by identity.Principal, op identity.Operation) error {
	if s.plan.access == grant.AccessCDP {
		return nil
	}
	return svc.refuse(s, by, op, "cdp", problem.New(problem.Forbidden, "use the tools; or open a session with access cdp, and a grant that allows it",
		"session %s has the access tools, so DevTools clients cannot attach", s.id))
}
