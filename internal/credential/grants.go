package credential

import (
	"cmp"
	"context"
	"errors"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// IssueGrant permits the use of accounts once. A grant that could not be used is not issued: for an account that is not
// there, or with an access that the account is not for.
func (s *Service) IssueGrant(ctx context.Context, by identity.Principal, r grant.Request) (grant.Token, grant.Grant, error) {
	r.Tenant, r.Operator = by.TenantOr(r.Tenant), by.Actor()
	if err := s.may(ctx, by, identity.GrantIssue, r.Tenant); err != nil {
		return grant.Token{}, grant.Grant{}, err
	}
	if err := s.usable(ctx, r); err != nil {
		return grant.Token{}, grant.Grant{}, err
	}
	token, g, err := s.Grants.Issue(ctx, r) // which records it
	if problem.CodeOf(err) == problem.Internal && errors.Is(err, store.ErrNotFound) {
		err = problem.Wrap(err, problem.NotFound, "list them: clawjail tenant ls", "there is no tenant %q", r.Tenant)
	}
	return token, g, err
}

// usable says what of a request no session could use. The issuer reports the faults of the request itself.
func (s *Service) usable(ctx context.Context, r grant.Request) error {
	domains, err := s.Grants.Domains(r.Domains)
	if err != nil {
		return nil
	}
	missing, closed := &problem.ValidationError{Code: problem.NotFound}, &problem.ValidationError{Code: problem.GrantScope}
	for _, domain := range domains {
		set, err := s.Vault.Cookies(ctx, r.Tenant, domain)
		switch {
		case problem.CodeOf(err) == problem.NotFound:
			missing.AddFlaw(problem.Flaw{Field: "domains", Message: "there is no account of " + domain, Hint: "import one: clawjail cookies import FILE --domain " + domain})
			continue
		case err != nil:
			return err
		}
		access := cmp.Or(r.Access, grant.AccessTools)
		if known := access == grant.AccessTools || access == grant.AccessCDP; known && grant.InScopes(set.Scopes, grant.Grant{Access: string(access)}) != nil {
			closed.AddFlaw(problem.Flaw{Field: "access", Message: "the account of " + domain + " may not be used with access " + string(access),
				Hint: "allow it: clawjail cookies set " + domain + " --scope " + string(access) + "; or leave the access out"})
		}
	}
	if err := missing.Err(); err != nil {
		return err
	}
	return closed.Err()
}

// ListGrants lists the grants of a tenant, newest first.
func (s *Service) ListGrants(ctx context.Context, by identity.Principal, tenant string) ([]grant.Grant, error) {
	tenant = by.Among(tenant)
	if err := s.may(ctx, by, identity.GrantList, tenant); err != nil {
		return nil, err
	}
	return s.Grants.List(ctx, tenant)
}

// RevokeGrant ends a grant. A session that it has opened goes on; the row names it.
func (s *Service) RevokeGrant(ctx context.Context, by identity.Principal, tenant, id string) (grant.Grant, error) {
	ctx, cancel := identity.ToTheEnd(ctx)
	defer cancel()
	missing := problem.New(problem.NotFound, "list them: clawjail grant ls", "there is no grant of that id")
	tenant = by.Among(tenant)
	if err := s.mayWith(ctx, by, identity.GrantRevoke, tenant, missing); err != nil {
		return grant.Grant{}, err
	}
	out, err := s.Grants.Revoke(ctx, tenant, id, by.Actor()) // which records it
	if problem.CodeOf(err) == problem.NotFound {
		err = missing
	}
	return out, err
}

// GrantKeys lists the keys that grants are signed with.
func (s *Service) GrantKeys(ctx context.Context, by identity.Principal) ([]grant.KeyInfo, error) {
	if err := s.may(ctx, by, identity.GrantKeysRotate, ""); err != nil {
		return nil, err
	}
	return s.Keyring.Keys()
}

// RotateGrantKeys makes a new key that grants are signed with, and signs permissions with it.
func (s *Service) RotateGrantKeys(ctx context.Context, by identity.Principal) (out grant.KeyInfo, err error) {
	if err := s.may(ctx, by, identity.GrantKeysRotate, ""); err != nil {
		return grant.KeyInfo{}, err
	}
	err = s.record(ctx, by, identity.GrantKeysRotate, "", "", "", nil, func() error {
		if out, err = s.Keyring.Rotate(); err != nil {
			return err
		}
		return s.Grants.SignPermissions(ctx)
	})
	return out, err
}
