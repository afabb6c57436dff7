package console

import (
	"strconv"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
)

const permissionsPath = credentialsPath + "/permissions"

// permissionRow is a permission with names for people.
type permissionRow struct {
	grant.Permission
	GivenBy  string
	Takeable bool
}

// Account is the page of its account.
func (r permissionRow) Account() string {
	return credentialsPath + "/accounts/" + r.Tenant + "/" + r.Domain
}

// Over says that no session can be opened with it any more.
func (r permissionRow) Over() bool { return r.Left != nil && *r.Left == 0 }

type permissionsPage struct {
	Tabs        []tab
	Permissions []permissionRow
	Pager       pager
}

// permissions are those of a tenant for an account; of all accounts when domain is empty.
func (c *Console) permissions(q *request, tenant, domain string) ([]permissionRow, error) {
	all, err := c.Credentials.Permissions(q.ctx(), q.by, tenant)
	if err != nil {
		return nil, err
	}
	names := c.names(q.ctx(), q.by)
	var out []permissionRow
	for _, p := range all {
		if domain == "" || p.Domain == domain {
			out = append(out, permissionRow{Permission: p, GivenBy: names.of(p.By), Takeable: identity.Can(q.by, identity.CookiesDisallow, p.Tenant) == nil})
		}
	}
	return out, nil
}

func (c *Console) listPermissions(q *request) error {
	all, err := c.permissions(q, "", "")
	if err != nil {
		return err
	}
	page := permissionsPage{Tabs: credentialTabs(permissionsPath)}
	page.Permissions, page.Pager = paged(q, all)
	return q.show("credentials_permissions", "Permissions", page)
}

// permitting is the form that lets an agent use an account.
type permitting struct {
	Form   *form
	Agents []option
	Access []option
	Ask    []option
}

func (c *Console) permitting(q *request, tenant string, f *form) (*permitting, error) {
	agents, err := c.Identity.Agents(q.ctx(), q.by, tenant)
	if err != nil {
		return nil, err
	}
	out := &permitting{Form: f, Access: options(grant.AccessTools, grant.AccessCDP), Ask: []option{
		{Value: string(grant.AskNever), Label: "nobody"}, {Value: string(grant.AskFirst), Label: "a person, before the first use"},
		{Value: string(grant.AskAlways), Label: "a person, before each use"}}}
	for _, a := range agents {
		out.Agents = append(out.Agents, option{Value: a.Name, Label: a.Name})
	}
	return out, nil
}

func (c *Console) allowAccount(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	a := credential.Allow{Tenant: q.value("tenant"), Domain: q.value("domain"), Agent: f.Get("agent"), Access: grant.Access(f.Get("access")),
		Ask: grant.Ask(f.Get("ask")), Hours: grant.Hours(f.Get("hours"))}
	if a.For, err = grant.ParseFor(f.Get("for")); err != nil {
		if err := f.settleField("for", err); err != nil {
			return err
		}
	}
	if text := f.Get("times"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			f.wrong("times", "is not a number", "")
		}
		a.Times = &n
	}
	var made grant.Permission
	if f.ok() {
		made, err = c.Credentials.AllowAccount(q.ctx(), q.by, a)
		if err := f.settle(err, nil); err != nil {
			return err
		}
	}
	if f.ok() {
		return q.done(permissionRow{Permission: made}.Account(), "%s may use the account of %s now, without a grant each time.", made.AgentName, made.Domain)
	}
	page, err := c.accountPage(q, nil)
	if err != nil {
		return err
	}
	if page.Permit != nil {
		page.Permit.Form = f
	}
	return q.again("credentials_account", page.Domain, page)
}

func (c *Console) disallowAccount(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	// Within the tenant of whoever asks.
	p, ended, err := c.Credentials.DisallowAccount(q.ctx(), q.by, "", f.Get("id"))
	return q.act(permissionsPath, err, "%s may no longer use the account of %s. %s ended.", p.AgentName, p.Domain, plural(ended, "session"))
}
