package console

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session/signedout"
	"github.com/clawjail/clawjail/internal/vault"
)

const credentialsPath = Prefix + "/credentials"

func (c *Console) credentialRoutes() {
	c.get("/credentials", c.listAccounts)
	c.get("/credentials/import", c.newImport)
	c.post("/credentials/import", c.importAccount)
	c.get("/credentials/accounts/{tenant}/{domain}", c.showAccount)
	c.post("/credentials/accounts/{tenant}/{domain}/rules", c.setAccountRules)
	c.post("/credentials/accounts/{tenant}/{domain}/signed-in", c.setSignedIn)
	c.post("/credentials/accounts/{tenant}/{domain}/delete", c.deleteAccount)
	c.post("/credentials/accounts/{tenant}/{domain}/allow", c.allowAccount)
	c.get("/credentials/permissions", c.listPermissions)
	c.post("/credentials/permissions/disallow", c.disallowAccount)
	c.get("/credentials/secrets", c.listSecrets)
	c.get("/credentials/secrets/add", c.newSecret)
	c.post("/credentials/secrets/add", c.putSecret)
	c.post("/credentials/secrets/delete", c.deleteSecret)
	c.get("/credentials/grants", c.listGrants)
	c.get("/credentials/grants/issue", c.newGrant)
	c.post("/credentials/grants/issue", c.issueGrant)
	c.post("/credentials/grants/revoke", c.revokeGrant)
}

func credentialTabs(current string) []tab {
	return tabsOf(current, []tab{{Path: credentialsPath, Name: "Accounts"}, {Path: secretsPath, Name: "Secrets"}, {Path: grantsPath, Name: "Grants"},
		{Path: permissionsPath, Name: "Permissions"}})
}

// accountRow is an account in the list.
type accountRow struct {
	vault.CookieSet
	State  string // ok, expiring, expired, login needed, unreadable
	UsedBy string // the caller that opened the last session with it; empty when no record says
}

// Path is the account's page.
func (r accountRow) Path() string { return credentialsPath + "/accounts/" + r.Tenant + "/" + r.Domain }

// NeedsLogin says that somebody has to log in again.
func (r accountRow) NeedsLogin() bool { return r.State == accountExpired || r.State == accountAsked }

// Bound is how many of its cookies are bound to the device that they were made on.
func (r accountRow) Bound() int {
	n := 0
	for _, cookie := range r.Cookies {
		if cookie.DeviceBound {
			n++
		}
	}
	return n
}

// The states of accounts.
const (
	accountOK       = "ok"
	accountExpiring = "expiring"
	accountExpired  = "expired"
	accountAsked    = "login needed"
	accountBroken   = "unreadable"
)

type accountsPage struct {
	Tabs     []tab
	Accounts []accountRow
	Pager    pager
	Needed   int // accounts that somebody has to log in to
}

func (c *Console) listAccounts(q *request) error {
	all, err := c.accounts(q)
	if err != nil {
		return err
	}
	page := accountsPage{Tabs: credentialTabs(credentialsPath)}
	for _, a := range all {
		if a.NeedsLogin() {
			page.Needed++
		}
	}
	// Accounts that need a person to sign in come first.
	slices.SortStableFunc(all, func(a, b accountRow) int {
		switch {
		case a.NeedsLogin() == b.NeedsLogin():
			return 0
		case a.NeedsLogin():
			return -1
		}
		return 1
	})
	page.Accounts, page.Pager = paged(q, all)
	c.lastUsers(q, page.Accounts)
	return q.show("credentials", "Credentials", page)
}

// accounts are those that somebody may see, with their states.
func (c *Console) accounts(q *request) ([]accountRow, error) {
	all, err := c.Credentials.Cookies(q.ctx(), q.by, "")
	if err != nil {
		return nil, err
	}
	alerts, err := c.Credentials.NeedsRefresh(q.ctx(), q.by, "")
	if err != nil {
		return nil, err
	}
	asked := map[[2]string]string{}
	for _, a := range alerts {
		asked[[2]string{a.Tenant, a.Domain}] = a.Reason
	}
	out := make([]accountRow, len(all))
	for n, set := range all {
		out[n] = accountRow{CookieSet: set, State: c.stateOf(set, asked[[2]string{set.Tenant, set.Domain}])}
	}
	return out, nil
}

// stateOf is the state of an account; reason is why it needs somebody, if it does.
func (c *Console) stateOf(set vault.CookieSet, reason string) string {
	switch {
	case set.Problem != "":
		return accountBroken
	case reason == credential.AlertExpired:
		return accountExpired
	case reason != "":
		return accountAsked
	case credential.Expiring(set, c.Now()):
		return accountExpiring
	}
	return accountOK
}

// injections is how many records of use are looked at: of accounts that were used longer ago only the time is said.
const injections = 200

// lastUsers finds who opened the last sessions with accounts, in the audit log.
func (c *Console) lastUsers(q *request, accounts []accountRow) {
	if len(accounts) == 0 || identity.Can(q.by, identity.AuditRead, q.by.Tenant) != nil {
		return
	}
	rows, err := c.Audit.List(q.ctx(), audit.Filter{Tenant: q.by.Tenant, Action: "session.inject", Phase: "intent", Limit: injections, Newest: true})
	if err != nil {
		c.Log.Warn("find who used accounts", "error", err)
		return
	}
	names := c.names(q.ctx(), q.by)
	last := map[[2]string]string{}
	for _, row := range rows { // the newest comes last
		var detail struct {
			Domains []string `json:"domains"`
		}
		if json.Unmarshal(row.Detail, &detail) != nil {
			continue
		}
		for _, domain := range detail.Domains {
			last[[2]string{row.Tenant, domain}] = row.Actor
		}
	}
	for n := range accounts {
		a := &accounts[n]
		if actor := last[[2]string{a.Tenant, a.Domain}]; actor != "" {
			a.UsedBy = names.of(actor)
		}
	}
}

