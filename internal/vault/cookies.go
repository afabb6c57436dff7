package vault

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Bounds of what an operator sets on a cookie set.
const (
	maxLeases  = 1000
	maxScopes  = 64
	maxEgress  = 200
	longScope  = 100
	longPage   = 2000
	longMarker = 500
)

// NewCookies is what [Vault.PutCookies] stores.
type NewCookies struct {
	Tenant string
	// Domain is the registrable domain that every cookie must belong to.
	Domain string
	// Cookies replace what the vault has of the domain: it is the whole jar, and what is not in it is gone.
	Cookies []cookies.Cookie
	// Origins are what pages of the domain have stored. They replace what is there, too.
	Origins []weblogin.Origin
	// Rules are set too; nil keeps those of the set that is there, or starts with no scopes and one lease.
	Rules *Rules
	// EgressDomains are other domains that the site needs, to be proposed for grants; nil keeps those of the set that is there.
	EgressDomains []string
	// SignedIn says how the site shows that somebody is signed in; nil keeps what is known.
	SignedIn *SignedIn
}

// Rules are what an operator decides about a cookie set.
type Rules struct {
	// Scopes are the grant scopes that may inject the set.
	Scopes []string
	// MaxLeases is how many sessions may use the set at the same time, from 1 to 1000.
	MaxLeases int
}

func (r Rules) check(wrong *problem.ValidationError) {
	if r.MaxLeases < 1 || r.MaxLeases > maxLeases {
		wrong.Add("max_sessions", "must be from 1 to %d", maxLeases)
	}
	if len(r.Scopes) > maxScopes {
		wrong.Add("scopes", "are more than %d", maxScopes)
	}
	for _, scope := range r.Scopes {
		if !printable(scope, longScope) {
			wrong.Add("scopes", "%s is not a scope", cookies.Printable(scope))
		}
	}
}

// printable says whether a text is of printable ASCII without spaces, and not empty.
func printable(s string, longest int) bool {
	return s != "" && len(s) <= longest && !slices.ContainsFunc([]byte(s), func(b byte) bool { return b <= ' ' || b >= 0x7f })
}

// SignedIn says how a site shows that somebody is signed in, which sessions look at.
type SignedIn struct {
	Page   string `json:"page,omitempty" doc:"URL of a page that shows whether the account is signed in"`
	Marker string `json:"marker,omitempty" doc:"CSS selector of an element that only pages of a signed-in account have"`
	// Unwatched accounts are never said to be signed out.
	Unwatched bool `json:"unwatched,omitempty" doc:"do not check whether the account is still signed in"`
}

// Check reports everything that is wrong with it for an account of a domain, with the code bad_request.
func (i SignedIn) Check(domain string) error {
	wrong := &problem.ValidationError{Code: problem.BadRequest}
	i.check(domain, wrong)
	return wrong.Err()
}

func (i SignedIn) check(domain string, wrong *problem.ValidationError) {
	if i.Page != "" {
		page, err := url.Parse(i.Page)
		if err != nil || page.Scheme != "https" && page.Scheme != "http" || page.User != nil || !printable(i.Page, longPage) ||
			!cookies.Within(page.Hostname(), domain) {
			wrong.Add("signed_in.page", "must be the address of a page of %s, of at most %d bytes", cookies.Printable(domain), longPage)
		}
	}
	if len(i.Marker) > longMarker || strings.ContainsFunc(i.Marker, unicode.IsControl) {
		wrong.Add("signed_in.marker", "must be a CSS selector of at most %d bytes", longMarker)
	}
}

// CookieSet is what may be known about a set without opening an account with it.
type CookieSet struct {
	ID              string    `json:"id"`
	Tenant          string    `json:"tenant"`
	Domain          string    `json:"domain"`
	Count           int       `json:"count"`
	Scopes          []string  `json:"scopes"`
	MaxLeases       int       `json:"max_sessions"`
	CreatedAt       time.Time `json:"created_at"`
	LastRefreshedAt time.Time `json:"last_refreshed_at"`
	LastInjectedAt  time.Time `json:"last_injected_at,omitzero"`
	// ExpiresAt is when the first persistent cookie expires; zero when there is none.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// EgressDomains are other domains that the site needs, chosen by the person who logged in to it: they are proposed for grants.
	EgressDomains []string `json:"egress_domains,omitempty"`
	SignedIn      SignedIn `json:"signed_in"`
	// SignedOutAt is when a session saw that the site has forgotten the login, and SignedOutBy what it saw: one of the reasons of package session.
	SignedOutAt time.Time `json:"signed_out_at,omitzero"`
	SignedOutBy string    `json:"signed_out_by,omitempty"`
	// Cookies are sorted by domain and name.
	Cookies []CookieInfo `json:"cookies,omitempty"`
	// Storage is what pages of its origins have stored, without names and values.
	Storage []weblogin.OriginInfo `json:"storage,omitempty"`
	// Problem is the code for which the set cannot be opened; it has no Cookies and no Storage then.
	Problem string `json:"problem,omitempty"`
}

