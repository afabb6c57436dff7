package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Tenant owns agents, credentials and sessions.
type Tenant = store.Tenant

// Policy is what is decided for a tenant.
type Policy struct {
	// ForbidOperatorMode refuses every session with accounts.
	ForbidOperatorMode bool
	// ForbidAccountPermissions refuses those that an agent opens with a permission, without a grant that a person issued.
	ForbidAccountPermissions bool
}

// CreateTenant makes a tenant.
func (s *Service) CreateTenant(ctx context.Context, by Principal, id string, policy Policy) (Tenant, error) {
	if err := s.Authorize(ctx, by, TenantCreate, id); err != nil {
		return Tenant{}, err
	}
	if err := checkName("tenant", id); err != nil {
		return Tenant{}, err
	}
	t := Tenant{ID: id, CreatedAt: s.now(), ForbidOperatorMode: policy.ForbidOperatorMode, ForbidAccountPermissions: policy.ForbidAccountPermissions}
	err := s.Record(ctx, audit.Intent{Action: string(TenantCreate), Tenant: id, Actor: by.Actor(), Target: id, Detail: policy.detail()}, func() error {
		err := s.o.Store.CreateTenant(ctx, t)
		if errors.Is(err, store.ErrExists) {
			return problem.Wrap(err, problem.Conflict, "choose another name", "there is a tenant %s already", id)
		}
		return err
	})
	if errors.Is(err, store.ErrExists) {
		return Tenant{}, err
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("create tenant %s: %w", id, err)
	}
	s.tenants.Add(1)
	return t, nil
}

// Tenants lists the tenants that exist for a principal: all, or its own.
func (s *Service) Tenants(ctx context.Context, by Principal) ([]Tenant, error) {
	if err := s.Authorize(ctx, by, TenantRead, by.Tenant); err != nil {
		return nil, err
	}
	if by.Tenant != "" {
		t, err := s.tenant(ctx, by.Tenant)
		if err != nil {
			return nil, err
		}
		return []Tenant{t}, nil
	}
	list, err := s.o.Store.ListTenants(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return list, nil
}

// SetPolicy changes what is decided for a tenant; what change leaves alone stays. Sessions with accounts that are open stay open when the tenant may
// not have them any more: to end them, close them or disconnect the tenant.
func (s *Service) SetPolicy(ctx context.Context, by Principal, id string, change func(*Policy)) (Tenant, error) {
	if err := s.Authorize(ctx, by, TenantUpdate, id); err != nil {
		return Tenant{}, err
	}
	was, err := s.tenant(ctx, id)
	if err != nil {
		return Tenant{}, err
	}
	t := was
	policy := Policy{ForbidOperatorMode: t.ForbidOperatorMode, ForbidAccountPermissions: t.ForbidAccountPermissions}
	change(&policy)
	t.ForbidOperatorMode, t.ForbidAccountPermissions = policy.ForbidOperatorMode, policy.ForbidAccountPermissions
	err = s.Record(ctx, audit.Intent{Action: string(TenantUpdate), Tenant: id, Actor: by.Actor(), Target: id, Detail: policy.detail()}, func() error {
		err := s.o.Store.UpdateTenant(ctx, was, t)
		if errors.Is(err, store.ErrExists) {
			return problem.Wrap(err, problem.Conflict, "look at it, and change it again", "the tenant was changed meanwhile")
		}
		return err
	})
	if err != nil {
		return Tenant{}, fmt.Errorf("update tenant %s: %w", id, err)
	}
	return t, nil
}

// DisconnectTenant ends everything that is open in this process for a tenant's principals, and says how much that was.
// Their keys stay good.
func (s *Service) DisconnectTenant(ctx context.Context, by Principal, id string) (int, error) {
	if err := s.Authorize(ctx, by, TenantDisconnect, id); err != nil {
		return 0, err
	}
	if _, err := s.tenant(ctx, id); err != nil {
		return 0, err
	}
	ended := s.connections.cut(func(p Principal) bool { return p.Tenant == id })
	s.o.Audit.BeginEnding(audit.Intent{Action: string(TenantDisconnect), Tenant: id, Actor: by.Actor(), Target: id}).End(audit.Outcome{Result: audit.OK})
	return ended, nil
}

// detail is the policy as it is recorded.
func (p Policy) detail() audit.Detail {
	return Detail(map[string]string{"forbid_operator_mode": strconv.FormatBool(p.ForbidOperatorMode),
		"forbid_account_permissions": strconv.FormatBool(p.ForbidAccountPermissions)})
}

// CountTenants says how many tenants there are. The code is not_found when the named one is not among them.
func (s *Service) CountTenants(ctx context.Context, among string) (int, error) {
	list, err := s.o.Store.ListTenants(ctx)
	if err != nil {
		return 0, fmt.Errorf("count the tenants: %w", err)
	}
	s.tenants.Store(int64(len(list)))
	if !slices.ContainsFunc(list, func(t Tenant) bool { return t.ID == among }) {
		return 0, noTenant(among)
	}
	return len(list), nil
}

// Counted is how many tenants there are, as of a moment ago.
func (s *Service) Counted() int { return int(s.tenants.Load()) }

// OperatorMode says whether a tenant may have sessions with accounts: nil, or forbidden.
func (s *Service) OperatorMode(ctx context.Context, tenant string) error {
	t, err := s.tenant(ctx, tenant)
	if err != nil {
		return err
	}
	if t.ForbidOperatorMode {
		return problem.New(problem.Forbidden, "open a clean session, or ask an admin of the installation to allow it",
			"the tenant may not have sessions with accounts")
	}
	return nil
}

// AccountPermissions says whether agents of a tenant may be permitted to use accounts, once for many sessions: nil, or
// forbidden.
func (s *Service) AccountPermissions(ctx context.Context, tenant string) error {
	t, err := s.tenant(ctx, tenant)
	if err != nil {
		return err
	}
	if t.ForbidAccountPermissions {
		return problem.New(problem.Forbidden, "use a grant for each session, or ask an admin of the installation to allow it",
			"agents of the tenant may not use accounts by permission")
	}
	return nil
}

func (s *Service) tenant(ctx context.Context, id string) (Tenant, error) {
	t, err := s.o.Store.Tenant(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return Tenant{}, noTenant(id)
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("look up a tenant: %w", err)
	}
	return t, nil
}

func noTenant(id string) error {
	return problem.New(problem.NotFound, "list them: clawjail tenant ls", "there is no tenant %q", texts.Clip(id, 80))
}
