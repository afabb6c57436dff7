package api

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/jail"
)

// SyncRequest is the body that makes the machine match a file.
type SyncRequest struct {
	Tenant    string   `json:"tenant,omitempty" doc:"whose agents they are; the caller's own, or default, when it is left out"`
	Source    string   `json:"source,omitempty" doc:"the name of the file, for messages"`
	Text      string   `json:"text" doc:"what is in the file"`
	Dir       string   `json:"dir,omitempty" doc:"the absolute folder that its relative paths start at"`
	Driver    string   `json:"driver,omitempty" enum:"linux,docker" doc:"of agents that name neither template nor image, instead of the configured one"`
	DryRun    bool     `json:"dry_run,omitzero" doc:"plan, and change nothing"`
	Prune     bool     `json:"prune,omitzero" doc:"remove agents that were declared before and are not any more"`
	Only      []string `json:"only,omitempty" nullable:"false" doc:"these agents of the file, and no others"`
	KeepState bool     `json:"keep_state,omitzero" doc:"keep the volumes of what is pruned"`
}

// DeclareRequest is the body that declares one agent, beside what is declared.
type DeclareRequest struct {
	Tenant  string `json:"tenant,omitempty" doc:"whose agent it is; the caller's own, or default, when it is left out"`
	Dir     string `json:"dir,omitempty" doc:"the absolute folder that a relative workspace starts at"`
	Replace bool   `json:"replace,omitzero" doc:"also when an agent of that name is declared otherwise; it is refused without"`
	// Agent is checked as an entry of a file is.
	Agent map[string]any `json:"agent,omitempty" doc:"an entry of clawbots.yml as JSON; its name is the one in the address"`
}

// SyncLine is one line of an answer that tells of a sync as it goes on: a step when it begins and when it is done, and at
// the end the plan, or what kept it from being made.
type SyncLine struct {
	Step    *agent.Step `json:"step,omitempty"`
	Plan    *agent.Plan `json:"plan,omitempty"`
	Problem *Problem    `json:"problem,omitempty"`
}

// AgentDetails is an agent with everything that is known of it.
type AgentDetails struct {
	Agent
	MCP      []string     `json:"mcp,omitempty" nullable:"false" doc:"MCP servers that its settings offer it, beside those that it declares"`
	Declared *Declaration `json:"declared,omitempty" doc:"what was declared last; missing for an agent that has only an identity"`
	Exposes  []string     `json:"exposes,omitempty" doc:"what the jail sees of the host, and what nobody bounds, in words"`
}

