package console

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestAccountsAreListedWithTheirStatesAndNoValues(t *testing.T) {
	w := newFixture(t)
	w.get("acme operator", "/console/credentials").holds(t, http.StatusOK, "No accounts yet", "/console/refresh")
	w.account("acme", "example.com", 30*24*time.Hour)
	w.oldAccount("acme", "example.org", 24*time.Hour)
	w.account("acme", "example.net", 30*24*time.Hour)
	w.account("beta", "example.edu", 30*24*time.Hour)
	w.signedOut("acme", "example.net")
	operator := w.who["acme operator"]
	pending, err := w.log.Begin(w.ctx, audit.Intent{Action: "session.inject", Tenant: "acme", Actor: operator.Actor(),
		Detail: audit.NewDetail(audit.Fields{"domains": []string{"example.com"}})})
	w.must(err)
	pending.End(audit.Outcome{Result: audit.OK})

	p := w.get("acme operator", "/console/credentials")
	p.holds(t, http.StatusOK, "example.com", ">ok<", ">expiring<", ">login needed<", "1 account needs somebody", `action="/console/refresh"`, "Log in again", "1 session at once")
	p.lacks(t, "example.edu", cookieValue)
	if needed, good := strings.Index(p.body, ">example.net<"), strings.Index(p.body, ">example.com<"); needed > good {
		t.Error("what needs somebody does not come first")
	}
	admin := w.get("admin", "/console/credentials")
	admin.holds(t, http.StatusOK, "example.edu", "of beta", "by operator operator")
	viewer := w.get("acme viewer", "/console/credentials")
	viewer.holds(t, http.StatusOK, "example.com", "by operator")
	viewer.lacks(t, "Log in", "Import")
}

func TestHowALostLoginIsSeenIsChanged(t *testing.T) {
	w := newFixture(t)
	w.account("acme", "example.com", 30*24*time.Hour)
	w.signedOut("acme", "example.com")
	const path = "/console/credentials/accounts/acme/example.com"
	w.get("acme operator", path).holds(t, http.StatusOK, ">login needed<", "Its site asked an agent to log in", `name="signed_in_page"`)
	p := w.get("acme viewer", path)
	p.holds(t, http.StatusOK, "the first of its domain")
	p.lacks(t, `name="signed_in_page"`)
	w.post("acme operator", path+"/signed-in", "signed_in_page", "https://example.org/", "signed_in_marker", ".avatar").
		holds(t, http.StatusUnprocessableEntity, "must be the address of a page of example.com", `value="https://example.org/"`, `value=".avatar"`)
	if p := w.post("acme operator", path+"/signed-in", "signed_in_page", "https://example.com/inbox", "signed_in_marker", ".avatar", "unwatched", "yes"); p.status != http.StatusSeeOther {
		t.Fatalf("%d\n%s", p.status, p.body)
	}
	w.get("acme operator", path).holds(t, http.StatusOK, `value="https://example.com/inbox"`, `value=".avatar"`, `name="unwatched" value="yes" checked`)
	w.get("acme viewer", path).holds(t, http.StatusOK, "https://example.com/inbox", "<code>.avatar</code>")
	w.post("acme viewer", path+"/signed-in", "signed_in_page", "").holds(t, http.StatusForbidden)
	w.post("beta operator", path+"/signed-in", "signed_in_page", "").holds(t, http.StatusNotFound)
}

