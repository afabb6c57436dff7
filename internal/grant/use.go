package grant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Want is what a session wants to do with a grant.
type Want struct {
	// Tenant is the one of the session.
	Tenant string
	// Session is what the row will say it was used by. It is not checked against the grant.
	Session string
	// Caller is the session that asks, where a session asks; a grant with an origin must have been issued for it.
	Caller string
	// Agent is the id of the agent that asks; empty when none does.
	Agent string
	// Domains are those whose cookie sets it wants; at least one.
	Domains []string
	// Access is what the session will be steered with.
	Access Access
	// Actor asks, for the record of a refusal.
	Actor string
}

// Verify checks that a grant allows what is wanted, and changes nothing. It checks in this order, and the first check
// that fails gives the code:
//
//  1. a token was sent (grant_missing)
//  2. its form, key and signature are good, and there is a row that says the same in every field (grant_invalid; but
//     grant_expired, when the token's own time is over and the row has been purged)
//  3. the row's tenant is the caller's (grant_wrong_tenant): other tenants do not learn what became of it
//  4. it was not revoked (grant_revoked)
//  5. it was not used (grant_used)
//  6. it is now within its life (grant_expired)
//  7. the caller is its origin, if it has one (grant_wrong_origin)
//  8. domains and access are within it (grant_scope)
//
// An error that is none of these means that keys or store could not be asked: the caller must not go on.
func (i *Issuer) Verify(ctx context.Context, token Token, want Want) (Grant, error) {
	g, err := i.verify(ctx, token, want)
	if err != nil {
		return Grant{}, i.recordRefusal(ctx, g, want, err)
	}
	return g, nil
}

// Use verifies a grant and marks it as used: of all calls for one grant, at most one succeeds. After an error from the store
// it may be marked all the same, although no session has used it.
func (i *Issuer) Use(ctx context.Context, token Token, want Want) (Grant, error) {
	if want.Session == "" {
		return Grant{}, errors.New("use a grant: there is no session to use it")
	}
	g, err := i.verify(ctx, token, want)
	if err == nil {
		g, err = i.markUsed(ctx, g, want)
	}
	if err != nil {
		return Grant{}, i.recordRefusal(ctx, g, want, err)
	}
	return g, nil
}

// markUsed marks the grant as used if it still can be; otherwise the refusal says why not.
func (i *Issuer) markUsed(ctx context.Context, g Grant, want Want) (Grant, error) {
	now := store.Microsecond(i.o.Now())
	row, used, err := i.o.Store.UseGrant(ctx, g.ID, want.Tenant, want.Session, now)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return g, refusal(problem.GrantInvalid)
	case err != nil:
		return g, fmt.Errorf("use grant %s: %w", g.ID, err)
	case used:
		return row, nil
	}
	if code := refusalFor(State(row, now)); code != "" {
		return row, refusal(code)
	}
	return row, refusal(problem.GrantInvalid)
}

func (i *Issuer) verify(ctx context.Context, token Token, want Want) (Grant, error) {
	if token.IsZero() {
		return Grant{}, refusal(problem.GrantMissing)
	}
	claims, err := i.o.Keys.read(token)
	switch {
	case errors.Is(err, errForm), errors.Is(err, errKey), errors.Is(err, errSignature):
		p := refusal(problem.GrantInvalid)
		p.Err = err
		return Grant{}, p
	case err != nil:
		return Grant{}, err
	}
	now := i.o.Now()
	g, err := i.o.Store.Grant(ctx, claims.ID)
	switch {
	case errors.Is(err, store.ErrNotFound) && claims.expired(now):
		return Grant{}, refusal(problem.GrantExpired)
	case errors.Is(err, store.ErrNotFound):
		return Grant{}, refusal(problem.GrantInvalid)
	case err != nil:
		return Grant{}, fmt.Errorf("look up grant %s: %w", claims.ID, err)
	case !claims.equal(claimsOf(i.o.Installation, g)):
		return g, refusal(problem.GrantInvalid)
	case g.Tenant != want.Tenant:
		return g, refusal(problem.GrantWrongTenant)
	}
	if code := refusalFor(State(g, now)); code != "" {
		return g, refusal(code)
	}
	if g.Origin != "" && g.Origin != want.Caller {
		return g, refusal(problem.GrantWrongOrigin)
	}
	return g, i.inScope(g, want)
}

