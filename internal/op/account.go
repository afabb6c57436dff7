package op

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// CookieSets is the answer to a listing, and to a capture.
type CookieSets struct {
	Sets []vault.CookieSet `json:"sets" nullable:"false"`
}

// AccountRules is the part of a body that says who may use an account. Rules that are left out stay; a new account has tools and 1.
type AccountRules struct {
	Scopes      []string `json:"scopes,omitzero" nullable:"false" doc:"the widest access of a session that may use the account: tools or cdp; none: no session may; when they are left out as before, or tools" flag:"scope" value:"access" usage:"widest access of a session with the cookies: tools (where nothing was said), cdp, or none for no session" offer:"tools,cdp,none" is:"scope"`
	MaxSessions *int     `json:"max_sessions,omitempty" doc:"how many sessions may use it at the same time; when it is left out as before, or 1" example:"2" flag:"max-sessions" value:"number" usage:"number of sessions that may have them at the same time, 1 where nothing was said"`
}

// Check refuses a tenant and scopes that cannot be written down.
func (r AccountRules) Check(tenant string) error {
	const limit = 64
	if len(r.Scopes) > limit {
		return problem.New(problem.BadRequest, "name tools or cdp", "%d scopes are too many", len(r.Scopes))
	}
	errs := []error{CheckTenant(tenant)}
	for n, scope := range r.Scopes {
		errs = append(errs, CheckName(fmt.Sprintf("scopes[%d]", n), scope))
	}
	return errors.Join(errs...)
}

// said puts the rules that were said into others.
func (r AccountRules) said(rules *vault.Rules) {
	if r.Scopes != nil {
		rules.Scopes = r.Scopes
	}
	if r.MaxSessions != nil {
		rules.MaxLeases = *r.MaxSessions
	}
}

// Of are the rules that an account is to have; nil when nothing was said. A rule that was not said is as it is.
func (r AccountRules) Of(ctx context.Context, s Credentials, by identity.Principal, tenant, domain string) (*vault.Rules, error) {
	out := credential.DefaultRules()
	switch {
	case r.Scopes == nil && r.MaxSessions == nil:
		return nil, nil
	case r.Scopes == nil || r.MaxSessions == nil:
		set, err := s.CookieSet(ctx, by, tenant, domain)
		if err == nil {
			out = vault.Rules{Scopes: set.Scopes, MaxLeases: set.MaxLeases}
		} else if problem.CodeOf(err) != problem.NotFound {
			return nil, err
		}
	}
	r.said(&out)
	return &out, nil
}

// RulesRequest is the body that changes who may use an account. Parts that are left out stay as they are.
type RulesRequest struct {
	Tenant string `json:"tenant,omitempty" doc:"whose account it is; the caller's own, or default, when it is left out" flag:"tenant"`
	AccountRules
	// SignedIn replaces all that is known of it.
	SignedIn *vault.SignedIn `json:"signed_in,omitempty" doc:"how to check whether the account is still signed in; replaces what was set before"`
}

// CaptureRequest is the body that stores the cookies of a session's browser, one set for each domain.
type CaptureRequest struct {
	Domains []string `json:"domains" nullable:"false" doc:"registrable domains" flag:"domain" value:"domain" usage:"domain whose cookies to store" need:"whose cookies to store is missing: --domain example.com" example:"[\"example.com\"]"`
	AccountRules
}

// NeedsRefresh is the answer to a listing.
type NeedsRefresh struct {
	Accounts []credential.Alert `json:"accounts" nullable:"false"`
}

type (
	// AccountNamed names an account.
	AccountNamed struct {
		Domain string `path:"domain" maxLength:"253" doc:"registrable" arg:"1" complete:"accounts"`
		InTenant
	}

	// RulesChanged is what is changed of an account.
	RulesChanged struct {
		Domain string `path:"domain" maxLength:"253" doc:"registrable" arg:"1" complete:"accounts"`
		Body[RulesRequest]
	}

	// Captured names a session, and says what is stored of it.
	Captured struct {
		ID string `path:"id" maxLength:"64" doc:"the session's id" arg:"1" complete:"sessions"`
		Body[CaptureRequest]
	}
)

