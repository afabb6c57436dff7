// Package signedout tells from what a page shows whether its site still knows an account, or has forgotten it.
//
// It decides by rules and keeps no state. When a page is ambiguous there is no verdict: an account that is wrongly taken
// for signed out costs a person a login.
package signedout

import (
	"net/url"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
)

// Reason says how a login was seen to be gone.
type Reason string

// The reasons.
const (
	None         Reason = ""
	LoginPage    Reason = "login_page"      // the page asks to sign in
	Refused      Reason = "refused"         // the start page answers 401 or 403
	Deleted      Reason = "cookies_deleted" // the site has deleted the cookies
	Password     Reason = "password_field"  // the page asks for a password, and did not before
	MarkerGone   Reason = "marker_gone"     // the marker of signed-in pages is not there
	SecondFactor Reason = "second_factor"   // the site asks for a second factor
)

// Words say what the site did, as the end of a sentence that begins with the site.
func (r Reason) Words() string {
	switch r {
	case LoginPage:
		return "asked an agent to log in"
	case Refused:
		return "refused an agent the page on which its account begins"
	case Deleted:
		return "deleted the cookies of the login"
	case Password:
		return "asked an agent for a password"
	case MarkerGone:
		return "showed a page without the marker of a signed-in one"
	case SecondFactor:
		return "asked an agent for a second factor"
	}
	return "asked to log in"
}

// Known is what the caller knows about the account and about earlier visits of the page.
type Known struct {
	// Domain is the registrable domain of the account.
	Domain string
	// Start is a page that shows whether the account is signed in; empty for the first page of the domain.
	Start string
	// HasMarker: the account has a selector that signed-in pages match. MarkerSeen: this page matches it.
	HasMarker, MarkerSeen bool
	CookiesDeleted        bool // the site has deleted the cookies that sign in, and set no others
	PasswordIsNew         bool // the last visit of this page had no password field
	Settled               bool // the page has had time to show everything
	FromDomain            bool // the tab came to this page from one of the domain
}

// Verdict is what a page says of an account. At most one of the fields is set.
type Verdict struct {
	SignedOut Reason
	SignedIn  bool
}

// Judge says what a page says of an account.
func Judge(p browser.SignInPage, k Known) Verdict {
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return Verdict{}
	}
	at := address{u, segments(u)}
	if !cookies.Within(u.Hostname(), k.Domain) {
		return elsewhere(p, at, k)
	}
	switch {
	case p.Failed, p.Status >= 500, p.Status == 402, p.Status == 429, p.Status == 451:
		return Verdict{} // the site is down (5xx), wants payment (402), or limits or blocks us (429, 451)
	case k.MarkerSeen, p.SignOut:
		return Verdict{SignedIn: true}
	case k.CookiesDeleted:
		return Verdict{SignedOut: Deleted}
	case p.Passwords == 0 && (p.Captcha || p.Human):
		return Verdict{}
	}
	onStart, onSignIn, onSettings := at.isStart(k), at.isSignIn(), at.isSettings()
	if onStart && p.Status == 401 {
		return Verdict{SignedOut: Refused}
	}
	asksToSignIn := p.Form || onSignIn && (p.Passwords > p.NewPasswords || p.Identifier || p.Federated)
	switch {
	case p.Code && !onSettings && (p.Passwords == 0 || at.has(secondFactorWords)):
		return Verdict{SignedOut: SecondFactor}
	case p.Status == 403 && p.Blocked && !onSignIn:
		return Verdict{}
	case asksToSignIn && (onSignIn || !p.Paywall && (onStart || !onSettings)):
		return Verdict{SignedOut: LoginPage}
	case onStart && p.Status == 403:
		return Verdict{SignedOut: Refused}
	case k.PasswordIsNew && !p.Paywall && p.Passwords == 1 && p.NewPasswords == 0 && !onSettings:
		return Verdict{SignedOut: Password}
	case onStart && k.HasMarker && k.Settled && p.Loaded && !p.Cut && !p.Blocked && !p.Away && !p.Paywall:
		return Verdict{SignedOut: MarkerGone}
	}
	return Verdict{}
}