func TestAnAccountIsShownWithoutValuesAndChanged(t *testing.T) {
	w := newFixture(t)
	w.account("acme", "example.com", 30*24*time.Hour)
	path := "/console/credentials/accounts/acme/example.com"
	p := w.get("acme operator", path)
	p.holds(t, http.StatusOK, "<h1>example.com</h1>", "sid", "theme", "HttpOnly", "with the browser", "Delete", "Issue a grant", "2 cookies")
	p.lacks(t, cookieValue)
	p.holds(t, http.StatusOK, "programs such as Playwright: "+grant.CDPReads)
	viewer := w.get("acme viewer", path)
	viewer.holds(t, http.StatusOK, "sid", "Sessions with tools, 1 session at once.")
	viewer.lacks(t, "Delete", "Change the rules", "Issue a grant", "Log in again", "Replace by")

	w.follow("acme operator", w.post("acme operator", path+"/rules", "scope_cdp", "yes", "max_sessions", "3")).holds(t, http.StatusOK, "The rules are changed.", `value="3"`)
	set, err := w.accounts.CookieSet(w.ctx, w.admin, "acme", "example.com")
	w.must(err)
	if set.MaxLeases != 3 || fmt.Sprint(set.Scopes) != "[cdp]" {
		t.Errorf("the rules are %d, %v", set.MaxLeases, set.Scopes)
	}
	for _, bad := range []string{"", "0", "many", "1001"} {
		w.post("acme operator", path+"/rules", "scope_tools", "yes", "max_sessions", bad).holds(t, http.StatusUnprocessableEntity, `id="f-max_sessions-wrong"`, `name="scope_tools" value="yes" checked`)
	}
	for _, action := range []string{"/rules", "/delete"} {
		w.post("acme viewer", path+action, "max_sessions", "1").holds(t, http.StatusForbidden)
		w.post("beta operator", path+action, "max_sessions", "1").holds(t, http.StatusNotFound)
	}
	w.get("beta viewer", path).holds(t, http.StatusNotFound)
	w.get("acme viewer", "/console/credentials/accounts/acme/unknown.example").holds(t, http.StatusNotFound)
	w.follow("acme operator", w.post("acme operator", path+"/delete")).holds(t, http.StatusOK, "The account of example.com is deleted.", "No accounts yet")
}

// upload sends the form of an import.
func (w *fixture) upload(who, file string, pairs ...string) page {
	w.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for n := 0; n+1 < len(pairs); n += 2 {
		w.must(form.WriteField(pairs[n], pairs[n+1]))
	}
	part, err := form.CreateFormFile("file", "cookies.json")
	w.must(err)
	_, err = part.Write([]byte(file))
	w.must(err)
	w.must(form.Close())
	r := httptest.NewRequest(http.MethodPost, "http://localhost:18780/console/credentials/import", &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: who})
	out := httptest.NewRecorder()
	w.ServeHTTP(out, r)
	return page{status: out.Code, body: out.Body.String(), header: out.Header(), location: out.Header().Get("Location")}
}

// stateFile is a storage state of Playwright.
func stateFile(domains ...string) string {
	var list []string
	for _, domain := range domains {
		list = append(list, fmt.Sprintf(`{"name":"sid","value":%q,"domain":%q,"path":"/","expires":%d,"httpOnly":true,"secure":true,"sameSite":"Lax"}`, cookieValue, domain,
			time.Now().Add(time.Hour).Unix()))
	}
	return `{"cookies":[` + strings.Join(list, ",") + `],"origins":[]}`
}

func TestCookiesAreImportedFromAFileOrFromText(t *testing.T) {
	w := newFixture(t)
	w.get("acme operator", "/console/credentials/import").holds(t, http.StatusOK, "<h1>Import cookies</h1>", `enctype="multipart/form-data"`)
	sent := w.upload("acme operator", stateFile(".example.com", "other.example"), "domain", "Example.com", "scope_tools", "yes", "max_sessions", "2", "cookies", "")
	if sent.status != http.StatusSeeOther || sent.location != "/console/credentials/accounts/acme/example.com" {
		t.Fatalf("%d to %q\n%s", sent.status, sent.location, sent.body)
	}
	w.follow("acme operator", sent).holds(t, http.StatusOK, "example.com now has 1 cookie.", `value="2"`)
	text := ".example.org\tTRUE\t/\tTRUE\t" + fmt.Sprint(time.Now().Add(time.Hour).Unix()) + "\tsid\t" + cookieValue + "\n"
	w.upload("acme operator", "", "domain", "example.org", "scope_cdp", "yes", "max_sessions", "1", "cookies", text).holds(t, http.StatusSeeOther)
	err := w.accounts.Vault.UseLogin(w.ctx, "acme", "example.org", func(l weblogin.Login) error {
		list := l.Cookies
		if len(list) != 1 || !list[0].Value.Equal(secret.New([]byte(cookieValue))) {
			t.Errorf("it has %d cookies", len(list))
		}
		return nil
	})
	w.must(err)
	state := `{"cookies":[],"origins":[{"origin":"https://app.example.net","localStorage":[{"name":"token","value":"` + cookieValue + `"}]}]}`
	sent = w.upload("acme operator", state, "domain", "example.net", "scope_tools", "yes", "max_sessions", "1", "cookies", "")
	p := w.follow("acme operator", sent)
	p.holds(t, http.StatusOK, "example.net now has 0 cookies and storage of 1 origin.", "https://app.example.net", "Storage")
	p.lacks(t, cookieValue)
	w.get("acme operator", "/console/credentials").holds(t, http.StatusOK, "and storage of 1 origin")
	w.upload("acme operator", state, "domain", "", "scope_tools", "yes", "max_sessions", "1", "cookies", "").holds(t, http.StatusUnprocessableEntity, "example.net (0 and storage)")
	w.get("acme operator", "/console/credentials/import?tenant=acme&domain=example.com").holds(t, http.StatusOK, "What is kept of example.com now will be gone", `value="2"`)
	if logged := w.written.String(); strings.Contains(logged, cookieValue) {
		t.Errorf("the log has a value: %s", logged)
	}
}