// CookieInfo is one cookie without its value.
type CookieInfo struct {
	cookies.ID
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	Session     bool      `json:"session"`
	HTTPOnly    bool      `json:"http_only"`
	Secure      bool      `json:"secure"`
	SameSite    string    `json:"same_site,omitempty"`
	DeviceBound bool      `json:"device_bound,omitempty"`
	Expired     bool      `json:"expired,omitempty"`
}

// PutCookies encrypts cookies, and what pages have stored, and replaces the tenant's set of the domain with them. Every
// cookie must be valid, not expired, and of the domain, and so must every origin be; all that are not are named, and nothing
// is stored.
func (v *Vault) PutCookies(ctx context.Context, n NewCookies) (CookieSet, error) {
	if err := v.check(n); err != nil {
		return CookieSet{}, err
	}
	plaintext := weblogin.Encode(weblogin.Login{Cookies: n.Cookies, Origins: n.Origins})
	defer clear(plaintext)
	if len(plaintext) > weblogin.MaxBytes {
		return CookieSet{}, tooMuch(n)
	}
	var s store.CookieSet
	err := v.exclusively(ctx, func() error {
		keys, err := v.reload()
		if err != nil {
			return err
		}
		return decided(func() error {
			var was store.CookieSet
			if was, s, err = v.nextSet(ctx, n); err != nil {
				return err
			}
			if s.Ciphertext, err = keys.seal(placeOfCookies(s), plaintext); err != nil {
				return err
			}
			if err := v.fits(ctx, row{place: placeOfCookies(s), bytes: int64(len(s.Ciphertext))}); err != nil {
				return err
			}
			return stored(v.store.PutCookieSet(ctx, was, s), n.Tenant, "the cookies of "+n.Domain)
		})
	})
	if err != nil {
		return CookieSet{}, err
	}
	return v.describe(s, n.Cookies, weblogin.Describe(n.Origins)), nil
}

func tooMuch(n NewCookies) error {
	code, what := problem.BadCookie, "the cookies of "+n.Domain+" have"
	if len(n.Origins) > 0 {
		code, what = problem.BadStorage, "cookies and storage of "+n.Domain+" together have"
	}
	return problem.New(code, "leave out what a login does not need", "%s more than %d MiB", what, weblogin.MaxBytes>>20)
}

// stored says in words what a store answered to an entry that refers to others.
func stored(err error, tenant, what string) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return problem.Wrap(err, problem.NotFound, "look at the names with clawjail tenant ls and clawjail agent ls",
			"there is no tenant %s, or it has no such agent", cookies.Printable(tenant))
	case err != nil:
		return fmt.Errorf("store %s: %w", what, err)
	}
	return nil
}

// nextSet is the row that follows the one that is there. was is zero where there is none.
func (v *Vault) nextSet(ctx context.Context, n NewCookies) (was, s store.CookieSet, err error) {
	now := v.now()
	was, err = v.store.CookieSet(ctx, n.Tenant, n.Domain)
	s = was
	if errors.Is(err, store.ErrNotFound) {
		s = store.CookieSet{ID: newID(), Tenant: n.Tenant, Domain: n.Domain, MaxLeases: 1, CreatedAt: now}
	} else if err != nil {
		return was, s, fmt.Errorf("read cookie set %s: %w", n.Domain, err)
	}
	if n.Rules != nil {
		s.Scopes, s.MaxLeases = n.Rules.Scopes, n.Rules.MaxLeases
	}
	if n.EgressDomains != nil {
		s.EgressDomains = n.EgressDomains
	}
	if n.SignedIn != nil {
		s.SignedIn = store.SignedIn(*n.SignedIn)
	}
	s.SignedOutAt, s.SignedOutBy = time.Time{}, ""
	s.Count, s.LastRefreshedAt, s.ExpiresAt = len(n.Cookies), now, cookies.FirstExpiry(n.Cookies)
	return was, s, nil
}

