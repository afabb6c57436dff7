package console

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
)

// usageDays is how far back the page looks, today included.
const usageDays = 30

// used is what was used of something: a model, an agent, a day.
type used struct {
	Name, Path    string // Path is empty where there is nothing more to see
	Of            string // the provider of a model, the tenant of an agent
	Requests      int64
	Input, Output int64
	Cost          float64
}

func (u *used) add(one egress.Usage) {
	u.Requests = sum(u.Requests, one.Requests)
	u.Input, u.Output = sum(u.Input, one.InputTokens), sum(u.Output, one.OutputTokens)
	u.Cost = amount(u.Cost + amount(one.Cost))
}

// sum adds what is not below zero, and stays at the most that there is.
func sum(a, b int64) int64 {
	if b <= 0 {
		return a // a correction is in the sums of its day
	}
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Tokens are both kinds.
func (u used) Tokens() int64 { return sum(u.Input, u.Output) }

// Said is an amount for people, and Money one of money.
func (u used) RequestsSaid() string { return grouped(u.Requests) }
func (u used) InputSaid() string    { return grouped(u.Input) }
func (u used) OutputSaid() string   { return grouped(u.Output) }
func (u used) TokensSaid() string   { return grouped(u.Tokens()) }
func (u used) CostSaid() string     { return money(u.Cost) }

// budgetRow is what an agent may use on one day, and what it has used today.
type budgetRow struct {
	Tenant, Agent string // without an agent it is what holds for all that have none of their own
	Budget        egress.Budget
	Today         used
}

func (b budgetRow) TokensSaid() string { return grouped(b.Budget.TokensPerDay) }
func (b budgetRow) CostSaid() string   { return money(b.Budget.CostPerDay) }

type usagePage struct {
	Tabs     []tab
	Agents   []option
	Agent    string // TENANT/AGENT of the agent that the page is about; empty for all
	AgentAt  string // its page
	Charts   []chart
	Days     []used
	Total    used
	Models   []used
	ByAgent  []used
	Budgets  []budgetRow
	Max      int // of the agents that are listed
	Unpriced bool
}

func (c *Console) usage(q *request) error {
	tabs, err := c.networkTabs(q, networkPath+"/usage")
	if err != nil {
		return err
	}
	agents, err := c.agentsByID(q.ctx(), q.by)
	if err != nil {
		return err
	}
	today := c.Now().UTC()
	all, err := c.Egress.Usage(q.ctx(), q.by, "", today.AddDate(0, 0, 1-usageDays).Format(time.DateOnly))
	if err != nil {
		return err
	}
	page := &usagePage{Tabs: tabs, Max: pageSize}
	chosen := c.chooseAgent(q, page, agents)
	if chosen != nil {
		all = slices.DeleteFunc(all, func(u egress.Usage) bool { return u.Agent != chosen.ID })
	}
	page.count(all, agents, today)
	todays := map[string]*used{}
	for _, u := range all {
		if u.Day == today.Format(time.DateOnly) {
			sumOf(todays, u.Agent).add(u)
		}
	}
	limit, err := c.budgets(q, page, chosen, agents, todays)
	if err != nil {
		return err
	}
	page.draw(limit)
	return q.show("network_usage", "Usage and budgets", page)
}

// chooseAgent is the agent that the address is about; nil for all. Those to choose from are in the page.
func (c *Console) chooseAgent(q *request, page *usagePage, agents map[string]identity.Agent) *identity.Agent {
	var chosen *identity.Agent
	for _, a := range agents {
		value, label := a.Tenant+"/"+a.Name, a.Name
		if q.by.Tenant == "" {
			label = value
		}
		selected := q.query("agent") == value
		if selected {
			chosen, page.Agent, page.AgentAt = &a, value, agentsPath+"/"+value
		}
		page.Agents = append(page.Agents, option{Value: value, Label: label, Selected: selected})
	}
	slices.SortFunc(page.Agents, func(a, b option) int { return strings.Compare(a.Label, b.Label) })
	return chosen
}

// sumOf finds a sum, or begins it.
func sumOf[K comparable](sums map[K]*used, key K) *used {
	if sums[key] == nil {
		sums[key] = &used{}
	}
	return sums[key]
}

// count adds up usage by day, by model and by agent.
func (p *usagePage) count(all []egress.Usage, agents map[string]identity.Agent, today time.Time) {
	type model struct{ provider, name string }
	days, models, byAgent := map[string]*used{}, map[model]*used{}, map[string]*used{}
	for _, u := range all {
		p.Total.add(u)
		sumOf(days, u.Day).add(u)
		sumOf(models, model{u.Provider, u.Model}).add(u)
		sumOf(byAgent, u.Agent).add(u)
		byAgent[u.Agent].Of = u.Tenant
	}
	for n := range usageDays {
		name := today.AddDate(0, 0, n+1-usageDays).Format(time.DateOnly)
		day := *sumOf(days, name)
		day.Name = name
		p.Days = append(p.Days, day)
	}
	for key, u := range models {
		u.Name, u.Of = key.name, key.provider
		p.Unpriced = p.Unpriced || u.Cost == 0 && u.Tokens() > 0
		p.Models = append(p.Models, *u)
	}
	for id, u := range byAgent {
		u.Name = id
		if a, known := agents[id]; known {
			u.Name, u.Path = a.Name, networkPath+"/usage?agent="+a.Tenant+"/"+a.Name
		}
		p.ByAgent = append(p.ByAgent, *u)
	}
	byCost := func(a, b used) int {
		return cmp.Or(cmp.Compare(b.Cost, a.Cost), cmp.Compare(b.Tokens(), a.Tokens()), strings.Compare(a.Of+a.Name, b.Of+b.Name))
	}
	slices.SortFunc(p.Models, byCost)
	slices.SortFunc(p.ByAgent, byCost)
	p.Models, p.ByAgent = p.Models[:min(len(p.Models), p.Max)], p.ByAgent[:min(len(p.ByAgent), p.Max)]
}

// budgets are those that are set, with what was used of them today, and the one that is in effect for the chosen agent.
func (c *Console) budgets(q *request, page *usagePage, chosen *identity.Agent, agents map[string]identity.Agent, today map[string]*used) (egress.Budget, error) {
	if chosen != nil {
		_, effective, err := c.Egress.ShowSettings(q.ctx(), q.by, chosen.Tenant, chosen.Name)
		if err != nil {
			return egress.Budget{}, err
		}
		if effective.Budget != (egress.Budget{}) {
			page.Budgets = append(page.Budgets, budgetRow{Tenant: chosen.Tenant, Agent: chosen.Name, Budget: effective.Budget, Today: *sumOf(today, chosen.ID)})
		}
		return effective.Budget, nil
	}
	tenants := map[string]bool{}
	if q.by.Tenant != "" {
		tenants[q.by.Tenant] = true
	} else {
		all, err := c.Identity.Tenants(q.ctx(), q.by)
		if err != nil {
			return egress.Budget{}, err
		}
		for _, t := range all {
			tenants[t.ID] = true
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(tenants)) {
		all, err := c.Egress.AllSettings(q.ctx(), q.by, tenant)
		if err != nil {
			return egress.Budget{}, err
		}
		for _, s := range all {
			if s.Budget != (egress.Budget{}) && len(page.Budgets) < page.Max {
				page.Budgets = append(page.Budgets, budgetRow{Tenant: tenant, Agent: agentName(s.Meta, agents), Budget: s.Budget, Today: *sumOf(today, s.Agent)})
			}
		}
	}
	slices.SortFunc(page.Budgets, func(a, b budgetRow) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Agent, b.Agent))
	})
	return egress.Budget{}, nil
}

