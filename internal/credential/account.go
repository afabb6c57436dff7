package credential

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Import is a login to be kept as the account of a domain.
type Import struct {
	Tenant string
	// Domain is the registrable domain that every cookie must belong to.
	Domain  string
	Cookies []cookies.Cookie
	// Origins are what pages of the domain have stored.
	Origins []weblogin.Origin
	// Rules are set too; without them those of the account stay, or are [DefaultRules].
	Rules *vault.Rules

	egress   []string        // nil keeps what the account has
	signedIn *vault.SignedIn // likewise
}

// Import stores an account. All that it had before is gone: the import is the whole of it. The caller wipes the values.
func (s *Service) Import(ctx context.Context, by identity.Principal, i Import) (out vault.CookieSet, err error) {
	i.Tenant = by.TenantOr(i.Tenant)
	if err := s.may(ctx, by, identity.CookiesImport, i.Tenant); err != nil {
		return vault.CookieSet{}, err
	}
	fields, err := withRules(audit.Fields{"cookie_count": len(i.Cookies), "origin_count": len(i.Origins)}, i.Rules)
	if err != nil {
		return vault.CookieSet{}, err
	}
	err = s.record(ctx, by, identity.CookiesImport, i.Tenant, "", i.Domain, fields, func() error {
		out, err = s.put(ctx, i)
		return err
	})
	return out, err
}

// put stores a login, with the rules that a new account has.
func (s *Service) put(ctx context.Context, i Import) (vault.CookieSet, error) {
	if i.Rules == nil {
		if _, there := s.rules(ctx, i.Tenant, i.Domain); !there {
			rules := DefaultRules()
			i.Rules = &rules
		}
	}
	return s.Vault.PutCookies(ctx, vault.NewCookies{Tenant: i.Tenant, Domain: i.Domain, Cookies: i.Cookies, Origins: i.Origins, Rules: i.Rules,
		EgressDomains: i.egress, SignedIn: i.signedIn})
}

// rules are those of an account, or of a new one.
func (s *Service) rules(ctx context.Context, tenant, domain string) (rules vault.Rules, there bool) {
	set, err := s.Vault.Cookies(ctx, tenant, domain)
	if problem.CodeOf(err) == problem.NotFound {
		return DefaultRules(), false
	}
	if err != nil {
		return DefaultRules(), true // it cannot be opened, and is about to be replaced
	}
	return vault.Rules{Scopes: set.Scopes, MaxLeases: set.MaxLeases}, true
}

// Cookies lists the accounts of a tenant.
func (s *Service) Cookies(ctx context.Context, by identity.Principal, tenant string) ([]vault.CookieSet, error) {
	tenant = by.Among(tenant)
	if err := s.may(ctx, by, identity.CookiesList, tenant); err != nil {
		return nil, err
	}
	return s.Vault.ListCookies(ctx, tenant)
}

// CookieSet describes one account.
func (s *Service) CookieSet(ctx context.Context, by identity.Principal, tenant, domain string) (vault.CookieSet, error) {
	tenant = by.TenantOr(tenant)
	if err := s.mayWith(ctx, by, identity.CookiesList, tenant, noAccount(domain)); err != nil {
		return vault.CookieSet{}, err
	}
	out, err := s.Vault.Cookies(ctx, tenant, domain)
	return out, known(err, domain)
}

// SetRules changes the rules of an account.
func (s *Service) SetRules(ctx context.Context, by identity.Principal, tenant, domain string, r vault.Rules) (out vault.CookieSet, err error) {
	tenant = by.TenantOr(tenant)
	if err := s.mayWith(ctx, by, identity.CookiesUpdate, tenant, noAccount(domain)); err != nil {
		return vault.CookieSet{}, err
	}
	fields, err := withRules(audit.Fields{}, &r)
	if err != nil {
		return vault.CookieSet{}, err
	}
	err = s.record(ctx, by, identity.CookiesUpdate, tenant, "", domain, fields, func() error {
		if err := s.Vault.SetRules(ctx, tenant, domain, r); err != nil {
			return known(err, domain)
		}
		out, err = s.Vault.Cookies(ctx, tenant, domain)
		return known(err, domain)
	})
	return out, err
}

