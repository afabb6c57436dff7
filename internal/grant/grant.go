// Package grant lets an operator permit the use of accounts: once, for some time, for named domains.
//
// A grant is a row in the store and a signed token (PASETO v4.public) that says the same. The token goes to the caller that
// opens the session, which can read it; it holds nothing secret but its own value. The row decides: it must
// exist, say what the token says in every field, and be free, and one conditional update takes it. The signature
// keeps those who can only write to the database from making grants, and the row those who only have a key.
//
// A [Permission] has grants issued for one agent, one for each of its sessions. Its row is signed too.
//
// It promises: of all sessions that try to use a grant, on all nodes, at most one succeeds. A grant is good for
// its domains and no others, for its tenant, within [NotBefore, ExpiresAt) by this machine's clock without tolerance,
// and not after it was revoked. Each refusal has a code of its own; see [Issuer.Verify] for their order. No error,
// event or log line holds a token.
package grant

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Grant is the row of a grant.
type Grant = store.Grant

// Access says by which interface a session may be steered. A grant for CDP is good for the tools too.
type Access string

// Tools are the calls of the control API and of MCP. CDP is the browser's own protocol, through the guard.
const (
	AccessTools Access = "tools"
	AccessCDP   Access = "cdp"
)

// CDPReads says what a client with [AccessCDP] learns of the accounts of a session. It is shown wherever a person grants that.
const CDPReads = "scripts read what pages show and store, and cookies without HttpOnly; the jar and the headers are closed"

// Covers says whether a grant, or a cookie set's scope, of access a is good for a session of access b.
func (a Access) Covers(b Access) bool {
	return b == AccessTools && (a == AccessTools || a == AccessCDP) || b == AccessCDP && a == AccessCDP
}

// MaxTTL is the longest life that a configuration may allow. A key that no longer signs verifies for as long.
const MaxTTL = 24 * time.Hour

// Limits bound what may be asked for.
type Limits struct {
	// DefaultTTL is the life of a grant whose operator does not say, MaxTTL the longest; at most [MaxTTL].
	DefaultTTL, MaxTTL time.Duration
	// MaxDomains and MaxEgressDomains are how many there may be of each; at most 100 together, because all are in
	// the token.
	MaxDomains, MaxEgressDomains int
	// Keep is how long the row of an expired grant is kept for those who look back, and that of an expired permission for
	// the sessions that are open: none lasts longer.
	Keep time.Duration
}

// DefaultLimits are the limits when none are configured.
func DefaultLimits() Limits {
	return Limits{DefaultTTL: 10 * time.Minute, MaxTTL: MaxTTL, MaxDomains: 20, MaxEgressDomains: 50, Keep: 30 * 24 * time.Hour}
}

// Store keeps grants, and permissions as entries. A store.Store is one.
type Store interface {
	store.Grants
	store.Entries
}

// Options are what an Issuer needs. All are required.
type Options struct {
	Store Store
	Keys  *Keyring
	// Installation tells the grants of one installation from those of another; it is the token's issuer.
	Installation string
	// RegistrableDomain is the registrable domain of a host name, by the public suffix list. It fails for a suffix,
	// for an address, and for what is no name.
	RegistrableDomain func(host string) (string, error)
	Limits            Limits
	Now               func() time.Time
	Audit             audit.Records
}

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	m := &problem.ValidationError{Code: problem.BadConfig}
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"store", o.Store == nil}, {"keys", o.Keys == nil}, {"installation", o.Installation == ""},
		{"registrable_domain", o.RegistrableDomain == nil}, {"now", o.Now == nil}, {"audit", o.Audit == nil},
	} {
		if part.missing {
			m.Add(part.name, "is missing")
		}
	}
	l := o.Limits
	if l.MaxTTL < time.Second || l.MaxTTL > MaxTTL {
		m.Add("max_ttl", "is %s, and must be from 1s to %s", l.MaxTTL, MaxTTL)
	}
	if l.DefaultTTL < time.Second || l.DefaultTTL > l.MaxTTL {
		m.Add("default_ttl", "is %s, and must be from 1s to max_ttl, %s", l.DefaultTTL, l.MaxTTL)
	}
	if l.MaxDomains < 1 || l.MaxEgressDomains < 0 || l.MaxDomains > 100 || l.MaxDomains+l.MaxEgressDomains > 100 {
		m.Add("max_domains", "are %d and %d for egress; there must be at least 1, and at most 100 together", l.MaxDomains, l.MaxEgressDomains)
	}
	if l.Keep < 0 {
		m.Add("keep", "is negative")
	}
	return m.Err()
}

