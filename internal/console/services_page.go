package console

import (
	"cmp"
	"context"
	"slices"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	servicesPath  = networkPath + "/services"
	providersPath = networkPath + "/providers"
)

// entryKind is what differs between the pages of services and those of providers. E is the entry, and R the request that makes one.
type entryKind[E, R any] struct {
	path, list, page string // of the templates
	title, name, one string
	right            identity.Operation
	all              func(ctx context.Context, by identity.Principal, tenant string) ([]E, error)
	put              func(ctx context.Context, by identity.Principal, one E) (E, error)
	of               func(R) E
	meta             func(*E) *egress.Meta
	secret           func(E) string
	// blank is a new one. rare are the fields that are out of sight until they are wanted.
	blank, rare []string
	inject      []option
}

func (c *Console) services() entryKind[egress.Service, op.ServiceRequest] {
	return entryKind[egress.Service, op.ServiceRequest]{
		path: servicesPath, list: "network_services", page: "network_service", title: "Services", name: "Service", one: "service", right: identity.ServiceChange,
		all: c.Egress.ListServices, put: c.Egress.PutService, of: op.ServiceRequest.Service,
		meta:   func(s *egress.Service) *egress.Meta { return &s.Meta },
		secret: func(s egress.Service) string { return secretName(s.Inject, s.Secret, s.Name) },
		blank:  []string{"inject", "bearer", "scrub", "redact", "compressed", "decode", "encoded_slash", "deny", "allow", "GET /**"},
		rare:   []string{"inject_user", "address", "git", "env", "note"},
		inject: []option{{Value: "bearer", Label: "a bearer token"}, {Value: "basic", Label: "a user and a password"}, {Value: "header", Label: "a header"},
			{Value: "query", Label: "a query parameter"}, {Value: "path", Label: "a part of the path"}, {Value: "none", Label: "nothing"}},
	}
}

func (c *Console) providers() entryKind[egress.Provider, op.ProviderRequest] {
	return entryKind[egress.Provider, op.ProviderRequest]{
		path: providersPath, list: "network_providers", page: "network_provider", title: "Providers of models", name: "Provider", one: "provider", right: identity.ProviderChange,
		all: c.Egress.ListProviders, put: c.Egress.PutProvider, of: op.ProviderRequest.Provider,
		meta:   func(p *egress.Provider) *egress.Meta { return &p.Meta },
		secret: func(p egress.Provider) string { return secretName(p.Inject, p.Secret, p.Name) },
		blank:  []string{"wire", "openai", "models", "*"},
		rare:   []string{"inject_name", "hosted", "address", "note"},
		inject: []option{{Label: "as its language has it"}, {Value: "bearer", Label: "a bearer token"}, {Value: "header", Label: "a header"},
			{Value: "query", Label: "a query parameter"}, {Value: "none", Label: "nothing"}},
	}
}

// secretName is that of a credential in the vault; empty where none is needed.
func secretName(i egress.Injection, secret, name string) string {
	if i.Type == egress.InjectNone {
		return ""
	}
	return cmp.Or(secret, name)
}

func entryRoutes[E, R any](c *Console, path string, k entryKind[E, R], remove func(context.Context, identity.Principal, string) error) {
	c.get(path, func(q *request) error { return listEntries(c, q, k) })
	c.get(path+"/edit", func(q *request) error { return editEntry(c, q, k) })
	c.post(path+"/edit", func(q *request) error { return putEntry(c, q, k) })
	c.post(path+"/remove", removal(k.path, "The "+k.one+" is removed.", remove))
}

// entryRow is an entry with names for people.
type entryRow[E any] struct {
	Entry      E
	AgentName  string
	SecretName string
	Editable   bool
}

type entriesPage[E any] struct {
	Tabs    []tab
	Rows    []entryRow[E]
	Allowed bool
	Pager   pager
}

