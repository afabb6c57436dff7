package console

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const networkPath = Prefix + "/network"

func (c *Console) networkRoutes() {
	c.get("/network", c.listRules)
	c.get("/network/rules/add", c.newRule)
	c.post("/network/rules/add", c.addRule)
	c.post("/network/rules/remove", removal(networkPath, "The rule is removed.", c.Egress.RemoveRule))
	c.get("/network/explain", c.explain)
	c.get("/network/requests", c.listRequests)
	c.get("/network/requests/list", c.requestsPart)
	c.post("/network/requests/answer", c.answerRequest)
	entryRoutes(c, "/network/services", c.services(), c.Egress.RemoveService)
	entryRoutes(c, "/network/providers", c.providers(), c.Egress.RemoveProvider)
	c.get("/network/usage", c.usage)
}

// removal removes what the field id names.
func removal(path, said string, remove func(ctx context.Context, by identity.Principal, id string) error) handler {
	return func(q *request) error {
		f, err := q.form()
		if err != nil {
			return err
		}
		return q.act(path, remove(q.ctx(), q.by, f.Get("id")), "%s", said)
	}
}

// tab is one of the pages of a subject.
type tab struct {
	Path, Name string
	Current    bool
	Count      int // of what waits for somebody; zero shows none
}

// networkTabs are those of the way out.
func (c *Console) networkTabs(q *request, current string) ([]tab, error) {
	asked, err := c.Egress.AccessRequests(q.ctx(), q.by, "", false)
	if err != nil {
		return nil, err
	}
	return tabsOf(current, []tab{
		{Path: networkPath, Name: "Rules"}, {Path: networkPath + "/explain", Name: "Why was this denied?"},
		{Path: networkPath + "/requests", Name: "Requests", Count: len(asked)}, {Path: networkPath + "/services", Name: "Services"},
		{Path: networkPath + "/providers", Name: "Models"}, {Path: networkPath + "/usage", Name: "Usage and budgets"},
	}), nil
}

func tabsOf(current string, tabs []tab) []tab {
	for n := range tabs {
		tabs[n].Current = tabs[n].Path == current
	}
	return tabs
}

// pageSize is how many rows a page has.
const pageSize = 100

// pager says which part of a list is shown, with links to what is before and behind it.
type pager struct {
	From, To, All  int
	Previous, Next string // empty at the ends
}

// paged is the part of a list that the address asks for with page=N.
func paged[T any](q *request, all []T) ([]T, pager) {
	last := max(1, (len(all)+pageSize-1)/pageSize)
	number, err := strconv.Atoi(q.query("page"))
	if err != nil || number < 1 {
		number = 1
	}
	number = min(number, last)
	from := (number - 1) * pageSize
	part := all[from:min(from+pageSize, len(all))]
	link := func(n int) string {
		if n < 1 || n > last {
			return ""
		}
		values := q.r.URL.Query()
		values.Set("page", strconv.Itoa(n))
		return q.r.URL.Path + "?" + values.Encode()
	}
	return part, pager{From: from + 1, To: from + len(part), All: len(all), Previous: link(number - 1), Next: link(number + 1)}
}

// agentsByID are the agents that somebody may see, by their ids.
func (c *Console) agentsByID(ctx context.Context, by identity.Principal) (map[string]identity.Agent, error) {
	all, err := c.Identity.Agents(ctx, by, by.Tenant)
	if err != nil {
		return nil, err
	}
	out := make(map[string]identity.Agent, len(all))
	for _, a := range all {
		out[a.ID] = a
	}
	return out, nil
}

// allTenants stands for all tenants in a choice of whom something is for.
const allTenants = "*"