// Issuer issues grants and decides about their use. Several Issuers, also of several nodes, may share a store and a
// key file.
type Issuer struct{ o Options }

// New makes an Issuer.
func New(o Options) (*Issuer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Issuer{o}, nil
}

// State says in one word what became of a grant: revoked, used, expired, pending (its time has not come) or active.
func State(g Grant, now time.Time) string {
	switch {
	case !g.RevokedAt.IsZero():
		return "revoked"
	case !g.UsedAt.IsZero():
		return "used"
	case !now.Before(g.ExpiresAt):
		return "expired"
	case now.Before(g.NotBefore):
		return "pending"
	}
	return "active"
}

// List is the grants of a tenant, newest first; of all tenants when tenant is empty.
func (i *Issuer) List(ctx context.Context, tenant string) ([]Grant, error) {
	grants, err := i.o.Store.ListGrants(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	return grants, nil
}

// Revoke ends a grant of a tenant, of any when tenant is empty; by is the actor, such as operator:ID. It is
// idempotent: the first time stays. A session that the grant has opened runs on, and the returned row names it in
// UsedBy, for the caller to close.
func (i *Issuer) Revoke(ctx context.Context, tenant, id, by string) (Grant, error) {
	g, err := i.o.Store.Grant(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && tenant != "" && g.Tenant != tenant {
		return Grant{}, problem.New(problem.NotFound, "list them: clawjail grant ls", "there is no grant %q", id)
	}
	if err != nil {
		return Grant{}, fmt.Errorf("revoke a grant: %w", err)
	}
	intent := audit.Intent{Action: "grant.revoke", Tenant: g.Tenant, Actor: by, Target: id, Session: g.UsedBy, Detail: detail(g.Domains, nil)}
	err = audit.Ending(i.o.Audit, intent, func() error { return i.o.Store.RevokeGrant(ctx, id, by, store.Microsecond(i.o.Now())) })
	if err != nil {
		return Grant{}, fmt.Errorf("revoke grant %s: %w", id, err)
	}
	if g, err = i.o.Store.Grant(ctx, id); err != nil {
		return g, fmt.Errorf("grant %s is revoked: %w", id, err)
	}
	return g, nil
}

// detail is what is recorded of a grant, which is no token.
func detail(domains []string, more audit.Fields) audit.Detail {
	fields := audit.Fields{"domains": audit.Names(domains), "domain_count": len(domains)}
	maps.Copy(fields, more)
	return audit.NewDetail(fields)
}

// Tidy removes the rows of grants and permissions that expired longer ago than Keep, and says of how many grants. A token
// whose row is gone is refused as before: as expired. It signs the permissions that a rotation has left out: one that was cut,
// or that they were given beside.
func (i *Issuer) Tidy(ctx context.Context) (int, error) {
	before := store.Microsecond(i.o.Now().Add(-i.o.Limits.Keep))
	n, err := i.o.Store.DeleteGrantsBefore(ctx, before)
	_, permissionsErr := i.o.Store.DeleteEntriesBefore(ctx, KindPermission, before)
	if err := errors.Join(err, permissionsErr); err != nil {
		return n, fmt.Errorf("remove what has expired: %w", err)
	}
	return n, i.SignPermissions(ctx)
}
