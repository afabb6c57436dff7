package console

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// newAgent is the page that adds an agent.
type newAgent struct {
	Form      *form
	Tenants   []option
	Templates []option
	Modes     []option
	Restarts  []option
	Browsers  []option
	MayJail   bool // jails are kept here, and the principal may declare one
}

// issued is the page with what is shown once.
type issued struct {
	Title, Name, Tenant, Key string
	Expires                  time.Time
	Back                     string
	Snippets                 []snippet
	Operator                 bool
}

// snippet is something to copy.
type snippet struct{ ID, Title, Help, Text string }

func (c *Console) addAgentPage(q *request) error {
	page, err := c.newAgentPage(q, blank("tenant", q.by.TenantOr(q.query("tenant")), "workspace_mode", "rw", "restart", "always", "where", q.query("where")))
	if err != nil {
		return err
	}
	return q.show("agents_add", "Add an agent", page)
}

func (c *Console) newAgentPage(q *request, f *form) (newAgent, error) {
	out := newAgent{Form: f, MayJail: c.Agents != nil && identity.Can(q.by, identity.AgentSync, q.by.TenantOr("")) == nil,
		Modes:     []option{{Value: "rw", Label: "reads and writes"}, {Value: "ro", Label: "reads only"}},
		Browsers:  []option{{Value: "", Label: "what its rules allow"}, {Value: "open", Label: "the public web as well"}},
		Restarts:  []option{{Value: "always", Label: "always"}, {Value: "on-failure", Label: "when it failed"}, {Value: "never", Label: "never"}},
		Templates: []option{{Value: "", Label: "the default template"}}}
	if identity.Can(q.by, identity.AgentCreate, q.by.TenantOr("")) != nil {
		return out, c.Identity.Authorize(q.ctx(), q.by, identity.AgentCreate, q.by.TenantOr(""))
	}
	var err error
	if out.Tenants, err = c.tenantOptions(q); err != nil || !out.MayJail {
		return out, err
	}
	m, err := c.Health.Machine(q.ctx())
	if err != nil {
		return out, err
	}
	for _, t := range m.Templates {
		out.Templates = append(out.Templates, option{Value: t.Name, Label: t.Name})
	}
	return out, nil
}

func (c *Console) addAgent(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	// For a principal of one tenant there is no choice; what it names all the same is for the service to refuse.
	tenant := q.by.TenantOr(f.Get("tenant"))
	if f.Get("where") == "jail" {
		err = c.declareAgent(q, f, tenant)
	} else {
		err = c.makeIdentity(q, f, tenant)
	}
	if err == nil || problem.CodeOf(err) == problem.Forbidden {
		return err
	}
	if !f.refuseName(err, "name", agentFields) {
		return err
	}
	page, err := c.newAgentPage(q, f)
	if err != nil {
		return err
	}
	return q.again("agents_add", "Add an agent", page)
}

// makeIdentity makes an agent that runs elsewhere, and shows its token.
func (c *Console) makeIdentity(q *request, f *form, tenant string) error {
	life, err := lifeOf(f.Get("life"))
	if err != nil {
		return err
	}
	key, made, err := c.Identity.CreateAgent(q.ctx(), q.by, tenant, f.Get("name"), life)
	if err != nil {
		return err
	}
	out := issued{Title: "The token of " + made.Name, Name: made.Name, Tenant: made.Tenant, Key: key.Reveal(), Back: agentPath(made.Tenant, made.Name),
		Snippets: snippets(c.address(q.r), made.Name, key.Reveal())}
	if life != identity.NeverExpires {
		out.Expires = made.CreatedAt.Add(life)
	}
	return q.show("token", out.Title, out)
}

// declareAgent makes one with a jail, where its token is. No other program gets it.
func (c *Console) declareAgent(q *request, f *form, tenant string) error {
	if c.Agents == nil {
		return noAgents()
	}
	entry, err := agentEntry(f)
	if err != nil {
		return err
	}
	name := f.Get("name")
	read := func() (clawbots.Agent, error) { return api.DeclareRequest{Agent: entry}.Read(name) }
	plan, err := c.Agents.Declare(q.ctx(), q.by, tenant, read, false, nil)
	if err != nil {
		return err
	}
	for _, s := range plan.Steps {
		if s.Problem != "" {
			return q.failed(agentPath(tenant, name), problem.New(cmp.Or(s.Code, problem.Conflict), s.Hint, "%s", s.Problem))
		}
	}
	return q.done(agentPath(tenant, name), "%s is declared, and its token is in its jail.", name)
}

