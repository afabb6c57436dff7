package console

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

const secretsPath = credentialsPath + "/secrets"

// secretRow is a secret in the list.
type secretRow struct {
	vault.Secret
	AgentName              string
	Replaceable, Deletable bool
}

// Whose is the choice in the form that stands for whose it is.
func (r secretRow) Whose() string {
	if r.Agent == "" {
		return r.Tenant
	}
	return r.Tenant + "/" + r.AgentName
}

type secretsPage struct {
	Tabs    []tab
	Secrets []secretRow
	Pager   pager
}

func (c *Console) listSecrets(q *request) error {
	all, err := c.Credentials.Secrets(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := secretsPage{Tabs: credentialTabs(secretsPath)}
	all, page.Pager = paged(q, all)
	for _, s := range all {
		row := secretRow{Secret: s, AgentName: agents[s.Agent].Name, Deletable: identity.Can(q.by, identity.SecretDelete, s.Tenant) == nil}
		row.Replaceable = identity.Can(q.by, identity.SecretPut, s.Tenant) == nil && (s.Agent == "" || row.AgentName != "")
		if s.Agent != "" && row.AgentName == "" {
			row.AgentName = s.Agent // it has been removed
		}
		page.Secrets = append(page.Secrets, row)
	}
	return q.show("credentials_secrets", "Secrets", page)
}

type secretPage struct {
	Form    *form
	Whose   []option
	Replace bool // it is there, and gets a new value
}

func (c *Console) showSecret(q *request, f *form, again bool) error {
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := secretPage{Form: f, Replace: f.Has("replace")}
	if page.Whose, err = c.whoseOptions(q, agents); err != nil {
		return err
	}
	// A secret is always of one tenant.
	page.Whose = slices.DeleteFunc(page.Whose, func(o option) bool { return o.Value == allTenants })
	// Nothing secret goes back.
	f.Values.Set("value", "")
	f.Values.Set("lines", "")
	title := "Add a secret"
	if page.Replace {
		title = "Replace a secret"
	}
	if again {
		return q.again("credentials_secret", title, page)
	}
	return q.show("credentials_secret", title, page)
}

func (c *Console) newSecret(q *request) error {
	f := blank("whose", q.by.TenantOr(""))
	for _, name := range []string{"service", "whose", "replace"} {
		if value := q.query(name); value != "" {
			f.Values.Set(name, value)
		}
	}
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.SecretPut, q.by.TenantOr(whoseOf(f.Get("whose")).Tenant)); err != nil {
		return err
	}
	return c.showSecret(q, f, false)
}

func (c *Console) putSecret(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	// Spaces at the ends are no part of a key that was pasted.
	value := f.Get("value")
	if value == "" {
		value = strings.ReplaceAll(f.Values.Get("lines"), "\r\n", "\n")
		if strings.TrimSpace(value) == "" {
			f.wrong("value", "is missing", "")
		}
	}
	kept := secret.Own([]byte(value))
	defer kept.Wipe()
	whose := whoseOf(f.Get("whose"))
	if f.ok() {
		err = c.keepSecret(q, whose, f.Get("service"), kept, strings.Fields(f.Get("origins")))
		if err := f.settle(err, map[string]string{"tenant": "whose", "agent": "whose"}); err != nil {
			return err
		}
	}
	if !f.ok() {
		return c.showSecret(q, f, true)
	}
	return q.done(secretsPath, "The secret %s is saved. It cannot be read here any more.", f.Get("service"))
}

func (c *Console) keepSecret(q *request, whose op.Whose, service string, value secret.Value, origins []string) error {
	if whose.AllTenants {
		return problem.New(problem.BadRequest, "choose a tenant", "a secret belongs to one tenant")
	}
	tenant, agent, err := whose.Of(q.ctx(), c.Identity, q.by, identity.SecretPut)
	if err != nil {
		return err
	}
	return c.Credentials.PutSecret(q.ctx(), q.by, vault.SecretName{Tenant: tenant, Agent: agent, Service: service}, value, origins...)
}

func (c *Console) deleteSecret(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	err = c.Credentials.DeleteSecret(q.ctx(), q.by, vault.SecretName{Tenant: f.Get("tenant"), Agent: f.Get("agent"), Service: f.Get("service")})
	return q.act(secretsPath, err, "The secret %s is deleted.", f.Get("service"))
}
