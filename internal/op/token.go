package op

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// Token is one of an agent's tokens, without what it is.
type Token struct {
	ID        string    `json:"id"`
	Hint      string    `json:"hint" doc:"the first characters of the token"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	UsedAt    time.Time `json:"used_at,omitzero" doc:"when the token was last used, approximately"`
}

// Tokens is the answer to a listing.
type Tokens struct {
	Tokens []Token `json:"tokens" nullable:"false"`
}

// IssuedToken is a new token of an agent's, which is told once. It prints without what it is.
type IssuedToken struct {
	Agent string `json:"agent" doc:"the name of the agent that has the token"`
	Key   string `json:"key,omitempty" doc:"the token; shown only once, and not at all when it was delivered"`
	Token Token  `json:"token"`
	// Delivered tokens are for nobody but the program in the jail.
	Delivered bool `json:"delivered,omitempty" doc:"whether the token was put into the agent's jail"`
}

// Format implements fmt.Formatter, for every verb.
func (i IssuedToken) Format(f fmt.State, _ rune) { WithoutKey(f, "token "+i.Token.ID) }

// LogValue implements slog.LogValuer.
func (i IssuedToken) LogValue() slog.Value { return slog.StringValue("token " + i.Token.ID) }

// SessionTokenInfo is a token for a session without the token.
type SessionTokenInfo session.IssuedToken

// SessionTokens is the answer to a listing.
type SessionTokens struct {
	Tokens []SessionTokenInfo `json:"tokens" nullable:"false"`
}

// RotateRequest is the body that makes a new token of an agent's.
type RotateRequest struct {
	Life    string `json:"life,omitempty" doc:"how long the token is valid, such as 30d, or never, the default" flag:"expires" usage:"how long the key is valid, such as 30d, or never" is:"life" offer:"24h,30d,never" example:"1h"`
	Overlap string `json:"overlap,omitempty" doc:"how long the old tokens stay valid, such as 10m, the default" flag:"overlap" usage:"how long the old tokens stay valid (default 10m)" is:"duration"`
}

type (
	// OneAgent names an agent.
	OneAgent struct {
		Name string `path:"name" maxLength:"64" doc:"the agent's name" arg:"1" complete:"agents"`
		InTenant
	}

	// TokenNamed names a token of an agent.
	TokenNamed struct {
		Name string `path:"name" maxLength:"64" doc:"the agent's name" arg:"1" complete:"agents"`
		ID   string `path:"id" maxLength:"64" doc:"the token's id" arg:"2" complete:"tokens"`
		InTenant
	}

	// NewToken is a token to be made for an agent.
	NewToken struct {
		OneAgent
		Body[RotateRequest]
	}

	// SessionNamed names a session.
	SessionNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the session's id" arg:"1" complete:"sessions"`
	}

	// SessionTokenNamed names a token for a session.
	SessionTokenNamed struct {
		SessionNamed
		Token string `path:"token" maxLength:"64" doc:"the token's id, never the token" arg:"2" complete:"session tokens"`
	}
)

func tokenOf(t identity.Token) Token {
	return Token{ID: t.ID, Hint: t.Hint, CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, UsedAt: t.UsedAt}
}

func (i IssuedToken) view() []Block {
	if !i.Delivered {
		return keyOf(i.Key, "the agent "+i.Agent, i.Token.ExpiresAt)
	}
	said := line("the new token is in the jail of %s, at /run/hermit/token; nobody is shown it", i.Agent)
	said.Aside = true
	return []Block{said}
}

// ListTokens lists an agent's tokens, without what they are.
func ListTokens() Op[OneAgent, Tokens] {
	return Op[OneAgent, Tokens]{Method: http.MethodGet, Path: "/v1/agents/{name}/tokens", ID: "list-tokens", Summary: "List an agent's tokens", Right: identity.TokenList,
		Command: Command{Use: "ls NAME", Aliases: []string{"list"}, Short: "List the tokens of an agent, without their values"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (Tokens, error) {
			all, err := s.People.Tokens(ctx, by, by.TenantOr(in.Tenant), in.Name)
			return Tokens{listOf(all, tokenOf)}, err
		},
		View: func(all Tokens) []Block {
			return []Block{table(all.Tokens, []any{"ID", "TOKEN", "STATE", "MADE", "EXPIRES", "USED"}, func(t Token) []any {
				return []any{t.ID, t.Hint + "…", Key{t.RevokedAt, t.ExpiresAt}, t.CreatedAt, Ends(t.ExpiresAt), t.UsedAt}
			})}
		}}
}

// RotateToken makes a new token for an agent. It is in the answer, and in no other.
func RotateToken() Op[NewToken, IssuedToken] {
	return Op[NewToken, IssuedToken]{Method: http.MethodPost, Path: "/v1/agents/{name}/tokens", ID: "rotate-token", Summary: "Give an agent a new token", Right: identity.TokenRotate,
		Status: http.StatusCreated,
		Command: Command{Use: "rotate NAME", Short: "Give an agent a new token, and let the old ones end",
			Long: "Gives an agent a new token, which alone is on standard output and is never shown again. An agent in a jail that is kept " +
				"finds it at /run/hermit/token, without a restart, and it is not printed. Its old tokens stay valid " +
				"for as long as --overlap says, so that the agent has time to change; 0s ends them, and what is open with them, now.",
			Example: "  clawjail agent token rotate writer --overlap 10m -o writer.token", Key: true},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewToken) (IssuedToken, error) {
			life, err := Life(in.Of.Life)
			if err != nil {
				return IssuedToken{}, err
			}
			overlap := identity.DefaultOverlap
			if in.Of.Overlap != "" {
				if overlap, err = texts.Duration(in.Of.Overlap); err != nil {
					return IssuedToken{}, problem.New(problem.BadLimit, "give a time such as 10m", "the overlap %s is not a duration", quote(in.Of.Overlap))
				}
			}
			in.Tenant = by.TenantOr(in.Tenant)
			if issued, done, err := rotateKept(ctx, s, by, in, overlap); err != nil || done {
				return issued, err
			}
			key, t, err := s.People.RotateToken(ctx, by, in.Tenant, in.Name, life, overlap)
			return IssuedToken{Agent: in.Name, Key: key.Reveal(), Token: tokenOf(t)}, err
		},
		View: IssuedToken.view}
}

