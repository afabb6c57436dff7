// Package signedout tells from what a page shows whether its site still knows an account, or has forgotten it.
//
// It decides by rules and keeps nothing. A page that can be read in two ways says nothing: an account that is said to be
// signed out costs a person a login.
package signedout

import (
	"net/url"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
)

// Reason says by what a login was seen to be gone.
type Reason string

// The reasons.
const (
	None         Reason = ""
	LoginPage    Reason = "login_page"      // the page asks to sign in
	Refused      Reason = "refused"         // the start page answers 401 or 403
	Deleted      Reason = "cookies_deleted" // the site has deleted the cookies
	Password     Reason = "password_field"  // the page asks for a password, and did not before
	MarkerGone   Reason = "marker_gone"     // what a signed-in page has is not there
	SecondFactor Reason = "second_factor"   // the site asks for a second factor
)

// Words say what the site did, as the end of a sentence that begins with it.
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
		return "does not show what a signed-in page has"
	case SecondFactor:
		return "asked an agent for a second factor"
	}
	return "asks to log in"
}

// Known is what is known of the account that a page is looked at for.
type Known struct {
	// Domain is the registrable domain of the account.
	Domain string
	// Start is a page that shows whether the account is signed in; empty for the first page of the domain.
	Start string
	// Marked says that there is a selector of what signed-in pages have, and Marker that this one has it.
	Marked, Marker bool
	// Deleted says that the site has deleted the cookies that sign in, and set no others.
	Deleted bool
	// Before says that the last visit of this page saw no field for a password.
	Before bool
	// Settled says that the page has had its time to show what it is going to show.
	Settled bool
	// Came says that the tab came to this page from one of the domain.
	Came bool
}

// Verdict is what a page says of an account. At most one of the fields is set.
type Verdict struct {
	Out Reason
	In  bool // the page is for somebody who is signed in
}

// Judge says what a page says of an account.
func Judge(p browser.SignInPage, k Known) Verdict {
	at, err := url.Parse(p.URL)
	if err != nil || at.Scheme != "https" && at.Scheme != "http" {
		return Verdict{}
	}
	if !cookies.Within(at.Hostname(), k.Domain) {
		return elsewhere(p, at, k)
	}
	switch {
	case p.Failed, p.Status >= 500, p.Status == 402, p.Status == 429, p.Status == 451:
		return Verdict{} // the site is away, sells something, or has had enough
	case k.Marker, p.SignOut:
		return Verdict{In: true}
	case k.Deleted:
		return Verdict{Out: Deleted}
	case p.Passwords == 0 && (p.Captcha || p.Human):
		return Verdict{}
	}
	start := isStart(at, k)
	if start && p.Status == 401 {
		return Verdict{Out: Refused}
	}
	asks := p.Form || signInAddress(at) && (p.Passwords > p.NewPasswords || p.Identifier || p.Federated)
	switch {
	case p.Code && !settings(at) && (p.Passwords == 0 || secondFactor(at)):
		return Verdict{Out: SecondFactor}
	case p.Status == 403 && p.Blocked && !signInAddress(at):
		return Verdict{}
	case asks && (signInAddress(at) || !p.Paywall && (start || !settings(at))):
		return Verdict{Out: LoginPage}
	case start && p.Status == 403:
		return Verdict{Out: Refused}
	case k.Before && !p.Paywall && p.Passwords == 1 && p.NewPasswords == 0 && !settings(at):
		return Verdict{Out: Password}
	case start && k.Marked && k.Settled && p.Loaded && !p.Cut && !p.Blocked && !p.Away && !p.Paywall:
		return Verdict{Out: MarkerGone}
	}
	return Verdict{}
}

// elsewhere judges a page of a domain that no account of the session is of: the site may have sent its user there to sign in.
func elsewhere(p browser.SignInPage, at *url.URL, k Known) Verdict {
	asks := p.Failed || p.Passwords > p.NewPasswords || p.Identifier || p.Federated || p.Code || p.Status == 401 || p.Status == 403
	if !asks || !signInAddress(at) && !authorizes(at) {
		return Verdict{}
	}
	if k.Came || returnsTo(at, k.Domain) {
		return Verdict{Out: LoginPage}
	}
	return Verdict{}
}

