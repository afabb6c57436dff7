package console

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
)

const grantsPath = credentialsPath + "/grants"

// grantRow is a grant in the list.
type grantRow struct {
	grant.Grant
	State     string
	IssuedBy  string
	EndedBy   string
	Revocable bool
}

type grantsPage struct {
	Tabs    []tab
	Grants  []grantRow
	Pager   pager
	Allowed bool
}

func (c *Console) listGrants(q *request) error {
	all, err := c.Credentials.ListGrants(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	names := c.names(q.ctx(), q.by)
	page := grantsPage{Tabs: credentialTabs(grantsPath), Allowed: identity.Can(q.by, identity.GrantIssue, q.by.TenantOr("")) == nil}
	all, page.Pager = paged(q, all)
	for _, g := range all {
		row := grantRow{Grant: g, State: grant.State(g, c.Now()), IssuedBy: names.of(g.Operator), EndedBy: names.of(g.RevokedBy)}
		row.Revocable = (row.State == "active" || row.State == "pending") && identity.Can(q.by, identity.GrantRevoke, g.Tenant) == nil
		page.Grants = append(page.Grants, row)
	}
	return q.show("credentials_grants", "Grants", page)
}

// choice is an account that a grant can be for.
type choice struct {
	Domain string
	State  string
	Chosen bool
	// Needs are other domains that its site needs, and With says that the grant is for them too.
	Needs []string
	With  bool
}

type grantPage struct {
	Form    *form
	Tenants []option
	Tenant  string
	Choices []choice
	Wrong   []string // what is wrong with the choice
	Access  []option
	Default string // how long a grant is good when nobody says
}

func (c *Console) showGrant(q *request, f *form, again bool) error {
	accounts, err := c.accounts(q)
	if err != nil {
		return err
	}
	page := grantPage{Form: f, Tenant: f.Get("tenant"), Access: options(grant.AccessTools, grant.AccessCDP), Default: strings.TrimSuffix(c.Config.Grants.TTL.String(), "0s")}
	if q.by.Tenant == "" {
		if page.Tenants, err = c.tenantOptions(q); err != nil {
			return err
		}
	}
	for _, a := range accounts {
		if a.Tenant != page.Tenant {
			continue
		}
		// The domains that an account needs are proposed until the person says otherwise.
		page.Choices = append(page.Choices, choice{Domain: a.Domain, State: a.State, Chosen: slices.Contains(f.Values["domains"], a.Domain),
			Needs: a.EgressDomains, With: !again || slices.Contains(f.Values["with"], a.Domain)})
	}
	for _, flaw := range f.flaws["domains"] {
		page.Wrong = append(page.Wrong, flaw.Message)
	}
	if !again {
		return q.show("credentials_grant", "Issue a grant", page)
	}
	return q.again("credentials_grant", "Issue a grant", page)
}

func (c *Console) newGrant(q *request) error {
	f := blank("tenant", q.by.TenantOr(q.query("tenant")), "access", string(grant.AccessTools))
	for _, name := range []string{"access", "ttl", "origin"} {
		if value := q.query(name); value != "" {
			f.Values.Set(name, value)
		}
	}
	f.Values["domains"] = append(q.r.URL.Query()["domain"], q.r.URL.Query()["domains"]...)
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.GrantIssue, f.Get("tenant")); err != nil {
		return err
	}
	return c.showGrant(q, f, false)
}

// grantedPage is what is shown once.
type grantedPage struct {
	Grant grant.Grant
	Token string
	Opens string // the command that opens a session with it
}

func (c *Console) issueGrant(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	// A field that is not there has its mistakes all the same.
	if _, there := f.Values["domains"]; !there {
		f.Values["domains"] = nil
	}
	accounts, err := c.accounts(q)
	if err != nil {
		return err
	}
	body := op.GrantRequest{Tenant: f.Get("tenant"), Domains: f.Values["domains"], EgressDomains: f.Words("egress_domains"), Access: grant.Access(f.Get("access")),
		TTL: f.Get("ttl"), Origin: f.Get("origin")}
	for _, a := range accounts {
		if a.Tenant == q.by.TenantOr(body.Tenant) && slices.Contains(body.Domains, a.Domain) && slices.Contains(f.Values["with"], a.Domain) {
			body.EgressDomains = append(body.EgressDomains, a.EgressDomains...)
		}
	}
	request, err := body.Request()
	if err != nil {
		if err := f.settleField("ttl", err); err != nil {
			return err
		}
	}
	var token grant.Token
	var issued grant.Grant
	if f.ok() {
		token, issued, err = c.Credentials.IssueGrant(q.ctx(), q.by, request)
		if err := f.settle(err, nil); err != nil {
			return err
		}
	}
	if !f.ok() {
		f.Values.Set("tenant", q.by.TenantOr(f.Get("tenant")))
		return c.showGrant(q, f, true)
	}
	page := grantedPage{Grant: issued, Token: token.Reveal()}
	page.Opens = "CLAWJAIL_GRANT='" + page.Token + "' clawjail session open --mode operator --domain " + strings.Join(issued.Domains, ",")
	if issued.Access == string(grant.AccessCDP) {
		page.Opens += " --access cdp"
	}
	if issued.Origin != "" {
		page.Opens += " --origin " + issued.Origin
	}
	return q.show("credentials_granted", "The grant is issued", page)
}

func (c *Console) revokeGrant(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	// Within the tenant of whoever asks.
	_, err = c.Credentials.RevokeGrant(q.ctx(), q.by, "", f.Get("id"))
	return q.act(grantsPath, err, "The grant is revoked. A session that it has opened goes on: close it if it should not.")
}
