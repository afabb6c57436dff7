package op

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// MCPServerRequest is the body that adds an MCP server, in the words of the configuration.
type MCPServerRequest struct {
	Name    string                     `json:"name" doc:"1 to 20 of a-z, 0-9 and -" example:"files"`
	Command []string                   `json:"command" nullable:"false" doc:"the program, by its absolute path in the jail, and its arguments" example:"[\"/bin/true\"]"`
	Tenants []string                   `json:"tenants,omitempty" nullable:"false" doc:"tenants that may use the server; default alone when it is left out, * is all" flag:"tenant" value:"tenant" usage:"tenant that may use it, * for all (default default)" complete:"tenants"`
	Place   string                     `json:"template,omitempty" doc:"template of its jail; clawbot when it is left out" flag:"template" value:"template" usage:"template of its jail (default clawbot)"`
	Agent   string                     `json:"agent,omitempty" doc:"the agent in whose jail the server runs, instead of in one of its own" flag:"agent" value:"agent" usage:"run it in the jail of this agent instead of one of its own"`
	Env     map[string]string          `json:"env,omitempty"`
	Secrets map[string]MCPServerSecret `json:"secrets,omitempty" doc:"secrets, by the name of the variable"`
	Tools   []string                   `json:"tools,omitzero" doc:"names and patterns of tools that are offered; all when it is left out, none when it is empty"`
	// Resources and Prompts: see config.MCPServer.
	Resources *bool                `json:"resources,omitempty" doc:"whether its resources are offered; when it is left out, only if tools is left out too" flag:"resources" usage:"offer its resources (default where neither --tool nor --no-tools is given)"`
	Prompts   *bool                `json:"prompts,omitempty" doc:"whether its prompts are offered; when it is left out, only if tools is left out too" flag:"prompts" usage:"offer its prompts (default where neither --tool nor --no-tools is given)"`
	Limits    MCPServerLimits      `json:"limits,omitzero"`
	Network   string               `json:"network,omitempty" enum:"none,gateway" flag:"network" usage:"none, or gateway to let it reach the hosts of --allow (default none)"`
	Allow     []string             `json:"allow,omitempty" nullable:"false" doc:"hosts that it may reach through the gateway" flag:"allow" value:"host" usage:"host that it may reach: example.com, *.example.com, example.com:8443"`
	Idle      string               `json:"idle,omitempty" doc:"how long the server runs on without a call, such as 10m" flag:"idle" usage:"how long the server runs on without a call, such as 1h (default 10m)"`
	Answer    string               `json:"answer,omitempty" doc:"how large an answer may be, 1MiB to 64MiB; 16MiB when it is left out" flag:"answer" usage:"how large an answer may be, such as 32MiB (default 16MiB)"`
	Silence   string               `json:"silence,omitempty" doc:"how long a call may go without an answer or progress from the server, 1s to 12h; 1m when it is left out" flag:"silence" usage:"how long a call may go without an answer or progress from the server, such as 10m (default 1m)"`
	Mounts    []config.ServerMount `json:"mounts,omitempty" nullable:"false" doc:"folders of the host beneath workspace_roots"`
	Shared    bool                 `json:"shared,omitempty" doc:"one instance for all of a tenant, instead of one for each caller" flag:"shared" usage:"one instance for all of a tenant, with all that it remembers (default one for each caller)"`
}

// MCPServerSecret is a secret of the vault for an MCP server.
type MCPServerSecret struct {
	Secret string `json:"secret" doc:"its name in the vault"`
	As     string `json:"as,omitempty" enum:"file,env" doc:"file (the default): NAME_FILE has the path of a file with it; env: NAME is the secret"`
}

// MCPServerLimits are those of the jail of an MCP server; what is left out is as the configuration has it for agents.
type MCPServerLimits struct {
	Memory string  `json:"memory,omitempty" doc:"such as 256MiB" flag:"memory" value:"size" usage:"size of its memory, such as 256MiB"`
	CPU    float64 `json:"cpu,omitempty" doc:"in cores" flag:"cpu" usage:"processors, such as 0.5"`
	Tasks  int     `json:"tasks,omitempty" flag:"tasks" usage:"processes and threads"`
	Tmp    string  `json:"tmp,omitempty" doc:"size of /tmp and of the home directory" flag:"tmp" value:"size" usage:"size of /tmp and of its home directory"`
	Files  int     `json:"files,omitempty"`
}

