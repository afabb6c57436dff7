package cli

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// Clients for which `clawjail mcp` prints a configuration.
const (
	clientClaude = "claude" // Claude Code; without --agent, Claude Desktop too, which starts programs only
	clientCursor = "cursor"
	clientVSCode = "vscode"
	clientCodex  = "codex"
)

var mcpClients = []string{clientClaude, clientCursor, clientVSCode, clientCodex}

// mcpEntry is the server in a client's configuration: a program that it starts, or an address with a key.
type mcpEntry struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// printMCP prints what a client's configuration needs. Without an agent, the client starts this program, and no key is in it:
// most clients hand their environment on. For an agent it is an address and a key.
func (p *program) printMCP(cmd *cobra.Command, name, tenant, agent string) error {
	if !slices.Contains(mcpClients, name) {
		return usage(cmd, "there is no configuration for %q; there is one for %s", name, strings.Join(mcpClients, ", "))
	}
	if agent == "" {
		if tenant != "" {
			return usage(cmd, "--tenant goes with --agent")
		}
		e, err := p.startedMCP()
		if err != nil {
			return err
		}
		return writeMCP(cmd.OutOrStdout(), name, e)
	}
	base, key, err := p.agentKey(cmd, tenant, agent)
	if err != nil {
		return err
	}
	e := mcpEntry{Type: "http", URL: base.JoinPath("/mcp").String(), Headers: map[string]string{"Authorization": "Bearer " + key}}
	if err := writeMCP(cmd.OutOrStdout(), name, e); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "it has a key of the agent %s: whoever reads it can act as that agent\n", printable(agent))
	return err
}

// startedMCP is this program as a client starts it.
func (p *program) startedMCP() (mcpEntry, error) {
	path, err := os.Executable()
	if err != nil {
		path = "clawjail"
	}
	e := mcpEntry{Type: "stdio", Command: path, Args: []string{"mcp"}}
	if p.file != "" {
		e.Args = append(e.Args, "--config", p.file)
	}
	if at := p.getenv(urlVariable); at != "" {
		if _, err := p.client(); err != nil {
			return mcpEntry{}, err
		}
		e.Env = map[string]string{urlVariable: at}
	}
	return e, nil
}

// agentKey is where the control plane is, and a key of the agent's: the caller's own where the caller is that agent, else the
// first one of an agent that is made. An agent that is there is not given another key, because its keys would end by that.
func (p *program) agentKey(cmd *cobra.Command, tenant, name string) (*url.URL, string, error) {
	settings, err := p.controlConfig()
	if err != nil {
		return nil, "", err
	}
	base, err := p.controlURL(settings)
	if err == nil && p.getenv(urlVariable) == "" && settings.PublicURL != "" { // the client may be on another machine
		base, err = url.Parse(settings.PublicURL)
	}
	if err != nil {
		return nil, "", err
	}
	c, err := p.client()
	if err != nil {
		return nil, "", err
	}
	me, err := client.Call(cmd.Context(), c, op.WhoAmI(), op.None{})
	if err != nil {
		return nil, "", err
	}
	if me.Kind == identity.KindAgent {
		if me.Name != name || me.Scope != "" || tenant != "" && tenant != me.Tenant {
			return nil, "", problem.New(problem.Forbidden, "use a key of the agent "+name+", or of an operator", "the key is one of the agent %s", me.Name)
		}
		key, err := p.key(settings)
		return base, key, err
	}
	issued, err := client.Call(cmd.Context(), c, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Tenant: tenant, Name: name})})
	if problem.CodeOf(err) == problem.Conflict {
		return nil, "", p.keptKey(cmd, c, tenant, name, err)
	}
	if err != nil {
		return nil, "", err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "made the agent %s\n", printable(name))
	return base, issued.Key, err
}

// keptKey says how to come by a key of an agent that is there: those that it has are known to nobody but their owners.
func (p *program) keptKey(cmd *cobra.Command, c *client.Client, tenant, name string, cause error) error {
	a, err := findAgent(cmd.Context(), c, tenant, name)
	if err != nil {
		return cause
	}
	if a.Declares {
		return problem.New(problem.Conflict, "choose another name, for a client outside of the jail", "the agent %s runs in a jail, and its key is in there", name)
	}
	of := ""
	if tenant != "" {
		of = " --tenant " + tenant
	}
	return problem.New(problem.Conflict, "give one of its keys in "+keyVariable+"; or a new one, which ends the others in 10 minutes: "+
		keyVariable+"=$(sudo clawjail agent token rotate "+name+of+") "+strings.Join(cmdLine(cmd), " "),
		"there is an agent %s already, and its keys are not shown again", name)
}

// cmdLine is what was asked for, as it can be typed.
func cmdLine(cmd *cobra.Command) []string {
	out := []string{cmd.CommandPath()}
	for _, name := range []string{"print-config", "tenant", "agent", "output"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			out = append(out, "--"+name, f.Value.String())
		}
	}
	return out
}

// writeMCP writes the server as a client reads it.
func writeMCP(w io.Writer, name string, e mcpEntry) error {
	switch name {
	case clientCodex:
		_, err := io.WriteString(w, e.toml())
		return err
	case clientVSCode:
		return writeJSON(w, map[string]any{"servers": map[string]any{"clawjail": e}})
	}
	if e.Command != "" {
		e.Type = "" // these know it by the command
	}
	return writeJSON(w, map[string]any{"mcpServers": map[string]any{"clawjail": e}})
}

// toml is the server as Codex reads it. Codex gives programs a few variables of its environment only, so the key's is named.
func (e mcpEntry) toml() string {
	var b strings.Builder
	b.WriteString("[mcp_servers.clawjail]\n")
	set := func(key string, v any) { fmt.Fprintf(&b, "%s = %s\n", key, tomlValue(v)) }
	if e.URL != "" {
		set("url", e.URL)
		b.WriteString("\n[mcp_servers.clawjail.http_headers]\n")
		set("Authorization", e.Headers["Authorization"])
		return b.String()
	}
	set("command", e.Command)
	set("args", e.Args)
	set("env_vars", []string{keyVariable})
	if at := e.Env[urlVariable]; at != "" {
		b.WriteString("\n[mcp_servers.clawjail.env]\n")
		set(urlVariable, at)
	}
	return b.String()
}

// tomlValue is a text, or a list of texts. TOML reads both as JSON does.
func tomlValue(v any) string {
	var b strings.Builder
	if err := encoder(&b).Encode(v); err != nil {
		return `""` // texts have JSON
	}
	return strings.TrimSpace(b.String())
}

// warnOfRights says whose rights the tools use where nobody has named a key: those of the whole installation.
func (p *program) warnOfRights(c config.Config, log *slog.Logger) {
	if p.keyIsSet() {
		return
	}
	if _, err := p.key(c); err != nil {
		return // the tools say that there is none
	}
	log.Warn("the tools act as the admin of this installation: "+keyVariable+" is not set, and the admin key can be read",
		"hint", "give the client a key of its own: clawjail mcp --print-config CLIENT --agent NAME")
}