func TestWhatIsWrongWithAnImportIsSaidAndNothingIsStored(t *testing.T) {
	w := newFixture(t)
	old := strings.Replace(stateFile(".example.com"), fmt.Sprint(time.Now().Add(time.Hour).Unix())[:3], "100", 1)
	for name, c := range map[string]struct {
		file, domain, field, message string
	}{
		"no file":         {"", "example.com", "cookies", "choose a file"},
		"no cookie file":  {"hello", "example.com", "cookies", ""},
		"no domain":       {stateFile(".example.com", ".example.com", "shop.example.org"), "", "domain", "cookies of example.com (2), example.org (1)"},
		"a part of one":   {stateFile(".example.com"), "shop.example.com", "domain", "is not a registrable domain"},
		"another domain":  {stateFile(".example.com"), "example.org", "cookies", "no cookie of example.org"},
		"expired":         {old, "example.com", "cookies", "they have expired"},
		"hostile content": {strings.ReplaceAll(stateFile(".example.com"), "example.com", "<img src=x>.com"), "", "domain", "the file has no cookies"},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.upload("acme operator", c.file, "domain", c.domain, "scope_tools", "yes", "max_sessions", "2", "cookies", "")
			p.holds(t, http.StatusUnprocessableEntity, `id="f-`+c.field+`-wrong"`, c.message, `name="max_sessions" value="2"`)
			p.lacks(t, cookieValue)
		})
	}
	pasted := w.upload("acme operator", "", "domain", "example.org", "max_sessions", "1", "cookies", stateFile(".example.com"))
	pasted.holds(t, http.StatusUnprocessableEntity)
	pasted.lacks(t, cookieValue)
	w.upload("acme viewer", stateFile(".example.com"), "domain", "example.com", "max_sessions", "1").holds(t, http.StatusForbidden)
	w.upload("acme operator", stateFile(".example.com"), "domain", "example.com", "tenant", "beta", "max_sessions", "1").holds(t, http.StatusNotFound)
	w.get("acme viewer", "/console/credentials/import").holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/credentials/import", "domain", "example.com").holds(t, http.StatusBadRequest)
	if all, err := w.accounts.Cookies(w.ctx, w.admin, ""); err != nil || len(all) != 0 {
		t.Errorf("it has stored %v, %v", all, err)
	}
}