// SetSignedIn changes how it is seen whether the site of an account still knows it.
func (s *Service) SetSignedIn(ctx context.Context, by identity.Principal, tenant, domain string, i vault.SignedIn) (out vault.CookieSet, err error) {
	tenant = by.TenantOr(tenant)
	if err := s.mayWith(ctx, by, identity.CookiesUpdate, tenant, noAccount(domain)); err != nil {
		return vault.CookieSet{}, err
	}
	if err := i.Check(domain); err != nil {
		return vault.CookieSet{}, err
	}
	fields := audit.Fields{"signed_in_page": i.Page, "signed_in_marker": i.Marker, "unwatched": i.Unwatched}
	err = s.record(ctx, by, identity.CookiesUpdate, tenant, "", domain, fields, func() error {
		if err := s.Vault.SetSignedIn(ctx, tenant, domain, i); err != nil {
			return known(err, domain)
		}
		out, err = s.Vault.Cookies(ctx, tenant, domain)
		return known(err, domain)
	})
	return out, err
}

// DeleteCookies removes an account, with what agents are permitted with it. Sessions that were opened with a grant go on.
func (s *Service) DeleteCookies(ctx context.Context, by identity.Principal, tenant, domain string) error {
	ctx, cancel := identity.ToTheEnd(ctx)
	defer cancel()
	tenant = by.TenantOr(tenant)
	if err := s.mayWith(ctx, by, identity.CookiesDelete, tenant, noAccount(domain)); err != nil {
		return err
	}
	return s.ending(by, identity.CookiesDelete, tenant, domain, func() error {
		// The permissions first: when it is cut, the account is still there to be removed.
		if err := s.disallowAll(ctx, by, tenant, domain); err != nil {
			return err
		}
		if err := s.Vault.DeleteCookies(ctx, tenant, domain); err != nil {
			return known(err, domain)
		}
		return s.disallowAll(ctx, by, tenant, domain) // those that were given meanwhile
	})
}

// Capture keeps what the browser of a session has of some domains, each as an account of its own. A domain without any
// cookie and without anything that its pages have stored is an error, and so is a cookie that no browser would take again;
// nothing is kept then. change makes the rules
// of each account out of those that it has, or that a new one has; it may be nil.
func (s *Service) Capture(ctx context.Context, by identity.Principal, id string, domains []string, change func(*vault.Rules)) (out []vault.CookieSet, err error) {
	wanted, err := registrable(domains)
	if err != nil {
		return nil, err
	}
	// A caller who may never do it is told so, also of a session that is not theirs.
	if err := s.may(ctx, by, identity.CookiesCapture, by.TenantOr("")); err != nil {
		return nil, err
	}
	from, err := s.Sessions.Get(ctx, by, id)
	if err != nil {
		return nil, err
	}
	fields := audit.Fields{"domains": audit.Names(wanted), "domain_count": len(wanted)}
	if change != nil {
		rules := DefaultRules()
		change(&rules)
		if fields, err = withRules(fields, &rules); err != nil {
			return nil, err
		}
	}
	// Recorded before the jar is read, and so that a refusal is on record too.
	err = s.record(ctx, by, identity.CookiesCapture, from.Tenant, id, wanted[0], fields, func() error {
		return s.Sessions.Capture(ctx, by, id, wanted, func(l weblogin.Login) error {
			out, err = s.keep(ctx, keeping{tenant: from.Tenant, domains: wanted, change: change}, l)
			return err
		})
	})
	return out, err
}

// keeping says what of a browser is kept.
type keeping struct {
	tenant  string
	domains []string
	change  func(*vault.Rules) // may be nil
	egress  []string           // nil keeps what the accounts have
	origins []string           // whose storage is kept; nil: all that are of the domains
	// signedIn is for the account of one of the domains.
	of       string
	signedIn *vault.SignedIn
}

