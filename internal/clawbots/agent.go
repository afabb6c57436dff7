package clawbots

import (
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what one agent has.
const (
	maxRules    = 200
	maxTools    = 200
	maxServices = 64
	maxMethods  = 32
	maxServers  = 64

	maxRate   = 1_000_000 // requests a minute
	maxTokens = 1_000_000_000_000
	maxCost   = 1_000_000_000
	minCost   = 0.000001
)

// agent reads one agent. Values that follow from the whole file are decided later.
func (f *file) agent(m *yamldoc.Map) Agent {
	a := Agent{Line: m.Line()}
	m.Value("name", func(v yamldoc.Value) error {
		a.Name = v.Text
		return jail.ValidAgentName(v.Text)
	})
	m.Need("write - name: dev-bot", "an agent needs a name", "name")
	m.Value("template", func(v yamldoc.Value) error {
		a.Template = v.Text
		return jail.ValidTemplateName(v.Text)
	})
	m.Value("image", func(v yamldoc.Value) error {
		a.Image = v.Text
		return jail.ValidImageName(v.Text)
	})
	if m.Has("template") && m.Has("image") {
		f.flaw(m.Field()+".image", "name one of them", "an agent is made of a template or of an image, not of both")
	}
	a.Command = f.command(m)
	m.Value("workspace", func(v yamldoc.Value) (err error) {
		a.Workspace, err = f.workspace(v.Text)
		return err
	})
	m.Value("workspace_mode", word(&a.WorkspaceMode, ReadOnly, ReadWrite))
	switch {
	case m.Has("workspace_mode") && !m.Has("workspace"):
		f.flaw(m.Field()+".workspace_mode", "add workspace: ./workspaces/"+nameOr(a.Name)+", or remove it", "there is no workspace")
	case a.Workspace != "" && a.WorkspaceMode == "":
		a.WorkspaceMode = ReadWrite
	}
	m.Value("unix_sockets", func(v yamldoc.Value) (err error) {
		a.UnixSockets, err = v.Bool()
		return err
	})
	m.Value("tmp", word(&a.Tmp, NoExec, Exec))
	m.Map("limits", a.Limits.read)
	m.Value("restart", word(&a.Restart, jail.RestartAlways, jail.RestartOnFailure, jail.RestartNever))
	m.Value("ttl", duration(&a.TTL))
	m.Map("env", func(m *yamldoc.Map) { a.Env, a.Without = f.env(m) })
	m.Value("webhook", func(v yamldoc.Value) (err error) {
		a.Webhook, err = v.Bool()
		return err
	})
	m.Value("browser", word(&a.Browser, BrowserRules, BrowserOpen))
	a.Allow = f.rules(m)
	if m.Has("services") {
		a.Services = f.names(m, "services", maxServices, validServiceName)
	}
	a.Tools = f.tools(m)
	a.Accounts = f.accounts(m)
	m.Map("rate", a.Rate.read)
	a.MCP = f.names(m, "mcp", maxServers, validServerName)
	if len(a.MCP) == 0 {
		a.MCP = nil
	}
	m.Map("llm", a.LLM.read)
	return a
}

func nameOr(name string) string {
	if jail.ValidAgentName(name) != nil {
		return "NAME"
	}
	return name
}

// workspace makes a path absolute and clean. Whether it is beneath a folder that agents may have is for the host daemon
// to say.
func (f *file) workspace(text string) (string, error) {
	const hint = "write a folder, such as ./workspaces/project-x"
	switch {
	case text == "":
		return "", problem.New(problem.BadRequest, "leave the key out for an agent without a workspace", "is empty")
	case strings.HasPrefix(text, "~"):
		return "", problem.New(problem.BadRequest, "write the path in full", "~ is not understood here")
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", problem.New(problem.BadRequest, hint, "has a control character")
	}
	if !path.IsAbs(text) {
		text = path.Join(f.dir, text)
	}
	text = path.Clean(text)
	switch {
	case text == "/":
		return "", problem.New(problem.BadRequest, hint, "must not be the root of the file system")
	case len(text) > maxPath:
		return "", problem.New(problem.BadRequest, hint, "is longer than %d bytes", maxPath)
	}
	return text, nil
}

func (l *Limits) read(m *yamldoc.Map) {
	m.Value("memory", size(&l.Memory, jail.MinMemory, jail.MaxMemory))
	m.Value("cpu", func(v yamldoc.Value) error {
		n, err := v.Number()
		if err != nil {
			return err
		}
		const least, most = float64(jail.MinMilliCPU) / 1000, float64(jail.MaxMilliCPU) / 1000
		if n < least || n > most {
			return problem.New(problem.BadLimit, "write a number of cores, such as 0.5", "%v is not between %v and %v", n, least, most)
		}
		l.CPU = math.Round(n*1000) / 1000
		return nil
	})
	m.Value("tasks", whole(&l.Tasks, jail.MinTasks, jail.MaxTasks))
	m.Value("tmp", size(&l.Tmp, jail.MinDisk, jail.MaxDisk))
	m.Value("state", size(&l.State, jail.MinState, jail.MaxState))
	m.Value("files", whole(&l.Files, jail.MinFiles, jail.MaxFiles))
}

func (r *Rate) read(m *yamldoc.Map) {
	m.Value("proxy", whole(&r.Proxy, 1, maxRate))
	m.Value("execute", whole(&r.Execute, 1, maxRate))
	m.Value("services", whole(&r.Service, 1, maxRate))
	m.Value("llm", whole(&r.LLM, 1, maxRate))
}

func (l *LLM) read(m *yamldoc.Map) {
	m.Value("tokens_per_day", whole(&l.TokensPerDay, 1, maxTokens))
	m.Value("cost_per_day", func(v yamldoc.Value) error {
		n, err := v.Number()
		if err != nil {
			return err
		}
		if n < minCost || n > maxCost {
			return problem.New(problem.BadLimit, zeroHint, "%v is not between 0.000001 and %d", n, maxCost)
		}
		l.CostPerDay = n
		return nil
	})
}

// names reads a list of names, each of which may stand in it once.
func (f *file) names(m *yamldoc.Map, key string, most int, valid func(string) error) []string {
	if n := m.Length(key); n > most {
		f.flaw(m.Field()+"."+key, "", "has %d names, more than %d", n, most)
		m.Ignore(key)
		return nil
	}
	out := []string{}
	m.Values(key, func(v yamldoc.Value) error {
		if err := valid(v.Text); err != nil {
			return err
		}
		if slices.Contains(out, v.Text) {
			return problem.New(problem.BadRequest, "name it once", "%s is there already", v.Text)
		}
		out = append(out, v.Text)
		return nil
	})
	return out
}

// validServiceName accepts what can be the name of a service of the gateway.
func validServiceName(s string) error {
	if s == "" || len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" || strings.ContainsAny(s[:1], "._-") {
		return problem.New(problem.BadName, "names are 1 to 64 of a-z, 0-9, dot, _ and -, a letter or a digit first; `clawjail service ls` shows them",
			"%.60q is not the name of a service", s)
	}
	return nil
}

