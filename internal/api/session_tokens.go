package api

import (
	"context"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

// SessionTokenInfo is a token for a session without the token.
type SessionTokenInfo struct {
	ID        string        `json:"id"`
	Scope     session.Scope `json:"scope" enum:"view,control,cdp"`
	By        string        `json:"by" doc:"who made it"`
	CreatedAt time.Time     `json:"created_at"`
	ExpiresAt time.Time     `json:"expires_at"`
}

// SessionTokens is the answer to a listing.
type SessionTokens struct {
	Tokens []SessionTokenInfo `json:"tokens" nullable:"false"`
}

// sessionTokenInput names a token of a session.
type sessionTokenInput struct {
	ID    string `path:"id" maxLength:"64" doc:"the session's id"`
	Token string `path:"token" maxLength:"64" doc:"the token's id, never the token"`
}

func (a *API) sessionTokenRoutes() {
	add(a, route{method: http.MethodGet, path: ofSession + "/tokens", id: "list-session-tokens", summary: "List the tokens for a session that are good"},
		a.sessionTokens)
	add(a, route{method: http.MethodDelete, path: ofSession + "/tokens/{token}", id: "revoke-session-token",
		summary: "End a token for a session, and what is open with it", status: http.StatusNoContent}, a.revokeSessionToken)
}

func (a *API) sessionTokens(ctx context.Context, by identity.Principal, in *getInput) (*answer[SessionTokens], error) {
	issued, err := a.Sessions.Tokens(ctx, by, in.ID)
	if err != nil {
		return nil, err
	}
	out := SessionTokens{Tokens: []SessionTokenInfo{}}
	for _, t := range issued {
		out.Tokens = append(out.Tokens, SessionTokenInfo(t))
	}
	return &answer[SessionTokens]{out}, nil
}

func (a *API) revokeSessionToken(ctx context.Context, by identity.Principal, in *sessionTokenInput) (*nothing, error) {
	return nil, a.Sessions.RevokeToken(ctx, by, in.ID, in.Token)
}
