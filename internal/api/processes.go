package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// ProcessRequest is the body that starts a program in a jail, and the first message of who attaches to one.
type ProcessRequest struct {
	Tenant   string            `json:"tenant,omitempty" doc:"whose agent it is; the caller's own, or default, when it is left out"`
	Argv     []string          `json:"argv" nullable:"false" doc:"the program, as a path inside the jail or a plain name that is searched for there, and its arguments"`
	Jail     *ProcessJail      `json:"jail,omitempty" doc:"a new jail of the template when it is left out"`
	Template string            `json:"template,omitempty" pattern:"^[a-z0-9]{1,20}$" doc:"template of a new jail; clawbot when it is left out"`
	Env      map[string]string `json:"env,omitempty"`
	Dir      string            `json:"dir,omitempty" doc:"the working directory inside the jail; /state when it is left out"`
	Limits   *ProcessLimits    `json:"limits,omitempty" doc:"limits of a new jail, instead of the configured ones"`
	TTL      string            `json:"ttl,omitempty" doc:"how long it may run, such as 30m; 1h when it is left out, at most 168h"`
}

// ProcessJail says in which jail a program runs.
type ProcessJail struct {
	Name     string         `json:"name,omitempty" doc:"the name of the agent, for a program in the jail that it runs in"`
	Path     string         `json:"path,omitempty" doc:"a folder of the host beneath jail_roots, which is the read-only root of a new jail"`
	RootPath string         `json:"root_path,omitempty" doc:"the same as path, or left out: of a named jail it is known"`
	User     string         `json:"user,omitempty" enum:"agent" doc:"programs run as 1000:1000"`
	IP4      string         `json:"ip4,omitempty" enum:"new,disable" doc:"network of a new jail: an address of its own behind the gateway, or none; that of the host is refused"`
	Mounts   []ProcessMount `json:"mounts,omitempty" nullable:"false" doc:"folders of the host beneath workspace_roots"`
}

// ProcessMount is a folder of the host that a jail sees.
type ProcessMount struct {
	Source   string `json:"source" doc:"on the host, absolute"`
	Target   string `json:"target" doc:"in the jail: /workspace, or below /workspace or /mnt"`
	ReadOnly bool   `json:"read_only,omitzero"`
}

// ProcessLimits are limits of the jail of one program.
type ProcessLimits struct {
	Memory string  `json:"memory,omitempty" doc:"memory of all its processes and what they write, such as 768MiB"`
	CPU    float64 `json:"cpu,omitempty" doc:"in cores, such as 1.5"`
	Tasks  int     `json:"tasks,omitempty" doc:"processes and threads"`
	Tmp    string  `json:"tmp,omitempty" doc:"size of /tmp, and of /state, such as 256MiB"`
	Files  int     `json:"files,omitempty" doc:"open files of one process"`
}

// Process is a program that runs in a jail, or has ended.
type Process agent.Process

// ProcessList is the answer to a listing.
type ProcessList struct {
	Processes []Process `json:"processes" nullable:"false"`
}

type (
	processesInput struct {
		Name   string `path:"name" maxLength:"64" doc:"the agent's name"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
	}
	startInput struct {
		Name    string `path:"name" maxLength:"64" doc:"the agent's name"`
		RawBody []byte `contentType:"application/json"`
	}
	processInput struct {
		Name   string `path:"name" maxLength:"64" doc:"the agent's name"`
		ID     string `path:"id" maxLength:"64" doc:"the program's id"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
	}
)

// ofProcesses is below what is about the programs of an agent.
const ofProcesses = ofAgent + "/processes"