// refusalFor maps a grant's state to a code; empty when it is active.
func refusalFor(state string) string {
	switch state {
	case "revoked":
		return problem.GrantRevoked
	case "used":
		return problem.GrantUsed
	case "expired", "pending":
		return problem.GrantExpired
	}
	return ""
}

// inScope checks what is wanted against what the grant is for.
func (i *Issuer) inScope(g Grant, want Want) error {
	covers := strings.Join(g.Domains, ", ")
	if len(want.Domains) == 0 {
		return outOfScope("name the domains of the session: "+covers, "no domain was asked for")
	}
	for _, domain := range want.Domains {
		name, _, wrong, _ := i.domain(domain)
		if wrong != "" || !slices.Contains(g.Domains, name) {
			return outOfScope("ask for no other domains, or ask the operator for another grant: clawjail grant issue --domain …",
				"the grant is not for %s, but for %s", texts.Quote(domain, 80), covers).With("domain", domain)
		}
	}
	if !Access(g.Access).Covers(want.Access) {
		return outOfScope("open the session with access "+g.Access+", or ask the operator for another grant: clawjail grant issue --access cdp …",
			"the grant is for access %s, and not %s", g.Access, texts.Quote(string(want.Access), 80))
	}
	return nil
}

// InScopes says whether a cookie set with these scopes may be injected with a grant. A scope is the widest access
// that the set may be used with, tools or cdp; a set without scopes is injected into nothing.
func InScopes(scopes []string, g Grant) error {
	for _, s := range scopes {
		if Access(s).Covers(Access(g.Access)) {
			return nil
		}
	}
	return outOfScope("allow it for the cookie set, or ask for a grant with --access tools",
		"the cookies may not be used in a session with access %s", g.Access)
}

func outOfScope(hint, format string, args ...any) *problem.Error {
	return problem.New(problem.GrantScope, hint, format, args...)
}

// refusal is the error of a code. Its text goes to the sender of the token, and tells no more than the code.
func refusal(code string) *problem.Error {
	message, hint := "", "ask the operator for another one: clawjail grant issue --domain …"
	switch code {
	case problem.GrantMissing:
		message, hint = "a session that uses accounts needs a grant", "ask the operator for one: clawjail grant issue --domain …"
	case problem.GrantInvalid:
		message = "this is not a grant that was issued here"
	case problem.GrantWrongTenant:
		message, hint = "the grant belongs to another tenant", "use it where it was issued, or ask the operator for another one"
	case problem.GrantRevoked:
		message = "the grant has been revoked"
	case problem.GrantUsed:
		message = "the grant has been used already; it is good for one session"
	case problem.GrantExpired:
		message = "the grant is not valid at this time"
	case problem.GrantWrongOrigin:
		message, hint = "the grant was issued for another session", "use it in the session that it names, or ask the operator for another one"
	}
	return problem.New(code, hint, "%s", message)
}

// recordRefusal records a refusal and returns it. An error that is no refusal is recorded as a failure.
func (i *Issuer) recordRefusal(ctx context.Context, g Grant, want Want, err error) error {
	var domains []string
	for _, domain := range want.Domains[:min(len(want.Domains), i.o.Limits.MaxDomains)] {
		domains = append(domains, texts.Quote(domain, 80)) // as it was sent, not canonical: a record of what was tried
	}
	code := problem.CodeOf(err)
	e := audit.Event{Action: "grant.refuse", Result: audit.Refused, Tenant: want.Tenant, Actor: want.Actor, Session: want.Session, Target: g.ID,
		Detail: detail(domains, audit.Fields{"code": code})}
	if strings.HasPrefix(code, "grant_") {
		i.o.Audit.Note(e)
		return err
	}
	e.Result = audit.Failed
	if auditErr := i.o.Audit.Event(ctx, e); auditErr != nil {
		return errors.Join(err, fmt.Errorf("record the refusal of a grant: %w", auditErr))
	}
	return err
}
