package credential

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Allow is what somebody permits an agent with an account, for many sessions.
type Allow struct {
	Tenant string
	Domain string
	Agent  string // its name or its id
	Access grant.Access
	// EgressDomains are what its sessions may reach besides; nil: what is kept with the account now.
	EgressDomains []string
	Ask           grant.Ask
	Hours         grant.Hours
	Times         *int          // nil: any number
	For           time.Duration // 0: for good
	// Declared: it is said in a file of agents, which takes it back when it is not said any more.
	Declared bool
}

// AllowAccount permits an agent the use of an account without a grant each time, and replaces what it was permitted
// before. Sessions that are open go on, unless their access is wider than it may be now.
func (s *Service) AllowAccount(ctx context.Context, by identity.Principal, a Allow) (grant.Permission, error) {
	a.Tenant = by.TenantOr(a.Tenant)
	if err := s.mayWith(ctx, by, identity.CookiesAllow, a.Tenant, noAccount(a.Domain)); err != nil {
		return grant.Permission{}, err
	}
	request, err := s.permission(ctx, by, a)
	if err != nil {
		return grant.Permission{}, err
	}
	return s.allow(ctx, by, request)
}

// permission reads what somebody permits. A permission that no session could use is refused: of an account that is not there, with an
// access that the account is not for, and where the tenant forbids it.
func (s *Service) permission(ctx context.Context, by identity.Principal, a Allow) (grant.PermissionRequest, error) {
	r := grant.PermissionRequest{Tenant: a.Tenant, Operator: by.Actor(), Domain: a.Domain, EgressDomains: a.EgressDomains, Access: a.Access, Ask: a.Ask,
		Hours: a.Hours, Times: a.Times, For: a.For, Declared: a.Declared}
	if err := s.Identity.AccountPermissions(ctx, a.Tenant); err != nil {
		return r, err
	}
	agent, err := s.agent(ctx, by, a.Tenant, a.Agent)
	if err != nil {
		return r, err
	}
	r.Agent, r.AgentName = agent.ID, agent.Name
	if err := s.usable(ctx, grant.Request{Tenant: a.Tenant, Domains: []string{a.Domain}, Access: a.Access}); err != nil {
		return r, err
	}
	domains, err := s.Grants.Domains([]string{a.Domain})
	if err != nil {
		return r, err
	}
	set, err := s.Vault.Cookies(ctx, a.Tenant, domains[0])
	if err != nil {
		return r, known(err, a.Domain)
	}
	r.Domain, r.Account = set.Domain, set.ID
	if r.EgressDomains == nil {
		r.EgressDomains = set.EgressDomains
	}
	return r, s.Grants.CheckPermission(r)
}

// allow gives a permission that was checked, and ends the sessions that it does not cover.
func (s *Service) allow(ctx context.Context, by identity.Principal, r grant.PermissionRequest) (made grant.Permission, err error) {
	fields := audit.Fields{"agent_id": r.Agent, "agent_name": r.AgentName, "access": string(r.Access), "ask": string(r.Ask), "hours": string(r.Hours),
		"lasts": r.For.String(), "egress_domains": audit.Names(r.EgressDomains), "egress_domain_count": len(r.EgressDomains)}
	if r.Times != nil {
		fields["times"] = *r.Times
	}
	err = s.record(ctx, by, identity.CookiesAllow, r.Tenant, "", r.Domain, fields, func() error {
		var over string
		made, over, err = s.Grants.Allow(ctx, r)
		if over != "" {
			s.Sessions.EndPermitted(over, "")
		}
		if err == nil {
			s.Sessions.EndPermitted(made.ID, made.Access)
		}
		return err
	})
	return made, err
}

// agent finds one of a tenant by its name or its id.
func (s *Service) agent(ctx context.Context, by identity.Principal, tenant, named string) (identity.Agent, error) {
	all, err := s.Identity.Agents(ctx, by, tenant)
	if err != nil {
		return identity.Agent{}, err
	}
	for _, same := range []func(identity.Agent) bool{
		func(a identity.Agent) bool { return a.Name == named }, func(a identity.Agent) bool { return a.ID == named },
	} {
		if n := slices.IndexFunc(all, same); n >= 0 {
			return all[n], nil
		}
	}
	return identity.Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %.40q", named)
}

// Permissions lists which agents of a tenant may use which accounts.
func (s *Service) Permissions(ctx context.Context, by identity.Principal, tenant string) ([]grant.Permission, error) {
	tenant = by.Among(tenant)
	if err := s.may(ctx, by, identity.CookiesList, tenant); err != nil {
		return nil, err
	}
	return s.Grants.Permissions(ctx, tenant)
}

