package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// furnishRefresh puts a session to log in with into a fixture, the admin's, and what its browser has seen.
func furnishRefresh(w *fixture) {
	w.sessions.all = append(w.sessions.all, aRefresh("s_login", "acme", "example.com", w.admin))
	info := func(domain, name string, change func(*vault.CookieInfo)) vault.CookieInfo {
		out := vault.CookieInfo{ID: cookies.ID{Name: name, Domain: domain, Path: "/"}, Secure: true, ExpiresAt: time.Now().Add(20 * 24 * time.Hour)}
		change(&out)
		return out
	}
	w.sessions.seen = session.Seen{
		Sites: []session.SeenSite{
			{Domain: "example.com", Stored: true, Cookies: []vault.CookieInfo{
				info(".example.com", "sid", func(c *vault.CookieInfo) { c.HTTPOnly, c.SameSite = true, "Lax" }),
				info(".example.com", "bound", func(c *vault.CookieInfo) { c.HTTPOnly, c.DeviceBound = true, true }),
				info("www.example.com", hostile, func(c *vault.CookieInfo) { c.Session, c.ExpiresAt = true, time.Time{} })}},
			{Domain: "spa.test", Storage: []weblogin.OriginInfo{{Origin: "https://app.spa.test", Items: 1, Bytes: 2048, LeftOut: []string{hostile}}, {Origin: "https://spa.test", Items: 3, Bytes: 10, Databases: 2, Records: 1}}},
			{Domain: "tracker.test", Cookies: []vault.CookieInfo{info(".tracker.test", "id", func(*vault.CookieInfo) {})}}},
		Hosts: []string{"cdn.example.net", "fonts.example.org"},
	}
}

func TestRefreshPageSaysHowToBegin(t *testing.T) {
	w := newFixture(t)
	w.get("admin", "/console/refresh?domain=example.com").holds(t, http.StatusOK, "<h1>Log in to a site for your agents</h1>", `value="example.com"`, `name="tenant"`)
	p := w.get("acme operator", "/console/refresh")
	p.holds(t, http.StatusOK, "Which site?")
	p.lacks(t, `name="tenant"`)
	p = w.get("acme viewer", "/console/refresh")
	p.holds(t, http.StatusOK, "Your role may not")
	p.lacks(t, "Which site?", "<button class=\"primary\"")
}

func TestRefreshIsOpenedByForm(t *testing.T) {
	w := newFixture(t)
	p := w.post("acme operator", "/console/refresh", "domain", "Example.com", "url", "https://example.com/login")
	if p.status != http.StatusSeeOther || p.location != "/console/refresh/s_refresh" {
		t.Fatalf("%d to %q\n%s", p.status, p.location, p.body)
	}
	if w.sessions.asked[0] != "refresh acme example.com https://example.com/login" {
		t.Error(w.sessions.asked)
	}
	w.post("acme operator", "/console/refresh", "domain", "").holds(t, http.StatusUnprocessableEntity, "a site is needed")
	w.post("acme operator", "/console/refresh", "domain", "www.example.com").holds(t, http.StatusUnprocessableEntity,
		"write example.com", `value="www.example.com"`, `id="f-domain-wrong"`)
	if p := w.post("acme viewer", "/console/refresh", "domain", "example.com"); p.status == http.StatusSeeOther || len(w.sessions.asked) != 1 {
		t.Errorf("a viewer: %d, %v", p.status, w.sessions.asked)
	}
	w.get("acme operator", "/console/refresh").holds(t, http.StatusOK, "Going on now", `href="/console/refresh/s_refresh"`)
}

func TestRefreshShowsWhatTheBrowserHasSeen(t *testing.T) {
	w := newFixture(t)
	furnishRefresh(w)
	p := w.get("admin", "/console/refresh/s_login")
	p.holds(t, http.StatusOK, "<h1>Log in to example.com</h1>", `data-live="/console/sessions/s_login"`, `data-always="yes"`, "You are steering", escaped,
		`name="domain" value="example.com" checked`, `name="domain" value="tracker.test">`, `name="host" value="cdn.example.net">`, "1 bound to this device",
		`name="origin" value="https://app.spa.test" checked`, "1 entry, 2.0 KiB", "3 entries, 2 databases with 1 record, 10 B", "not kept: "+escaped, "HttpOnly", "SameSite=Lax", "replaces the account", "when the browser ends")
	p.lacks(t, "looks like a login", "SECRETVALUE", "Take over", "Hand back")
	w.sessions.seen.Sites = w.sessions.seen.Sites[1:]
	w.get("admin", "/console/refresh/s_login").holds(t, http.StatusOK, "Nothing here looks like a login to example.com yet")
}

func TestRefreshKeepsWhatWasChosenWhenTheListIsRenewed(t *testing.T) {
	w := newFixture(t)
	furnishRefresh(w)
	p := w.get("admin", "/console/refresh/s_login/seen?known=domain+example.com&known=domain+tracker.test&domain=tracker.test&known=host+cdn.example.net&host=cdn.example.net&known=origin+https://spa.test")
	p.holds(t, http.StatusOK, `name="domain" value="example.com">`, `name="origin" value="https://spa.test">`, `name="origin" value="https://app.spa.test" checked`, `name="domain" value="tracker.test" checked`, `name="host" value="cdn.example.net" checked`,
		`name="host" value="fonts.example.org">`)
	// A text that is as it was proposed is what is proposed now; one that the person has written stays.
	w.sessions.seen.SignedIn = vault.SignedIn{Page: "https://example.com/inbox", Marker: `a[href="/logout"]`}
	w.get("admin", "/console/refresh/s_login/seen?known=signed_in_page+https://example.com/&signed_in_page=https://example.com/&signed_in_marker=.mine").
		holds(t, http.StatusOK, `value="https://example.com/inbox" data-proposed="https://example.com/inbox"`, `value=".mine" data-proposed="a[href=&#34;/logout&#34;]"`)
	if strings.Contains(p.body, "<html") {
		t.Error("a part is a whole page")
	}
}

