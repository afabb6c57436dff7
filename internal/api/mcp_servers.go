package api

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// Servers are the MCP servers of others that run in jails. *toolserver.Service is one.
type Servers interface {
	List(ctx context.Context, by identity.Principal, tenant string) ([]toolserver.Status, error)
	Add(ctx context.Context, by identity.Principal, server config.MCPServer) (toolserver.Status, error)
	Remove(ctx context.Context, by identity.Principal, name string) error
	Test(ctx context.Context, by identity.Principal, tenant, name string) (toolserver.Report, error)
}

// MCPServerRequest is the body that adds an MCP server, in the words of the configuration.
type MCPServerRequest struct {
	Name    string                     `json:"name" doc:"1 to 20 of a-z, 0-9 and -"`
	Command []string                   `json:"command" nullable:"false" doc:"the program, by its absolute path in the jail, and its arguments"`
	Tenants []string                   `json:"tenants,omitempty" nullable:"false" doc:"who may use it; default alone when it is left out, * is all"`
	Place   string                     `json:"template,omitempty" doc:"of its jail; clawbot when it is left out"`
	Agent   string                     `json:"agent,omitempty" doc:"in whose jail it runs, instead of in one of its own"`
	Env     map[string]string          `json:"env,omitempty"`
	Secrets map[string]MCPServerSecret `json:"secrets,omitempty" doc:"by the name of the variable"`
	Tools   []string                   `json:"tools,omitzero" doc:"names and patterns of tools that are offered; all when it is left out, none when it is empty"`
	// Resources and Prompts: see config.MCPServer.
	Resources *bool                `json:"resources,omitempty" doc:"whether its resources are offered; where tools is left out, when it is left out"`
	Prompts   *bool                `json:"prompts,omitempty" doc:"whether its prompts are offered; where tools is left out, when it is left out"`
	Limits    MCPServerLimits      `json:"limits,omitzero"`
	Network   string               `json:"network,omitempty" enum:"none,gateway"`
	Allow     []string             `json:"allow,omitempty" nullable:"false" doc:"hosts that it may reach through the gateway"`
	Idle      string               `json:"idle,omitempty" doc:"how long it stays when nobody calls it, such as 10m"`
	Answer    string               `json:"answer,omitempty" doc:"how large an answer may be, 1MiB to 64MiB; 16MiB when it is left out"`
	Silence   string               `json:"silence,omitempty" doc:"how long a call may say nothing, 1s to 12h; 1m when it is left out"`
	Mounts    []config.ServerMount `json:"mounts,omitempty" nullable:"false" doc:"folders of the host beneath workspace_roots"`
	Shared    bool                 `json:"shared,omitempty" doc:"one instance for all of a tenant, instead of one for each caller"`
}

// MCPServerSecret is a secret of the vault for an MCP server.
type MCPServerSecret struct {
	Secret string `json:"secret" doc:"its name in the vault"`
	As     string `json:"as,omitempty" enum:"file,env" doc:"file (the default): NAME_FILE has the path of a file with it; env: NAME is the secret"`
}

// MCPServerLimits are those of the jail of an MCP server; what is left out is as the configuration has it for agents.
type MCPServerLimits struct {
	Memory string  `json:"memory,omitempty" doc:"such as 256MiB"`
	CPU    float64 `json:"cpu,omitempty" doc:"in cores"`
	Tasks  int     `json:"tasks,omitempty"`
	Tmp    string  `json:"tmp,omitempty" doc:"of /tmp and of the home directory"`
	Files  int     `json:"files,omitempty"`
}

// MCPServer is an MCP server as it is answered. Of its environment there are names only.
type MCPServer struct {
	Name            string                     `json:"name"`
	Source          toolserver.Source          `json:"source" enum:"file,added"`
	State           toolserver.State           `json:"state" enum:"stopped,starting,running,paused"`
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
	Problem         string                     `json:"problem,omitempty" doc:"the last thing that went wrong, unless something went well after it"`
	// Shared and Instances: see toolserver.Instance.
	Shared    bool                `json:"shared,omitempty" doc:"one instance for all of a tenant, instead of one for each caller"`
	Instances []MCPServerInstance `json:"instances" nullable:"false" doc:"what runs of it, is being started, or is left alone"`
}