// refuseName is refuse where a service may say of a name that it is none, which it does without the name of a field.
func (f *form) refuseName(err error, field string, names map[string]string) (mine bool) {
	if said := sayProblem(err); said.Code == problem.BadName && jail.ValidAgentName(f.Get(field)) != nil { // all names have one form
		f.wrong(field, said.Message, said.Hint)
		return true
	}
	return f.refuse(err, names)
}

// agentFields are the fields of the form by what the reader of declarations and the services call them.
var agentFields = map[string]string{
	"life": "life", "name": "name", "clawbots[0].name": "name", "clawbots[0].ttl": "life", "clawbots[0].template": "template", "clawbots[0].image": "image",
	"clawbots[0].command": "command", "clawbots[0].workspace": "workspace", "clawbots[0].workspace_mode": "workspace_mode", "clawbots[0].restart": "restart",
	"clawbots[0].limits.memory": "memory", "clawbots[0].limits.cpu": "cpu", "clawbots[0].limits.tasks": "tasks",
}

// agentEntry is the form as an entry of clawbots.yml, whose reader says what is wrong with it.
func agentEntry(f *form) (map[string]any, error) {
	out := map[string]any{}
	text := func(field, key string) {
		if v := f.Get(field); v != "" {
			out[key] = v
		}
	}
	text("template", "template")
	text("image", "image")
	text("command", "command")
	text("life", "ttl")
	text("restart", "restart")
	text("browser", "browser")
	if f.Get("life") == "never" {
		delete(out, "ttl")
	}
	if f.Get("workspace") != "" {
		text("workspace", "workspace")
		text("workspace_mode", "workspace_mode")
		if f.Has("unix_sockets") {
			out["unix_sockets"] = true
		}
	}
	if f.Has("exec_tmp") {
		out["tmp"] = "exec"
	}
	flaws := &problem.ValidationError{Code: problem.BadRequest}
	limits := map[string]any{}
	if v := f.Get("memory"); v != "" {
		limits["memory"] = v
	}
	if v := f.Get("cpu"); v != "" {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			flaws.AddFlaw(problem.Flaw{Field: "cpu", Message: "is not a number of cores", Hint: "such as 0.5"})
		}
		limits["cpu"] = n
	}
	if v := f.Get("tasks"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			flaws.AddFlaw(problem.Flaw{Field: "tasks", Message: "is not a whole number", Hint: "such as 64"})
		}
		limits["tasks"] = n
	}
	if len(limits) > 0 {
		out["limits"] = limits
	}
	if lines := linesOf(f, "allow"); len(lines) > 0 {
		out["allow"] = lines
	}
	if lines := linesOf(f, "env"); len(lines) > 0 {
		env := map[string]string{}
		for _, line := range lines {
			name, value, ok := strings.Cut(line, "=")
			if _, twice := env[name]; !ok || twice {
				flaws.AddFlaw(problem.Flaw{Field: "env", Message: "has a line that is not NAME=value, or a name twice", Hint: "one variable a line"})
				continue
			}
			env[name] = value
		}
		out["env"] = env
	}
	if f.Has("webhook") {
		out["webhook"] = true
	}
	return out, flaws.Err()
}

// linesOf are the lines of a field, without those that are empty.
func linesOf(f *form, field string) []string {
	var out []string
	for line := range strings.Lines(f.Get(field)) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// lifeOf reads how long a key is to be good.
func lifeOf(text string) (time.Duration, error) {
	flaw := &problem.ValidationError{Code: problem.BadLimit}
	d, err := op.Life(text)
	if err != nil {
		flaw.AddFlaw(problem.Flaw{Field: "life", Message: "is not a time", Hint: "such as 30d, or never"})
	}
	return d, flaw.Err()
}

// hasJail says whether the token of an agent is delivered into a jail, and shown to nobody.
func hasJail(s agent.Status) bool { return s.Declared != nil || s.Jail != nil }
