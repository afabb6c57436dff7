package op

import (
	"context"
	"net/http"
	"strings"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
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
	// NewProcess is a program to be started for an agent.
	NewProcess struct {
		Name string `path:"name" maxLength:"64" doc:"the agent's name"`
		Body[ProcessRequest]
	}

	// ProcessNamed names a program of an agent.
	ProcessNamed struct {
		Name string `path:"name" maxLength:"64" doc:"the agent's name" arg:"1" complete:"agents"`
		ID   string `path:"id" maxLength:"64" doc:"the program's id" arg:"2" complete:"processes"`
		InTenant
	}
)

// StartProcess starts a program in a jail for an agent, and keeps its output as events. Its command is `spawn --detach`.
func StartProcess() Op[NewProcess, Process] {
	return Op[NewProcess, Process]{Method: http.MethodPost, Path: "/v1/agents/{name}/processes", ID: "start-process", Summary: "Start a program in a jail",
		Right: identity.ProcessStart, Status: http.StatusCreated,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewProcess) (Process, error) {
			if err := CheckTenant(in.Of.Tenant); err != nil {
				return Process{}, err
			}
			request, err := in.Of.Request()
			if err != nil { // what is wrong with it is told to callers who may do it
				if denied := s.People.Authorize(ctx, by, identity.ProcessStart, by.TenantOr(in.Of.Tenant)); denied != nil {
					err = denied
				}
				return Process{}, err
			}
			started, err := s.Agents.Start(ctx, by, in.Of.Tenant, in.Name, request)
			return Process(started), err
		}}
}

// ListProcesses lists the programs of an agent that run, and those that ended within the last hour.
func ListProcesses() Op[OneAgent, ProcessList] {
	return Op[OneAgent, ProcessList]{Method: http.MethodGet, Path: "/v1/agents/{name}/processes", ID: "list-processes",
		Summary: "The programs that run for an agent, and those that ended in the last hour", Right: identity.ProcessList,
		Command: Command{Use: "ps NAME", Short: "List the programs that were started for an agent and run, or ended in the last hour"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (ProcessList, error) {
			all, err := s.Agents.Processes(ctx, by, in.Tenant, in.Name)
			return ProcessList{listOf(all, func(p agent.Process) Process { return Process(p) })}, err
		},
		View: func(all ProcessList) []Block {
			return []Block{table(all.Processes, []any{"ID", "JAIL", "STARTED", "BY", "STATE", "PROGRAM"}, func(p Process) []any {
				state := "running"
				if p.Exit != nil {
					state = p.Exit.Words()
				}
				return []any{p.ID, p.Jail, Age(p.StartedAt), p.StartedBy, state, strings.Join(p.Argv, " ")}
			})}
		}}
}

// EndProcess ends a program, and returns when nothing of it is left.
func EndProcess() Op[ProcessNamed, None] {
	return Op[ProcessNamed, None]{Method: http.MethodDelete, Path: "/v1/agents/{name}/processes/{id}", ID: "end-process",
		Summary: "End a program, with everything that it started", Right: identity.ProcessEnd,
		Command: Command{Use: "kill NAME ID", Short: "End a program of an agent, with everything that it started",
			Example: "  clawjail agent ps writer\n  clawjail agent kill writer pr_abcdefgh23456789"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in ProcessNamed) (None, error) {
			return None{}, s.Agents.EndProcess(ctx, by, in.Tenant, in.Name, in.ID)
		}}
}

// Request reads the texts. Whether their values are allowed is the service's to say.
func (r ProcessRequest) Request() (agent.ProcessRequest, error) {
	flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "the fields and their values are in /openapi.json"}
	if err := CheckTenant(r.Tenant); err != nil {
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