// isStart says whether a page is the one that shows whether somebody is signed in.
func isStart(at *url.URL, k Known) bool {
	if k.Start == "" {
		return at.Path == "" || at.Path == "/"
	}
	start, err := url.Parse(k.Start)
	return err == nil && strings.EqualFold(start.Hostname(), at.Hostname()) && strings.TrimSuffix(start.Path, "/") == strings.TrimSuffix(at.Path, "/")
}

// segments are the parts of a path, and of a fragment that is one, in lower case and without what a server is written in.
func segments(at *url.URL) []string {
	path := at.Path
	if strings.HasPrefix(at.Fragment, "/") || strings.HasPrefix(at.Fragment, "!/") {
		path += "/" + at.Fragment
	}
	parts := strings.FieldsFunc(strings.ToLower(path), func(r rune) bool { return r == '/' || r == '!' || r == ';' || r == '?' })
	for n, part := range parts {
		for _, suffix := range []string{".php", ".aspx", ".asp", ".jsp", ".html", ".htm", ".do", ".cgi", ".action"} {
			part = strings.TrimSuffix(part, suffix)
		}
		parts[n] = strings.ReplaceAll(part, "_", "-")
	}
	return parts
}

func hasSegment(at *url.URL, words []string) bool {
	return slices.ContainsFunc(segments(at), func(part string) bool { return slices.Contains(words, part) })
}

var (
	signInWords = []string{"login", "log-in", "logon", "log-on", "signin", "sign-in", "signon", "sign-on", "sso", "auth", "authenticate", "authentication",
		"authorize", "oauth", "oauth2", "saml", "saml2", "openid", "openid-connect", "idp", "adfs", "cas", "wp-login", "identifier", "servicelogin", "user-login", "userlogin",
		"account-login", "members-login", "loginpage", "login-form", "dologin", "anmelden", "anmeldung", "einloggen", "connexion", "se-connecter", "connecter", "iniciar-sesion",
		"ingresar", "acceder", "accedi", "accesso", "entrar", "inloggen", "aanmelden", "zaloguj", "logowanie", "logga-in", "logg-inn", "log-ind", "giris", "prihlaseni", "kirjaudu"}
	secondFactorWords = []string{"2fa", "mfa", "otp", "totp", "two-factor", "twofactor", "two-step", "second-factor", "challenge", "checkpoint", "verify", "verification"}
	settingsWords     = []string{"settings", "setting", "preferences", "profile", "security", "password", "passwords", "change-password", "password-change", "edit", "setup", "enroll",
		"enrollment", "admin", "administration", "options", "configuration", "config", "konto", "einstellungen", "new", "create"}
	// signInHosts are first labels of hosts that do nothing else. Others, such as accounts, do more.
	signInHosts = []string{"login", "signin", "sign-in", "auth", "sso", "idp", "adfs", "passport"}
)

// signInAddress says whether an address is one where people sign in.
func signInAddress(at *url.URL) bool {
	first, _, _ := strings.Cut(strings.ToLower(at.Hostname()), ".")
	parts := segments(at)
	for n, part := range parts {
		if part == "new" && n > 0 && (parts[n-1] == "session" || parts[n-1] == "sessions") {
			return true
		}
	}
	return slices.Contains(signInHosts, first) || hasSegment(at, signInWords)
}

func secondFactor(at *url.URL) bool { return hasSegment(at, secondFactorWords) }

// settings says whether an address is one where somebody who is signed in changes things, such as a password.
func settings(at *url.URL) bool { return !signInAddress(at) && hasSegment(at, settingsWords) }

// authorizes says whether an address asks another site who somebody is: OpenID Connect, OAuth, SAML or WS-Federation.
func authorizes(at *url.URL) bool {
	q := at.Query()
	return q.Has("client_id") && (q.Has("redirect_uri") || q.Has("response_type")) || q.Has("SAMLRequest") || q.Has("wtrealm")
}

// returnsTo says whether an address names a place of the domain to come back to.
func returnsTo(at *url.URL, domain string) bool {
	for _, values := range at.Query() {
		for _, value := range values {
			if back, err := url.Parse(value); err == nil && back.Host != "" && cookies.Within(back.Hostname(), domain) {
				return true
			}
		}
	}
	return false
}
