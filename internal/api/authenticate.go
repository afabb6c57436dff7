package api

import (
	"context"
	"net/http"
	"net/netip"
	"strings"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// KeyHeader is the header that may hold a key instead of Authorization.
const KeyHeader = "X-Admin-Key"

// bearer is the scheme of a key in Authorization.
const bearer = "Bearer"

// Identity knows who calls and who may what. *identity.Service is one.
type Identity interface {
	op.People

	Authenticate(ctx context.Context, presented string, remote netip.Addr) (identity.Principal, error)
	Redeem(ctx context.Context, remote netip.Addr, look func() (identity.Principal, error)) (identity.Principal, error)
	WatchValidity(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (release func(), err error)
	// Enter is WatchValidity for one more request or stream, of which a tenant may have so many.
	Enter(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (release func(), err error)
}

// open lists what answers without a key.
func open(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/v1/health" || r.URL.Path == "/v1/ready" || r.URL.Path == "/openapi.json")
}

// authenticate lets requests with a good key pass, and those that need none. A request ends with the key that it came
// with: its context is cancelled when the key is not good any more.
func (a *API) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open(r) || a.OpenMetrics && r.Method == http.MethodGet && r.URL.Path == metricsPath {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		by, release, err := a.identify(ctx, r, cancel)
		if err != nil {
			a.unauthorized(w, r, err)
			return
		}
		defer release()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, principalKey{}, by)))
	})
}

func (a *API) identify(ctx context.Context, r *http.Request, cancel context.CancelCauseFunc) (identity.Principal, func(), error) {
	key, err := presented(r)
	if err != nil {
		return identity.Principal{}, nil, err
	}
	remote := identity.ClientAddr(r, a.BehindProxy)
	if !strings.HasPrefix(key, session.TokenPrefix) {
		by, err := a.Identity.Authenticate(ctx, key, remote)
		if err != nil {
			return identity.Principal{}, nil, err
		}
		release, err := a.Identity.Enter(ctx, heldFor(r, by), cancel)
		return by, release, err
	}
	by, err := a.Identity.Redeem(ctx, remote, func() (identity.Principal, error) { return a.Sessions.Redeem(ctx, key) })
	if err != nil {
		return identity.Principal{}, nil, err
	}
	// It ends with the key of who made it, and by itself.
	release, err := a.Identity.Enter(ctx, by, cancel)
	if err != nil {
		return by, release, err
	}
	stop := by.Ended(a.Now, func() { cancel(errTokenEnded) })
	return by, func() { stop(); release() }, nil
}

// heldFor is for whom a request is held. One that does something, such as a task or a question to a model, comes to its end when its
// agent's token is rotated; what listens is opened anew with the new one.
func heldFor(r *http.Request, by identity.Principal) identity.Principal {
	if r.Method == http.MethodPost {
		return by.Lasting()
	}
	return by
}

// errTokenEnded ends what is done with a token.
var errTokenEnded = problem.New(problem.Unauthorized, "make a new one", "the token has expired")

// tokenParameter has the token of a session in an address: DevTools clients, and web pages that open a WebSocket, can send nothing else.
const tokenParameter = "token"

// inAddress is the token in the address of a request of a DevTools client, or of a live view. Nowhere else is one taken, and keys are taken
// nowhere: addresses are written down by programs that know nothing of keys.
func inAddress(r *http.Request) (token string, ok bool, err error) {
	query := r.URL.Query()
	if !query.Has(tokenParameter) {
		return "", false, nil
	}
	rest, found := strings.CutPrefix(r.URL.EscapedPath(), "/v1/sessions/")
	_, rest, _ = strings.Cut(rest, "/")
	if !found || rest != "live" && rest != "cdp" && !strings.HasPrefix(rest, "cdp/") {
		return "", false, nil
	}
	tokens := query[tokenParameter]
	if len(tokens) > 1 || !strings.HasPrefix(tokens[0], session.TokenPrefix) {
		return "", false, problem.New(problem.Unauthorized, "make one: POST /v1/sessions/{id}/tokens; send a key as Authorization: Bearer KEY",
			"the address does not have exactly one session token")
	}
	return tokens[0], true, nil
}

// presented is the key of a request; empty when there is none. Which of two keys counts is not guessed.
func presented(r *http.Request) (string, error) {
	const hint = "send one key, as Authorization: Bearer KEY"
	h := r.Header
	credentials, plain := h.Values("Authorization"), h.Values(KeyHeader)
	old := h.Values(oldKeyHeader)
	if len(credentials) > 1 || len(plain) > 1 || len(old) > 1 {
		return "", problem.New(problem.Unauthorized, hint, "more than one key was sent")
	}
	var keys []string
	for _, text := range credentials {
		scheme, key, _ := strings.Cut(text, " ")
		if !strings.EqualFold(scheme, bearer) {
			return "", problem.New(problem.Unauthorized, hint, "the header Authorization is not of the scheme Bearer")
		}
		keys = append(keys, strings.TrimSpace(key))
	}
	keys = append(append(keys, plain...), old...)
	token, ok, err := inAddress(r)
	if err != nil {
		return "", err
	}
	if ok {
		keys = append(keys, token)
	}
	if len(keys) == 0 {
		return "", nil
	}
	for _, other := range keys[1:] {
		if other != keys[0] { // all are the caller's own: nothing is learned from how long it takes
			return "", problem.New(problem.Unauthorized, hint, "two keys were sent that differ")
		}
	}
	return keys[0], nil
}

// unauthorized answers a request without a good key.
func (a *API) unauthorized(w http.ResponseWriter, r *http.Request, err error) {
	out := document(err)
	if wait, ok := identity.RetryAfter(err); ok {
		retryAfter(w, wait)
	}
	if out.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", bearer+` realm="clawjail"`)
	}
	if out.Status >= http.StatusInternalServerError {
		a.Log.Error("find out whose key it is", "code", out.Code, "error", err)
	}
	a.write(w, r, out)
}

// principalKey is under what a request's context has its principal.
type principalKey struct{}

// caller is who sent a request; the zero principal, which may do nothing, for one that needs no key.
func caller(ctx context.Context) identity.Principal {
	by, _ := ctx.Value(principalKey{}).(identity.Principal)
	return by
}