// Declaration is what is declared of an agent, in the words of clawbots.yml. Of its environment there are names only.
type Declaration struct {
	Template      string         `json:"template,omitempty"`
	Image         string         `json:"image,omitempty"`
	Command       []string       `json:"command,omitempty"`
	Workspace     string         `json:"workspace,omitempty"`
	WorkspaceMode string         `json:"workspace_mode,omitempty"`
	Sharing       string         `json:"sharing" enum:"isolated,dedicated,shared"`
	UnixSockets   bool           `json:"unix_sockets,omitempty" doc:"it may use UNIX sockets although it has a workspace"`
	Tmp           string         `json:"tmp,omitempty" enum:"noexec,exec" doc:"whether what is in /tmp can be run; noexec is the default"`
	Limits        DeclaredLimits `json:"limits,omitzero"`
	Restart       string         `json:"restart,omitempty" enum:"always,on-failure,never"`
	TTL           string         `json:"ttl,omitempty"`
	Env           []string       `json:"env,omitempty" nullable:"false" doc:"the names of its variables"`
	Without       []string       `json:"without,omitempty" nullable:"false" doc:"the names of variables that are taken away from it"`
	Webhook       bool           `json:"webhook,omitempty"`
	Browser       string         `json:"browser,omitempty" enum:"rules,open" doc:"what the browsers may reach that it opens: its rules, or the public web as well"`
	Allow         []DeclaredRule `json:"allow,omitempty" nullable:"false"`
	Services      []string       `json:"services,omitzero" nullable:"false" doc:"missing: those of its tenant"`
	Tools         []DeclaredTool `json:"tools,omitzero" nullable:"false" doc:"what execute may do; missing: what its tenant's settings say"`
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

// AgentJail is the jail that is kept for an agent.
type AgentJail struct {
	Driver   string     `json:"driver" enum:"linux,docker"`
	Source   string     `json:"source" doc:"the template, or the image"`
	Phase    jail.Phase `json:"phase" enum:"starting,running,waiting,ended,stopped,failed"`
	Name     string     `json:"jail,omitempty" doc:"of the jail that is there now; it changes with every start"`
	Address  string     `json:"address,omitempty"`
	PID      int        `json:"pid,omitempty"`
	Since    time.Time  `json:"since" doc:"since when it is in the phase"`
	Restarts int        `json:"restarts" doc:"since the declaration was changed"`
	Crashes  int        `json:"crash_loop,omitzero" doc:"of one in a crash loop: how often in a row its program has ended soon after its start"`
	Restart  string     `json:"restart,omitempty" enum:"always,on-failure,never"`
	Next     time.Time  `json:"next,omitzero" doc:"of one that waits: when it is started again"`
	Exit     *AgentExit `json:"exit,omitempty" doc:"of the run before"`
	Code     string     `json:"code,omitempty" doc:"of problem"`
	Problem  string     `json:"problem,omitempty" doc:"why it could not be made"`
	Hint     string     `json:"hint,omitempty"`
	Limits   JailLimits `json:"limits"`
	Usage    *JailUsage `json:"usage,omitempty"`
}

// AgentExit says how the program of a jail ended.
type AgentExit struct {
	Code   int              `json:"code" doc:"its status, or -1 when it is not known"`
	Signal string           `json:"signal,omitempty"`
	Cause  jail.Cause       `json:"cause"`
	Hit    []jail.LimitName `json:"hit,omitempty" doc:"the limits that it had run into"`
	At     time.Time        `json:"at"`
}

// Words say how it ended, as [jail.Exit.Words] does.
func (e AgentExit) Words() string {
	return jail.Exit{Code: e.Code, Signal: e.Signal, Cause: e.Cause, Hit: e.Hit}.Words()
}

// JailLimits are what a jail may have.
type JailLimits struct {
	Memory int64   `json:"memory_bytes"`
	CPU    float64 `json:"cpu"`
	Tasks  int     `json:"tasks"`
	Tmp    int64   `json:"tmp_bytes"`
	State  int64   `json:"state_bytes,omitempty"`
	Files  int     `json:"files"`
}

// JailUsage is what a jail uses now.
type JailUsage struct {
	Memory     int64            `json:"memory_bytes"`
	MemoryPeak int64            `json:"memory_peak_bytes"`
	CPUSeconds float64          `json:"cpu_seconds"`
	Tasks      int              `json:"tasks"`
	Disk       int64            `json:"disk_bytes"`
	Files      int              `json:"open_files"`
	Hit        []jail.LimitName `json:"hit,omitempty"`
}

// Written says how much of what was typed has been taken.
type Written struct {
	Bytes int `json:"written"`
}

// statusOf is an agent as the service has it.
func statusOf(s agent.Status, now time.Time) Agent {
	out := Agent{ID: s.ID, Name: s.Name, Tenant: s.Tenant, CreatedAt: s.CreatedAt, RevokedAt: s.RevokedAt, Declares: s.Declared != nil,
		Unwatched: s.Unwatched, Processes: s.Processes}
	if s.Jail != nil {
		kept := JailOf(*s.Jail, now)
		out.Jail = &kept
	}
	return out
}

// JailOf is a jail that is kept as it is answered.
func JailOf(k jail.KeptStatus, now time.Time) AgentJail {
	out := AgentJail{
		Driver: "linux", Source: k.Spec.Template, Phase: k.Phase, Name: string(k.Jail), PID: k.PID, Since: k.Since, Restarts: k.Restarts, Crashes: k.CrashLoop(now),
		Restart: string(k.Restart), Next: k.Next, Code: k.Code, Problem: k.Problem, Hint: k.Hint,
		Limits: JailLimits{Memory: k.Spec.Limits.Memory, CPU: float64(k.Spec.Limits.MilliCPU) / 1000, Tasks: k.Spec.Limits.Tasks,
			Tmp: k.Spec.Limits.Disk, Files: k.Spec.Limits.Files},
	}
	if k.Spec.Image != "" {
		out.Driver, out.Source = "docker", k.Spec.Image
	}
	if k.Addr.IsValid() {
		out.Address = k.Addr.String()
	}
	if k.Spec.Agent != nil {
		out.Limits.State = k.Spec.Agent.State
	}
	if e := k.Exit; e != nil {
		out.Exit = &AgentExit{Code: e.Code, Signal: e.Signal, Cause: e.Cause, Hit: e.Hit, At: e.At}
	}
	if u := k.Usage; u != nil {
		out.Usage = &JailUsage{Memory: u.MemoryBytes, MemoryPeak: u.MemoryPeak, CPUSeconds: u.CPU.Seconds(), Tasks: u.Tasks, Disk: u.DiskBytes,
			Files: u.OpenFiles, Hit: u.Hit}
	}
	return out
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

// entry is the text of a file with one agent. JSON is YAML.
func (r DeclareRequest) entry(name string) ([]byte, error) {
	one := maps.Clone(r.Agent)
	if one == nil {
		one = map[string]any{}
	}
	one["name"] = name
	text, err := json.Marshal(map[string]any{"clawbots": []any{one}})
	return yamldoc.OfJSON(text), err
}