// MCPServer is an MCP server as it is answered. Of its environment there are names only.
type MCPServer struct {
	Name            string                     `json:"name"`
	Source          mcpserver.Source           `json:"source" enum:"file,added"`
	State           mcpserver.State            `json:"state" enum:"stopped,starting,running,paused"`
	Since           time.Time                  `json:"since,omitzero"`
	Command         []string                   `json:"command" nullable:"false"`
	Tenants         []string                   `json:"tenants" nullable:"false"`
	Template        string                     `json:"template,omitempty"`
	Agent           string                     `json:"agent,omitempty"`
	Env             []string                   `json:"env,omitempty"`
	Secrets         map[string]MCPServerSecret `json:"secrets,omitempty"`
	Offers          []string                   `json:"offers,omitzero" doc:"names and patterns of tools that are offered; all when it is missing"`
	OffersResources bool                       `json:"offers_resources" doc:"whether its resources are offered"`
	OffersPrompts   bool                       `json:"offers_prompts" doc:"whether its prompts are offered"`
	Limits          MCPServerLimits            `json:"limits"`
	Network         string                     `json:"network,omitempty"`
	Allow           []string                   `json:"allow,omitempty"`
	Idle            string                     `json:"idle"`
	Answer          string                     `json:"answer"`
	Silence         string                     `json:"silence"`
	Mounts          []config.ServerMount       `json:"mounts,omitempty"`
	Tools           int                        `json:"tools" doc:"how many are offered; -1 when it is not known yet"`
	Resources       int                        `json:"resources" doc:"how many are offered, with templates of them; -1 when it is not known yet"`
	Prompts         int                        `json:"prompts" doc:"how many are offered; -1 when it is not known yet"`
	Calls           int                        `json:"calls" doc:"under way"`
	Problem         string                     `json:"problem,omitempty" doc:"the last failure, unless something succeeded after it; or the reason why the server cannot be started"`
	Replaced        bool                       `json:"replaced,omitempty" doc:"whether one of the name was replaced by what was just added"`
	// Shared and Instances: see mcpserver.Instance.
	Shared    bool                `json:"shared,omitempty" doc:"one instance for all of a tenant, instead of one for each caller"`
	Instances []MCPServerInstance `json:"instances" nullable:"false" doc:"instances that run, are being started, or failed too often to be started again yet"`
}

// MCPServerInstance is an MCP server as it runs for one caller.
type MCPServerInstance struct {
	Tenant string          `json:"tenant"`
	Owner  string          `json:"owner,omitempty" doc:"whose it is, as the audit log names them; missing where the server is shared"`
	Name   string          `json:"name,omitempty" doc:"name of the owner"`
	State  mcpserver.State `json:"state" enum:"starting,running,paused"`
	Since  time.Time       `json:"since,omitzero"`
	Calls  int             `json:"calls" doc:"under way"`
}

// MCPServers is the answer to a listing.
type MCPServers struct {
	Servers []MCPServer `json:"servers" nullable:"false"`
}

// MCPServerReport is what a test of an MCP server found.
type MCPServerReport struct {
	Name         string              `json:"name"`
	OK           bool                `json:"ok"`
	Title        string              `json:"title,omitempty" doc:"the title that the server gives itself"`
	Version      string              `json:"version,omitempty"`
	Protocol     string              `json:"protocol,omitempty"`
	Instructions string              `json:"instructions,omitempty"`
	Tools        []MCPServerTool     `json:"tools" nullable:"false"`
	Resources    []MCPServerResource `json:"resources" nullable:"false" doc:"resources and templates of resources"`
	Prompts      []MCPServerTool     `json:"prompts" nullable:"false"`
	Left         int                 `json:"left_out,omitempty" doc:"tools that are not offered"`
	JailMS       float64             `json:"jail_ms"`
	InitializeMS float64             `json:"initialize_ms"`
	ListMS       float64             `json:"list_ms"`
	Stderr       string              `json:"stderr,omitempty" doc:"output of the server beside its messages"`
	Code         string              `json:"code,omitempty"`
	Problem      string              `json:"problem,omitempty"`
	Hint         string              `json:"hint,omitempty"`
}

