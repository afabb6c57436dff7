package console

import (
	"cmp"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
)

// ruleRow is a rule with names for people.
type ruleRow struct {
	egress.Rule
	AgentName string
	MadeBy    string
	Removable bool
}

// Target is what the rule is about, in the form that people write.
func (r ruleRow) Target() string { return r.Rule.Rule.Target() }

// Title is what refusals call the rule.
func (r ruleRow) Title() string {
	return cmp.Or(r.Name, r.ID)
}

type rulesPage struct {
	Tabs    []tab
	Rules   []ruleRow
	Pager   pager
	Search  string
	Allowed bool // the reader may make rules
}

func (c *Console) listRules(q *request) error {
	tabs, err := c.networkTabs(q, networkPath)
	if err != nil {
		return err
	}
	all, err := c.Egress.Rules(q.ctx(), q.by, "")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	page := rulesPage{Tabs: tabs, Search: strings.TrimSpace(q.query("search")), Allowed: identity.Can(q.by, identity.RuleChange, q.by.TenantOr("")) == nil}
	if page.Search != "" {
		all = matching(all, page.Search, agents)
	}
	all, page.Pager = paged(q, all)
	names := c.names(q.ctx(), q.by)
	for _, r := range all {
		page.Rules = append(page.Rules, ruleRow{Rule: r, AgentName: agentName(r.Meta, agents), MadeBy: names.of(r.CreatedBy),
			Removable: r.ID != "" && mayChange(q.by, identity.RuleChange, r.Tenant)})
	}
	return q.show("network", "Network", page)
}

// matching are the rules with a text in what people see of them.
func matching(all []egress.Rule, text string, agents map[string]identity.Agent) []egress.Rule {
	var out []egress.Rule
	text = strings.ToLower(text)
	for _, r := range all {
		seen := strings.Join([]string{r.Rule.Target(), r.Name, r.ID, r.Note, r.Session, r.Tenant, agents[r.Agent].Name, string(r.Action)}, "\n")
		if strings.Contains(strings.ToLower(seen), text) {
			out = append(out, r)
		}
	}
	return out
}

type rulePage struct {
	Form    *form
	Whose   []option
	Actions []option
	Inside  bool // the reader may name private addresses
	More    bool // the rarer fields are shown
}

func (c *Console) rulePage(q *request, f *form) (*rulePage, error) {
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return nil, err
	}
	page := &rulePage{Form: f, Actions: options(policy.Allow, policy.Deny), Inside: identity.Can(q.by, identity.EgressInside, "") == nil}
	for _, name := range []string{"session", "priority", "name", "address", "opaque"} {
		page.More = page.More || f.Get(name) != ""
	}
	page.Whose, err = c.whoseOptions(q, agents)
	return page, err
}

func (c *Console) newRule(q *request) error {
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.RuleChange, q.by.TenantOr("")); err != nil {
		return err
	}
	// The link that leads here says what the rule is to be about.
	f := blank("action", "allow", "whose", q.by.TenantOr(""))
	for _, name := range []string{"action", "target", "whose", "session", "methods"} {
		if value := q.query(name); value != "" {
			f.Values.Set(name, value)
		}
	}
	page, err := c.rulePage(q, f)
	if err != nil {
		return err
	}
	return q.show("network_rule", "Add a rule", page)
}

func (c *Console) addRule(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	made, err := c.makeRule(q, f)
	if err != nil {
		return err
	}
	if !f.ok() {
		page, err := c.rulePage(q, f)
		if err != nil {
			return err
		}
		return q.again("network_rule", "Add a rule", page)
	}
	said := "Agents may reach %s now."
	if made.Action == policy.Deny {
		said = "%s is denied now, also to what was open."
	}
	return q.done(networkPath, said, made.Target())
}

// ruleFields are the fields of the form by the names that the service has for them.
var ruleFields = map[string]string{"host": "target", "path": "target", "ports": "target", "scheme": "target", "expires_at": "for",
	"tenant": "whose", "agent": "whose", "methods": "methods"}

// makeRule makes the rule that a form describes. Mistakes are put into the form.
func (c *Console) makeRule(q *request, f *form) (out egress.Rule, err error) {
	var body op.RuleRequest
	if err := f.into(&body); err != nil {
		return out, err
	}
	// The text is read before anything is asked for: all that is wrong is said at once.
	rule, err := body.Rule(c.Now())
	if err != nil {
		field := "target"
		if body.For != "" && body.Target != "" {
			if _, plain := policy.ParseURL(body.Target); plain == nil {
				field = "for"
			}
		}
		if !f.blame(field, err) {
			return out, err
		}
	}
	if !f.ok() {
		return out, nil
	}
	if rule.Tenant, rule.Agent, err = whoseOf(f.Get("whose")).Of(q.ctx(), c.Identity, q.by, identity.RuleChange); err == nil {
		out, err = c.Egress.AddRule(q.ctx(), q.by, rule)
	}
	return out, f.settle(err, ruleFields)
}

// settle puts what a service did not like into the form, and returns what is no mistake of whoever filled it in. That
// somebody may not do it at all is no mistake in the form either.
func (f *form) settle(err error, names map[string]string) error {
	if err == nil {
		return nil
	}
	if refusal(err) || !f.refuse(err, fieldsOf(err, names)) {
		return err
	}
	return nil
}
