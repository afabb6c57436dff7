package grant

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Standing is what permissions let one session do: nothing was changed for it yet.
type Standing struct {
	// Grant is the one that [Issuer.UsePermissions] makes.
	Grant Grant
	// Permissions are one for each domain, in the order of what is wanted.
	Permissions []Permission
	// Asks are the domains about which a person has to be asked first.
	Asks []string
}

// IDs are those of the permissions.
func (s Standing) IDs() []string {
	var out []string
	for _, p := range s.Permissions {
		out = append(out, p.ID)
	}
	return out
}

// For says whether it is about the account that a domain has, by the id of its cookie set.
func (s Standing) For(domain, account string) bool {
	return slices.ContainsFunc(s.Permissions, func(p Permission) bool { return p.Is(domain, account) })
}

// Permitted says whether an agent may open a session without a grant of its own, and changes nothing. The code is
// account_not_allowed when it may not.
func (i *Issuer) Permitted(ctx context.Context, want Want) (Standing, error) {
	if want.Agent == "" || len(want.Domains) == 0 {
		return Standing{}, refusal(problem.GrantMissing)
	}
	all, err := i.PermissionsOf(ctx, want.Tenant, want.Agent)
	if err != nil {
		return Standing{}, err
	}
	now := i.o.Now()
	var out Standing
	request := Request{Tenant: want.Tenant, Domains: want.Domains, Access: want.Access, Origin: want.Caller}
	for _, domain := range want.Domains {
		p := find(all, want.Agent, domain)
		if p == nil {
			return Standing{}, NotAllowed(domain, "you may not use the account of %s without a grant", domain)
		}
		asks, err := p.good(want.Access, now)
		if err != nil {
			return Standing{}, err
		}
		if asks {
			out.Asks = append(out.Asks, domain)
		}
		out.Permissions = append(out.Permissions, *p)
		request.EgressDomains = append(request.EgressDomains, p.EgressDomains...)
		request.Operator = cmp.Or(request.Operator, p.By)
	}
	var wrong []*problem.ValidationError
	out.Grant, wrong = i.row(request)
	if err := flaws(wrong...); err != nil {
		return Standing{}, fmt.Errorf("the permissions together are more than one grant can be: %w", err)
	}
	return out, nil
}

// NotAllowed is the error for an agent that may not use an account.
func NotAllowed(domain, format string, args ...any) *problem.Error {
	return problem.New(problem.AccountNotAllowed, "ask for it with request_access, kind account and target "+domain+
		"; or let an operator permit it: clawjail cookies allow "+domain+" --agent NAME", format, args...).With("domain", domain)
}

// Is says whether it is about the account that a domain has, by the id of its cookie set.
func (p Permission) Is(domain, account string) bool {
	return p.Domain == domain && p.account == account
}

// Expired says whether its time is over.
func (p Permission) Expired(now time.Time) bool {
	return !p.ExpiresAt.IsZero() && !now.Before(p.ExpiresAt)
}

// good says why a permission lets no session be opened now, or that a person has to be asked first.
func (p Permission) good(access Access, now time.Time) (asks bool, err error) {
	approved := now.Before(p.ApprovedUntil)
	switch {
	case p.Expired(now):
		return false, NotAllowed(p.Domain, "the permission to use the account of %s ended at %s", p.Domain, p.ExpiresAt.Format(time.RFC3339))
	case !p.Access.Covers(access):
		return false, NotAllowed(p.Domain, "the permission to use the account of %s is for access %s, and not %s", p.Domain, p.Access, texts.Quote(string(access), 80))
	case approved:
		return false, nil
	case p.Left != nil && *p.Left < 1:
		return false, NotAllowed(p.Domain, "the permission to use the account of %s was used as often as it may be", p.Domain)
	case !p.Hours.contain(now):
		return false, NotAllowed(p.Domain, "the account of %s may be used in the hours %s (UTC), and now it is %s", p.Domain, p.Hours, now.UTC().Format("15:04"))
	}
	return p.Ask == AskAlways || p.Ask == AskFirst && !p.answered, nil
}

// UsePermissions counts a use of each permission, and stores the grant as used already, so that no other session can use it. Of
// all calls for a permission that is good for one session more, at most one succeeds. After an error a use may be counted that was
// none.
func (i *Issuer) UsePermissions(ctx context.Context, s Standing, want Want) (Grant, error) {
	if want.Session == "" || len(s.Permissions) == 0 {
		return Grant{}, errors.New("use a permission: there is no session to use it, or no permission")
	}
	now := store.Microsecond(i.o.Now())
	for _, seen := range s.Permissions {
		_, err := i.changePermission(ctx, seen.ID, func(p *Permission) error {
			if !slices.Equal(p.EgressDomains, seen.EgressDomains) { // the grant names those that were seen
				return problem.New(problem.Conflict, "try again", "the permission to use the account of %s was changed meanwhile", p.Domain)
			}
			asks, err := p.good(want.Access, now)
			if err != nil {
				return err
			}
			if asks {
				return NotAllowed(p.Domain, "the use of the account of %s has to be approved by a person first", p.Domain)
			}
			if p.Left != nil && *p.Left > 0 {
				left := *p.Left - 1
				p.Left = &left
			}
			p.Used++
			p.LastUsedAt, p.ApprovedUntil, p.answered = now, time.Time{}, true
			return nil
		})
		if problem.CodeOf(err) == problem.NotFound {
			err = NotAllowed(seen.Domain, "the permission to use the account of %s was taken back", seen.Domain)
		}
		if err != nil {
			return Grant{}, err
		}
	}
	g := s.Grant
	g.UsedAt, g.UsedBy = now, want.Session
	if err := i.o.Store.CreateGrant(ctx, g); err != nil {
		return Grant{}, fmt.Errorf("keep the grant of a permission: %w", err)
	}
	return g, nil
}
