package console

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// program is one of an agent's as a page shows it.
type program struct {
	agent.Process
	Path, Command, State, End string
}

func (c *Console) programOf(p agent.Process) program {
	out := program{Process: p, Path: agentPath(p.Tenant, p.Agent) + "/programs/" + p.ID, Command: strings.Join(p.Argv, " "), State: "running"}
	if p.Exit != nil {
		out.State, out.End = "ended", sayExit(p.Exit)
	}
	return out
}

// agentPrograms is the page with what runs for an agent.
type agentPrograms struct {
	oneAgent
	Programs []program
	Form     *form
	Where    []option
}

func (c *Console) programsPage(q *request) error {
	return c.showPrograms(q, blank("where", "own"))
}

func (c *Console) showPrograms(q *request, f *form) error {
	if c.Agents == nil {
		return noAgents()
	}
	one, err := c.theAgent(q, "/programs")
	if err != nil {
		return err
	}
	all, err := c.Agents.Processes(q.ctx(), q.by, one.Tenant, one.Name)
	if err != nil {
		return err
	}
	data := agentPrograms{oneAgent: one, Form: f, Where: []option{{Value: "own", Label: "in a jail of its own"}}}
	if one.Jail != nil {
		data.Where = append(data.Where, option{Value: "agent", Label: "in the agent's jail, beside what is there"})
	}
	for _, p := range all {
		data.Programs = append(data.Programs, c.programOf(p))
	}
	switch {
	case q.fragment():
		return q.part("agent_programs", "programs", data)
	case !f.ok():
		return q.again("agent_programs", one.Name+" · programs", data)
	}
	return q.show("agent_programs", one.Name+" · programs", data)
}

func (c *Console) startProgram(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	f, err := q.form()
	if err != nil {
		return err
	}
	tenant, name := q.value("tenant"), q.value("name")
	r := agent.ProcessRequest{Argv: linesOf(f, "argv"), Dir: f.Get("dir")}
	if f.Get("where") == "agent" {
		r.Jail = &agent.JailConfig{Name: name}
	}
	if text := f.Get("ttl"); text != "" {
		if r.TTL, err = texts.Duration(text); err != nil || r.TTL <= 0 {
			f.wrong("ttl", "is not a time", "such as 30m or 2d")
		}
	}
	if f.ok() {
		started, err := c.Agents.Start(q.ctx(), q.by, tenant, name, r)
		if err == nil {
			return q.done(agentPath(tenant, name)+"/programs/"+started.ID, "It runs.")
		}
		if code := problem.CodeOf(err); code == problem.Forbidden || code == problem.NotFound || !f.refuse(err, nil) {
			return err
		}
	}
	return c.showPrograms(q, f)
}

// onePrograms is the page of one program, with its log.
type onePrograms struct {
	oneAgent
	Program program
	Log     logView
}

func (c *Console) programPage(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	one, err := c.theAgent(q, "/programs")
	if err != nil {
		return err
	}
	all, err := c.Agents.Processes(q.ctx(), q.by, one.Tenant, one.Name)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(all, func(p agent.Process) bool { return p.ID == q.value("id") })
	if n < 0 {
		return problem.New(problem.NotFound, "those that ended more than an hour ago are forgotten", "there is no program %q", q.value("id"))
	}
	data := onePrograms{oneAgent: one, Program: c.programOf(all[n])}
	if data.Log, err = c.logView(q, one, all[n].ID, "", blank("newline", "yes")); err != nil {
		return err
	}
	data.Log.Ended = all[n].Exit != nil
	return q.show("agent_program", one.Name+" · program", data)
}

func (c *Console) endProgram(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	tenant, name := q.value("tenant"), q.value("name")
	return q.act(agentPath(tenant, name)+"/programs", c.Agents.EndProcess(q.ctx(), q.by, tenant, name, q.value("id")), "It has ended, with everything that it had started.")
}
