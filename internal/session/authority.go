package session

import (
	"context"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Authority checks the rights of principals. *identity.Service is one.
type Authority interface {
	// AuthorizeWith returns nil, forbidden, or not_found for what does not exist for the principal.
	AuthorizeWith(ctx context.Context, p identity.Principal, op identity.Operation, object identity.Object) error
	// CountTenants says how many tenants there are. The code is not_found when the named one is not among them.
	CountTenants(ctx context.Context, among string) (int, error)
	// Counted is how many there are, as of a moment ago.
	Counted() int
	// OperatorMode says whether a tenant may have sessions with accounts.
	OperatorMode(ctx context.Context, tenant string) error
	// AccountPermissions says whether its agents may have them without a grant that a person issued for the session.
	AccountPermissions(ctx context.Context, tenant string) error
	// WatchValidity calls cancel when the principal's key is not good any more, until release is called.
	WatchValidity(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (release func(), err error)
}

// object is a session as the authority sees it.
func (s *session) object() identity.Object {
	return identity.Object{Tenant: s.plan.tenant, Agent: s.by.AgentID(), Session: s.id}
}

// Stopping is closed when a session begins to end.
func (svc *Service) Stopping(ctx context.Context, by identity.Principal, id string) (<-chan struct{}, error) {
	s, err := svc.permitted(ctx, by, identity.SessionRead, id)
	if err != nil {
		return nil, err
	}
	return s.stop, nil
}

// permitted returns a session that a principal may do something with. The error is the same for another principal's session
// and for one that does not exist.
func (svc *Service) permitted(ctx context.Context, by identity.Principal, op identity.Operation, id string) (*session, error) {
	svc.mu.Lock()
	s := svc.find(id)
	svc.mu.Unlock()
	// The difference between "may not" and "is not" must not tell that it exists.
	object := identity.Object{Tenant: by.TenantOr(""), Agent: by.AgentID(), Session: id}
	if s != nil {
		object = s.object()
	}
	err := svc.Authority.AuthorizeWith(ctx, by, op, object)
	if problem.CodeOf(err) == problem.NotFound || err == nil && s == nil {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}
