package console

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	agentsPath = Prefix + "/agents"
	// agentsAPage is how many agents one page lists.
	agentsAPage = 100
)

func (c *Console) agentRoutes() {
	c.get("/agents", c.agentsPage)
	c.get("/agents/add", c.addAgentPage)
	c.post("/agents/add", c.addAgent)
	c.get("/agents/plan", c.planPage)
	c.post("/agents/plan", c.makePlan)
	c.post("/agents/plan/apply", c.applyPlan)
	const one = "/agents/{tenant}/{name}"
	c.get(one, ofJail(c.agentPage))
	c.get(one+"/log", ofJail(c.agentLogPage))
	c.get(one+"/events", ofJail(c.agentEvents))
	c.post(one+"/type", ofJail(c.typeToAgent))
	c.get(one+"/programs", ofJail(c.programsPage))
	c.post(one+"/programs", ofJail(c.startProgram))
	c.get(one+"/programs/{id}", ofJail(c.programPage))
	c.get(one+"/programs/{id}/events", ofJail(c.agentEvents))
	c.post(one+"/programs/{id}/type", ofJail(c.typeToAgent))
	c.post(one+"/programs/{id}/end", ofJail(c.endProgram))
	c.get(one+"/tokens", ofJail(c.tokensPage))
	c.post(one+"/tokens", ofJail(c.rotateToken))
	c.post(one+"/tokens/{id}/revoke", ofJail(c.revokeToken))
	c.get(one+"/network", ofJail(c.agentNetworkPage))
	c.post(one+"/network", ofJail(c.putAgentSettings))
	c.post(one+"/restart", ofJail(c.restartAgent))
	c.post(one+"/revoke", ofJail(c.revokeAgent))
	c.post(one+"/restore", ofJail(c.restoreAgent))
	c.post(one+"/remove", ofJail(c.removeAgent))
}

// ofJail has the control plane answer that has an agent's jail, where that is another one. It asks once more who is signed in.
func ofJail(handle handler) handler {
	return func(q *request) error {
		there, err := api.ElsewhereOf(q.r, q.value("tenant"), q.value("name"))
		if err != nil {
			return err
		}
		if there == nil {
			return handle(q)
		}
		q.started = true
		there.ServeHTTP(q.w, q.r)
		return nil
	}
}

// agentRow is one line of the list of agents.
type agentRow struct {
	ID                    string
	Tenant, Name, Path    string
	State, Driver, Source string
	Workspace, Mode       string
	Sessions, Programs    int
	Restarts              int
	// Last is when something last happened: a change of its jail, or a use of its token.
	Last time.Time
	// Expires is when the last of its tokens ends; zero for never, and where there is none, as NoToken says.
	Expires time.Time
	NoToken bool
	Problem string
}

// agentList is the page of all agents.
type agentList struct {
	Rows            []agentRow
	All, Found      int
	Find, State     string
	States          []option
	From            int
	Previous, Next  string
	Unknown         *said // why nobody can say how the jails are
	MayAdd, HasJail bool
	Tenant          string
}

func (c *Console) agentsPage(q *request) error {
	rows, unknown, err := c.agentRows(q)
	if err != nil {
		return err
	}
	data := agentList{All: len(rows), Find: strings.TrimSpace(q.query("find")), State: q.query("state"), Tenant: q.by.TenantOr(""), HasJail: c.Agents != nil}
	if unknown != nil {
		s := sayProblem(unknown)
		data.Unknown = &s
	}
	states := []string{}
	for _, r := range rows {
		states = append(states, r.State)
	}
	slices.Sort(states)
	data.States = of(append([]option{{Value: "", Label: "any state"}}, options(slices.Compact(states)...)...), &field{Value: data.State}).Options
	find := strings.ToLower(data.Find)
	rows = slices.DeleteFunc(rows, func(r agentRow) bool {
		return data.State != "" && r.State != data.State ||
			!strings.Contains(strings.ToLower(r.Tenant+"/"+r.Name+" "+r.Source+" "+r.Workspace+" "+r.Driver), find)
	})
	data.Found = len(rows)
	from, _ := strconv.Atoi(q.query("from")) // what is no number is the beginning
	data.From = max(0, min(from, len(rows)))
	at := func(from int) string {
		v := url.Values{"from": {strconv.Itoa(from)}}
		if data.Find != "" {
			v.Set("find", data.Find)
		}
		if data.State != "" {
			v.Set("state", data.State)
		}
		return agentsPath + "?" + v.Encode()
	}
	if data.From > 0 {
		data.Previous = at(max(0, data.From-agentsAPage))
	}
	if data.From+agentsAPage < len(rows) {
		data.Next = at(data.From + agentsAPage)
	}
	data.Rows = rows[data.From:min(len(rows), data.From+agentsAPage)]
	return q.show("agents", "Agents", data)
}