func TestSecretsAreWrittenAndNeverShown(t *testing.T) {
	w := newFixture(t)
	builder := w.agent("acme", "builder")
	w.get("acme operator", "/console/credentials/secrets").holds(t, http.StatusOK, "No secrets yet", "Add a secret")
	const value = "ghp_thesecretvalue"
	added := w.post("acme operator", "/console/credentials/secrets/add", "service", "github", "whose", "acme/builder", "value", " "+value+"\n",
		"origins", " https://API.example.com  jail ")
	shown := w.follow("acme operator", added)
	shown.holds(t, http.StatusOK, "The secret github is saved.", "builder", "never", "https://api.example.com", "jail", "secrets/add?replace=yes&amp;service=github&amp;whose=acme%2fbuilder")
	shown.lacks(t, value)
	key := "-----BEGIN KEY-----\nabc\n-----END KEY-----\n"
	for origin, want := range map[string]int{"https://api.example.com": http.StatusUnprocessableEntity, "jail": http.StatusSeeOther} {
		w.post("acme operator", "/console/credentials/secrets/add", "service", "deploy", "whose", "acme", "value", "", "lines", strings.ReplaceAll(key, "\n", "\r\n"),
			"origins", origin).holds(t, want)
	}
	for name, want := range map[vault.SecretName]string{{Tenant: "acme", Agent: builder.ID, Service: "github"}: value, {Tenant: "acme", Service: "deploy"}: key} {
		w.must(w.accounts.Vault.UseSecret(w.ctx, name, vault.InJail, func(v secret.Value) error {
			if !v.Equal(secret.New([]byte(want))) {
				t.Errorf("%s is kept as something else", name.Service)
			}
			return nil
		}))
	}
	w.get("acme operator", "/console/credentials/secrets/add?replace=yes&service=github&whose=acme/builder").holds(t, http.StatusOK, "<h1>Replace a secret</h1>", "Agent builder")
	wrong := w.post("acme operator", "/console/credentials/secrets/add", "service", "Git Hub "+hostile, "whose", "acme", "value", value)
	wrong.holds(t, http.StatusUnprocessableEntity, `id="f-service-wrong"`, "&lt;img")
	wrong.lacks(t, value)
	w.post("acme operator", "/console/credentials/secrets/add", "service", "github", "whose", "acme", "value", " ").holds(t, http.StatusUnprocessableEntity, `id="f-value-wrong"`)

	viewer := w.get("acme viewer", "/console/credentials/secrets")
	viewer.holds(t, http.StatusOK, "github")
	viewer.lacks(t, "Add a secret", "Replace", "Delete")
	w.get("acme viewer", "/console/credentials/secrets/add").holds(t, http.StatusForbidden)
	w.post("acme viewer", "/console/credentials/secrets/add", "service", "github", "whose", "acme", "value", "x").holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/credentials/secrets/add", "service", "github", "whose", "beta", "value", "x").holds(t, http.StatusNotFound)
	w.post("acme viewer", "/console/credentials/secrets/delete", "service", "github", "tenant", "acme").holds(t, http.StatusForbidden)
	w.post("beta operator", "/console/credentials/secrets/delete", "service", "github", "tenant", "acme").holds(t, http.StatusNotFound)
	w.get("beta viewer", "/console/credentials/secrets").lacks(t, "github", "deploy")
	w.follow("acme operator", w.post("acme operator", "/console/credentials/secrets/delete", "service", "github", "tenant", "acme", "agent", builder.ID)).
		holds(t, http.StatusOK, "The secret github is deleted.")
	if strings.Contains(w.written.String(), value) {
		t.Error("the log has a value")
	}
}

