package console

import (
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// oneAgent is what every page about an agent has.
type oneAgent struct {
	agent.Status
	Path, Tab, State string
	// Only says that it is an identity alone.
	Only bool
	Tabs []section
}

// theAgent is the one that the path names.
func (c *Console) theAgent(q *request, tab string) (oneAgent, error) {
	tenant, name := q.value("tenant"), q.value("name")
	out := oneAgent{Path: agentPath(tenant, name), Tab: tab}
	var err error
	if c.Agents != nil {
		out.Status, err = c.Agents.Get(q.ctx(), q.by, tenant, name)
	} else {
		out.Status, err = c.identityAlone(q, tenant, name)
	}
	if err != nil {
		return out, err
	}
	out.Only = out.Jail == nil && out.Declared == nil
	if out.State = stateOf(out.Status, c.Now()); !out.RevokedAt.IsZero() {
		out.State = "revoked"
	}
	for _, t := range []struct{ path, name string }{{"", "Overview"}, {"/log", "Log"}, {"/programs", "Programs"}, {"/network", "Network and budget"}, {"/tokens", "Tokens"}} {
		if t.path == "/log" && (out.Only || identity.Can(q.by, identity.AgentLog, tenant) != nil) || t.path == "/programs" && c.Agents == nil {
			continue
		}
		out.Tabs = append(out.Tabs, section{Path: out.Path + t.path, Name: t.name, Current: t.path == tab})
	}
	return out, nil
}

func (c *Console) identityAlone(q *request, tenant, name string) (agent.Status, error) {
	all, err := c.Identity.Agents(q.ctx(), q.by, tenant)
	if err != nil {
		return agent.Status{}, err
	}
	for _, g := range all {
		if g.Name == name {
			return agent.Status{ID: g.ID, Tenant: g.Tenant, Name: g.Name, CreatedAt: g.CreatedAt, RevokedAt: g.RevokedAt}, nil
		}
	}
	return agent.Status{}, problem.New(problem.NotFound, "they are all in the list of agents", "there is no agent %q", name)
}

// use is how much of a limit is used.
type use struct {
	Name     string
	Now, Max int64
	Bytes    bool
	Hit      bool
}

// agentOverview is the first page about an agent.
type agentOverview struct {
	oneAgent
	Kept     *op.AgentJail
	Says     *op.Declaration
	Exposes  []string
	Uses     []use
	Sessions []session.Session
	Tokens   []identity.Token
	Expires  time.Time
	Good     int
	NewToken string // where a new one is made
}

func (c *Console) agentPage(q *request) error {
	one, err := c.theAgent(q, "")
	if err != nil {
		return err
	}
	data := agentOverview{oneAgent: one}
	if one.Declared != nil {
		data.Says, data.Exposes = op.DeclarationOf(*one.Declared), clawbots.Exposes(*one.Declared)
	}
	if one.Jail != nil {
		kept := op.JailOf(*one.Jail, c.Now())
		data.Kept, data.Uses = &kept, usesOf(kept)
	}
	if one.ID != "" {
		if data.Tokens, err = c.Identity.Tokens(q.ctx(), q.by, one.Tenant, one.Name); err != nil {
			return err
		}
		for _, t := range data.Tokens {
			if tokenIsGood(t, c.Now()) {
				data.Good++
				data.Expires = t.ExpiresAt
			}
		}
	}
	sessions, err := c.Sessions.List(q.ctx(), q.by, one.Tenant, false)
	if err != nil {
		return err
	}
	data.Sessions = slices.DeleteFunc(slices.Clone(sessions), func(s session.Session) bool { return one.ID == "" || s.OpenedBy != "agent:"+one.ID })
	if q.fragment() {
		return q.part("agent", "agent-state", data)
	}
	return q.show("agent", one.Name, data)
}

// usesOf are the limits of a jail with what of them is used.
func usesOf(k op.AgentJail) []use {
	u := k.Usage
	if u == nil {
		return nil
	}
	hit := func(name jail.LimitName) bool { return slices.Contains(u.Hit, name) }
	return []use{
		{Name: "Memory", Now: u.Memory, Max: k.Limits.Memory, Bytes: true, Hit: hit(jail.LimitMemory)},
		{Name: "Processes and threads", Now: int64(u.Tasks), Max: int64(k.Limits.Tasks), Hit: hit(jail.LimitTasks)},
		{Name: "Disk of /tmp", Now: u.Disk, Max: k.Limits.Tmp, Bytes: true, Hit: hit(jail.LimitDisk)},
		{Name: "Open files of one process", Now: int64(u.Files), Max: int64(k.Limits.Files), Hit: hit(jail.LimitFiles)},
	}
}

func (c *Console) restartAgent(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	tenant, name := q.value("tenant"), q.value("name")
	return q.act(agentPath(tenant, name), c.Agents.RestartAgent(q.ctx(), q.by, tenant, name), "%s has a new jail.", name)
}

func (c *Console) revokeAgent(q *request) error {
	tenant, name := q.value("tenant"), q.value("name")
	return q.act(agentPath(tenant, name), c.Identity.RevokeAgent(q.ctx(), q.by, tenant, name), "%s is revoked. Everything that it had open has ended.", name)
}

func (c *Console) restoreAgent(q *request) error {
	tenant, name := q.value("tenant"), q.value("name")
	return q.act(agentPath(tenant, name), c.Identity.RestoreAgent(q.ctx(), q.by, tenant, name), "%s may work again.", name)
}

func (c *Console) removeAgent(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	tenant, name := q.value("tenant"), q.value("name")
	if c.Agents != nil {
		err = c.Agents.RemoveAgent(q.ctx(), q.by, tenant, name,
			agent.RemoveOptions{KeepState: f.Has("keep_state"), RemoveWorkspace: f.Has("remove_workspace")})
	} else {
		err = c.Identity.DeleteAgent(q.ctx(), q.by, tenant, name)
	}
	if err != nil {
		return q.failed(agentPath(tenant, name), err)
	}
	return q.done(agentsPath, "%s is removed. Its name is free again.", name)
}