// ListCookies lists accounts, without the values of their cookies.
func ListCookies() Op[OfTenant, CookieSets] {
	return Op[OfTenant, CookieSets]{Method: http.MethodGet, Path: "/v1/cookies", ID: "list-cookies", Summary: "List accounts", Right: identity.CookiesList,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (CookieSets, error) {
			all, err := s.Credentials.Cookies(ctx, by, in.Tenant)
			return CookieSets{all}, err
		}}
}

// ShowCookies describes the account of a registrable domain, without the values of its cookies.
func ShowCookies() Op[AccountNamed, vault.CookieSet] {
	return Op[AccountNamed, vault.CookieSet]{Method: http.MethodGet, Path: "/v1/cookies/{domain}", ID: "get-cookies", Summary: "Show an account, without values",
		Right: identity.CookiesList,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AccountNamed) (vault.CookieSet, error) {
			return s.Credentials.CookieSet(ctx, by, in.Tenant, in.Domain)
		},
		View: cookiesView,
		Fails: func(s vault.CookieSet) error {
			if s.Problem == "" {
				return nil
			}
			return problem.New(s.Problem, "look at the keys with clawjail vault status, or store the cookies anew", "the cookies of %s cannot be read",
				texts.Printable(s.Domain, ' '))
		}}
}

// cookiesView lists the cookies of a set, and the origins whose pages have stored something.
func cookiesView(s vault.CookieSet) []Block {
	out := []Block{table(s.Cookies, []any{"NAME", "DOMAIN", "PATH", "FLAGS", "EXPIRES"}, func(c vault.CookieInfo) []any {
		expires := Joined{c.ExpiresAt}
		if c.Session {
			expires = Joined{"with the session"}
		}
		if c.Expired {
			expires = append(expires, " (expired)")
		}
		return []any{cookies.Printable(c.Name), cookies.Printable(c.Domain), cookies.Printable(c.Path), flagsOf(c), expires}
	})}
	if len(s.Storage) > 0 {
		heading := []any{"STORAGE OF", "ENTRIES", "DATABASES", "RECORDS", "SIZE", "LEFT OUT"}
		out = append(out, line(""), table(s.Storage, heading, func(o weblogin.OriginInfo) []any {
			return []any{o.Origin, o.Items, o.Databases, o.Records, Bytes(o.Bytes), strings.Join(o.LeftOut, "; ")}
		}))
	}
	return out
}

func flagsOf(c vault.CookieInfo) string {
	var flags []string
	for _, f := range []struct {
		given bool
		name  string
	}{{c.Secure, "Secure"}, {c.HTTPOnly, "HttpOnly"}, {c.SameSite != "", "SameSite=" + cookies.Printable(c.SameSite)},
		{c.TopLevelSite != "", "Partitioned=" + cookies.Printable(c.TopLevelSite)}, {c.DeviceBound, "bound to another machine"}} {
		if f.given {
			flags = append(flags, f.name)
		}
	}
	return strings.Join(flags, ", ")
}

// accountLine says in a line what an account holds, and who may use it.
func accountLine(s vault.CookieSet) Joined {
	scopes, storage := "for no session", Joined{}
	if len(s.Scopes) > 0 {
		scopes = "for sessions with " + strings.Join(s.Scopes, ", ")
	}
	if len(s.Storage) > 0 {
		storage = Joined{", storage of ", Count{len(s.Storage), "origin"}, " (", Bytes(weblogin.Total(s.Storage).Bytes), ")"}
	}
	return Joined{s.Domain, ": ", Count{s.Count, "cookie"}, storage, ", ", scopes, ", at most ", s.MaxLeases, " at a time"}
}

// Stored says what was stored.
func (s CookieSets) Stored() []Block {
	return listOf(s.Sets, func(set vault.CookieSet) Block { return line("stored %s", accountLine(set)) })
}