// agentRows are all agents: those that are only an identity too, and jails whose agent is gone. unknown says why nobody knows
// of their jails.
func (c *Console) agentRows(q *request) (_ []agentRow, unknown, err error) {
	all, err := c.Identity.Agents(q.ctx(), q.by, q.by.Tenant)
	if err != nil {
		return nil, nil, err
	}
	type key struct{ tenant, name string }
	at := make(map[key]int, len(all))
	rows := make([]agentRow, 0, len(all))
	id := make(map[string]int, len(all))
	for _, g := range all {
		at[key{g.Tenant, g.Name}], id[g.ID] = len(rows), len(rows)
		row := agentRow{ID: g.ID, Tenant: g.Tenant, Name: g.Name, Path: agentPath(g.Tenant, g.Name), State: agent.StateNoJail, Last: g.CreatedAt, NoToken: true}
		if !g.RevokedAt.IsZero() {
			row.State, row.Last = "revoked", g.RevokedAt
		}
		rows = append(rows, row)
	}
	tokens, err := c.Identity.TenantTokens(q.ctx(), q.by, q.by.Tenant)
	if err != nil {
		return nil, nil, err
	}
	now := c.Now()
	for _, t := range tokens {
		if n, ok := id[t.Agent]; ok {
			rows[n].token(t, now)
		}
	}
	sessions, err := c.Sessions.List(q.ctx(), q.by, q.by.Tenant, false)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range sessions {
		if n, ok := id[strings.TrimPrefix(s.OpenedBy, "agent:")]; ok {
			rows[n].Sessions++
		}
	}
	statuses, unknown := c.agentStatuses(q.ctx(), q.by)
	for _, s := range statuses {
		n, ok := at[key{s.Tenant, s.Name}]
		if !ok { // an end that did not come to its end
			n = len(rows)
			rows = append(rows, agentRow{Tenant: s.Tenant, Name: s.Name, Path: agentPath(s.Tenant, s.Name), State: "leftover", Last: s.CreatedAt, NoToken: true})
		}
		rows[n].status(s, c.Now())
	}
	slices.SortFunc(rows, func(a, b agentRow) int { return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name)) })
	return rows, unknown, nil
}

// token adds what one of its tokens says.
func (r *agentRow) token(t identity.Token, now time.Time) {
	if t.UsedAt.After(r.Last) {
		r.Last = t.UsedAt
	}
	if !tokenIsGood(t, now) {
		return
	}
	if r.NoToken || t.ExpiresAt.IsZero() || !r.Expires.IsZero() && t.ExpiresAt.After(r.Expires) {
		r.Expires = t.ExpiresAt
	}
	r.NoToken = false
}

func tokenIsGood(t identity.Token, now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || t.ExpiresAt.After(now))
}

// status adds what is declared, and what is there.
func (r *agentRow) status(s agent.Status, now time.Time) {
	r.Programs = s.Processes
	if d := s.Declared; d != nil {
		r.Workspace, r.Mode, r.Source, r.Driver = d.Workspace, string(d.WorkspaceMode), cmp.Or(d.Image, d.Template), driverOf(d.Image != "")
		if d.Workspace != "" && r.Mode == "" {
			r.Mode = "rw"
		}
	}
	if r.State == agent.StateNoJail {
		r.State = stateOf(s, now)
	}
	if k := s.Jail; k != nil {
		r.Source, r.Driver = cmp.Or(k.Spec.Image, k.Spec.Template), driverOf(k.Spec.Image != "")
		r.Problem, r.Restarts = k.Problem, k.Restarts
		if k.Since.After(r.Last) {
			r.Last = k.Since
		}
	}
}

// crashLoop is the state of an agent whose program ends over and over.
const crashLoop = "crash loop"

// stateOf is how it is with an agent, revoked or not.
func stateOf(s agent.Status, now time.Time) string {
	switch {
	case s.Jail != nil:
		return phaseOf(*s.Jail, now)
	case s.Node != "":
		return agent.StateElsewhere
	case s.Unwatched:
		return agent.StateUnwatched
	case s.Unfinished:
		return agent.StateUnfinished
	}
	return agent.StateNoJail
}

func phaseOf(k jail.KeptStatus, now time.Time) string {
	if k.CrashLoop(now) > 0 {
		return crashLoop
	}
	return string(k.Phase)
}

func driverOf(image bool) string {
	if image {
		return agent.DriverDocker
	}
	return agent.DriverLinux
}

// agentStatuses are the agents of all tenants that the principal sees, with their jails. unknown says why nobody knows of these.
func (c *Console) agentStatuses(ctx context.Context, by identity.Principal) (out []agent.Status, unknown error) {
	if c.Agents == nil {
		return nil, nil
	}
	tenants, err := c.Identity.Tenants(ctx, by)
	if err != nil {
		return nil, err
	}
	for _, t := range tenants {
		some, err := c.Agents.List(ctx, by, t.ID)
		out, unknown = append(out, some...), cmp.Or(unknown, err)
	}
	return out, unknown
}

func agentPath(tenant, name string) string {
	return agentsPath + "/" + url.PathEscape(tenant) + "/" + url.PathEscape(name)
}

// noAgents is what is said where nobody keeps jails.
func noAgents() error {
	return problem.New(problem.NotFound, "agents are identities alone here: add one without a jail", "no jails are kept for agents here")
}