type accountPage struct {
	accountRow
	Form *form
	// SignedInForm says how to see whether the site still knows the account, and Lost by what it was seen that it does not.
	SignedInForm *form
	Lost         string
	// Deletable and Changeable say what the reader may do.
	Changeable, Deletable, Importable, Refreshable, Grantable bool
	// Permissions are who may use it without a grant, and Permit lets one more; nil for who may not.
	Permissions []permissionRow
	Permit      *permitting
}

// Lines are the cookies, without their values.
func (p accountPage) Lines() []vault.CookieInfo { return p.Cookies }

func (c *Console) accountPage(q *request, f *form) (*accountPage, error) {
	tenant := q.value("tenant")
	set, err := c.Credentials.CookieSet(q.ctx(), q.by, tenant, q.value("domain"))
	if err != nil {
		return nil, err
	}
	alerts, err := c.Credentials.NeedsRefresh(q.ctx(), q.by, tenant)
	if err != nil {
		return nil, err
	}
	reason := ""
	for _, a := range alerts {
		if a.Domain == set.Domain {
			reason = a.Reason
		}
	}
	may := func(op identity.Operation) bool { return identity.Can(q.by, op, tenant) == nil }
	page := &accountPage{accountRow: accountRow{CookieSet: set, State: c.stateOf(set, reason)}, Form: f, Changeable: may(identity.CookiesUpdate),
		Deletable: may(identity.CookiesDelete), Importable: may(identity.CookiesImport), Refreshable: may(identity.SessionRefresh), Grantable: may(identity.GrantIssue)}
	if page.Permissions, err = c.permissions(q, tenant, set.Domain); err != nil {
		return nil, err
	}
	if may(identity.CookiesAllow) {
		if page.Permit, err = c.permitting(q, tenant, blank("access", string(grant.AccessTools), "ask", string(grant.AskNever))); err != nil {
			return nil, err
		}
	}
	rows := []accountRow{page.accountRow}
	c.lastUsers(q, rows)
	page.accountRow = rows[0]
	page.SignedInForm = blank("signed_in_page", set.SignedIn.Page, "signed_in_marker", set.SignedIn.Marker)
	if set.SignedIn.Unwatched {
		page.SignedInForm.Values.Set("unwatched", "yes")
	}
	if reason != "" && reason != credential.AlertExpired {
		page.Lost = signedout.Reason(reason).Words()
	}
	if f == nil {
		page.Form = formOfRules(vault.Rules{Scopes: set.Scopes, MaxLeases: set.MaxLeases})
	}
	return page, nil
}

func (c *Console) showAccount(q *request) error {
	page, err := c.accountPage(q, nil)
	if err != nil {
		return err
	}
	return q.show("credentials_account", page.Domain, page)
}

func (c *Console) setAccountRules(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	rules := f.rules()
	if f.ok() {
		_, err = c.Credentials.SetRules(q.ctx(), q.by, q.value("tenant"), q.value("domain"), rules)
		if err := f.settle(err, map[string]string{"max_sessions": "max_sessions", "scopes": "max_sessions"}); err != nil {
			return err
		}
	}
	if !f.ok() {
		page, err := c.accountPage(q, f)
		if err != nil {
			return err
		}
		return q.again("credentials_account", page.Domain, page)
	}
	return q.done(accountRow{CookieSet: vault.CookieSet{Tenant: q.value("tenant"), Domain: q.value("domain")}}.Path(), "The rules are changed. They hold for sessions that are opened from now on.")
}

func (c *Console) setSignedIn(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	_, err = c.Credentials.SetSignedIn(q.ctx(), q.by, q.value("tenant"), q.value("domain"), f.signedIn())
	if err := f.settle(err, map[string]string{"signed_in.page": "signed_in_page", "signed_in.marker": "signed_in_marker"}); err != nil {
		return err
	}
	if !f.ok() {
		page, err := c.accountPage(q, nil)
		if err != nil {
			return err
		}
		page.SignedInForm = f
		return q.again("credentials_account", page.Domain, page)
	}
	return q.done(accountRow{CookieSet: vault.CookieSet{Tenant: q.value("tenant"), Domain: q.value("domain")}}.Path(), "Kept. It holds for sessions that are opened from now on.")
}

// signedIn reads the fields that say how to see whether a site still knows an account.
func (f *form) signedIn() vault.SignedIn {
	return vault.SignedIn{Page: f.Get("signed_in_page"), Marker: f.Get("signed_in_marker"), Unwatched: f.Has("unwatched")}
}

func (c *Console) deleteAccount(q *request) error {
	if _, err := q.form(); err != nil {
		return err
	}
	err := c.Credentials.DeleteCookies(q.ctx(), q.by, q.value("tenant"), q.value("domain"))
	return q.act(credentialsPath, err, "The account of %s is deleted.", q.value("domain"))
}

// formOfRules are the fields of rules, and rules reads them.
func formOfRules(r vault.Rules) *form {
	f := blank("max_sessions", sayNumber(r.MaxLeases))
	for _, scope := range r.Scopes {
		f.Values.Set("scope_"+scope, "yes")
	}
	return f
}

func (f *form) rules() vault.Rules {
	out := vault.Rules{Scopes: []string{}, MaxLeases: f.number("max_sessions")}
	for _, scope := range []grant.Access{grant.AccessTools, grant.AccessCDP} {
		if f.Has("scope_" + string(scope)) {
			out.Scopes = append(out.Scopes, string(scope))
		}
	}
	return out
}

// listed is a list in a sentence.
func listed(names []string) string { return strings.Join(names, ", ") }
