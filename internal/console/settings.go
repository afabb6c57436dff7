package console

import (
	"net/url"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

const (
	settingsPath = Prefix + "/settings"
	// everybody is the tenant of a form that is about all of them.
	everybody = "*"
)

func (c *Console) settingsRoutes() {
	c.get("/settings", c.generalPage)
	c.post("/settings", c.putGeneral)
	c.post("/settings/tenants", c.addTenant)
	c.post("/settings/tenants/{tenant}/policy", c.setPolicy)
	c.post("/settings/tenants/{tenant}/disconnect", c.disconnectTenant)
	c.get("/settings/people", c.peoplePage)
	c.post("/settings/people", c.addOperator)
	c.post("/settings/people/{id}/rotate", c.rotateOperator)
	c.post("/settings/people/{id}/revoke", c.revokeOperator)
	c.post("/settings/sign-ins/{id}/end", c.endSignIn)
	c.get("/settings/keys", c.keysPage)
	c.post("/settings/keys/vault", c.rotateVault)
	c.post("/settings/keys/grants", c.rotateGrantKeys)
	c.get("/settings/machine", c.machinePage)
	c.get("/settings/host-browser", c.hostBrowserPage)
	c.get("/settings/servers", c.serversPage)
	c.post("/settings/servers", c.addServer)
	c.post("/settings/servers/{name}/test", c.testServer)
	c.post("/settings/servers/{name}/remove", c.removeServer)
}

// settingsTabs are the pages of the settings.
func (c *Console) settingsTabs(current string) []section {
	out := []section{{Path: "", Name: "General"}, {Path: "/people", Name: "People"}, {Path: "/keys", Name: "Keys"}, {Path: "/machine", Name: "Machine"},
		{Path: "/host-browser", Name: "Host browser"}}
	if c.Servers != nil {
		out = append(out, section{Path: "/servers", Name: "MCP servers"})
	}
	for n := range out {
		out[n].Current = out[n].Path == current
		out[n].Path = settingsPath + out[n].Path
	}
	return out
}

// changedBy is who changed something last.
type changedBy struct {
	By string
	At time.Time
}

// tenantRow is a tenant with what is decided for it.
type tenantRow struct {
	identity.Tenant
	Last   changedBy
	Quotas []quota.Use // what it holds of what all share
}

// generalSettings is the first page of the settings.
type generalSettings struct {
	Tabs    []section
	Tenants []tenantRow
	Scope   string   // whose settings: a tenant, or everybody
	Scopes  []option // there is a choice
	Shown   settingsShown
	Last    changedBy
	Create  *form
	Wrong   bool // that form was sent, and something of it was
}

func (c *Console) generalPage(q *request) error {
	scope := q.query("tenant")
	if scope != everybody {
		scope = q.by.TenantOr(scope)
	}
	return c.showGeneral(q, scope, nil, nil)
}

// showGeneral shows it. f is the form of the settings when it was sent, create that of a tenant.
func (c *Console) showGeneral(q *request, scope string, f, create *form) error {
	data := generalSettings{Wrong: create != nil && !create.ok(), Tabs: c.settingsTabs(""), Scope: scope, Create: create}
	if create == nil {
		data.Create = blank()
	}
	tenants, err := c.Identity.Tenants(q.ctx(), q.by)
	if err != nil {
		return err
	}
	of := scope
	if scope == everybody {
		of = ""
		if q.by.Tenant != "" {
			return problem.New(problem.Forbidden, "ask an admin of all tenants", "only an admin of all tenants may see their settings")
		}
	}
	set, effective, err := c.Egress.ShowSettings(q.ctx(), q.by, of, "")
	if err != nil {
		return err
	}
	names := c.names(q.ctx(), q.by)
	wider := "as for all tenants"
	if scope == everybody {
		wider = "as clawjail has it"
	}
	data.Shown = showSettings(f, set, effective, wider)
	if !set.UpdatedAt.IsZero() {
		data.Last = changedBy{names.of(set.CreatedBy), set.UpdatedAt}
	}
	last, err := c.lastOf(q, string(identity.TenantUpdate), names)
	if err != nil {
		return err
	}
	if q.by.Tenant == "" {
		data.Scopes = append(data.Scopes, option{Value: everybody, Label: "all tenants", Selected: scope == everybody})
	}
	var ids []string
	for _, t := range tenants {
		ids = append(ids, t.ID)
	}
	uses, err := c.Health.Quotas(q.ctx(), q.by, ids...)
	if err != nil {
		return err
	}
	for _, t := range tenants {
		row := tenantRow{Tenant: t, Last: last[t.ID]}
		for _, u := range uses {
			if u.Tenant == t.ID && u.Held > 0 {
				row.Quotas = append(row.Quotas, u)
			}
		}
		data.Tenants = append(data.Tenants, row)
		if q.by.Tenant == "" {
			data.Scopes = append(data.Scopes, option{Value: t.ID, Label: t.ID, Selected: t.ID == scope})
		}
	}
	if f != nil && !f.ok() || create != nil && !create.ok() {
		return q.again("settings", "Settings", data)
	}
	return q.show("settings", "Settings", data)
}

// lastOf is who did something last, by what it was done to. It looks at the newest records alone: what is older is not said.
func (c *Console) lastOf(q *request, action string, names actorNames) (map[string]changedBy, error) {
	if identity.Can(q.by, identity.AuditRead, q.by.Tenant) != nil {
		return nil, nil
	}
	rows, err := c.Audit.List(q.ctx(), audit.Filter{Tenant: q.by.Tenant, Action: action, Newest: true, Limit: 200})
	if err != nil {
		return nil, err
	}
	out := map[string]changedBy{}
	for _, r := range rows { // the oldest first: later ones replace it
		if r.Result == string(audit.OK) {
			out[r.Target] = changedBy{names.of(r.Actor), r.Time}
		}
	}
	return out, nil
}

func generalPath(scope string) string { return settingsPath + "?tenant=" + url.QueryEscape(scope) }

// putGeneral changes what holds for all agents of a tenant, or for everybody's.
func (c *Console) putGeneral(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	scope, tenant := f.Get("scope"), ""
	if scope != everybody {
		scope = q.by.TenantOr(scope)
		tenant = scope
	}
	// A caller without the right neither sees nor changes settings: an admin of a tenant has no right to everybody's.
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.SettingsChange, tenant); err != nil {
		return err
	}
	set, _, err := c.Egress.ShowSettings(q.ctx(), q.by, tenant, "")
	if err != nil {
		return err
	}
	wanted := readSettings(f, set)
	wanted.Tenant = tenant
	if f.ok() {
		if _, err := c.Egress.DeclareSettings(q.ctx(), q.by, wanted); err == nil {
			return q.done(generalPath(scope), "The settings are saved, and apply at once, also to what is running.%s", andWarning(wanted.Budget))
		} else if problem.CodeOf(err) == problem.Forbidden || !f.refuse(err, settingsFields) {
			return err
		}
	}
	return c.showGeneral(q, scope, f, nil)
}