// DisallowAccount takes a permission back, and ends the sessions that were opened with it; it says how many they were.
// Those of another process end within seconds.
func (s *Service) DisallowAccount(ctx context.Context, by identity.Principal, tenant, id string) (p grant.Permission, ended int, err error) {
	ctx, cancel := identity.ToTheEnd(ctx)
	defer cancel()
	tenant = by.Among(tenant)
	missing := problem.New(problem.NotFound, "list them: clawjail cookies allowed", "there is no such permission")
	if err := s.mayWith(ctx, by, identity.CookiesDisallow, tenant, missing); err != nil {
		return p, 0, err
	}
	all, err := s.Grants.Permissions(ctx, tenant)
	if err != nil {
		return p, 0, err
	}
	n := slices.IndexFunc(all, func(p grant.Permission) bool { return p.ID == id })
	if n < 0 {
		return p, 0, missing
	}
	p = all[n]
	ended, err = s.disallow(ctx, by, p)
	return p, ended, err
}

func (s *Service) disallow(ctx context.Context, by identity.Principal, p grant.Permission) (ended int, err error) {
	i := intent(by, identity.CookiesDisallow, p.Tenant, "", p.Domain,
		audit.Fields{"agent_id": p.Agent, "agent_name": p.AgentName, "permission_id": p.ID, "used": p.Used})
	err = audit.Ending(s.Audit, i, func() error {
		err := s.Grants.Disallow(ctx, p.ID)
		if err == nil || problem.CodeOf(err) == problem.NotFound {
			ended = s.Sessions.EndPermitted(p.ID, "")
		}
		return err
	})
	return ended, err
}

// disallowAll takes back what is permitted with an account.
func (s *Service) disallowAll(ctx context.Context, by identity.Principal, tenant, domain string) error {
	all, err := s.Grants.Permissions(ctx, tenant)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		if p.Domain == domain {
			if _, err := s.disallow(ctx, by, p); problem.CodeOf(err) != problem.NotFound {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Permitted says whether an agent may open a session with an account now, without a grant and without asking anybody.
func (s *Service) Permitted(ctx context.Context, tenant, agent, domain string, access grant.Access) (bool, error) {
	if s.Identity.AccountPermissions(ctx, tenant) != nil {
		return false, nil
	}
	standing, err := s.Grants.Permitted(ctx, grant.Want{Tenant: tenant, Agent: agent, Domains: []string{domain}, Access: access})
	if problem.CodeOf(err) == problem.AccountNotAllowed {
		return false, nil
	}
	if err != nil || len(standing.Asks) > 0 {
		return false, err
	}
	set, err := s.Vault.Cookies(ctx, tenant, domain)
	if problem.CodeOf(err) == problem.NotFound {
		return false, nil
	}
	return err == nil && standing.For(domain, set.ID), err
}

// Approve prepares what approving an agent's request for an account does. Where the agent has a permission that covers the
// access, it is good for one use more within a day. Else it is permitted as the approval says.
func (s *Service) Approve(ctx context.Context, by identity.Principal, a egress.Approval) (id string, give func(context.Context) error, err error) {
	if err := s.mayWith(ctx, by, identity.CookiesAllow, a.Tenant, noAccount(a.Domain)); err != nil {
		return "", nil, err
	}
	allow := Allow{Tenant: a.Tenant, Domain: a.Domain, Agent: a.Agent, Access: a.Access}
	if a.Once {
		one := 1
		allow.Times = &one
	}
	if !a.Until.IsZero() {
		allow.For = max(a.Until.Sub(s.Now()).Round(time.Second), time.Second)
	}
	request, err := s.permission(ctx, by, allow)
	if err != nil {
		return "", nil, err
	}
	all, err := s.Grants.PermissionsOf(ctx, a.Tenant, request.Agent)
	if err != nil {
		return "", nil, err
	}
	request.ID = grant.NewPermissionID()
	for _, p := range all {
		if !p.Is(request.Domain, request.Account) {
			continue
		}
		if p.Expired(s.Now()) {
			request.ID = p.ID // it is taken anew
			continue
		}
		if !p.Access.Covers(a.Access) {
			return "", nil, problem.New(problem.Conflict, "change it: clawjail cookies allow "+p.Domain+" --agent "+p.AgentName+" --access "+string(a.Access),
				"%s has a permission for the account with access %s, which an approval does not widen", p.AgentName, p.Access)
		}
		return p.ID, func(ctx context.Context) error {
			return s.record(ctx, by, identity.CookiesAllow, p.Tenant, "", p.Domain, audit.Fields{"agent_id": p.Agent, "agent_name": p.AgentName,
				"permission_id": p.ID, "times": 1}, func() error { return s.Grants.Approve(ctx, p.ID) })
		}, nil
	}
	return request.ID, func(ctx context.Context) error {
		_, err := s.allow(ctx, by, request)
		return err
	}, nil
}

// CheckAccount says why an account cannot be permitted to any agent of a tenant; nil when it can.
func (s *Service) CheckAccount(ctx context.Context, tenant, domain string, access grant.Access) error {
	if err := s.Identity.AccountPermissions(ctx, tenant); err != nil {
		return err
	}
	return s.usable(ctx, grant.Request{Tenant: tenant, Domains: []string{domain}, Access: access})
}
