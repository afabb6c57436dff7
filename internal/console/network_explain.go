package console

import (
	"cmp"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// ofSession begins the choice of a session among those who ask.
const ofSession = "session:"

type explainPage struct {
	Tabs    []tab
	Form    *form
	Whose   []option
	Surface []option
	Answer  *egress.Explanation
	RuleAt  string // where the rule that decided is shown; empty when none did
	MakeAt  string // where a rule can be made of the question; empty when it would not help, or may not be made
	AgentAt string // where the tools of the agent are set, which decide instead
}

// explain answers why a request is denied, or allowed. It asks by its address, so that others can lead here: whose, method,
// url, surface, service; agent and tenant instead of whose, where agent is a name or an id; session, where that is open.
func (c *Console) explain(q *request) error {
	tabs, err := c.networkTabs(q, networkPath+"/explain")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	f := blank()
	for _, name := range []string{"whose", "method", "url", "surface", "service"} {
		f.Values.Set(name, strings.ToValidUTF8(q.query(name), "\uFFFD"))
	}
	session := q.query("session")
	if f.Get("whose") == "" {
		f.Values.Set("whose", askedBy(q, agents))
		if session != "" {
			f.Values.Set("whose", ofSession+session)
		}
	}
	page := &explainPage{Tabs: tabs, Form: f, Surface: []option{{Value: "proxy", Label: "proxy"}, {Value: "browser", Label: "a browser of its own"},
		{Value: "execute", Label: "execute"}, {Value: "service", Label: "service route"}}}
	if page.Whose, err = c.askers(q, agents); err != nil {
		return err
	}
	if f.Get("url") == "" {
		if q.r.URL.Query().Has("url") {
			f.wrong("url", "is missing", "such as https://api.example.com/v1")
			return q.again("network_explain", "Why was this denied?", page)
		}
		return q.show("network_explain", "Why was this denied?", page)
	}
	if f.Get("surface") == "llm" {
		f.Problem = &said{Message: "Rules do not decide about requests for models.", Hint: "look at the providers of models, and at the budgets of the agent"}
		return q.show("network_explain", "Why was this denied?", page)
	}
	asked := func() egress.Question {
		question := egress.Question{Surface: f.Get("surface"), Service: f.Get("service"), Method: strings.ToUpper(f.Get("method")), URL: f.Get("url"), Lookup: true}
		var of bool
		if question.Session, of = strings.CutPrefix(f.Get("whose"), ofSession); !of {
			whose := whoseOf(f.Get("whose"))
			question.Session, question.Tenant, question.Agent = "", whose.Tenant, whose.Agent
		}
		return question
	}
	answers, err := c.Egress.Explain(q.ctx(), q.by, []egress.Question{asked()})
	if problem.CodeOf(err) == problem.NotFound && asked().Session != "" {
		if session == "" || q.query("confined") != "" {
			f.Problem = &said{Message: "The session is not open, and what it might reach is not known any more.",
				Hint: "the record of the refusal has the rule and the code that decided"}
			return q.show("network_explain", "Why was this denied?", page)
		}
		// One without accounts has the rules of any that its agent opens.
		f.Values.Set("whose", askedBy(q, agents))
		answers, err = c.Egress.Explain(q.ctx(), q.by, []egress.Question{asked()})
	}
	if err != nil {
		if refusal(err) || !f.refuse(err, map[string]string{"agent": "whose", "tenant": "whose"}) {
			return err
		}
		return q.again("network_explain", "Why was this denied?", page)
	}
	page.Answer = &answers[0]
	c.nextSteps(q, page)
	return q.show("network_explain", "Why was this denied?", page)
}

// askedBy is whose request the address is about, when it names a tenant and an agent.
func askedBy(q *request, agents map[string]identity.Agent) string {
	tenant, agent := q.by.TenantOr(q.query("tenant")), q.query("agent")
	if known, ok := agents[agent]; ok {
		tenant, agent = known.Tenant, known.Name
	} else if q.query("surface") == "browser" {
		agent = "" // records name it by its id, and it has been removed
	}
	if agent == "" {
		return tenant
	}
	return tenant + "/" + agent
}

// askers are those whose requests can be explained: agents, and clean sessions.
func (c *Console) askers(q *request, agents map[string]identity.Agent) ([]option, error) {
	all, err := c.whoseOptions(q, agents)
	if err != nil {
		return nil, err
	}
	var out []option
	for _, o := range all {
		switch {
		case o.Value == allTenants:
			continue
		case !strings.Contains(o.Value, "/"):
			o.Label = "A clean session"
			if q.by.Tenant == "" {
				o.Label += " of " + o.Value
			}
		}
		out = append(out, o)
	}
	if id, is := strings.CutPrefix(q.query("whose"), ofSession); is || q.query("session") != "" {
		id = cmp.Or(id, q.query("session"))
		out = append(out, option{Value: ofSession + id, Label: "The session " + id})
	}
	return out, nil
}

// nextSteps leads on from an answer.
func (c *Console) nextSteps(q *request, page *explainPage) {
	a := page.Answer
	if a.Rule != "" {
		page.RuleAt = networkPath + "?" + url.Values{"search": {a.Rule}}.Encode()
	}
	whose := page.Form.Get("whose")
	if a.Session != "" {
		return // its grant says what it may, or its agent's rules do
	}
	if a.Surface != "" && a.Surface != "proxy" {
		if a.Agent != "" {
			page.AgentAt = agentsPath + "/" + whose
		}
		return
	}
	if a.Allowed && !a.Reported || a.Code == problem.AddressDenied || a.Code == problem.DNSFailed || identity.Can(q.by, identity.RuleChange, q.by.TenantOr(a.Tenant)) != nil {
		return
	}
	if target := targetOf(a.URL); target != "" {
		page.MakeAt = networkPath + "/rules/add?" + url.Values{"action": {"allow"}, "target": {target}, "whose": {whose}}.Encode()
	}
}

// targetOf is the host of a URL as a rule names it: what is allowed to a tunnel is allowed as a whole.
func targetOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	if _, err := policy.ParseURL(u.Host); err != nil {
		return ""
	}
	return u.Host
}