// keep stores what a browser has of some domains, each as an account of its own.
func (s *Service) keep(ctx context.Context, k keeping, l weblogin.Login) (out []vault.CookieSet, err error) {
	jars, stored := map[string][]cookies.Cookie{}, map[string][]weblogin.Origin{}
	var none []string
	for _, domain := range k.domains {
		// The browser has forgotten expired cookies already, or is about to.
		for _, c := range l.Cookies {
			if cookies.Matches(c, []string{domain}) && !c.Expired(s.Now()) {
				jars[domain] = append(jars[domain], c)
			}
		}
		of, _ := weblogin.Select(l.Origins, []string{domain})
		for _, o := range of {
			if k.origins == nil || slices.Contains(k.origins, o.Origin) {
				stored[domain] = append(stored[domain], o)
			}
		}
		if len(jars[domain]) == 0 && len(stored[domain]) == 0 {
			none = append(none, domain)
		}
	}
	if len(none) > 0 {
		return nil, problem.New(problem.NotFound, "log in there with this session first", "the browser has no cookies of %s, and nothing that its pages have stored", strings.Join(none, ", ")).
			With("domains", none)
	}
	if err := sound(jars, stored); err != nil {
		return nil, err
	}
	for _, domain := range k.domains {
		i := Import{Tenant: k.tenant, Domain: domain, Cookies: jars[domain], Origins: stored[domain], egress: k.egress}
		if domain == k.of {
			i.signedIn = k.signedIn
		}
		if k.change != nil {
			rules, _ := s.rules(ctx, k.tenant, domain)
			k.change(&rules)
			i.Rules = &rules
		}
		set, err := s.put(ctx, i)
		if err != nil {
			return out, err
		}
		out = append(out, set)
	}
	return out, nil
}

// withRules adds rules to what is recorded, and refuses those that nothing can meet.
func withRules(fields audit.Fields, r *vault.Rules) (audit.Fields, error) {
	if r == nil {
		return fields, nil
	}
	for _, scope := range r.Scopes {
		if !slices.Contains([]string{string(grant.AccessTools), string(grant.AccessCDP)}, scope) {
			return nil, problem.New(problem.BadRequest, "they are tools and cdp", "%.40q is not a scope", scope)
		}
	}
	fields["scopes"], fields["max_sessions"] = append([]string{}, r.Scopes...), r.MaxLeases
	return fields, nil
}

// maxDomains is how many accounts one capture may keep: as many as a session may have.
const maxDomains = 20

// sound refuses jars with a cookie that no browser would take again, and names all such, and storage that is too much.
func sound(jars map[string][]cookies.Cookie, stored map[string][]weblogin.Origin) error {
	many := problem.ValidationError{Code: problem.BadCookie, Hint: "the site sets it in a way that cannot be carried to another browser"}
	for domain, jar := range jars {
		for _, c := range jar {
			if err := cookies.Validate(c); err != nil {
				many.Add(domain, "%v", err)
			}
		}
	}
	if err := many.Err(); err != nil {
		return err
	}
	for _, domain := range slices.Sorted(maps.Keys(stored)) {
		if err := weblogin.Validate(stored[domain], domain); err != nil {
			return err
		}
	}
	return nil
}

// registrable checks domains that somebody named.
func registrable(domains []string) ([]string, error) {
	if len(domains) == 0 {
		return nil, problem.New(problem.BadDomain, "name the domains whose accounts to keep", "no domain was named")
	}
	if len(domains) > maxDomains {
		return nil, problem.New(problem.BadDomain, "capture them in several steps", "%d domains were named, more than %d", len(domains), maxDomains)
	}
	var out []string
	var errs []error
	seen := map[string]bool{}
	for _, named := range domains {
		domain, err := cookies.RegistrableDomain(named)
		switch {
		case err != nil:
			errs = append(errs, problem.Wrap(err, problem.BadDomain, "write one such as example.com", "%q is not a registrable domain", named))
		case !strings.EqualFold(domain, named):
			errs = append(errs, problem.New(problem.BadDomain, "accounts belong to whole domains: write "+domain, "%q is a subdomain", named))
		case !seen[domain]:
			seen[domain] = true
			out = append(out, domain)
		}
	}
	return out, errors.Join(errs...)
}

// known says of an account that is not there what is said to a stranger of one that is.
func known(err error, domain string) error {
	if problem.CodeOf(err) == problem.NotFound {
		return noAccount(domain)
	}
	return err
}

func noAccount(domain string) error {
	return problem.New(problem.NotFound, "list them: clawjail cookies ls", "there is no account of %s", texts.Quote(domain, 253))
}