// draw makes the charts of the days.
func (p *usagePage) draw(limit egress.Budget) {
	whole := func(v float64) string { return grouped(int64(min(v, 1<<62))) }
	points := func(of func(used) (float64, float64)) []point {
		out := make([]point, len(p.Days))
		for n, day := range p.Days {
			out[n].Day = day.Name
			out[n].First, out[n].Second = of(day)
		}
		return out
	}
	p.Charts = []chart{
		newChart("Requests a day", points(func(u used) (float64, float64) { return float64(u.Requests), 0 }), 0, whole),
		newChart("Tokens a day", points(func(u used) (float64, float64) { return float64(u.Input), float64(u.Output) }), float64(limit.TokensPerDay), whole),
		newChart("Cost a day", points(func(u used) (float64, float64) { return u.Cost, 0 }), limit.CostPerDay, money),
	}
	p.Charts[1].Legend = "below what was put in, above what came out"
}

// grouped writes a number with its thousands apart: 12,345.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// money writes an amount. There is no currency: prices are in what the operator pays in.
func money(amount float64) string {
	switch {
	case amount == 0:
		return "0"
	case amount < 1:
		return strconv.FormatFloat(amount, 'f', 4, 64)
	case amount < 1e15:
		cents := int64(math.Round(amount * 100))
		return fmt.Sprintf("%s.%02d", grouped(cents/100), cents%100)
	}
	return strconv.FormatFloat(amount, 'g', 4, 64)
}