func (v *Vault) check(n NewCookies) error {
	wrong := &problem.ValidationError{Code: problem.BadCookie, Source: "cookies of " + cookies.Printable(n.Domain)}
	if domain, err := cookies.RegistrableDomain(n.Domain); err != nil || domain != n.Domain {
		return problem.New(problem.BadDomain, "name a registrable domain, such as example.com", "%s is not a registrable domain", cookies.Printable(n.Domain))
	}
	if n.Tenant == "" {
		wrong.Add("tenant", "is missing")
	}
	switch {
	case len(n.Cookies) == 0 && len(n.Origins) == 0:
		wrong.Hint = "to remove a set, delete it"
		wrong.Add("cookies", "are none")
	case len(n.Cookies) > cookies.MaxCookies:
		wrong.Add("cookies", "are more than %d", cookies.MaxCookies)
		return wrong
	}
	if n.Rules != nil {
		n.Rules.check(wrong)
	}
	if n.SignedIn != nil {
		n.SignedIn.check(n.Domain, wrong)
	}
	if len(n.EgressDomains) > maxEgress {
		wrong.Add("egress_domains", "are more than %d", maxEgress)
	}
	seen := map[cookies.ID]bool{}
	for _, c := range n.Cookies {
		id := c.ID()
		var invalid *cookies.InvalidError
		switch err := cookies.Validate(c); {
		case errors.As(err, &invalid):
			wrong.Add(id.String(), "%s", invalid.Text)
		case !cookies.Matches(c, []string{n.Domain}):
			wrong.Add(id.String(), "it is of another domain")
		case c.Expired(v.now()):
			wrong.Add(id.String(), "it has expired")
		case seen[id]:
			wrong.Add(id.String(), "it is there twice")
		}
		seen[id] = true
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	return weblogin.Validate(n.Origins, n.Domain)
}

// UseLogin decrypts a set and gives it to a function. The values are overwritten when the function returns, so it
// keeps neither them nor what they are made into. Its error is returned as it is.
func (v *Vault) UseLogin(ctx context.Context, tenant, domain string, use func(weblogin.Login) error) error {
	s, err := v.set(ctx, tenant, domain)
	if err != nil {
		return err
	}
	var l weblogin.Login
	err = v.opened(ctx, &s, func(plaintext []byte) (err error) {
		l, err = weblogin.Decode(plaintext)
		return err
	})
	if err != nil {
		return err
	}
	defer l.Wipe()
	return use(l)
}

// opened gives what is in a row, which may be another one afterwards, to a function that reads it, and wipes it. See [reread].
func (v *Vault) opened(ctx context.Context, s *store.CookieSet, read func(plaintext []byte) error) error {
	plaintext, err := v.unseal(placeOfCookies(*s), s.Ciphertext)
	if reread(err) {
		var now store.CookieSet
		if now, err = v.set(ctx, s.Tenant, s.Domain); err == nil {
			*s = now
			plaintext, err = v.unseal(placeOfCookies(now), now.Ciphertext)
		}
	}
	if err != nil {
		return err
	}
	defer clear(plaintext)
	if err := read(plaintext); err != nil {
		return damaged(placeOfCookies(*s), err)
	}
	return nil
}

func (v *Vault) set(ctx context.Context, tenant, domain string) (store.CookieSet, error) {
	s, err := v.store.CookieSet(ctx, tenant, domain)
	if errors.Is(err, store.ErrNotFound) {
		return s, noSet(tenant, domain)
	}
	if err != nil {
		return s, fmt.Errorf("read cookie set %s: %w", domain, err)
	}
	return s, nil
}

func noSet(tenant, domain string) error {
	return problem.New(problem.NotFound, "import or capture them: clawjail cookies import FILE --domain "+cookies.Printable(domain),
		"tenant %s has no cookies of %s", tenant, cookies.Printable(domain))
}

// Cookies describes one set.
func (v *Vault) Cookies(ctx context.Context, tenant, domain string) (CookieSet, error) {
	s, err := v.set(ctx, tenant, domain)
	if err != nil {
		return CookieSet{}, err
	}
	return v.look(ctx, s), nil
}

// ListCookies describes the sets of a tenant, by domain; of all tenants when tenant is empty. A set that cannot be
// opened is in the list with the code of its problem.
func (v *Vault) ListCookies(ctx context.Context, tenant string) ([]CookieSet, error) {
	rows, err := v.store.ListCookieSets(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("list cookie sets: %w", err)
	}
	out := make([]CookieSet, len(rows))
	for i, s := range rows {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list cookie sets: %w", err)
		}
		out[i] = v.look(ctx, s)
	}
	return out, nil
}