// rotateKept gives the agent of a jail a new token, where the program in the jail finds it; no other program gets it. done is false for
// an agent that has no jail, and for callers that may not.
func rotateKept(ctx context.Context, s Backend, by identity.Principal, in NewToken, overlap time.Duration) (_ IssuedToken, done bool, _ error) {
	if s.Agents == nil || identity.Can(by, identity.TokenRotate, in.Tenant) != nil {
		return IssuedToken{}, false, nil
	}
	status, err := s.Agents.Get(ctx, by, in.Tenant, in.Name)
	switch {
	case problem.CodeOf(err) == problem.NotFound:
		return IssuedToken{}, false, nil
	case err != nil:
		return IssuedToken{}, false, err
	case status.Declared == nil && status.Jail == nil:
		return IssuedToken{}, false, nil
	case in.Of.Life != "":
		return IssuedToken{}, false, problem.New(problem.BadRequest, "leave the life out; a declaration has ttl", "the token of an agent's jail ends with the jail")
	}
	if err := s.Agents.RotateToken(ctx, by, in.Tenant, in.Name, overlap); err != nil {
		return IssuedToken{}, false, err
	}
	tokens, err := s.People.Tokens(ctx, by, in.Tenant, in.Name)
	out := IssuedToken{Agent: in.Name, Delivered: true}
	for _, t := range tokens {
		if t.RevokedAt.IsZero() && !t.CreatedAt.Before(out.Token.CreatedAt) {
			out.Token = tokenOf(t)
		}
	}
	return out, true, err
}

// RevokeToken ends one of an agent's tokens, and what is open with it.
func RevokeToken() Op[TokenNamed, None] {
	return Op[TokenNamed, None]{Method: http.MethodDelete, Path: "/v1/agents/{name}/tokens/{id}", ID: "revoke-token", Summary: "Revoke an agent's token", Right: identity.TokenRevoke,
		Command: Command{Use: "revoke NAME ID", Short: "Revoke one token of an agent, and end what is open with it"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in TokenNamed) (None, error) {
			return None{}, s.People.RevokeToken(ctx, by, by.TenantOr(in.Tenant), in.Name, in.ID)
		}}
}

// ListSessionTokens lists the tokens for a session that are good.
func ListSessionTokens() Op[SessionNamed, SessionTokens] {
	return Op[SessionNamed, SessionTokens]{Method: http.MethodGet, Path: "/v1/sessions/{id}/tokens", ID: "list-session-tokens", Summary: "List the valid tokens for a session",
		Right:   identity.SessionToken,
		Command: Command{Use: "tokens ID", Long: "Lists the valid tokens for a session. A token itself is shown only when it is made, see `clawjail session cdp`."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionNamed) (SessionTokens, error) {
			all, err := s.Sessions.Tokens(ctx, by, in.ID)
			return SessionTokens{listOf(all, func(t session.IssuedToken) SessionTokenInfo { return SessionTokenInfo(t) })}, err
		},
		View: func(all SessionTokens) []Block {
			return []Block{table(all.Tokens, []any{"ID", "SCOPE", "BY", "CREATED", "EXPIRES"}, func(t SessionTokenInfo) []any {
				return []any{t.ID, t.Scope, t.By, t.CreatedAt, t.ExpiresAt}
			})}
		}}
}

// RevokeSessionToken ends a token for a session, and what is open with it.
func RevokeSessionToken() Op[SessionTokenNamed, None] {
	return Op[SessionTokenNamed, None]{Method: http.MethodDelete, Path: "/v1/sessions/{id}/tokens/{token}", ID: "revoke-session-token",
		Summary: "End a token for a session, and what is open with it", Right: identity.SessionToken,
		Command: Command{Use: "revoke-token ID TOKEN…", Short: "End tokens for a session, and what is open with them",
			Long:    "Ends tokens for a session, named as `clawjail session tokens` lists them. What is open with them is cut.",
			Example: "  clawjail session revoke-token s_abcdefgh23456789 st_abcdefgh"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionTokenNamed) (None, error) {
			return None{}, s.Sessions.RevokeToken(ctx, by, in.ID, in.Token)
		}}
}
