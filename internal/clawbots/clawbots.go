// Package clawbots reads clawbots.yml, the file that declares agents: strictly, and with every mistake at its place.
//
// It decides what a file means by itself, and nothing about the host: whether a folder, a template or an image is there
// is for others to find out.
package clawbots

import (
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/jail"
)

// File is what a file declares. Agents are in the order of the file.
type File struct {
	// Source is the file's name in messages.
	Source string
	Agents []Agent

	doc    *yamldoc.Document
	fields []string // of the agents
}

// Sharing says what an agent sees of the host.
type Sharing string

// The modes, which follow from the whole file.
const (
	Isolated  Sharing = "isolated"  // no workspace
	Dedicated Sharing = "dedicated" // one agent has the path
	Shared    Sharing = "shared"    // several name the same path; each has a folder of its name in it
)

// Tmp says what may be done with files in /tmp.
type Tmp string

// The settings. NoExec is the default.
const (
	NoExec Tmp = "noexec"
	Exec   Tmp = "exec" // they can be run, as builds want it
)

// Agent is what is declared of one agent. The zero value of a field is that nothing is said.
type Agent struct {
	Name string `json:"name"`
	// Template or Image; neither is the default.
	Template string   `json:"template,omitempty"`
	Image    string   `json:"image,omitempty"`
	Command  []string `json:"command,omitempty"`

	// Workspace is absolute; Sharing follows from the whole file.
	Workspace     string       `json:"workspace,omitempty"`
	WorkspaceMode Mode         `json:"workspace_mode,omitempty"`
	Sharing       Sharing      `json:"sharing"`
	Limits        Limits       `json:"limits,omitzero"`
	Restart       jail.Restart `json:"restart,omitempty"`
	// TTL is how long the agent may exist once it was made: its token ends then, and its jail.
	TTL time.Duration     `json:"ttl,omitempty"`
	Env map[string]string `json:"env,omitempty"`
	// Without are variables that its programs are not given, in order: those whose value is null in the file.
	Without []string `json:"without,omitempty"`
	Webhook bool     `json:"webhook,omitempty"`
	Browser Browser  `json:"browser,omitempty"`
	Tmp     Tmp      `json:"tmp,omitempty"`
	// UnixSockets lets it use UNIX sockets although it has a workspace: whoever shares the folder can be connected with it.
	UnixSockets bool `json:"unix_sockets,omitempty"`

	// Allow are rules of the policy for the agent's jail and its browsers, in the file's order.
	Allow []Rule `json:"allow,omitempty"`
	// Services are names of services that the agent may use. Nil: what its tenant's settings say; an empty list is none, and
	// JSON keeps the two apart.
	Services []string `json:"services,omitzero"`
	// Accounts are those that it may use without a grant each time.
	Accounts []Account `json:"accounts,omitempty"`
	// Tools of execute. Nil: its tenant's; an empty list is none.
	Tools []Tool `json:"tools,omitzero"`
	Rate  Rate   `json:"rate,omitzero"`
	// MCP are the servers of the configuration whose tools the agent is offered.
	MCP []string `json:"mcp,omitempty"`
	LLM LLM      `json:"llm,omitzero"`

	// Line of the file where it begins, for messages.
	Line int `json:"-"`
	// Siblings are the other agents of the file that share its workspace, for messages.
	Siblings []string `json:"-"`
}

// Mode is how a workspace is mounted.
type Mode string

// The modes; read-write is the default.
const (
	ReadWrite Mode = "rw"
	ReadOnly  Mode = "ro"
)

// Browser is what the clean sessions may reach that the agent opens.
type Browser string

// The values of Browser; the settings of its tenant decide when nothing is said, at last its rules.
const (
	BrowserRules Browser = "rules" // what its rules allow
	BrowserOpen  Browser = "open"  // the public web as well
)

// Limits are those of the jail; what is zero is the configuration's agents.limits.
type Limits struct {
	Memory config.Bytes `json:"memory,omitempty"`
	CPU    float64      `json:"cpu,omitempty"`
	Tasks  int          `json:"tasks,omitempty"`
	Tmp    config.Bytes `json:"tmp,omitempty"`
	State  config.Bytes `json:"state,omitempty"`
	Files  int          `json:"files,omitempty"`
}

// Rule is one rule: a host or a URL, as `clawjail rules add` takes it, with methods, to allow or to deny.
type Rule struct {
	Target  string   `json:"target"` // example.com, *.example.com:8443, https://example.com/api/**
	Methods []string `json:"methods,omitempty"`
	Deny    bool     `json:"deny,omitempty"`
}

// Tool is one thing that execute may do.
type Tool struct {
	URL      string   `json:"url"`
	Methods  []string `json:"methods,omitempty"`
	Services []string `json:"services,omitempty"`
}

// Rate are requests per minute.
type Rate struct {
	Proxy   int `json:"proxy,omitempty"`
	Execute int `json:"execute,omitempty"`
	Service int `json:"services,omitempty"`
	LLM     int `json:"llm,omitempty"`
}

// LLM is what the agent may use of models.
type LLM struct {
	TokensPerDay int64   `json:"tokens_per_day,omitempty"`
	CostPerDay   float64 `json:"cost_per_day,omitempty"`
}