// MCPServerResource is a resource, or a template of resources, as it is offered.
type MCPServerResource struct {
	URI         string `json:"uri"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
}

// MCPServerTool is a tool or a prompt as it is offered.
type MCPServerTool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

type (
	// NewMCPServer is an MCP server to be added.
	NewMCPServer struct{ Body[MCPServerRequest] }

	// MCPServerNamed names an MCP server.
	MCPServerNamed struct {
		Name string `path:"name" maxLength:"64" doc:"the server's name" arg:"1" complete:"mcp servers"`
	}

	// MCPServerTested is one that is tried for a tenant.
	MCPServerTested struct {
		MCPServerNamed
		InTenant
	}
)

// owners is for whom a server runs: names of agents, and others as the audit log names them.
func (s MCPServer) owners() string {
	out := listOf(s.Instances, func(i MCPServerInstance) string {
		who := cmp.Or(i.Name, i.Owner, "all of "+i.Tenant)
		if i.State != mcpserver.StateRunning {
			who += " (" + string(i.State) + ")"
		}
		return who
	})
	if len(out) < 2 {
		return strings.Join(out, "")
	}
	return strconv.Itoa(len(out)) + ": " + strings.Join(out, ", ")
}

func (s MCPServer) row() []any {
	var tools any = "-"
	if s.Tools >= 0 {
		tools = s.Tools
	}
	in, network := s.Template, s.Network
	if s.Agent != "" {
		in = "agent " + s.Agent
	}
	if len(s.Allow) > 0 {
		network += ": " + strings.Join(s.Allow, ", ")
	}
	return []any{s.Name, s.State, texts.Fit(s.owners(), 60), tools, in, network, s.Source, texts.Fit(strings.Join(s.Command, " "), 60), texts.Fit(s.Problem, 80)}
}

// ListMCPServers lists the MCP servers that a tenant may use; for an admin of all tenants, all that there are.
func ListMCPServers() Op[OfTenant, MCPServers] {
	return Op[OfTenant, MCPServers]{Method: http.MethodGet, Path: "/v1/mcp-servers", ID: "list-mcp-servers", Summary: "List MCP servers", Right: identity.ServerList,
		Command: Command{Use: "ls", Aliases: []string{"list"},
			Long: "Lists the MCP servers that a tenant may use, and what they do. TOOLS is - until they are known. FOR is the caller that an instance runs for."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (MCPServers, error) {
			all, err := s.Servers.List(ctx, by, in.Tenant)
			return MCPServers{listOf(all, serverOf)}, err
		},
		View: func(all MCPServers) []Block {
			return []Block{table(all.Servers, []any{"NAME", "STATE", "FOR", "TOOLS", "JAIL", "NETWORK", "SOURCE", "COMMAND", "PROBLEM"}, MCPServer.row)}
		}}
}

// PutMCPServer adds an MCP server, or replaces the one of the same name that was added before.
func PutMCPServer() Op[NewMCPServer, MCPServer] {
	return Op[NewMCPServer, MCPServer]{Method: http.MethodPut, Path: "/v1/mcp-servers", ID: "put-mcp-server", Summary: "Add an MCP server, or replace the one of the same name",
		Right: identity.ServerChange,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewMCPServer) (MCPServer, error) {
			server, err := in.Of.Server()
			if err != nil {
				return MCPServer{}, err
			}
			if err := inJailOf(ctx, s, by, server); err != nil {
				return MCPServer{}, err
			}
			made, err := s.Servers.Add(ctx, by, server)
			return serverOf(made), err
		}}
}

// inJailOf refuses a server in the jail of an agent that one of its tenants does not have.
func inJailOf(ctx context.Context, s Backend, by identity.Principal, server config.MCPServer) error {
	tenants := server.WithDefaults(config.AgentLimits{}).Tenants
	for _, tenant := range tenants {
		if server.Agent == "" {
			break
		}
		if _, err := AgentNamed(ctx, s.People, by, identity.ServerChange, strings.TrimPrefix(tenant, "*"), server.Agent); err != nil {
			return err
		}
	}
	return nil
}

// RemoveMCPServer removes an MCP server that was added, and ends it.
func RemoveMCPServer() Op[MCPServerNamed, None] {
	return Op[MCPServerNamed, None]{Method: http.MethodDelete, Path: "/v1/mcp-servers/{name}", ID: "remove-mcp-server", Summary: "Remove an MCP server", Right: identity.ServerChange,
		Command: Command{Use: "rm NAME…", Aliases: []string{"remove"}, Short: "Remove MCP servers that were added",
			Long: "Removes MCP servers that were added, and ends them. Those of the configuration are removed there."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in MCPServerNamed) (None, error) {
			return None{}, s.Servers.Remove(ctx, by, in.Name)
		}}
}

// TestMCPServer starts an MCP server, asks for what it offers, and ends it. A failure of the server is in the report.
func TestMCPServer() Op[MCPServerTested, MCPServerReport] {
	return Op[MCPServerTested, MCPServerReport]{Method: http.MethodPost, Path: "/v1/mcp-servers/{name}/test", ID: "test-mcp-server",
		Summary: "Start an MCP server, ask for what it offers, and end it", Right: identity.ServerChange,
		Command: Command{Use: "test NAME",
			Long: "Starts an MCP server in a jail of its own beside those that run, initializes it, lists its tools, resources and prompts, and ends it. It prints how long that " +
				"took, and what the server printed. It fails when one of these steps fails."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in MCPServerTested) (MCPServerReport, error) {
			r, err := s.Servers.Test(ctx, by, in.Tenant, in.Name)
			return reportOf(r), err
		},
		View: MCPServerReport.view,
		Fails: func(r MCPServerReport) error {
			if r.OK {
				return nil
			}
			return problem.New(r.Code, r.Hint, "%s", r.Problem)
		}}
}

func reportOf(r mcpserver.Report) MCPServerReport {
	out := MCPServerReport{Name: r.Name, OK: r.Problem == "", Title: r.Title, Version: r.Version, Protocol: r.Protocol, Instructions: r.Instructions,
		Left: r.Left, JailMS: milliseconds(r.Timing.Jail), InitializeMS: milliseconds(r.Timing.Initialize), ListMS: milliseconds(r.Timing.List),
		Stderr: r.Stderr, Code: r.Code, Problem: r.Problem, Hint: r.Hint, Tools: []MCPServerTool{}, Prompts: []MCPServerTool{}, Resources: []MCPServerResource{}}
	for _, one := range r.Tools {
		out.Tools = append(out.Tools, MCPServerTool{Name: one.Name, Description: one.Description})
	}
	for _, one := range r.Prompts {
		out.Prompts = append(out.Prompts, MCPServerTool{Name: one.Name, Description: one.Description})
	}
	for _, one := range r.Resources {
		out.Resources = append(out.Resources, MCPServerResource{URI: one.URI, Name: one.Name, Description: one.Description})
	}
	for _, one := range r.Templates {
		out.Resources = append(out.Resources, MCPServerResource{URI: one.URITemplate, Name: one.Name, Description: one.Description})
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r MCPServerReport) view() (out []Block) {
	if r.Protocol != "" {
		out = append(out, line("%s %s, protocol %s", r.Title, r.Version, r.Protocol),
			line("%s", fmt.Sprintf("jail %.0f ms, initialize %.0f ms, lists %.0f ms", r.JailMS, r.InitializeMS, r.ListMS)))
	}
	if r.Left > 0 {
		out = append(out, line("%s tools are not offered", r.Left))
	}
	if r.Stderr != "" {
		out = append(out, line("it printed:"))
		for text := range strings.Lines(r.Stderr) {
			out = append(out, line("  %s", strings.TrimRight(text, "\n")))
		}
	}
	rows := [][]any{{"OFFERED", "NAME", "DESCRIPTION"}}
	add := func(kind, name, description string) {
		first, _, _ := strings.Cut(description, "\n")
		rows = append(rows, []any{kind, name, texts.Fit(first, 100)})
	}
	for _, one := range r.Tools {
		add("tool", one.Name, one.Description)
	}
	for _, one := range r.Resources {
		add("resource", one.URI, cmp.Or(one.Description, one.Name))
	}
	for _, one := range r.Prompts {
		add("prompt", one.Name, one.Description)
	}
	if len(rows) > 1 {
		out = append(out, Block{Table: rows})
	}
	return out
}

// Validate reports what is wrong with the body, as the service does.
func (r MCPServerRequest) Validate() error {
	s, err := r.Server()
	if err != nil {
		return err
	}
	return mcpserver.Check(s)
}

// Server is what the body says, read as the configuration is. The service checks it.
func (r MCPServerRequest) Server() (config.MCPServer, error) {
	out := config.MCPServer{Name: r.Name, Command: r.Command, Tenants: r.Tenants, Template: r.Place, Agent: r.Agent, Env: r.Env, Tools: r.Tools, Resources: r.Resources, Prompts: r.Prompts,
		Network: config.ServerNetwork(r.Network), Allow: r.Allow, Mounts: r.Mounts, Shared: r.Shared,
		Limits: config.AgentLimits{CPU: r.Limits.CPU, Tasks: r.Limits.Tasks, Files: r.Limits.Files}}
	wrong := &problem.ValidationError{Code: problem.BadRequest}
	for field, size := range map[string]struct {
		text string
		into *config.Bytes
	}{"limits.memory": {r.Limits.Memory, &out.Limits.Memory}, "limits.tmp": {r.Limits.Tmp, &out.Limits.Tmp}, "answer": {r.Answer, &out.Answer}} {
		if size.text == "" {
			continue
		}
		n, err := config.ParseBytes(size.text)
		if err != nil {
			wrong.Add(field, "%s", err.Error())
		}
		*size.into = n
	}
	for field, span := range map[string]struct {
		text string
		into *time.Duration
	}{"idle": {r.Idle, &out.Idle}, "silence": {r.Silence, &out.Silence}} {
		if span.text == "" {
			continue
		}
		d, err := texts.Duration(span.text)
		if err != nil {
			wrong.Add(field, "is not a duration such as 10m")
		}
		*span.into = d
	}
	for _, name := range slices.Sorted(maps.Keys(r.Secrets)) {
		one := r.Secrets[name]
		if one.As != "" && one.As != "file" && one.As != "env" {
			wrong.Add("secrets."+name+".as", "is file or env")
		}
		out.Secrets = append(out.Secrets, config.ServerSecret{Name: name, Secret: one.Secret, Env: one.As == "env"})
	}
	return out, wrong.Err()
}

func serverOf(s mcpserver.Status) MCPServer {
	out := MCPServer{Name: s.Name, Source: s.Source, State: s.State, Since: s.Since, Command: s.Command, Tenants: s.Tenants, Template: s.Template, Agent: s.Agent,
		Env: slices.Sorted(maps.Keys(s.Env)), Offers: s.MCPServer.Tools, OffersResources: s.OffersResources(), OffersPrompts: s.OffersPrompts(), Network: string(s.Network), Allow: s.Allow, Idle: s.Idle.String(), Mounts: s.Mounts,
		Answer: s.Answer.String(), Silence: cmp.Or(s.Silence, config.DefaultSilence).String(),
		Tools: s.Tools, Resources: s.Resources, Prompts: s.Prompts, Replaced: s.Replaced, Calls: s.Calls, Problem: s.Problem, Shared: s.Shared, Instances: listOf(s.Instances, func(i mcpserver.Instance) MCPServerInstance { return MCPServerInstance(i) }),
		Limits: MCPServerLimits{Memory: s.Limits.Memory.String(), CPU: s.Limits.CPU, Tasks: s.Limits.Tasks, Tmp: s.Limits.Tmp.String(), Files: s.Limits.Files}}
	for _, one := range s.Secrets {
		if out.Secrets == nil {
			out.Secrets = map[string]MCPServerSecret{}
		}
		as := "file"
		if one.Env {
			as = "env"
		}
		out.Secrets[one.Name] = MCPServerSecret{Secret: one.Secret, As: as}
	}
	return out
}
