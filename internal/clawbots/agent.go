package clawbots

import (
	"cmp"
	"math"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what one agent has.
const (
	maxRules   = 200
	maxMethods = 32
)

// agent reads one agent. Values that follow from the whole file are decided later.
func (f *file) agent(m *yamldoc.Map) Agent {
	a := Agent{Line: m.Line()}
	m.Struct(&a, f.value)
	a.Limits.CPU = math.Round(a.Limits.CPU*1000) / 1000
	m.Value("name", func(v yamldoc.Value) error {
		a.Name = v.Text // what is no name is shown all the same
		return jail.ValidAgentName(v.Text)
	})
	m.Need("write - name: dev-bot", "an agent needs a name", "name")
	f.madeOf(m.Field()+".", m.Has("template"), m.Has("image"))
	a.Command = f.command(m)
	switch {
	case m.Has("workspace_mode") && !m.Has("workspace"):
		f.flaw(m.Field()+".workspace_mode", "add workspace: ./workspaces/"+nameOr(a.Name)+", or remove it", "there is no workspace")
	case a.Workspace != "" && a.WorkspaceMode == "":
		a.WorkspaceMode = ReadWrite
	}
	m.Map("env", func(m *yamldoc.Map) { a.Env, a.Without = f.env(m) })
	a.Allow = f.rules(m)
	a.Tools = f.tools(m)
	a.Accounts = f.accounts(m)
	f.look(m.Field()+".", a)
	for i := range a.Accounts {
		a.Accounts[i].tidy()
	}
	return a
}

func (f *file) madeOf(at string, template, image bool) {
	if template && image {
		f.flaw(at+"image", "name one of them", "an agent is made of a template or of an image, not of both")
	}
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

// value is a [yamldoc.ReadFunc].
func (f *file) value(into any, tags reflect.StructTag, v yamldoc.Value) (err error) {
	at := reflect.ValueOf(into).Elem()
	switch into := into.(type) {
	case *config.Bytes:
		*into, err = config.ParseBytes(v.Text)
	case *time.Duration:
		if *into, err = texts.Duration(v.Text); err != nil || len(v.Text) > 32 {
			return problem.New(problem.BadRequest, "write a number with s, m, h or d, such as 8h", "%.40q is not a duration", v.Text)
		}
		return allowed(at, tags, v.Text)
	case *int, *int64:
		var n int64
		n, err = v.Int()
		at.SetInt(n)
	case *float64:
		*into, err = v.Number()
	case *bool:
		*into, err = v.Bool()
	default:
		text := v.Text
		if tags.Get("is") == "workspace" {
			text, err = f.workspace(text)
		}
		at.SetString(text)
	}
	if err != nil {
		return err
	}
	return allowed(at, tags, at.Interface())
}

// allowed looks at a value as the tags of its field say: is, what a text is the name of; enum, the words that it can be; min and max,
// its bounds, with a hint for what is beyond them. shown is the value in messages.
func allowed(at reflect.Value, tags reflect.StructTag, shown any) error {
	if words := tags.Get("enum"); words != "" {
		_, err := yamldoc.Value{Text: at.String()}.Word(strings.Split(words, ",")...)
		return err
	}
	if !config.Within(at, tags) {
		return problem.New(problem.BadLimit, cmp.Or(tags.Get("hint"), zeroHint), "%v is not between %s and %s", shown, tags.Get("min"), tags.Get("max"))
	}
	switch tags.Get("is") {
	case "word":
		return checkWord(at.String())
	case "method":
		_, err := parseMethod(at.String())
		return err
	case "service":
		return validServiceName(at.String())
	case "server":
		return validServerName(at.String())
	case "host":
		return validHost(at.String())
	case "template":
		return jail.ValidTemplateName(at.String())
	case "image":
		return jail.ValidImageName(at.String())
	case "tool":
		return checkToolURL(at.String())
	case "hours":
		return grant.Hours(at.String()).Validate()
	}
	return nil
}