func (v *Vault) look(ctx context.Context, s store.CookieSet) CookieSet {
	var list []cookies.Cookie
	var storage []weblogin.OriginInfo
	err := v.opened(ctx, &s, func(plaintext []byte) (err error) {
		list, storage, err = weblogin.Peek(plaintext)
		return err
	})
	defer cookies.Wipe(list)
	out := v.describe(s, list, storage)
	if err != nil {
		out.Problem = problem.CodeOf(err)
	}
	return out
}

func (v *Vault) describe(s store.CookieSet, list []cookies.Cookie, storage []weblogin.OriginInfo) CookieSet {
	out := CookieSet{
		ID: s.ID, Tenant: s.Tenant, Domain: s.Domain, Count: s.Count, Scopes: s.Scopes, MaxLeases: s.MaxLeases, CreatedAt: s.CreatedAt,
		LastRefreshedAt: s.LastRefreshedAt, LastInjectedAt: s.LastInjectedAt, ExpiresAt: s.ExpiresAt,
		EgressDomains: s.EgressDomains, SignedIn: SignedIn(s.SignedIn), SignedOutAt: s.SignedOutAt, SignedOutBy: s.SignedOutBy, Storage: storage,
	}
	if out.Scopes == nil {
		out.Scopes = []string{}
	}
	list = slices.Clone(list)
	cookies.Sort(list)
	for _, c := range list {
		out.Cookies = append(out.Cookies, Describe(c, v.now()))
	}
	return out
}

// Describe is a cookie without its value.
func Describe(c cookies.Cookie, now time.Time) CookieInfo {
	return CookieInfo{
		ID: c.ID(), ExpiresAt: c.ExpiresAt(), Session: !c.Persistent(), HTTPOnly: c.HTTPOnly, Secure: c.Secure, SameSite: c.SameSite,
		DeviceBound: cookies.DeviceBound(c), Expired: c.Expired(now),
	}
}

// DeleteCookies removes a set.
func (v *Vault) DeleteCookies(ctx context.Context, tenant, domain string) error {
	return v.exclusively(ctx, func() error {
		err := v.store.DeleteCookieSet(ctx, tenant, domain)
		if errors.Is(err, store.ErrNotFound) {
			return noSet(tenant, domain)
		}
		if err != nil {
			return fmt.Errorf("delete cookie set %s: %w", domain, err)
		}
		return nil
	})
}

// SetRules changes the rules of a set and leaves its cookies alone.
func (v *Vault) SetRules(ctx context.Context, tenant, domain string, r Rules) error {
	wrong := &problem.ValidationError{Code: problem.BadRequest}
	if r.check(wrong); wrong.Err() != nil {
		return wrong
	}
	return v.change(ctx, tenant, domain, func(s *store.CookieSet) { s.Scopes, s.MaxLeases = r.Scopes, r.MaxLeases })
}

// SetSignedIn changes how it is seen whether the site still knows the account, and leaves its cookies alone.
func (v *Vault) SetSignedIn(ctx context.Context, tenant, domain string, i SignedIn) error {
	if err := i.Check(domain); err != nil {
		return err
	}
	return v.change(ctx, tenant, domain, func(s *store.CookieSet) { s.SignedIn = store.SignedIn(i) })
}

// change rewrites a set but for its cookies.
func (v *Vault) change(ctx context.Context, tenant, domain string, change func(*store.CookieSet)) error {
	return v.exclusively(ctx, func() error {
		return decided(func() error {
			was, err := v.set(ctx, tenant, domain)
			if err != nil {
				return err
			}
			s := was
			change(&s)
			if err := v.store.PutCookieSet(ctx, was, s); err != nil {
				return fmt.Errorf("change cookie set %s: %w", domain, err)
			}
			return nil
		})
	})
}