// whoseOptions are whom a rule, a service or a provider can be for: TENANT, TENANT/AGENT, or [allTenants].
func (c *Console) whoseOptions(q *request, agents map[string]identity.Agent) ([]option, error) {
	tenants := []option{{Value: q.by.Tenant}}
	var out []option
	if q.by.Tenant == "" {
		var err error
		if tenants, err = c.tenantOptions(q); err != nil {
			return nil, err
		}
		out = append(out, option{Value: allTenants, Label: "Everybody, in all tenants"})
	}
	of := map[string][]string{}
	for _, a := range agents {
		if a.RevokedAt.IsZero() {
			of[a.Tenant] = append(of[a.Tenant], a.Name)
		}
	}
	for _, t := range tenants {
		label := "All agents"
		if q.by.Tenant == "" {
			label = "All of " + t.Value
		}
		out = append(out, option{Value: t.Value, Label: label})
		slices.Sort(of[t.Value])
		for _, name := range of[t.Value] {
			label := "Agent " + name
			if q.by.Tenant == "" {
				label = name + " of " + t.Value
			}
			out = append(out, option{Value: t.Value + "/" + name, Label: label})
		}
	}
	return out, nil
}

// whoseOf reads the choice.
func whoseOf(text string) op.Whose {
	if text == allTenants {
		return op.Whose{AllTenants: true}
	}
	tenant, agent, _ := strings.Cut(text, "/")
	return op.Whose{Tenant: tenant, Agent: agent}
}

// whoseFor is the choice that an entry stands for. An agent that has been removed is named by its id.
func whoseFor(m egress.Meta, agents map[string]identity.Agent) string {
	switch {
	case m.Tenant == "":
		return allTenants
	case m.Agent == "":
		return m.Tenant
	}
	return m.Tenant + "/" + agentName(m, agents)
}

// agentName is what an agent is called; one that has been removed, by its id.
func agentName(m egress.Meta, agents map[string]identity.Agent) string {
	return cmp.Or(agents[m.Agent].Name, m.Agent)
}

// mayChange says whether somebody may change an entry of a tenant's. Those of everybody take an admin of the installation.
func mayChange(by identity.Principal, op identity.Operation, tenant string) bool {
	if tenant == "" {
		return by.Tenant == "" && identity.Can(by, identity.EgressInside, "") == nil
	}
	return identity.Can(by, op, tenant) == nil
}

// fieldsOf maps the fields that a service names to those of a form, by their first part: allow.0.path is one of allow.
func fieldsOf(err error, names map[string]string) map[string]string {
	out := maps.Clone(names)
	for _, flaw := range flawsOf(err) {
		first, _, _ := strings.Cut(flaw.Field, ".")
		if to, ok := names[first]; ok && out[flaw.Field] == "" {
			out[flaw.Field] = to
		}
	}
	return out
}

// blame notes an error about one field. It is false for what is no mistake of whoever filled it in.
func (f *form) blame(name string, err error) bool {
	p, ok := problem.As(err)
	if !ok || problem.Status(p.Code) >= 500 || len(flawsOf(err)) > 0 {
		return f.refuse(err, nil)
	}
	f.wrong(name, p.Message, p.Hint)
	return true
}

// lines are those of a field that are not empty.
func (f *form) lines(name string) []string {
	var out []string
	for line := range strings.Lines(f.Get(name)) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// upper makes methods of what was typed.
func upper(words []string) []string {
	for n := range words {
		words[n] = strings.ToUpper(words[n])
	}
	return words
}

// refusal says that an error is about whether somebody may do something, or whether there is such a thing at all: that is no
// mistake in a form.
func refusal(err error) bool {
	var mistakes *problem.ValidationError
	if errors.As(err, &mistakes) {
		return false // of fields, which name something that is not there
	}
	switch problem.CodeOf(err) {
	case problem.Forbidden, problem.NotFound, problem.Unauthorized:
		return true
	}
	return false
}

// sayNumber and number write and read a whole number above zero; what is none is zero, which no service takes.
func sayNumber(n int) string { return strconv.Itoa(n) }

func (f *form) number(name string) int {
	n, err := strconv.Atoi(f.Get(name))
	if err != nil || n < 1 {
		f.wrong(name, "is not a number above 0", "")
		return 0
	}
	return n
}
