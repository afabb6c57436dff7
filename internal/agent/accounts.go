package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
)

// Accounts lists, checks and changes the permissions of agents to use accounts. *credential.Service is one.
type Accounts interface {
	Permissions(ctx context.Context, by identity.Principal, tenant string) ([]grant.Permission, error)
	// CheckAccount says why an account cannot be permitted to any agent of a tenant.
	CheckAccount(ctx context.Context, tenant, domain string, access grant.Access) error
	AllowAccount(ctx context.Context, by identity.Principal, a credential.Allow) (grant.Permission, error)
	DisallowAccount(ctx context.Context, by identity.Principal, tenant, id string) (p grant.Permission, ended int, err error)
}

// accountChanges are what makes the permissions of an agent those that are declared. Permissions that a person has given stay as they are.
type accountChanges struct {
	allow    []clawbots.Account
	disallow []grant.Permission
	// kept are domains that are declared, and that a person has permitted in another way.
	kept []string
}

func (c accountChanges) any() bool { return len(c.allow)+len(c.disallow) > 0 }

func diffAccounts(are []grant.Permission, want []clawbots.Account) (c accountChanges) {
	for _, a := range want {
		at := slices.IndexFunc(are, func(p grant.Permission) bool { return p.Domain == a.Domain })
		switch {
		case at < 0:
			c.allow = append(c.allow, a)
		case samePermission(are[at], a):
		case are[at].Declared:
			c.allow = append(c.allow, a)
		default:
			c.kept = append(c.kept, a.Domain)
		}
	}
	for _, p := range are {
		if p.Declared && !slices.ContainsFunc(want, func(a clawbots.Account) bool { return a.Domain == p.Domain }) {
			c.disallow = append(c.disallow, p)
		}
	}
	return c
}

// samePermission says whether a permission is what was declared.
func samePermission(p grant.Permission, a clawbots.Account) bool {
	return p.Access == cmp.Or(a.Access, grant.AccessTools) && p.Ask == cmp.Or(a.Ask, grant.AskNever) && p.Hours == a.Hours && p.Left == nil &&
		p.ExpiresAt.IsZero() && (a.EgressDomains == nil || slices.Equal(p.EgressDomains, a.EgressDomains))
}

// applyAccounts takes back first.
func (s *Service) applyAccounts(ctx context.Context, by identity.Principal, tenant, id string, c accountChanges) error {
	for _, p := range c.disallow {
		if _, _, err := s.o.Accounts.DisallowAccount(ctx, by, tenant, p.ID); err != nil && !isNotFound(err) {
			return fmt.Errorf("take the account of %s back: %w", p.Domain, err)
		}
	}
	for _, a := range c.allow {
		if _, err := s.o.Accounts.AllowAccount(ctx, by, credential.Allow{Tenant: tenant, Domain: a.Domain, Agent: id, Access: a.Access,
			EgressDomains: a.EgressDomains, Ask: a.Ask, Hours: a.Hours, Declared: true}); err != nil {
			return fmt.Errorf("permit the account of %s: %w", a.Domain, err)
		}
	}
	return nil
}

// readAccounts adds the permissions to use accounts, by the agents' ids. Expired ones are left out.
func (s *Service) readAccounts(ctx context.Context, by identity.Principal, w *tenantState) error {
	all, err := s.o.Accounts.Permissions(ctx, by, w.tenant)
	if err != nil {
		return err
	}
	w.permissions = map[string][]grant.Permission{}
	for _, p := range all {
		if !p.Expired(s.o.Now()) {
			w.permissions[p.Agent] = append(w.permissions[p.Agent], p)
		}
	}
	return nil
}

// checkAccounts says what cannot be permitted.
func (s *Service) checkAccounts(ctx context.Context, t *task, add func(string, error)) {
	for _, a := range t.accounts.allow {
		if err := s.o.Accounts.CheckAccount(ctx, t.tenant, a.Domain, cmp.Or(a.Access, grant.AccessTools)); err != nil {
			n := slices.IndexFunc(t.want.agent.Accounts, func(o clawbots.Account) bool { return o.Domain == a.Domain })
			add(fmt.Sprintf("accounts[%d]", n), err)
		}
	}
}