func TestRefreshIsOnlyForWhoOpenedIt(t *testing.T) {
	w := newFixture(t)
	furnishRefresh(w)
	p := w.get("acme operator", "/console/refresh/s_login")
	p.holds(t, http.StatusOK, "admin is logging in")
	p.lacks(t, "data-live=", "What clawjail sees", "Done")
	w.get("beta operator", "/console/refresh/s_login").holds(t, http.StatusNotFound)
	// A session of another kind is none to log in with, and the page of this one is here.
	w.sessions.all = append(w.sessions.all, aSession("s_clean", "acme"))
	w.get("admin", "/console/refresh/s_clean").holds(t, http.StatusNotFound, "not one to log in with")
	if p := w.get("admin", "/console/sessions/s_login"); p.location != "/console/refresh/s_login" {
		t.Errorf("%d to %q", p.status, p.location)
	}
}

// refreshed are credentials whose refreshes are only noted.
type refreshed struct {
	Credentials
	got   *credential.FinishRefresh
	wrong error
	late  error // after the cookies were kept
}

func (r *refreshed) FinishRefresh(_ context.Context, _ identity.Principal, f credential.FinishRefresh) ([]vault.CookieSet, error) {
	if r.wrong != nil {
		return nil, r.wrong
	}
	r.got = &f
	return []vault.CookieSet{{Tenant: "acme", Domain: f.Domains[0], Count: 2}}, r.late
}

func TestRefreshIsFinished(t *testing.T) {
	credentials := &refreshed{}
	w := newFixture(t, func(o *Options) { credentials.Credentials, o.Credentials = o.Credentials, credentials })
	furnishRefresh(w)
	w.account("acme", "example.com", 90*24*time.Hour)
	w.agent("acme", "shopper")
	finish := func(pairs ...string) page { return w.post("admin", "/console/refresh/s_login/finish", pairs...) }
	finish("known", "domain example.com").holds(t, http.StatusUnprocessableEntity, "nothing is chosen", `name="domain" value="example.com">`)
	if credentials.got != nil {
		t.Fatalf("nothing was chosen, and it kept %+v", credentials.got)
	}
	// Of a site that is not ticked nothing is kept, though a box of it is.
	p := finish("domain", "example.com", "host", "cdn.example.net", "origin", "https://app.example.com")
	if p.status != http.StatusSeeOther || !strings.HasPrefix(p.location, credentialsPath) {
		t.Fatalf("%d to %q\n%s", p.status, p.location, p.body)
	}
	if got := credentials.got; got.Session != "s_login" || len(got.Domains) != 1 || got.Domains[0] != "example.com" || len(got.EgressDomains) != 1 || !slices.Equal(got.Origins, []string{"https://app.example.com"}) {
		t.Errorf("it kept %+v", got)
	}
	if credentials.got.SignedIn != nil {
		t.Errorf("nothing was said of how it shows a login, and it kept %+v", credentials.got.SignedIn)
	}
	finish("domain", "example.com", "signed_in_page", "https://example.com/inbox", "signed_in_marker", ".avatar")
	if got := credentials.got.SignedIn; got == nil || *got != (vault.SignedIn{Page: "https://example.com/inbox", Marker: ".avatar"}) {
		t.Errorf("it kept %+v", got)
	}
	finish("domain", "example.com", "signed_in_page", "", "signed_in_marker", "")
	if got := credentials.got.SignedIn; got == nil || *got != (vault.SignedIn{}) {
		t.Errorf("with both emptied it kept %+v", got)
	}
	w.follow("admin", p).holds(t, http.StatusOK, "Stored: example.com (2 cookies)", "grant", "Let an agent use it")
	finish("domain", "example.com", "origin", "https://app.spa.test")
	if got := credentials.got; got.Origins == nil || len(got.Origins) > 0 {
		t.Errorf("it kept %+v", got)
	}
	credentials.late = errors.New("the session does not close")
	w.follow("admin", finish("domain", "example.com")).holds(t, http.StatusOK, "Stored: example.com (2 cookies)")
	// A failure leaves the choice and the browser as they are.
	credentials.wrong = problem.New(problem.BadCookie, "log in again", "the cookie %s cannot be kept", hostile)
	values := url.Values{"domain": {"tracker.test"}, "known": {"domain tracker.test", "domain example.com"}}
	w.send("admin", http.MethodPost, "/console/refresh/s_login/finish", values).holds(t, http.StatusUnprocessableEntity, "cannot be kept", "log in again",
		`name="domain" value="tracker.test" checked`, `name="domain" value="example.com">`)
}

func TestRefreshIsCancelled(t *testing.T) {
	w := newFixture(t)
	furnishRefresh(w)
	w.get("admin", "/console/refresh/s_login").holds(t, http.StatusOK, "Nothing is kept.")
	p := w.post("admin", "/console/refresh/s_login/cancel")
	w.follow("admin", p).holds(t, http.StatusOK, "Cancelled. Nothing of example.com was stored.")
	w.get("admin", "/console/refresh/s_login").holds(t, http.StatusOK, "It is over: it was closed")
}