// SetCookieRules changes who may use an account, and how it is seen whether its site still knows it.
func SetCookieRules() Op[RulesChanged, vault.CookieSet] {
	return Op[RulesChanged, vault.CookieSet]{Method: http.MethodPatch, Path: "/v1/cookies/{domain}", ID: "set-cookie-rules", Summary: "Change who may use an account",
		Right: identity.CookiesUpdate,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in RulesChanged) (out vault.CookieSet, err error) {
			if err := in.Of.Check(in.Of.Tenant); err != nil {
				return out, err
			}
			rules, err := in.Of.AccountRules.Of(ctx, s.Credentials, by, in.Of.Tenant, in.Domain)
			if err != nil {
				return out, err
			}
			if rules == nil && in.Of.SignedIn == nil {
				return out, problem.New(problem.BadRequest, "send scopes, max_sessions or signed_in", "the request changes nothing")
			}
			if in.Of.SignedIn != nil {
				out, err = s.Credentials.SetSignedIn(ctx, by, in.Of.Tenant, in.Domain, *in.Of.SignedIn)
			}
			if err == nil && rules != nil {
				out, err = s.Credentials.SetRules(ctx, by, in.Of.Tenant, in.Domain, *rules)
			}
			return out, err
		},
		View: func(s vault.CookieSet) []Block { return []Block{line("%s", accountLine(s))} }}
}

// RemoveCookies removes an account.
func RemoveCookies() Op[AccountNamed, None] {
	return Op[AccountNamed, None]{Method: http.MethodDelete, Path: "/v1/cookies/{domain}", ID: "delete-cookies", Summary: "Remove an account", Right: identity.CookiesDelete,
		Command: Command{Use: "rm DOMAIN…", Aliases: []string{"remove"}, Short: "Remove cookie sets",
			Long: "Removes cookie sets. Sessions that have the cookies already keep them until they end."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AccountNamed) (None, error) {
			return None{}, s.Credentials.DeleteCookies(ctx, by, in.Tenant, in.Domain)
		}}
}

// CaptureCookies stores what the browser of a session has of some domains, one account for each.
func CaptureCookies() Op[Captured, CookieSets] {
	return Op[Captured, CookieSets]{Method: http.MethodPost, Path: "/v1/sessions/{id}/capture", ID: "capture-cookies", Summary: "Store the cookies and storage of a session's browser",
		Right: identity.CookiesCapture,
		Command: Command{Use: "capture SESSION --domain DOMAIN", Short: "Store the cookies that a session has",
			Long: "Stores the cookies that the browser of a session has of the named domains, for instance after a person has logged in there: " +
				"one cookie set for each domain, which replaces the old one. It includes localStorage and IndexedDB of the domain's " +
				"origins that were open in a tab. When the session has nothing of one of the domains, nothing is stored.",
			Example: "  clawjail cookies capture s_abcdefgh23456789 --domain example.com"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in Captured) (CookieSets, error) {
			if err := in.Of.Check(""); err != nil {
				return CookieSets{}, err
			}
			var change func(*vault.Rules)
			if in.Of.Scopes != nil || in.Of.MaxSessions != nil {
				change = in.Of.said
			}
			sets, err := s.Credentials.Capture(ctx, by, in.ID, in.Of.Domains, change)
			return CookieSets{sets}, err
		},
		View: CookieSets.Stored}
}

// ListNeedsRefresh lists the accounts that somebody has to log in to again.
func ListNeedsRefresh() Op[OfTenant, NeedsRefresh] {
	return Op[OfTenant, NeedsRefresh]{Method: http.MethodGet, Path: "/v1/accounts/needs-refresh", ID: "needs-refresh",
		Summary: "List the accounts that need a new login", Right: identity.CookiesList,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (NeedsRefresh, error) {
			all, err := s.Credentials.NeedsRefresh(ctx, by, in.Tenant)
			return NeedsRefresh{listOf(all, same)}, err
		}}
}
