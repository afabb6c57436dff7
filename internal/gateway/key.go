package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Keys finds the agent of a token, and tells when a token or an agent is revoked or expires. *identity.Service is one.
type Keys interface {
	Authenticate(ctx context.Context, presented string, remote netip.Addr) (identity.Principal, error)
	WatchValidity(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (release func(), err error)
}

// farewell is how long an answer of the gateway's own may take that tells an agent that it was cut off.
const farewell = time.Second

// requireValidAgent refuses a connection whose agent is revoked (forbidden), and closes one whose agent is revoked later. It asks
// once per connection. The code is database_unavailable when the database cannot say.
func (g *Gateway) requireValidAgent(ctx context.Context, c *conn) *problem.Error {
	if g.keys == nil || c.caller.Agent == "" || c.held || c.tunnel != nil {
		return nil
	}
	err := g.closeWhenInvalid(ctx, c, holdsAgent, identity.OfJail(c.caller.Agent, c.caller.Tenant))
	if err == nil {
		c.held = true
		return nil
	}
	if problem.CodeOf(err) != problem.Unauthorized {
		return problem.Wrap(err, problem.DatabaseUnavailable, "One later retry is reasonable.", "the database could not say whether the agent may use the gateway")
	}
	return problem.Wrap(err, problem.Forbidden, "Stop: an operator has revoked this agent, and retrying does not help.", "the agent of this jail has been revoked")
}

// requireMatchingToken refuses a token that is not of the agent whose jail it is (token_mismatch), and a caller that is
// [Caller.Keyed] without one: one per connection is enough, which is closed when the token ends. The code is rate_limited or
// database_unavailable when the token cannot be checked now.
func (g *Gateway) requireMatchingToken(ctx context.Context, c *conn, r *http.Request) *problem.Error {
	values := r.Header.Values("Proxy-Authorization")
	if c.tunnel != nil {
		return nil // there the header is for somebody else, and goes no further than here
	}
	if len(values) == 0 && (!c.caller.Keyed || c.token != [sha256.Size]byte{}) {
		return nil
	}
	mismatch := func(err error) *problem.Error {
		return problem.Wrap(err, problem.TokenMismatch,
			"Send the token in /run/hermit/token of this jail, or none: the gateway knows the jail by its address.",
			"the token does not belong to this jail's agent")
	}
	if c.caller.Keyed {
		mismatch = func(err error) *problem.Error {
			return problem.Wrap(err, problem.TokenMismatch,
				"Send the token in /run/hermit/token: as the password of the proxy, http://agent:TOKEN@gateway, or to the gateway itself as a bearer token.",
				"the agent of this container has to show its token")
		}
	}
	token, ok := proxyToken(values)
	if len(values) == 0 && g.isLocal(r, c) {
		token, ok = LocalToken(r)
	}
	if !ok || token == "" || g.keys == nil || c.caller.Agent == "" {
		return mismatch(nil)
	}
	hash := sha256.Sum256([]byte(token))
	if c.token == hash {
		return nil // it is held: the connection is closed when it ends
	}
	by, err := g.keys.Authenticate(identity.Inside(ctx, c.caller.Jail), token, c.remote.Addr())
	if err != nil {
		if code := problem.CodeOf(err); code == problem.RateLimited || code == problem.DatabaseUnavailable {
			p := problem.Wrap(err, code, "Wait before the next try.", "the token could not be checked at the moment")
			if wait, ok := identity.RetryAfter(err); ok {
				p = p.With(problem.RetryAfter, int(wait.Seconds()))
			}
			return p
		}
		return mismatch(err)
	}
	if by.Kind != identity.KindAgent || by.ID != c.caller.Agent || c.caller.Keyed && by.Scope != "" {
		return mismatch(nil)
	}
	if err := g.closeWhenInvalid(ctx, c, holdsToken, by); err != nil {
		return mismatch(err)
	}
	c.token = hash
	return nil
}

// closeWhenInvalid has a connection closed when the principal is cut off. An error says that it is already (unauthorized), or that
// the database cannot say.
func (g *Gateway) closeWhenInvalid(ctx context.Context, c *conn, what int, p identity.Principal) error {
	release, err := g.keys.WatchValidity(ctx, p, func(error) {
		end := func() {
			// However closing goes, what is open on it ends.
			_ = c.Close()
		}
		if c.local.Load() {
			// The code that answers the request has been told as well, and may say so.
			time.AfterFunc(farewell, end)
			return
		}
		end()
	})
	if err != nil {
		return err
	}
	c.keep(what, release)
	return nil
}

// proxyToken reads the one way in which a token may stand in Proxy-Authorization: as a bearer's, or as the password of a
// user, which is all that many programs have for proxies.
func proxyToken(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	rest = strings.TrimSpace(rest)
	switch strings.ToLower(scheme) {
	case "bearer":
		return rest, rest != ""
	case "basic":
		text, err := base64.StdEncoding.DecodeString(rest)
		_, password, found := strings.Cut(string(text), ":")
		return password, err == nil && found && password != ""
	}
	return "", false
}

// LocalToken finds an agent's token in a request to the gateway itself, of a program that knows nothing of clawjail: as a
// bearer's, as the password of a user, or as an API key. Any other value there is a placeholder, and means nothing.
func LocalToken(r *http.Request) (token string, presented bool) {
	candidates := slices.Clone(r.Header.Values("X-Api-Key"))
	for _, value := range r.Header.Values("Authorization") {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(value), " ")
		if strings.EqualFold(scheme, "bearer") {
			candidates = append(candidates, strings.TrimSpace(rest))
		}
	}
	if _, password, ok := r.BasicAuth(); ok {
		candidates = append(candidates, password)
	}
	for _, c := range candidates {
		if strings.HasPrefix(c, identity.PrefixAgent) {
			if token != "" && token != c {
				return "", true // two tokens are none
			}
			token = c
		}
	}
	return token, token != ""
}
