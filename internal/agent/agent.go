// Package agent keeps agents: it makes the machine match what is declared of them, starts programs in their jails, and
// shows what they do.
//
// An agent is an identity with a token (package identity), settings of the way out (package egress), and a jail that the
// host daemon keeps (jail.Keeper). A declaration joins the three. The last one is kept in the database, so that
// a plan can say what changes and why; the actual state is always asked of the part that holds it, and never believed from memory.
package agent

import (
	"context"
	"encoding/json"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
)

// Verb is what a step of a plan does with an agent.
type Verb string

// The verbs.
const (
	Create    Verb = "create"
	Change    Verb = "change"  // without a new jail: rules, rates, budgets, a token that is missing
	Restart   Verb = "restart" // with a new jail
	Remove    Verb = "remove"
	Unchanged Verb = "unchanged"
	// Extra is an agent that was declared before and is not any more; it stays unless the plan prunes.
	Extra Verb = "extra"
)

// Step is what is done with one agent, and why.
type Step struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	Verb   Verb   `json:"verb"`
	// Why lists the reasons, in words: "limits.memory: 512MiB → 1GiB", "the jail ended and is not started again".
	Why []string `json:"why,omitempty"`
	// Driver is linux or docker; Source the template or the image.
	Driver string `json:"driver,omitempty"`
	Source string `json:"source,omitempty"`
	// Sharing, Workspace and Exposes say what the jail sees of the host, and what nobody bounds.
	Sharing   clawbots.Sharing `json:"sharing,omitempty"`
	Workspace string           `json:"workspace,omitempty"`
	Mode      clawbots.Mode    `json:"workspace_mode,omitempty"`
	Exposes   []string         `json:"exposes,omitempty"`
	// The following fields are those of a step that was done.
	Done    bool   `json:"done,omitempty"`
	Took    int64  `json:"took_ms,omitempty"`
	Code    string `json:"code,omitempty"` // of Problem
	Problem string `json:"problem,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// Plan is what a sync does, or would do. Steps are in the order of the file, then what is removed or extra, by name.
type Plan struct {
	Steps []Step `json:"steps"`
	// Warnings are about the file as a whole.
	Warnings []string `json:"warnings,omitempty"`
}

// Changes says whether anything is to be done.
func (p Plan) Changes() bool {
	for _, s := range p.Steps {
		if s.Verb != Unchanged && s.Verb != Extra {
			return true
		}
	}
	return false
}

// Removals are the agents that would be removed.
func (p Plan) Removals() (names []string) {
	for _, s := range p.Steps {
		if s.Verb == Remove {
			names = append(names, s.Name)
		}
	}
	return names
}

// SyncRequest asks to make the machine match a file.
type SyncRequest struct {
	Tenant    string   `json:"tenant,omitempty" doc:"whose agents they are; the caller's own, or default, when it is left out"`
	Source    string   `json:"source,omitempty" doc:"the name of the file, for messages"`
	Text      string   `json:"text" doc:"the content of the file"`
	Dir       string   `json:"dir,omitempty" doc:"the absolute folder that its relative paths start at"`
	Driver    string   `json:"driver,omitempty" enum:"linux,docker" doc:"driver of agents that name neither template nor image, instead of the configured one"`
	DryRun    bool     `json:"dry_run,omitzero" doc:"plan, and change nothing"`
	Prune     bool     `json:"prune,omitzero" doc:"remove agents that were declared before and are missing now"`
	Removes   []string `json:"removes,omitempty" nullable:"false" doc:"the agents that prune may remove; when it would remove another one, nothing is done, and the code is conflict"`
	Only      []string `json:"only,omitempty" nullable:"false" doc:"only these agents of the file"`
	Adopt     bool     `json:"adopt,omitzero" doc:"take over agents of the file, of control planes that are lost or have stopped; what they keep on machines of these stays there"`
	KeepState bool     `json:"keep_state,omitzero" doc:"keep the volumes of what is pruned"`
}

// RemoveOptions say what stays when an agent goes.
type RemoveOptions struct {
	KeepState bool `json:"keep_state,omitempty"`
	// RemoveWorkspace also removes the folder that clawjail made for it as a workspace, or in a shared one. A folder that the
	// operator made, or that another agent has had, stays in any case.
	RemoveWorkspace bool `json:"remove_workspace,omitempty"`
}

// Status is an agent as it is.
type Status struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	// Declared is what was declared last; nil for an agent that has only an identity.
	Declared *clawbots.Agent `json:"declared,omitempty"`
	// Node is the control plane whose machine has its jail, where that is another one.
	Node string `json:"node,omitempty"`
	// Jail is nil when no jail is kept for it.
	Jail *jail.KeptStatus `json:"jail,omitempty"`
	// Unwatched says that a jail is declared and that the host daemon, which watches it, does not answer: how it is is not known.
	Unwatched bool `json:"is_unwatched,omitempty"`
	// Unfinished says that what was declared last is being done, or was not done to the end.
	Unfinished bool `json:"is_unfinished,omitempty"`
	// Over says that the time of its ttl is over. [MoreTime] starts it again.
	Over bool `json:"is_over,omitempty"`
	// Processes are those that were started in jails of their own for it, or in its jail, and have not ended.
	Processes int       `json:"processes"`
	CreatedAt time.Time `json:"created_at"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
}