func listEntries[E, R any](c *Console, q *request, k entryKind[E, R]) error {
	tabs, err := c.networkTabs(q, k.path)
	if err != nil {
		return err
	}
	all, err := k.all(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := entriesPage[E]{Tabs: tabs, Allowed: identity.Can(q.by, k.right, q.by.TenantOr("")) == nil}
	all, page.Pager = paged(q, all)
	for _, one := range all {
		m := k.meta(&one)
		page.Rows = append(page.Rows, entryRow[E]{one, agentName(*m, agents), k.secret(one), mayChange(q.by, k.right, m.Tenant)})
	}
	return q.show(k.list, k.title, page)
}

// entryPage is the form of a service or a provider.
type entryPage struct {
	Form   *form
	Whose  []option
	For    string // whom it is for, of one that is there: that cannot be changed
	Inside bool   // the reader may name private addresses
	More   bool   // the rarer fields are shown

	Inject, Scrub, Compressed, EncodedSlash, Wire []option
}

func showEntry[E, R any](c *Console, q *request, k entryKind[E, R], f *form, show func(page, title string, data any) error) error {
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := entryPage{Form: f, Inside: identity.Can(q.by, identity.EgressInside, "") == nil, Inject: k.inject,
		Scrub:        []option{{Value: "redact", Label: "is redacted"}, {Value: "block", Label: "is cut off"}},
		Compressed:   []option{{Value: "decode", Label: "is decoded"}, {Value: "refuse", Label: "is refused"}},
		EncodedSlash: []option{{Value: "deny", Label: "is refused"}, {Value: "allow", Label: "is a part of its segment"}},
		Wire:         options(egress.WireOpenAI, egress.WireAnthropic, egress.WireOllama)}
	for _, name := range k.rare {
		page.More = page.More || f.Get(name) != ""
	}
	if page.Whose, err = c.whoseOptions(q, agents); err != nil {
		return err
	}
	if !f.Has("kept") {
		return show(k.page, "Add a "+k.one, page)
	}
	page.For = f.Get("whose")
	for _, o := range page.Whose {
		if o.Value == page.For {
			page.For = o.Label
		}
	}
	return show(k.page, k.name+" "+f.Get("name"), page)
}

// editEntry shows the form: of a new entry, or of the one with the id in the address.
func editEntry[E, R any](c *Console, q *request, k entryKind[E, R]) error {
	id := q.query("id")
	if id == "" {
		if err := c.Identity.Authorize(q.ctx(), q.by, k.right, q.by.TenantOr("")); err != nil {
			return err
		}
		return showEntry(c, q, k, blank(slices.Concat(k.blank, []string{"whose", q.by.TenantOr("")})...), q.show)
	}
	all, err := k.all(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(one E) bool { return k.meta(&one).ID == id })
	if at < 0 || !mayChange(q.by, k.right, k.meta(&all[at]).Tenant) {
		return problem.New(problem.NotFound, "choose one of the list", "there is no such %s", k.one)
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	return showEntry(c, q, k, formOf(all[at], *k.meta(&all[at]), agents), q.show)
}

// formOf is the form of an entry that is there.
func formOf(entry any, m egress.Meta, agents map[string]identity.Agent) *form {
	f := blank("kept", "yes", "whose", whoseFor(m, agents))
	f.from(entry)
	return f
}

// entryFields are the fields of the forms by the names that the services have for them.
func entryFields() map[string]string {
	return map[string]string{"inject.type": "inject", "inject.name": "inject_name", "inject.user": "inject_user", "allow": "allow", "env": "env", "models": "models",
		"prices": "prices", "hosted": "hosted", "tenant": "whose", "agent": "whose"}
}

func putEntry[E, R any](c *Console, q *request, k entryKind[E, R]) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	var body R
	if err := f.into(&body); err != nil {
		return err
	}
	if f.ok() {
		one := k.of(body)
		m := k.meta(&one)
		if m.Tenant, m.Agent, err = whoseOf(f.Get("whose")).Of(q.ctx(), c.Identity, q.by, k.right); err == nil {
			_, err = k.put(q.ctx(), q.by, one)
		}
		if err := f.settle(err, entryFields()); err != nil {
			return err
		}
	}
	if !f.ok() {
		return showEntry(c, q, k, f, q.again)
	}
	return q.done(k.path, "%s %s is saved. Agents use it at once.", k.name, f.Get("name"))
}
