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

// Agent is what is declared of one agent. The zero value of a field is that nothing is said. See [yamldoc.Map.Struct] for its tags,
// and allowed for those about values; keys that are own are read by functions of their own.
type Agent struct {
	Name string `json:"name" yaml:"name,own"`
	// Template or Image; neither is the default.
	Template string   `json:"template,omitempty" is:"template"`
	Image    string   `json:"image,omitempty" is:"image"`
	Command  []string `json:"command,omitempty" yaml:"command,own" is:"word"`

	// Workspace is absolute; Sharing follows from the whole file.
	Workspace     string       `json:"workspace,omitempty" is:"workspace" unsaid:"none"`
	WorkspaceMode Mode         `json:"workspace_mode,omitempty" enum:"ro,rw" unsaid:"none"`
	Sharing       Sharing      `json:"sharing" yaml:"-"`
	Limits        Limits       `json:"limits,omitzero"`
	Restart       jail.Restart `json:"restart,omitempty" enum:"always,on-failure,never"`
	// TTL is how long the agent may exist once it was made: its token ends then, and its jail.
	TTL time.Duration     `json:"ttl,omitempty" unsaid:"none" min:"1s" max:"8784h0m0s"`
	Env map[string]string `json:"env,omitempty" yaml:"env,own"`
	// Without are variables that its programs are not given, in order: those whose value is null in the file.
	Without []string `json:"without,omitempty" yaml:"-"`
	Webhook bool     `json:"webhook,omitempty"`
	Browser Browser  `json:"browser,omitempty" enum:"rules,open"`
	Tmp     Tmp      `json:"tmp,omitempty" enum:"noexec,exec"`
	// UnixSockets lets it use UNIX sockets although it has a workspace: through the folder it can talk to programs that share it.
	UnixSockets bool `json:"unix_sockets,omitempty"`

	// Allow are rules of the policy for the agent's jail and its browsers, in the file's order.
	Allow []Rule `json:"allow,omitempty" yaml:"allow,own" most:"200 rules" unsaid:"none"`
	// Services are names of services that the agent may use. Nil: what its tenant's settings say; an empty list is none, and
	// JSON keeps the two apart.
	Services []string `json:"services,omitzero" is:"service" most:"64 names"`
	// Accounts are those that it may use without a grant each time.
	Accounts []Account `json:"accounts,omitempty" yaml:"accounts,own" most:"64 accounts" unsaid:"none"`
	// Tools of execute. Nil: its tenant's; an empty list is none.
	Tools []Tool `json:"tools,omitzero" yaml:"tools,own" most:"200 tools"`
	Rate  Rate   `json:"rate,omitzero"`
	// MCP are the servers of the configuration whose tools the agent is offered.
	MCP []string `json:"mcp,omitempty" is:"server" most:"64 names" unsaid:"none"`
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
	Memory config.Bytes `json:"memory,omitempty" min:"16MiB" max:"1TiB"`
	CPU    float64      `json:"cpu,omitempty" min:"0.01" max:"1024" hint:"write a number of cores, such as 0.5"`
	Tasks  int          `json:"tasks,omitempty" min:"4" max:"4000000"`
	Tmp    config.Bytes `json:"tmp,omitempty" min:"1MiB" max:"1TiB"`
	State  config.Bytes `json:"state,omitempty" min:"1MiB" max:"1TiB"`
	Files  int          `json:"files,omitempty" min:"64" max:"1048576"`
}

// Rule is one rule: a host or a URL, as `clawjail rules add` takes it, with methods, to allow or to deny.
type Rule struct {
	Target  string   `json:"target"` // example.com, *.example.com:8443, https://example.com/api/**
	Methods []string `json:"methods,omitempty" is:"method" most:"32 methods"`
	Deny    bool     `json:"deny,omitempty"`
}

// Tool is one thing that execute may do.
type Tool struct {
	URL      string   `json:"url" is:"tool"`
	Methods  []string `json:"methods,omitempty" yaml:"methods,own" is:"method" most:"32 methods"`
	Services []string `json:"services,omitempty" is:"service" most:"64 names"`
}

// Rate are requests per minute.
type Rate struct {
	Proxy   int `json:"proxy,omitempty" min:"1" max:"1000000"`
	Execute int `json:"execute,omitempty" min:"1" max:"1000000"`
	Service int `json:"services,omitempty" min:"1" max:"1000000"`
	LLM     int `json:"llm,omitempty" min:"1" max:"1000000"`
}

// LLM is what the agent may use of models.
type LLM struct {
	TokensPerDay int64   `json:"tokens_per_day,omitempty" min:"1" max:"1000000000000"`
	CostPerDay   float64 `json:"cost_per_day,omitempty" min:"0.000001" max:"1000000000"`
}
