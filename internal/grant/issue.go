package grant

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Request is what an operator permits.
type Request struct {
	Tenant string
	// Operator permits the use, such as operator:ID. Package identity has checked the right to do so.
	Operator string
	// Domains are the registrable domains whose cookie sets may be injected.
	Domains []string
	// EgressDomains are other domains, or hosts, that the session may reach besides.
	EgressDomains []string
	// Access is tools unless set.
	Access Access
	// TTL is the default of the limits unless set.
	TTL time.Duration
	// Origin is the session that alone may use the grant; empty for any.
	Origin string
}

// Issue makes a grant. Everything that is wrong with the request is reported at once, and nothing is made then.
func (i *Issuer) Issue(ctx context.Context, r Request) (Token, Grant, error) {
	g, wrong := i.row(r)
	if err := flaws(wrong...); err != nil {
		return Token{}, Grant{}, err
	}
	// Signed first: a key file that cannot be read leaves no row behind.
	token, err := i.o.Keys.write(claimsOf(i.o.Installation, g))
	if err != nil {
		return Token{}, Grant{}, fmt.Errorf("sign a grant: %w", err)
	}
	intent := audit.Intent{Action: "grant.issue", Tenant: g.Tenant, Actor: g.Operator, Target: g.ID, Session: g.Origin,
		Detail: detail(g.Domains, audit.Fields{"access": g.Access, "expires_at": g.ExpiresAt.UTC().Format(time.RFC3339),
			"egress_domains": audit.Names(g.EgressDomains), "egress_domain_count": len(g.EgressDomains)})}
	if err := audit.Do(ctx, i.o.Audit, intent, func() error { return i.o.Store.CreateGrant(ctx, g) }); err != nil {
		return Token{}, Grant{}, fmt.Errorf("issue a grant: %w", err)
	}
	return token, g, nil
}

// row is the grant of a request, and what is wrong with it.
func (i *Issuer) row(r Request) (Grant, []*problem.ValidationError) {
	domains := &problem.ValidationError{Code: problem.BadDomain}
	g := Grant{
		ID:     "g_" + strings.ToLower(rand.Text()[:20]), // 100 bits cannot be guessed; it need not be secret
		Tenant: r.Tenant, Operator: r.Operator, Origin: r.Origin, Access: string(r.Access),
		Domains:       i.domains(domains, "domains", r.Domains, i.o.Limits.MaxDomains, false),
		EgressDomains: i.domains(domains, "egress_domains", r.EgressDomains, i.o.Limits.MaxEgressDomains, true),
	}
	if len(r.Domains) == 0 {
		domains.Add("domains", "are missing: a grant is for at least one domain")
	}
	if r.Access == "" {
		g.Access = string(AccessTools)
	}

	limits := &problem.ValidationError{Code: problem.BadLimit}
	ttl := r.TTL
	switch {
	case ttl == 0:
		ttl = i.o.Limits.DefaultTTL
	case ttl < time.Second:
		limits.Add("ttl", "is %s, and must be at least 1s", ttl)
	case ttl > i.o.Limits.MaxTTL:
		limits.Add("ttl", "is %s, and may be at most %s", ttl, i.o.Limits.MaxTTL)
	}
	g.IssuedAt = store.Microsecond(i.o.Now())
	g.NotBefore, g.ExpiresAt = g.IssuedAt, store.Microsecond(g.IssuedAt.Add(ttl))

	rest := &problem.ValidationError{Code: problem.BadRequest}
	if a := Access(g.Access); a != AccessTools && a != AccessCDP {
		rest.Add("access", "is %s, and must be %s or %s", texts.Quote(g.Access, 80), AccessTools, AccessCDP)
	}
	for _, part := range []struct {
		field, value string
		optional     bool
	}{{"tenant", r.Tenant, false}, {"operator", r.Operator, false}, {"origin", r.Origin, true}} {
		if part.value == "" && !part.optional || !plain(part.value) {
			rest.Add(part.field, "is %s, and must be a name", texts.Quote(part.value, 80))
		}
	}
	return g, []*problem.ValidationError{domains, limits, rest}
}

// flaws is one list of several; the code is that of the first that has any.
func flaws(lists ...*problem.ValidationError) error {
	all := &problem.ValidationError{}
	for _, list := range lists {
		if all.Code == "" && len(list.Flaws) > 0 {
			all.Code = list.Code
		}
		all.Flaws = append(all.Flaws, list.Flaws...)
	}
	return all.Err()
}

// plain says whether a name has nothing in it that has a meaning elsewhere, and can be kept.
func plain(name string) bool {
	return len(name) <= 80 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_:.", c)
	})
}
