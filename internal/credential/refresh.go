package credential

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// goneLimit bounds waiting for the jail of a refresh session to be removed.
const goneLimit = 15 * time.Second

// soon is how long before it expires an account is said to be expiring. One that is good for a short time has a quarter of it.
const soon = 3 * 24 * time.Hour

// Expiring says whether a cookie of an account expires soon, and none has.
func Expiring(set vault.CookieSet, now time.Time) bool {
	if set.ExpiresAt.IsZero() || expired(set, now) {
		return false
	}
	near := min(soon, set.ExpiresAt.Sub(set.LastRefreshedAt)/4)
	return set.ExpiresAt.Before(now.Add(near))
}

// FinishRefresh says what of a refresh session is kept.
type FinishRefresh struct {
	Session string
	// Domains are the registrable domains whose cookies are kept, each as an account.
	Domains []string
	// Origins are those of the domains whose storage is kept; nil: of all.
	Origins []string
	// EgressDomains are the other domains, or hosts, that the site needs. They are kept with each account, and proposed for
	// its grants.
	EgressDomains []string
	// SignedIn says how the site shows that somebody is signed in. It is kept with the account that was logged in to; nil keeps
	// what is known.
	SignedIn *vault.SignedIn
}

// FinishRefresh keeps what somebody has logged in to, as [Service.Capture] does, and ends the session. When anything is
// wrong the session stays open, so that who is logged in can try again; nothing is stored then, except that a store that
// fails in the middle may have taken some accounts.
func (s *Service) FinishRefresh(ctx context.Context, by identity.Principal, f FinishRefresh) (out []vault.CookieSet, err error) {
	wanted, err := registrable(f.Domains)
	if err != nil {
		return nil, err
	}
	for _, op := range []identity.Operation{identity.SessionRefresh, identity.CookiesCapture} {
		if err := s.may(ctx, by, op, by.TenantOr("")); err != nil {
			return nil, err
		}
	}
	egress, err := s.Grants.EgressDomains(f.EgressDomains)
	if err != nil {
		return nil, err
	}
	egress = append([]string{}, egress...) // none is a choice too
	for _, origin := range f.Origins {
		if domain, err := weblogin.DomainOf(origin); err != nil || !slices.Contains(wanted, domain) {
			return nil, problem.New(problem.BadStorage, "name its domain too, or leave it out", "%s belongs to none of the domains to keep", cookies.Printable(origin))
		}
	}
	from, err := s.Sessions.Get(ctx, by, f.Session)
	if err != nil {
		return nil, err
	}
	if from.CredentialMode != session.ModeRefresh {
		return nil, problem.New(problem.BadRequest, "capture from it: clawjail cookies capture "+from.ID, "session %s is not one to log in with", from.ID)
	}
	k := keeping{tenant: from.Tenant, domains: wanted, egress: egress, origins: f.Origins, signedIn: f.SignedIn}
	if f.SignedIn != nil && len(from.Domains) > 0 {
		k.of = from.Domains[0]
		if err := f.SignedIn.Check(k.of); err != nil {
			return nil, err
		}
	}
	fields := audit.Fields{"domains": audit.Names(wanted), "domain_count": len(wanted),
		"egress_domains": audit.Names(egress), "egress_domain_count": len(egress)}
	err = s.record(ctx, by, identity.CookiesCapture, from.Tenant, from.ID, wanted[0], fields, func() error {
		return s.Sessions.Capture(ctx, by, from.ID, wanted, func(l weblogin.Login) error {
			out, err = s.keep(ctx, k, l)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return out, s.endRefresh(ctx, by, from.ID)
}

// endRefresh closes a session whose cookies are stored, and waits until it is gone. That removing its jail takes long is
// no failure of the refresh; the session's own record says how it went.
func (s *Service) endRefresh(ctx context.Context, by identity.Principal, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goneLimit)
	defer cancel()
	if _, err := s.Sessions.Close(ctx, by, id); err != nil {
		return fmt.Errorf("the accounts are stored; close the session: %w", err)
	}
	if _, err := s.Sessions.WaitGone(ctx, by, id); err != nil {
		s.Log.Warn("wait for the end of a refresh session", "session", id, "error", err)
	}
	return nil
}

// Reasons of an [Alert], beside those of package signedout.
const (
	AlertExpired  = session.ReasonExpired // cookies of it have expired
	AlertLogin    = session.ReasonLogin   // its site has asked a session to log in
	AlertExpiring = "expiring"            // cookies of it expire soon
)

// Alert is an account that somebody has to log in to again, or soon will have to.
type Alert struct {
	Tenant string `json:"tenant"`
	Domain string `json:"domain"`
	Reason string `json:"reason" enum:"expired_cookies,login_page,refused,cookies_deleted,password_field,marker_gone,second_factor,expiring"`
	// At is since when: when cookies expired, or will, or when a session was asked to log in.
	At time.Time `json:"at"`
}

// NeedsRefresh lists the accounts of a tenant that somebody has to log in to again: cookies of them have expired, or a
// session has seen since they were last refreshed that their site does not know them any more.
func (s *Service) NeedsRefresh(ctx context.Context, by identity.Principal, tenant string) ([]Alert, error) {
	sets, err := s.Cookies(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	return alerts(sets, func(set vault.CookieSet) (Alert, bool) {
		if expired(set, s.Now()) {
			return Alert{Reason: AlertExpired, At: set.ExpiresAt}, true
		}
		return Alert{Reason: set.SignedOutBy, At: set.SignedOutAt}, !set.SignedOutAt.IsZero()
	}), nil
}

// ExpiringSoon lists the accounts of a tenant that have a cookie which expires soon.
func (s *Service) ExpiringSoon(ctx context.Context, by identity.Principal, tenant string) ([]Alert, error) {
	sets, err := s.Cookies(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	return alerts(sets, func(set vault.CookieSet) (Alert, bool) {
		return Alert{Reason: AlertExpiring, At: set.ExpiresAt}, Expiring(set, s.Now())
	}), nil
}

// expired says whether a cookie of an account has.
func expired(set vault.CookieSet, now time.Time) bool {
	return !set.ExpiresAt.IsZero() && !now.Before(set.ExpiresAt)
}

// alerts are what there is to say of some accounts, the oldest first.
func alerts(sets []vault.CookieSet, say func(vault.CookieSet) (Alert, bool)) []Alert {
	out := []Alert{}
	for _, set := range sets {
		if a, there := say(set); there {
			a.Tenant, a.Domain = set.Tenant, set.Domain
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b Alert) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Domain, b.Domain))
	})
	return out
}
