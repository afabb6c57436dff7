package console

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const servicesPath = networkPath + "/services"

// serviceRow is a service with names for people.
type serviceRow struct {
	egress.Service
	AgentName string
	Editable  bool
}

// SecretName is the name of its secret in the vault; empty for a service that needs none.
func (r serviceRow) SecretName() string {
	if r.Inject.Type == egress.InjectNone {
		return ""
	}
	return cmp.Or(r.Secret, r.Name)
}

type servicesPage struct {
	Tabs     []tab
	Services []serviceRow
	Allowed  bool
	Pager    pager
}

func (c *Console) listServices(q *request) error {
	tabs, err := c.networkTabs(q, servicesPath)
	if err != nil {
		return err
	}
	all, err := c.Egress.ListServices(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := servicesPage{Tabs: tabs, Allowed: identity.Can(q.by, identity.ServiceChange, q.by.TenantOr("")) == nil}
	all, page.Pager = paged(q, all)
	for _, s := range all {
		page.Services = append(page.Services, serviceRow{Service: s, AgentName: agentName(s.Meta, agents), Editable: mayChange(q.by, identity.ServiceChange, s.Tenant)})
	}
	return q.show("network_services", "Services", page)
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

func (c *Console) entryPage(q *request, f *form, rare ...string) (*entryPage, error) {
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return nil, err
	}
	page := &entryPage{Form: f, Inside: identity.Can(q.by, identity.EgressInside, "") == nil,
		Inject: []option{{Value: "bearer", Label: "a bearer token"}, {Value: "basic", Label: "a user and a password"},
			{Value: "header", Label: "a header"}, {Value: "query", Label: "a query parameter"}, {Value: "path", Label: "a part of the path"}, {Value: "none", Label: "nothing"}},
		Scrub:        []option{{Value: "redact", Label: "is redacted"}, {Value: "block", Label: "is cut off"}},
		Compressed:   []option{{Value: "decode", Label: "is decoded"}, {Value: "refuse", Label: "is refused"}},
		EncodedSlash: []option{{Value: "deny", Label: "is refused"}, {Value: "allow", Label: "is a part of its segment"}},
		Wire:         options(egress.WireOpenAI, egress.WireAnthropic, egress.WireOllama)}
	for _, name := range rare {
		page.More = page.More || f.Get(name) != ""
	}
	if page.Whose, err = c.whoseOptions(q, agents); err != nil {
		return nil, err
	}
	if f.Has("kept") {
		page.For = f.Get("whose")
		for _, o := range page.Whose {
			if o.Value == page.For {
				page.For = o.Label
			}
		}
	}
	return page, nil
}

// rareOfService are the fields that are out of sight until they are wanted.
var rareOfService = []string{"inject_user", "address", "git", "env", "note"}

func (c *Console) showService(q *request, f *form, again bool) error {
	page, err := c.entryPage(q, f, rareOfService...)
	if err != nil {
		return err
	}
	title := "Add a service"
	if f.Has("kept") {
		title = "Service " + f.Get("name")
	}
	if again {
		return q.again("network_service", title, page)
	}
	return q.show("network_service", title, page)
}

// editService shows the form: of a new service, or of the one with the id in the address.
func (c *Console) editService(q *request) error {
	id := q.query("id")
	if id == "" {
		if err := c.Identity.Authorize(q.ctx(), q.by, identity.ServiceChange, q.by.TenantOr("")); err != nil {
			return err
		}
		return c.showService(q, blank("whose", q.by.TenantOr(""), "inject", "bearer", "scrub", "redact", "compressed", "decode", "encoded_slash", "deny", "allow", "GET /**"), false)
	}
	all, err := c.Egress.ListServices(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(s egress.Service) bool { return s.ID == id })
	if at < 0 || !mayChange(q.by, identity.ServiceChange, all[at].Tenant) {
		return problem.New(problem.NotFound, "choose one of the list", "there is no such service")
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	return c.showService(q, formOfService(all[at], agents), false)
}

func formOfService(s egress.Service, agents map[string]identity.Agent) *form {
	f := blank("kept", "yes", "name", s.Name, "whose", whoseFor(s.Meta, agents), "base_url", s.BaseURL, "secret", s.Secret, "inject", string(s.Inject.Type),
		"inject_name", s.Inject.Name, "inject_user", s.Inject.User, "scrub", string(s.Scrub), "compressed", string(s.Compressed), "encoded_slash", string(cmp.Or(s.EncodedSlash, egress.EncodedSlashDeny)), "git", s.Git, "note", s.Note)
	var allow, env []string
	for _, a := range s.Allow {
		allow = append(allow, a.String())
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, name+"="+s.Env[name])
	}
	f.Values.Set("allow", strings.Join(allow, "\n"))
	f.Values.Set("env", strings.Join(env, "\n"))
	if s.Address.IsValid() {
		f.Values.Set("address", s.Address.String())
	}
	return f
}

// serviceFields are the fields of the form by the names that the service has for them.
var serviceFields = map[string]string{"inject.type": "inject", "inject.name": "inject_name", "inject.user": "inject_user", "allow": "allow", "env": "env",
	"tenant": "whose", "agent": "whose"}

func (c *Console) putService(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	body := op.ServiceRequest{
		Whose: whoseOf(f.Get("whose")), Name: f.Get("name"), BaseURL: f.Get("base_url"), Secret: f.Get("secret"), Scrub: egress.Scrub(f.Get("scrub")),
		Inject:     egress.Injection{Type: egress.InjectionType(f.Get("inject")), Name: f.Get("inject_name"), User: f.Get("inject_user")},
		Compressed: egress.Compressed(f.Get("compressed")), EncodedSlash: egress.EncodedSlash(f.Get("encoded_slash")), Git: f.Get("git"), Note: f.Get("note"), Address: f.address("address"), Env: map[string]string{},
	}
	for _, line := range f.lines("allow") {
		one, err := egress.ParseAllowance(line)
		if err != nil && !f.blame("allow", err) {
			return err
		}
		body.Allow = append(body.Allow, one)
	}
	for _, line := range f.lines("env") {
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" {
			f.wrong("env", "has a line without a name and a value", "such as API_URL={url}")
		}
		body.Env[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	if f.ok() {
		service := body.Service()
		if service.Tenant, service.Agent, err = body.Of(q.ctx(), c.Identity, q.by, identity.ServiceChange); err == nil {
			_, err = c.Egress.PutService(q.ctx(), q.by, service)
		}
		if err := f.settle(err, serviceFields); err != nil {
			return err
		}
	}
	if !f.ok() {
		return c.showService(q, f, true)
	}
	return q.done(servicesPath, "Service %s is saved. Agents use it at once.", body.Name)
}

// address reads the address in a field.
func (f *form) address(name string) netip.Addr {
	text := f.Get(name)
	if text == "" {
		return netip.Addr{}
	}
	out, err := netip.ParseAddr(text)
	if err != nil {
		f.wrong(name, "is not an address", "such as 192.168.1.30")
	}
	return out
}

func (c *Console) removeService(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	err = c.Egress.RemoveService(q.ctx(), q.by, f.Get("id"))
	if refusal(err) {
		return err
	}
	return q.act(servicesPath, err, "The service is removed.")
}
