package console

import (
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
)

// agentNetwork is the page with what an agent may reach, use and spend.
type agentNetwork struct {
	oneAgent
	Rules     []egress.Rule
	MoreRules int
	Set       egress.Settings
	Shown     settingsShown
	Usage     []egress.Usage
	Tokens    int64
	Cost      float64
}

// maxRules is how many rules are shown beside an agent; all are with the network.
const maxRules = 50

func (c *Console) agentNetworkPage(q *request) error { return c.showAgentNetwork(q, nil) }

func (c *Console) showAgentNetwork(q *request, f *form) error {
	one, err := c.theAgent(q, "/network")
	if err != nil {
		return err
	}
	if one.ID == "" {
		return problem.New(problem.NotFound, "remove it, or sync its file again", "%s is a leftover: it has no identity, and no access to anything", one.Name)
	}
	data := agentNetwork{oneAgent: one}
	all, err := c.Egress.Rules(q.ctx(), q.by, one.Tenant)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Session != "" || r.Agent != "" && r.Agent != one.ID {
			continue
		}
		if len(data.Rules) < maxRules {
			data.Rules = append(data.Rules, r)
		} else {
			data.MoreRules++
		}
	}
	set, effective, err := c.Egress.ShowSettings(q.ctx(), q.by, one.Tenant, one.Name)
	if err != nil {
		return err
	}
	data.Set, data.Shown = set, showSettings(f, set, effective, "as its tenant has it")
	usage, err := c.Egress.Usage(q.ctx(), q.by, one.Tenant, c.Now().UTC().Format(time.DateOnly))
	if err != nil {
		return err
	}
	for _, u := range usage {
		if u.Agent == one.ID {
			data.Usage = append(data.Usage, u)
			data.Tokens += u.InputTokens + u.OutputTokens
			data.Cost += u.Cost
		}
	}
	if f != nil && !f.ok() {
		return q.again("agent_network", one.Name+" · network", data)
	}
	return q.show("agent_network", one.Name+" · network", data)
}

func (c *Console) putAgentSettings(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	one, err := c.theAgent(q, "/network")
	if err != nil {
		return err
	}
	set, _, err := c.Egress.ShowSettings(q.ctx(), q.by, one.Tenant, one.Name)
	if err != nil {
		return err
	}
	wanted := readSettings(f, set)
	wanted.Tenant, wanted.Agent = one.Tenant, one.ID
	if f.ok() {
		if _, err := c.Egress.DeclareSettings(q.ctx(), q.by, wanted); err == nil {
			return q.done(one.Path+"/network", "The settings of %s are saved, and apply at once, also to what is running.%s", one.Name, andWarning(wanted.Budget))
		} else if problem.CodeOf(err) == problem.Forbidden || !f.refuse(err, settingsFields) {
			return err
		}
	}
	return c.showAgentNetwork(q, f)
}