func TestAGrantIsIssuedShownOnceAndRevoked(t *testing.T) {
	w := newFixture(t)
	w.get("acme operator", "/console/credentials/grants/issue").holds(t, http.StatusOK, "There are no accounts")
	_, err := w.accounts.Import(w.ctx, w.admin, credential.Import{Tenant: "acme", Domain: "example.com", Rules: &vault.Rules{Scopes: []string{"cdp"}, MaxLeases: 1}, Cookies: []cookies.Cookie{cookie("example.com", "sid", cookieValue, 0)}})
	w.must(err)
	w.account("beta", "example.net", 0)
	set, err := w.accounts.Vault.Cookies(w.ctx, "acme", "example.com")
	w.must(err)
	_, err = w.accounts.Vault.PutCookies(w.ctx, vault.NewCookies{Tenant: set.Tenant, Domain: set.Domain, Cookies: []cookies.Cookie{cookie("example.com", "sid", cookieValue, 0)},
		EgressDomains: []string{"cdn.example.org"}})
	w.must(err)

	form := w.get("acme operator", "/console/credentials/grants/issue?domain=example.com")
	form.holds(t, http.StatusOK, `name="domains" value="example.com" checked`, "and what its site needs: cdn.example.org")
	form.lacks(t, "example.net")
	form.holds(t, http.StatusOK, "cdp lets DevTools clients in: "+grant.CDPReads)
	w.get("admin", "/console/credentials/grants/issue?tenant=beta").holds(t, http.StatusOK, "example.net", `<option value="beta" selected>`)
	issued := w.post("acme operator", "/console/credentials/grants/issue", "tenant", "acme", "domains", "example.com", "with", "example.com", "egress_domains", "www.example.net\n",
		"access", "cdp", "ttl", "5m")
	issued.holds(t, http.StatusOK, `id="token">v4.public.`, "clawjail session open --mode operator --domain example.com --access cdp", "cdn.example.org, www.example.net")
	if cache := issued.header.Get("Cache-Control"); cache != "no-store" {
		t.Errorf("the token may be kept: %q", cache)
	}
	token, _, _ := strings.Cut(issued.body[strings.Index(issued.body, "v4.public."):], "<")
	all, err := w.accounts.ListGrants(w.ctx, w.admin, "acme")
	w.must(err)
	if len(all) != 1 || all[0].ExpiresAt.Sub(all[0].IssuedAt) != 5*time.Minute || all[0].Access != "cdp" || all[0].Operator != w.who["acme operator"].Actor() {
		t.Fatalf("the grants are %+v", all)
	}
	list := w.get("acme operator", "/console/credentials/grants")
	list.holds(t, http.StatusOK, "example.com", ">active<", "Revoke", "operator operator")
	list.lacks(t, token)
	viewer := w.get("acme viewer", "/console/credentials/grants")
	viewer.holds(t, http.StatusOK, "example.com")
	viewer.lacks(t, "Revoke", "Issue a grant")
	w.post("acme viewer", "/console/credentials/grants/revoke", "id", all[0].ID).holds(t, http.StatusForbidden)
	w.post("beta operator", "/console/credentials/grants/revoke", "id", all[0].ID).holds(t, http.StatusNotFound)
	w.get("beta viewer", "/console/credentials/grants").lacks(t, all[0].ID)
	w.follow("acme operator", w.post("acme operator", "/console/credentials/grants/revoke", "id", all[0].ID)).holds(t, http.StatusOK, "The grant is revoked.", ">revoked<")
	if grants, err := w.accounts.ListGrants(w.ctx, w.admin, "acme"); err != nil || grant.State(grants[0], time.Now()) != "revoked" {
		t.Errorf("%+v, %v", grants, err)
	}
}

func TestWhatIsWrongWithAGrantIsSaidBesideItsField(t *testing.T) {
	w := newFixture(t)
	w.account("acme", "example.com", 0)
	for name, c := range map[string]struct {
		fields []string
		place  string
	}{
		"no account":              {nil, `id="domains-wrong"`},
		"a bad time":              {[]string{"domains", "example.com", "ttl", "soon"}, `id="f-ttl-wrong"`},
		"too long":                {[]string{"domains", "example.com", "ttl", "9000h"}, `id="f-ttl-wrong"`},
		"a bad domain":            {[]string{"domains", "example.com", "egress_domains", "*.example.net"}, `id="f-egress_domains-wrong"`},
		"a bad access":            {[]string{"domains", "example.com", "access", "everything"}, `id="f-access-wrong"`},
		"one that is forbidden":   {[]string{"domains", "example.com", "access", "cdp"}, `id="f-access-wrong"`},
		"an account that is gone": {[]string{"domains", "example.org"}, `id="domains-wrong"`},
		"a bad session":           {[]string{"domains", "example.com", "origin", "a b"}, `id="f-origin-wrong"`},
	} {
		t.Run(name, func(t *testing.T) {
			fields := append([]string{"tenant", "acme", "egress_domains", "", "access", "tools", "ttl", "", "origin", ""}, c.fields...)
			w.post("acme operator", "/console/credentials/grants/issue", fields...).holds(t, http.StatusUnprocessableEntity, c.place, "Issue a grant")
		})
	}
	w.get("acme viewer", "/console/credentials/grants/issue").holds(t, http.StatusForbidden)
	w.post("acme viewer", "/console/credentials/grants/issue", "tenant", "acme", "domains", "example.com").holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/credentials/grants/issue", "tenant", "beta", "domains", "example.com").holds(t, http.StatusNotFound)
	if all, err := w.accounts.ListGrants(w.ctx, w.admin, ""); err != nil || len(all) != 0 {
		t.Errorf("grants were issued: %v, %v", all, err)
	}
}