// addProcesses adds the routes about programs that run in jails for agents, and about what agents and programs do.
func (a *API) addProcesses() {
	add(a, route{method: http.MethodPost, path: ofProcesses, id: "start-process", summary: "Start a program in a jail",
		status: http.StatusCreated, body: reflect.TypeFor[ProcessRequest]()}, a.startProcess)
	add(a, route{method: http.MethodGet, path: ofProcesses, id: "list-processes", summary: "The programs that run for an agent, and those that ended in the last hour"}, a.processes)
	add(a, route{method: http.MethodDelete, path: ofProcesses + "/{id}", id: "end-process", summary: "End a program, with everything that it started",
		status: http.StatusNoContent}, a.endProcess)
	stdin := route{method: http.MethodPost, path: ofProcesses + "/{id}/stdin", id: "type-to-process", status: http.StatusOK,
		summary: "Write to the stdin of a program; an empty body is the end of it"}
	a.large[stdin.method+" "+stdin.path] = large{limit: maxTyped, may: identity.AgentType, raw: true}
	a.plain(stdin, []*huma.Param{agentNameParam(), processID(), tenantParam()},
		map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[Written]())}, a.typeTo)
	a.api.OpenAPI().Paths[stdin.path].Post.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{bytesType: {Schema: binary()}}}
	a.eventRoutes()
	a.plain(route{method: http.MethodGet, path: ofAgent + "/attach", id: "attach-process",
		summary: "Run a program in a jail with its stdio over a WebSocket"}, []*huma.Param{agentNameParam(), tenantParam(), execParam()}, nil, a.attach)
}

func processID() *huma.Param {
	p := sessionID()
	p.Description = "the program's id"
	return p
}

func (a *API) startProcess(ctx context.Context, by identity.Principal, in *startInput) (*answer[Process], error) {
	body, err := decode[ProcessRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	request, err := body.request()
	if err != nil {
		return nil, a.firstMay(ctx, by, identity.ProcessStart, body.Tenant, err)
	}
	started, err := a.Agents.Start(ctx, by, body.Tenant, in.Name, request)
	if err != nil {
		return nil, err
	}
	return &answer[Process]{Process(started)}, nil
}

// firstMay is what is said about a body: what is wrong with it is told to whoever might do what it asks for.
func (a *API) firstMay(ctx context.Context, by identity.Principal, right identity.Operation, tenant string, wrong error) error {
	if err := op.CheckTenant(tenant); err != nil {
		return err
	}
	if err := a.Identity.Authorize(ctx, by, right, by.TenantOr(tenant)); err != nil {
		return err
	}
	return wrong
}

func (a *API) processes(ctx context.Context, by identity.Principal, in *processesInput) (*answer[ProcessList], error) {
	all, err := a.Agents.Processes(ctx, by, in.Tenant, in.Name)
	if err != nil {
		return nil, err
	}
	out := ProcessList{Processes: make([]Process, len(all))}
	for n, p := range all {
		out.Processes[n] = Process(p)
	}
	return &answer[ProcessList]{out}, nil
}

func (a *API) endProcess(ctx context.Context, by identity.Principal, in *processInput) (*nothing, error) {
	return nil, a.Agents.EndProcess(ctx, by, in.Tenant, in.Name, in.ID)
}

// request reads the texts. Whether their values are allowed is the service's to say.
func (r ProcessRequest) request() (agent.ProcessRequest, error) {
	flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "the fields and their values are in /openapi.json"}
	if err := op.CheckTenant(r.Tenant); err != nil {
		return agent.ProcessRequest{}, err
	}
	out := agent.ProcessRequest{Template: r.Template, Argv: r.Argv, Env: r.Env, Dir: r.Dir}
	if r.TTL != "" {
		ttl, err := texts.Duration(r.TTL)
		if err != nil || ttl <= 0 {
			flaws.AddFlaw(problem.Flaw{Field: "ttl", Message: quote(r.TTL) + " is not a positive duration", Hint: "write a number with s, m, h or d, such as 30m"})
		}
		out.TTL = ttl
	}
	size := func(field, text string) config.Bytes {
		if text == "" {
			return 0
		}
		n, err := config.ParseBytes(text)
		if err != nil || n <= 0 {
			flaws.Code = problem.BadLimit
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(text) + " is not a size", Hint: "write a whole number with KiB, MiB or GiB, such as 512MiB"})
		}
		return n
	}
	if l := r.Limits; l != nil {
		out.Limits = clawbots.Limits{Memory: size("limits.memory", l.Memory), CPU: l.CPU, Tasks: l.Tasks, Tmp: size("limits.tmp", l.Tmp), Files: l.Files}
	}
	if j := r.Jail; j != nil {
		out.Jail = &agent.JailConfig{Name: j.Name, Path: j.Path, RootPath: j.RootPath, User: j.User, IP4: j.IP4}
		for _, m := range j.Mounts {
			out.Jail.Mounts = append(out.Jail.Mounts, jail.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
		}
	}
	return out, flaws.Err()
}