// elsewhere judges a page outside the account's domain, where the site may have sent the user to sign in. A page that
// failed to load counts: the session may not be allowed to reach it.
func elsewhere(p browser.SignInPage, at address, k Known) Verdict {
	asks := p.Failed || p.Passwords > p.NewPasswords || p.Identifier || p.Federated || p.Code || p.Status == 401 || p.Status == 403
	if asks && (at.isSignIn() || at.isAuthorization()) && (k.FromDomain || at.returnsTo(k.Domain)) {
		return Verdict{SignedOut: LoginPage}
	}
	return Verdict{}
}

// address is the URL of a page, with its segments.
type address struct {
	*url.URL
	segments []string
}

// segments are the parts of a path, and of a fragment that is one: lower case, without file extensions such as .php.
func segments(at *url.URL) []string {
	path := at.Path
	if strings.HasPrefix(at.Fragment, "/") || strings.HasPrefix(at.Fragment, "!/") {
		path += "/" + at.Fragment
	}
	parts := strings.FieldsFunc(strings.ToLower(path), func(r rune) bool { return strings.ContainsRune("/!;?", r) })
	for n, part := range parts {
		for _, extension := range []string{".php", ".aspx", ".asp", ".jsp", ".html", ".htm", ".do", ".cgi", ".action"} {
			part = strings.TrimSuffix(part, extension)
		}
		parts[n] = strings.ReplaceAll(part, "_", "-")
	}
	return parts
}

var (
	signInWords = strings.Fields(`login log-in logon log-on signin sign-in signon sign-on sso auth authenticate authentication authorize
		oauth oauth2 saml saml2 openid openid-connect idp adfs cas wp-login identifier servicelogin user-login userlogin account-login
		members-login loginpage login-form dologin anmelden anmeldung einloggen connexion se-connecter connecter iniciar-sesion ingresar acceder accedi
		accesso entrar inloggen aanmelden zaloguj logowanie logga-in logg-inn log-ind giris prihlaseni kirjaudu`)
	secondFactorWords = strings.Fields(`2fa mfa otp totp two-factor twofactor two-step second-factor challenge checkpoint verify
		verification`)
	settingsWords = strings.Fields(`settings setting preferences profile security password passwords change-password password-change edit
		setup enroll enrollment admin administration options configuration config konto einstellungen new create`)
	// signInHosts are first labels of hosts that do nothing else. Others, such as accounts, do more.
	signInHosts = strings.Fields("login signin sign-in auth sso idp adfs passport")
)

func (a address) has(words []string) bool {
	return slices.ContainsFunc(a.segments, func(part string) bool { return slices.Contains(words, part) })
}

// isStart says whether the page is the one that shows whether somebody is signed in.
func (a address) isStart(k Known) bool {
	if k.Start == "" {
		return a.Path == "" || a.Path == "/"
	}
	start, err := url.Parse(k.Start)
	return err == nil && strings.EqualFold(start.Hostname(), a.Hostname()) &&
		strings.TrimSuffix(start.Path, "/") == strings.TrimSuffix(a.Path, "/")
}

// isSignIn says whether people sign in at the address.
func (a address) isSignIn() bool {
	for n, part := range a.segments {
		if part == "new" && n > 0 && (a.segments[n-1] == "session" || a.segments[n-1] == "sessions") {
			return true
		}
	}
	first, _, _ := strings.Cut(strings.ToLower(a.Hostname()), ".")
	return slices.Contains(signInHosts, first) || a.has(signInWords)
}

// isSettings says whether somebody who is signed in changes things at the address, such as a password.
func (a address) isSettings() bool { return !a.isSignIn() && a.has(settingsWords) }

// isAuthorization says whether the address asks another site who somebody is: OpenID Connect, OAuth, SAML or WS-Federation.
func (a address) isAuthorization() bool {
	q := a.Query()
	return q.Has("client_id") && (q.Has("redirect_uri") || q.Has("response_type")) || q.Has("SAMLRequest") || q.Has("wtrealm")
}

// returnsTo says whether a parameter of the address is a URL of the domain, to come back to.
func (a address) returnsTo(domain string) bool {
	for _, values := range a.Query() {
		for _, value := range values {
			if back, err := url.Parse(value); err == nil && back.Host != "" && cookies.Within(back.Hostname(), domain) {
				return true
			}
		}
	}
	return false
}
