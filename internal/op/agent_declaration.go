package op

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
)

// Declaration is what is declared of an agent, in the words of clawbots.yml. Of its environment there are names only.
type Declaration struct {
	Template      string         `json:"template,omitempty"`
	Image         string         `json:"image,omitempty"`
	Command       []string       `json:"command,omitempty"`
	Workspace     string         `json:"workspace,omitempty"`
	WorkspaceMode string         `json:"workspace_mode,omitempty"`
	Sharing       string         `json:"sharing" enum:"isolated,dedicated,shared"`
	UnixSockets   bool           `json:"unix_sockets,omitempty" doc:"whether it may use UNIX sockets although it has a workspace"`
	Tmp           string         `json:"tmp,omitempty" enum:"noexec,exec" doc:"whether what is in /tmp can be run; noexec is the default"`
	Limits        DeclaredLimits `json:"limits,omitzero"`
	Restart       string         `json:"restart,omitempty" enum:"always,on-failure,never"`
	TTL           string         `json:"ttl,omitempty"`
	Env           []string       `json:"env,omitempty" nullable:"false" doc:"the names of its variables"`
	Without       []string       `json:"without,omitempty" nullable:"false" doc:"the names of variables that are taken away from it"`
	Webhook       bool           `json:"webhook,omitempty"`
	Browser       string         `json:"browser,omitempty" enum:"rules,open" doc:"hosts that its browsers may reach: those of its rules, or the public web as well"`
	Allow         []DeclaredRule `json:"allow,omitempty" nullable:"false"`
	Services      []string       `json:"services,omitzero" nullable:"false" doc:"services that the agent may use; when missing, those of its tenant"`
	Tools         []DeclaredTool `json:"tools,omitzero" nullable:"false" doc:"calls that execute may make; when missing, those of its tenant's settings"`
	Rate          DeclaredRate   `json:"rate,omitzero"`
	MCP           []string       `json:"mcp,omitempty" nullable:"false"`
	LLM           DeclaredLLM    `json:"llm,omitzero"`
}

// The parts of a declaration, as it has them.
type (
	DeclaredRule clawbots.Rule
	DeclaredTool clawbots.Tool
	DeclaredRate clawbots.Rate
	DeclaredLLM  clawbots.LLM
)

// DeclaredLimits are those that the declaration names.
type DeclaredLimits struct {
	Memory string  `json:"memory,omitempty"`
	CPU    float64 `json:"cpu,omitempty"`
	Tasks  int     `json:"tasks,omitempty"`
	Tmp    string  `json:"tmp,omitempty"`
	State  string  `json:"state,omitempty"`
	Files  int     `json:"files,omitempty"`
}

// DeclarationOf is what is declared of an agent as it is answered.
func DeclarationOf(a clawbots.Agent) *Declaration {
	out := &Declaration{
		Template: a.Template, Image: a.Image, Command: a.Command, Workspace: a.Workspace, WorkspaceMode: string(a.WorkspaceMode),
		Tmp: string(a.Tmp), UnixSockets: a.UnixSockets, Sharing: string(a.Sharing), Restart: string(a.Restart), Env: slices.Sorted(maps.Keys(a.Env)), Without: a.Without, Webhook: a.Webhook, Browser: string(a.Browser),
		Services: a.Services, Rate: DeclaredRate(a.Rate), MCP: a.MCP, LLM: DeclaredLLM(a.LLM),
		Limits: DeclaredLimits{Memory: sizeOf(a.Limits.Memory), CPU: a.Limits.CPU, Tasks: a.Limits.Tasks, Tmp: sizeOf(a.Limits.Tmp),
			State: sizeOf(a.Limits.State), Files: a.Limits.Files},
	}
	if a.TTL > 0 {
		out.TTL = a.TTL.String()
	}
	for _, r := range a.Allow {
		out.Allow = append(out.Allow, DeclaredRule(r))
	}
	if a.Tools != nil { // none is not the same as nothing said
		out.Tools = []DeclaredTool{}
	}
	for _, t := range a.Tools {
		out.Tools = append(out.Tools, DeclaredTool(t))
	}
	return out
}

// sizeOf is a size as it is declared; empty where nothing is said.
func sizeOf(b config.Bytes) string {
	if b == 0 {
		return ""
	}
	return b.String()
}

// pairs are what people read of it.
func (d Declaration) pairs() [][2]any {
	out := [][2]any{
		{"template", d.Template}, {"image", d.Image}, {"command", strings.Join(d.Command, " ")},
		{"workspace", strings.TrimSpace(d.Sharing + " " + d.Workspace + " " + d.WorkspaceMode)}, {"restart", d.Restart}, {"ttl", d.TTL},
		{"env", commas(d.Env)}, {"env without", commas(d.Without)},
	}
	add := func(name string, value any) { out = append(out, [2]any{name, value}) }
	if d.Tmp == "exec" {
		add("tmp", "what is in /tmp can be run")
	}
	if d.UnixSockets {
		add("unix sockets", "yes: whoever shares the workspace can be connected with it past the gateway")
	}
	if d.Webhook {
		add("webhook", "yes")
	}
	add("browser", d.Browser)
	for _, r := range d.Allow {
		add(map[bool]string{false: "allow", true: "deny"}[r.Deny], strings.TrimSpace(strings.Join(r.Methods, ",")+" "+r.Target))
	}
	if d.Services != nil {
		add("services", cmp.Or(commas(d.Services), "none"))
	}
	if d.Tools != nil {
		urls := listOf(d.Tools, func(t DeclaredTool) string { return strings.TrimSpace(strings.Join(t.Methods, ",") + " " + t.URL) })
		add("tools", cmp.Or(commas(urls), "none"))
	}
	add("mcp", commas(d.MCP))
	for _, rate := range []struct {
		name string
		n    int
	}{{"proxy", d.Rate.Proxy}, {"execute", d.Rate.Execute}, {"services", d.Rate.Service}, {"llm", d.Rate.LLM}} {
		if rate.n > 0 {
			add("rate "+rate.name, Joined{rate.n, " a minute"})
		}
	}
	if d.LLM.TokensPerDay > 0 {
		add("tokens", Joined{d.LLM.TokensPerDay, " a day"})
	}
	if d.LLM.CostPerDay > 0 {
		add("cost", fmt.Sprintf("%g a day", d.LLM.CostPerDay))
	}
	return out
}