// StateUnwatched is, in words, the state of an agent that is [Status.Unwatched].
const StateUnwatched = "not watched"

// StateUnfinished is that of an agent that is [Status.Unfinished] and has no jail.
const StateUnfinished = "not finished"

// StateElsewhere is that of an agent that has a [Status.Node].
const StateElsewhere = "on another machine"

// StateNoJail is that of an agent that has only an identity.
const StateNoJail = "no jail"

// Event is something that an agent, or a process, did: a line that it printed, or that it began or ended.
type Event struct {
	// ID is where to go on after it: the next request gives the last one it has seen.
	ID   string    `json:"id"`
	At   time.Time `json:"at"` // when it was printed; when it was read, where the log does not say
	Type EventType `json:"type"`
	// Stream, Name, JSON and Text are of a line. Name is the member "type" of a JSON line, where it has one.
	Stream jail.Stream     `json:"stream,omitempty"`
	Name   string          `json:"name,omitempty"`
	JSON   json.RawMessage `json:"json,omitempty"`
	Text   string          `json:"text,omitempty"`
	// Cut says that the line was longer than what is kept of one.
	Cut bool `json:"cut,omitempty"`
	// Missed counts bytes that the reader was too slow for.
	Missed int64      `json:"missed,omitempty"`
	Exit   *jail.Exit `json:"exit,omitempty"`
}

// EventType is the kind of an event.
type EventType string

// The kinds.
const (
	EventStarted EventType = "started"
	EventJSON    EventType = "json"
	EventText    EventType = "text"
	EventMissed  EventType = "missed"
	EventExit    EventType = "exit"
)

// ProcessRequest asks to run a program in a jail, for an agent. Its stdio is untouched.
type ProcessRequest struct {
	// Jail says where. Without one it is a new jail of Template.
	Jail *JailConfig `json:"jail,omitempty"`
	// Template is that of a new jail; empty is clawbot.
	Template string            `json:"template,omitempty"`
	Argv     []string          `json:"argv"`
	Env      map[string]string `json:"env,omitempty"`
	Dir      string            `json:"dir,omitempty"`
	Limits   clawbots.Limits   `json:"limits,omitzero"`
	// TTL ends it; the default is an hour.
	TTL time.Duration `json:"ttl,omitempty"`
}

// JailConfig is an existing jail or a folder that becomes the root of one. Exactly one of Name and Path is given; Name wins.
type JailConfig struct {
	// Name of an agent whose jail runs. The program is started in it, beside what is there.
	Name string `json:"name,omitempty"`
	// Path is a folder of the host beneath jail_roots of the configuration. A new jail has it as its read-only root.
	Path string `json:"path,omitempty"`
	// RootPath is for named jails whose root nobody else knows. Here the host daemon does: it must be empty or Path.
	RootPath string `json:"root_path,omitempty"`
	// User must be empty or "agent": programs run as 1000:1000.
	User string `json:"user,omitempty"`
	// IP4 of a new jail is IP4New or IP4Disable; empty is the former.
	IP4    string       `json:"ip4,omitempty"`
	Mounts []jail.Mount `json:"mounts,omitempty"`
}

// IP4 of a new jail. That of the host, "inherit", is refused.
const (
	IP4New     = "new"     // an address of its own, behind the gateway
	IP4Disable = "disable" // no network
	ip4Inherit = "inherit"
)