// MCPServerInstance is an MCP server as it runs for one caller.
type MCPServerInstance struct {
	Tenant string           `json:"tenant"`
	Owner  string           `json:"owner,omitempty" doc:"whose it is, as the audit log names them; missing where the server is shared"`
	Name   string           `json:"name,omitempty" doc:"of the owner"`
	State  toolserver.State `json:"state" enum:"starting,running,paused"`
	Since  time.Time        `json:"since,omitzero"`
	Calls  int              `json:"calls" doc:"under way"`
}

// MCPServers is the answer to a listing.
type MCPServers struct {
	Servers []MCPServer `json:"servers" nullable:"false"`
}

// MCPServerReport is what a test of an MCP server found.
type MCPServerReport struct {
	Name         string              `json:"name"`
	OK           bool                `json:"ok"`
	Title        string              `json:"title,omitempty" doc:"what it says of itself"`
	Version      string              `json:"version,omitempty"`
	Protocol     string              `json:"protocol,omitempty"`
	Instructions string              `json:"instructions,omitempty"`
	Tools        []MCPServerTool     `json:"tools" nullable:"false"`
	Resources    []MCPServerResource `json:"resources" nullable:"false" doc:"and templates of them"`
	Prompts      []MCPServerTool     `json:"prompts" nullable:"false"`
	Left         int                 `json:"left_out,omitempty" doc:"tools that are not offered"`
	JailMS       float64             `json:"jail_ms"`
	InitializeMS float64             `json:"initialize_ms"`
	ListMS       float64             `json:"list_ms"`
	Stderr       string              `json:"stderr,omitempty" doc:"what it printed beside its messages"`
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
	serverInput struct {
		Name string `path:"name" maxLength:"64" doc:"the server's name"`
	}

	serverTestInput struct {
		Name   string `path:"name" maxLength:"64" doc:"the server's name"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
	}
)

// addServers serves what is about MCP servers.
func (a *API) addServers() {
	add(a, route{method: http.MethodGet, path: "/v1/mcp-servers", id: "list-mcp-servers", summary: "List MCP servers"}, a.mcpServers)
	add(a, route{method: http.MethodPut, path: "/v1/mcp-servers", id: "put-mcp-server", summary: "Add an MCP server, or replace the one of the same name",
		status: http.StatusOK, body: reflect.TypeFor[MCPServerRequest]()}, a.putMCPServer)
	add(a, route{method: http.MethodPost, path: "/v1/mcp-servers/{name}/test", id: "test-mcp-server", summary: "Start an MCP server, ask for what it offers, and end it",
		status: http.StatusOK}, a.testMCPServer)
	add(a, route{method: http.MethodDelete, path: "/v1/mcp-servers/{name}", id: "remove-mcp-server", summary: "Remove an MCP server",
		status: http.StatusNoContent}, a.removeMCPServer)
}

func (a *API) mcpServers(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[MCPServers], error) {
	all, err := a.Servers.List(ctx, by, in.Tenant)
	if err != nil {
		return nil, err
	}
	out := MCPServers{Servers: make([]MCPServer, len(all))}
	for n, s := range all {
		out.Servers[n] = serverOf(s)
	}
	return &answer[MCPServers]{out}, nil
}

func (a *API) putMCPServer(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[MCPServer], error) {
	r, err := decode[MCPServerRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	server, err := r.server()
	if err != nil {
		return nil, err
	}
	made, err := a.Servers.Add(ctx, by, server)
	if err != nil {
		return nil, err
	}
	return &answer[MCPServer]{serverOf(made)}, nil
}

func (a *API) removeMCPServer(ctx context.Context, by identity.Principal, in *serverInput) (*nothing, error) {
	return nil, a.Servers.Remove(ctx, by, in.Name)
}

func (a *API) testMCPServer(ctx context.Context, by identity.Principal, in *serverTestInput) (*answer[MCPServerReport], error) {
	r, err := a.Servers.Test(ctx, by, in.Tenant, in.Name)
	if err != nil {
		return nil, err
	}
	out := MCPServerReport{Name: r.Name, OK: r.Problem == "", Title: r.Title, Version: r.Version, Protocol: r.Protocol, Instructions: r.Instructions,
		Left: r.Left, JailMS: milliseconds(r.Timing.Jail), InitializeMS: milliseconds(r.Timing.Initialize), ListMS: milliseconds(r.Timing.List),
		Stderr: r.Stderr, Code: r.Code, Problem: r.Problem, Hint: r.Hint, Tools: make([]MCPServerTool, len(r.Tools)), Prompts: make([]MCPServerTool, len(r.Prompts)),
		Resources: []MCPServerResource{}}
	for n, tool := range r.Tools {
		out.Tools[n] = MCPServerTool{Name: tool.Name, Description: tool.Description}
	}
	for n, prompt := range r.Prompts {
		out.Prompts[n] = MCPServerTool{Name: prompt.Name, Description: prompt.Description}
	}
	for _, one := range r.Resources {
		out.Resources = append(out.Resources, MCPServerResource{URI: one.URI, Name: one.Name, Description: one.Description})
	}
	for _, one := range r.Templates {
		out.Resources = append(out.Resources, MCPServerResource{URI: one.URITemplate, Name: one.Name, Description: one.Description})
	}
	return &answer[MCPServerReport]{out}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Validate reports what is wrong with the body, as the service does.
func (r MCPServerRequest) Validate() error {
	s, err := r.server()
	if err != nil {
		return err
	}
	return toolserver.Check(s)
}

// server is what the body says, read as the configuration is. The service checks it.
func (r MCPServerRequest) server() (config.MCPServer, error) {
	out := config.MCPServer{Name: r.Name, Command: r.Command, Tenants: r.Tenants, Template: r.Place, Agent: r.Agent, Env: r.Env, Tools: r.Tools, Resources: r.Resources, Prompts: r.Prompts,
		Network: config.ServerNetwork(r.Network), Allow: r.Allow, Mounts: r.Mounts, Shared: r.Shared,
		Limits: config.AgentLimits{CPU: r.Limits.CPU, Tasks: r.Limits.Tasks, Files: r.Limits.Files}}
	wrong := &problem.Many{Code: problem.BadRequest}
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
		d, err := time.ParseDuration(span.text)
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

func serverOf(s toolserver.Status) MCPServer {
	out := MCPServer{Name: s.Name, Source: s.Source, State: s.State, Since: s.Since, Command: s.Command, Tenants: s.Tenants, Template: s.Template, Agent: s.Agent,
		Env: slices.Sorted(maps.Keys(s.Env)), Offers: s.MCPServer.Tools, OffersResources: s.OffersResources(), OffersPrompts: s.OffersPrompts(), Network: string(s.Network), Allow: s.Allow, Idle: s.Idle.String(), Mounts: s.Mounts,
		Answer: s.Answer.String(), Silence: cmp.Or(s.Silence, config.DefaultSilence).String(),
		Tools: s.Tools, Resources: s.Resources, Prompts: s.Prompts, Calls: s.Calls, Problem: s.Problem, Shared: s.Shared, Instances: make([]MCPServerInstance, len(s.Instances)),
		Limits: MCPServerLimits{Memory: s.Limits.Memory.String(), CPU: s.Limits.CPU, Tasks: s.Limits.Tasks, Tmp: s.Limits.Tmp.String(), Files: s.Limits.Files}}
	for n, i := range s.Instances {
		out.Instances[n] = MCPServerInstance(i)
	}
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