// validServerName accepts what can be the name of an MCP server.
func validServerName(s string) error {
	if s == "" || len(s) > 40 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" || strings.ContainsAny(s[:1], "_-") {
		return problem.New(problem.BadName, "names are those of mcp_servers in the configuration; `clawjail mcp-server ls` shows them",
			"%.60q is not the name of an MCP server", s)
	}
	return nil
}

// zeroHint is for what people write to have no limit.
const zeroHint = "zero does not mean unlimited; leave the key out for its default"

func word[T ~string](into *T, allowed ...T) func(yamldoc.Value) error {
	words := make([]string, len(allowed))
	for i, w := range allowed {
		words[i] = string(w)
	}
	return func(v yamldoc.Value) error {
		w, err := v.Word(words...)
		if err == nil {
			*into = T(w)
		}
		return err
	}
}

func size(into *config.Bytes, least, most config.Bytes) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		n, err := config.ParseBytes(v.Text)
		if err != nil {
			return err
		}
		if n < least || n > most {
			return problem.New(problem.BadLimit, zeroHint, "%s is not between %s and %s", n, least, most)
		}
		*into = n
		return nil
	}
}

func whole[T int | int64](into *T, least, most int64) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		n, err := v.Int()
		if err != nil {
			return err
		}
		if n < least || n > most {
			return problem.New(problem.BadLimit, zeroHint, "%d is not between %d and %d", n, least, most)
		}
		*into = T(n)
		return nil
	}
}

func duration(into *time.Duration) func(yamldoc.Value) error {
	return func(v yamldoc.Value) error {
		d, err := time.ParseDuration(v.Text)
		if err != nil || len(v.Text) > 32 {
			return problem.New(problem.BadRequest, "write a number with s, m or h, such as 8h", "%.40q is not a duration", v.Text)
		}
		if d < jail.MinWallClock || d > jail.MaxWallClock {
			return problem.New(problem.BadLimit, zeroHint, "%s is not between %s and %s", v.Text, jail.MinWallClock, jail.MaxWallClock)
		}
		*into = d
		return nil
	}
}
