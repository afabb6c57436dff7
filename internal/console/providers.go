package console

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const providersPath = networkPath + "/providers"

// providerRow is a provider with names for people.
type providerRow struct {
	egress.Provider
	AgentName string
	Editable  bool
}

// SecretName is the name of its key in the vault; empty for a provider that needs none.
func (r providerRow) SecretName() string {
	if r.Inject.Type == egress.InjectNone {
		return ""
	}
	return cmp.Or(r.Secret, r.Name)
}

type providersPage struct {
	Tabs      []tab
	Providers []providerRow
	Allowed   bool
	Pager     pager
}

func (c *Console) listProviders(q *request) error {
	tabs, err := c.networkTabs(q, providersPath)
	if err != nil {
		return err
	}
	all, err := c.Egress.ListProviders(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := providersPage{Tabs: tabs, Allowed: identity.Can(q.by, identity.ProviderChange, q.by.TenantOr("")) == nil}
	all, page.Pager = paged(q, all)
	for _, p := range all {
		page.Providers = append(page.Providers, providerRow{Provider: p, AgentName: agentName(p.Meta, agents), Editable: mayChange(q.by, identity.ProviderChange, p.Tenant)})
	}
	return q.show("network_providers", "Providers of models", page)
}

func (c *Console) showProvider(q *request, f *form, again bool) error {
	page, err := c.entryPage(q, f, "inject_name", "hosted", "address", "note")
	if err != nil {
		return err
	}
	page.Inject = []option{{Label: "as its language has it"}, {Value: "bearer", Label: "a bearer token"}, {Value: "header", Label: "a header"},
		{Value: "query", Label: "a query parameter"}, {Value: "none", Label: "nothing"}}
	title := "Add a provider"
	if f.Has("kept") {
		title = "Provider " + f.Get("name")
	}
	if again {
		return q.again("network_provider", title, page)
	}
	return q.show("network_provider", title, page)
}

// editProvider shows the form: of a new provider, or of the one with the id in the address.
func (c *Console) editProvider(q *request) error {
	id := q.query("id")
	if id == "" {
		if err := c.Identity.Authorize(q.ctx(), q.by, identity.ProviderChange, q.by.TenantOr("")); err != nil {
			return err
		}
		return c.showProvider(q, blank("whose", q.by.TenantOr(""), "wire", "openai", "models", "*"), false)
	}
	all, err := c.Egress.ListProviders(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(p egress.Provider) bool { return p.ID == id })
	if at < 0 || !mayChange(q.by, identity.ProviderChange, all[at].Tenant) {
		return problem.New(problem.NotFound, "choose one of the list", "there is no such provider")
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	return c.showProvider(q, formOfProvider(all[at], agents), false)
}

func formOfProvider(p egress.Provider, agents map[string]identity.Agent) *form {
	f := blank("kept", "yes", "name", p.Name, "whose", whoseFor(p.Meta, agents), "wire", string(p.Wire), "base_url", p.BaseURL, "secret", p.Secret,
		"models", strings.Join(p.Models, "\n"), "priority", strconv.Itoa(p.Priority), "inject", string(p.Inject.Type), "inject_name", p.Inject.Name, "note", p.Note)
	var prices []string
	for _, price := range p.Prices {
		prices = append(prices, price.String())
	}
	f.Values.Set("prices", strings.Join(prices, "\n"))
	f.Values.Set("hosted", strings.Join(p.Hosted, "\n"))
	if p.Address.IsValid() {
		f.Values.Set("address", p.Address.String())
	}
	return f
}

// providerFields are the fields of the form by the names that the provider has for them.
var providerFields = map[string]string{"inject.type": "inject", "inject.name": "inject_name", "models": "models", "prices": "prices", "hosted": "hosted",
	"tenant": "whose", "agent": "whose"}

func (c *Console) putProvider(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	body := op.ProviderRequest{
		Whose: whoseOf(f.Get("whose")), Name: f.Get("name"), BaseURL: f.Get("base_url"), Secret: f.Get("secret"), Wire: egress.Wire(f.Get("wire")),
		Models: f.Words("models"), Hosted: f.Words("hosted"), Inject: egress.Injection{Type: egress.InjectionType(f.Get("inject")), Name: f.Get("inject_name")},
		Note: f.Get("note"), Address: f.address("address"),
	}
	if text := f.Get("priority"); text != "" {
		if body.Priority, err = strconv.Atoi(text); err != nil || body.Priority < 1 {
			f.wrong("priority", "is not a number from 1 to 999", "lower comes first")
		}
	}
	for _, line := range f.lines("prices") {
		price, err := egress.ParsePrice(line)
		if err != nil && !f.blame("prices", err) {
			return err
		}
		body.Prices = append(body.Prices, price)
	}
	if f.ok() {
		provider := body.Provider()
		if provider.Tenant, provider.Agent, err = body.Of(q.ctx(), c.Identity, q.by, identity.ProviderChange); err == nil {
			_, err = c.Egress.PutProvider(q.ctx(), q.by, provider)
		}
		if err := f.settle(err, providerFields); err != nil {
			return err
		}
	}
	if !f.ok() {
		return c.showProvider(q, f, true)
	}
	return q.done(providersPath, "Provider %s is saved. Agents use it at once.", body.Name)
}

func (c *Console) removeProvider(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	err = c.Egress.RemoveProvider(q.ctx(), q.by, f.Get("id"))
	if refusal(err) {
		return err
	}
	return q.act(providersPath, err, "The provider is removed.")
}