func (c *Console) addTenant(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	t, err := c.Identity.CreateTenant(q.ctx(), q.by, f.Get("id"), identity.Policy{ForbidOperatorMode: f.Has("forbid")})
	if err == nil {
		return q.done(generalPath(t.ID), "The tenant %s is made. Give its people keys under People.", t.ID)
	}
	if problem.CodeOf(err) == problem.Forbidden || !f.refuseName(err, "id", nil) {
		return err
	}
	return c.showGeneral(q, q.by.TenantOr(""), nil, f)
}

func (c *Console) setPolicy(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	tenant := q.value("tenant")
	if f.Has("permissions") {
		forbid := f.Get("permissions") == "forbidden"
		_, err = c.Identity.SetPolicy(q.ctx(), q.by, tenant, func(p *identity.Policy) { p.ForbidAccountPermissions = forbid })
		if forbid {
			return q.act(generalPath(tenant), err, "Agents of %s need a grant for each session with accounts. Those that are open stay open.", tenant)
		}
		return q.act(generalPath(tenant), err, "Agents of %s may be permitted accounts for many sessions.", tenant)
	}
	forbid := f.Get("accounts") == "forbidden"
	_, err = c.Identity.SetPolicy(q.ctx(), q.by, tenant, func(p *identity.Policy) { p.ForbidOperatorMode = forbid })
	if forbid {
		return q.act(generalPath(tenant), err, "Agents of %s can no longer open sessions with accounts. Those that are open stay open.", tenant)
	}
	return q.act(generalPath(tenant), err, "Agents of %s may have sessions with accounts, with a grant.", tenant)
}

func (c *Console) disconnectTenant(q *request) error {
	tenant := q.value("tenant")
	n, err := c.Identity.DisconnectTenant(q.ctx(), q.by, tenant)
	return q.act(generalPath(tenant), err, "%s of %s ended.", plural(n, "connection"), tenant)
}
