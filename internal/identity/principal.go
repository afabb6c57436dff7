package identity

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// Kind is what sort of caller a principal is.
type Kind string

// The admin is the holder of the installation's key file. Operators are people, and programs of theirs. Agents
// are the programs in jails.
const (
	KindAdmin    Kind = "admin"
	KindOperator Kind = "operator"
	KindAgent    Kind = "agent"
)

// Role is what an operator may do; each may do what those before it may. Agents have none of them.
type Role string

// The viewer looks, the operator works with sessions, accounts and agents, the admin decides who may.
const (
	RoleViewer   Role = "viewer"
	RoleOperator Role = "operator"
	RoleAdmin    Role = "admin"
)

// rank orders the roles; an unknown one is below all.
func (r Role) rank() int {
	switch r {
	case RoleViewer:
		return 1
	case RoleOperator:
		return 2
	case RoleAdmin:
		return 3
	}
	return 0
}

// Principal is an authenticated caller. The zero Principal may do nothing.
type Principal struct {
	Kind Kind
	// ID is that of the operator or the agent; of the admin it is "admin".
	ID   string
	Name string
	// Tenant is empty for a principal of all tenants.
	Tenant string
	Role   Role // empty for agents
	// TokenID names the key: an operator's is its ID.
	TokenID string
	// ExpiresAt is when the key ends; zero for never.
	ExpiresAt time.Time
	// Scope and Session are of the holder of a token for one session, who is otherwise the one that made the token. Both
	// are empty for the holder of a key.
	Scope   Scope
	Session string
	// SessionToken is the id of that token.
	SessionToken string
	// OutlivesRotation is of [Principal.Lasting].
	OutlivesRotation bool
}

// AgentID is the id of the agent that a principal is; empty when it is none.
func (p Principal) AgentID() string {
	if p.Kind == KindAgent {
		return p.ID
	}
	return ""
}

// Within is the principal with a token for one session.
func (p Principal) Within(session string, scope Scope, expires time.Time) Principal {
	p.Session, p.Scope = session, scope
	if p.ExpiresAt.IsZero() || expires.Before(p.ExpiresAt) {
		p.ExpiresAt = expires
	}
	return p
}

// LookAgain is how soon an end of a key is looked for again: timers stand still while the machine sleeps.
const LookAgain = time.Minute

// Left is how long there is until a time: by the wall clock, or by the monotonic clock, whichever has less.
func Left(until, now time.Time) time.Duration { return min(until.Sub(now), until.Sub(now.Round(0))) }

// Ended has do called, once, when the principal's key ends. It is not called after stop.
func (p Principal) Ended(now func() time.Time, do func()) (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	if p.ExpiresAt.IsZero() {
		return stop
	}
	go func() {
		for ctx.Err() == nil {
			left := Left(p.ExpiresAt, now())
			if left <= 0 {
				do()
				return
			}
			select {
			case <-time.After(min(left, LookAgain)):
			case <-ctx.Done():
			}
		}
	}()
	return stop
}

// Lasting is the principal for a connection that outlives the rotation of an agent's token: it ends when the token is revoked, and
// at the token's present expiry, and not at the end of a later rotation's overlap.
func (p Principal) Lasting() Principal {
	p.OutlivesRotation = p.Kind == KindAgent
	return p
}

// OfJail is an agent as its own jail stands for it, which shows no token: it may be held, and is cut off with the agent
// and its tenant, and not with one of its tokens.
func OfJail(agent, tenant string) Principal {
	return Principal{Kind: KindAgent, ID: agent, Tenant: tenant, TokenID: ofJail(agent)}
}

// ofJail is what stands in the place of a token's id, which has no colon.
func ofJail(agent string) string { return "jail:" + agent }

// Actor names the principal in records: admin, operator:ID, agent:ID.
func (p Principal) Actor() string {
	if p.Kind == KindAdmin {
		return string(KindAdmin)
	}
	return string(p.Kind) + ":" + p.ID
}

// Among is the tenant of a listing that may name one: a principal's own when it does not, and all tenants, which is
// empty, for a principal of all tenants. Whether the principal may look there is for [Can] to say.
func (p Principal) Among(named string) string {
	if named == "" {
		return p.Tenant
	}
	return named
}

// TenantOr is the tenant of a request that may name one: a principal's own when it does not, and the tenant default
// for a principal of all tenants. Whether the principal may act there is for [Can] to say.
func (p Principal) TenantOr(named string) string {
	switch {
	case named != "":
		return named
	case p.Tenant != "":
		return p.Tenant
	}
	return store.DefaultTenant
}

// of says whether a tenant's things exist for the principal.
func (p Principal) of(tenant string) bool { return p.Tenant == "" || p.Tenant == tenant }