// Process is a program that was started for an agent.
type Process struct {
	ID        string     `json:"id"` // pr_…
	Tenant    string     `json:"tenant"`
	Agent     string     `json:"agent"` // its name
	Argv      []string   `json:"argv"`
	Jail      jail.Name  `json:"jail"`
	OwnJail   bool       `json:"own_jail"`
	StartedAt time.Time  `json:"started_at"`
	StartedBy string     `json:"started_by"`
	Exit      *jail.Exit `json:"exit,omitempty"`
}

// Agents is what the faces call; *Service is one. Names of agents are those of people: [a-z0-9-]{1,40}. An empty tenant is
// the caller's own, or default.
type Agents interface {
	// Sync plans, and applies unless it is a dry run. Mistakes of the file are one *problem.ValidationError, and nothing is changed then, nor
	// when what the file needs is not there. progress is called with every step when it begins to be done and when it is
	// done, by one goroutine at a time; it may be nil. The error of steps that failed is in them, and joined in the answer.
	Sync(ctx context.Context, by identity.Principal, r SyncRequest, progress func(Step)) (Plan, error)
	// Declare is Sync for one agent that is added to what is declared, without a file. One of its name that is declared
	// otherwise is a conflict unless it is to be replaced. read makes it, and is called for those who may declare it.
	Declare(ctx context.Context, by identity.Principal, tenant string, read func() (clawbots.Agent, error), replace bool, progress func(Step)) (Plan, error)
	// RemoveAgent ends the jail, revokes the tokens and removes what was declared. The name is free again.
	RemoveAgent(ctx context.Context, by identity.Principal, tenant, name string, o RemoveOptions) error
	// List lists agents with their jails. When it is not known which jails there are, that is the error, and agents are listed
	// all the same.
	List(ctx context.Context, by identity.Principal, tenant string) ([]Status, error)
	Get(ctx context.Context, by identity.Principal, tenant, name string) (Status, error)
	// RestartAgent ends the jail and makes a new one.
	RestartAgent(ctx context.Context, by identity.Principal, tenant, name string) error
	// RotateToken makes a new token, puts it into the jail's folder without a restart, and lets the old one be good for overlap from
	// then on. No old one ends before.
	RotateToken(ctx context.Context, by identity.Principal, tenant, name string, overlap time.Duration) error

	// ReadLog returns what the agent's jail printed.
	ReadLog(ctx context.Context, by identity.Principal, r jail.LogRequest) (jail.LogChunk, error)
	// Events calls emit with what happened after the event with the given id, and with what happens, until the context ends,
	// emit returns an error, or, without follow, there is no more. of is empty for the agent's jail, or a process's id.
	Events(ctx context.Context, by identity.Principal, tenant, name, of, after string, follow bool, emit func(Event) error) error
	// Type writes to the stdin of the agent's jail, or of a process.
	Type(ctx context.Context, by identity.Principal, tenant, name, of string, data []byte) (int, error)
	// Webhook sends a request's body to port 8000 of the agent's jail, when it is declared to take them.
	Webhook(ctx context.Context, by identity.Principal, tenant, name string, w WebhookCall) (WebhookAnswer, error)

	// Exec runs a program in the agent's jail with the stdio for the caller, who ends it by closing.
	Exec(ctx context.Context, by identity.Principal, tenant, name string, p jail.Program) (*jail.Running, error)
	// Start starts a program whose stdio the service keeps, as events, and returns when it runs.
	Start(ctx context.Context, by identity.Principal, tenant, name string, r ProcessRequest) (Process, error)
	// Run starts a program with the stdio for the caller. Its lines are not kept.
	Run(ctx context.Context, by identity.Principal, tenant, name string, r ProcessRequest) (Process, *jail.Running, error)
	// Processes lists those that run, and those that ended within the last hour.
	Processes(ctx context.Context, by identity.Principal, tenant, name string) ([]Process, error)
	// EndProcess ends one, with everything that it started.
	EndProcess(ctx context.Context, by identity.Principal, tenant, name, id string) error
}

// WebhookCall is a request to an agent.
type WebhookCall struct {
	ContentType string
	Body        []byte // at most 1 MiB
}

// WebhookAnswer is what the agent said.
type WebhookAnswer struct {
	Status      int
	ContentType string
	Body        []byte
}
