package config

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// MCPServer is a program that speaks the Model Context Protocol over its standard input and output, and whose tools,
// resources and prompts agents are offered. It runs in a jail of its own, or in an agent's. A zero field has the default that stands beside it.
type MCPServer struct {
	// Name is the key of mcp_servers: [a-z0-9-]{1,20}. The names of its tools begin with it.
	Name string `json:"name" yaml:"-"`
	// Command is the program and its arguments; the program is an absolute path inside the jail.
	Command []string `json:"command"`
	// Tenants may use it, in instances of their own: default alone, unless set; "*" is all of them.
	Tenants []string `json:"tenants,omitempty"`
	// Template of the jail: clawbot.
	Template string `json:"template,omitempty"`
	// Agent names an agent in whose jail it runs, beside what is there, instead of in one of its own.
	Agent string            `json:"agent,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	// Secrets of the vault that it is given. None of them is in the jail's description, or in what the host keeps of it.
	Secrets []ServerSecret `json:"secrets,omitempty" yaml:"secrets,named"`
	// Tools are names of tools, in which * stands for any text, that are offered. Nil is all that the server has; an empty list
	// is none.
	Tools []string `json:"tools"`
	// Resources and Prompts say whether those of the server are offered. Nil: where Tools is nil, so that who names tools offers
	// nothing else.
	Resources *bool `json:"resources,omitempty"`
	Prompts   *bool `json:"prompts,omitempty"`
	// Limits of the jail: agents.limits. Tmp is the size of the home directory as well, which goes with the jail; State is not set.
	Limits AgentLimits `json:"limits,omitzero"`
	// Network says whether the jail may reach the gateway: none.
	Network ServerNetwork `json:"network,omitempty" enum:"none,gateway"`
	// Allow are hosts that it may reach through the gateway: example.com, *.example.com, example.com:8443. Without a port it is 80 and 443.
	Allow []string `json:"allow,omitempty"`
	// Idle is how long an uncalled server stays: ten minutes by default.
	Idle time.Duration `json:"idle,omitempty" min:"10s" max:"24h0m0s"`
	// Answer is how large an answer may be: 16 MiB. A call whose answer is larger fails.
	Answer Bytes `json:"answer,omitempty" min:"1MiB" max:"64MiB"`
	// Silence is how long a call may say nothing: a minute.
	Silence time.Duration `json:"silence,omitempty" min:"1s" max:"12h0m0s"`
	// Mounts are folders of the host beneath workspace_roots.
	Mounts []ServerMount `json:"mounts,omitempty"`
	// Shared lets all who use it, of one tenant, have one instance, with whatever it keeps in mind. Else each has one of its own.
	Shared bool `json:"shared,omitempty"`
}

// ServerSecret is a secret of the vault for an MCP server.
type ServerSecret struct {
	// Name of the file in the jail, and of the variable: NAME_FILE has the path of the file, or NAME the secret itself with Env.
	Name string `json:"name" yaml:"-"`
	// Secret is the name in the vault; the tenant's own is taken.
	Secret string `json:"secret"`
	// Env puts the secret itself into the environment of the program, for programs that read no files.
	Env bool `json:"env,omitempty" yaml:"as" enum:"file,env"`
}

// ServerMount is a folder of the host in the jail of an MCP server.
type ServerMount struct {
	Source   string `json:"source"`
	Target   string `json:"target"` // /workspace, or below /workspace or /mnt
	ReadOnly bool   `json:"read_only,omitempty"`
}

// ServerNetwork is what the jail of an MCP server may reach.
type ServerNetwork string

// Without a network the jail is never admitted to the gateway, so that there is nothing it could reach.
const (
	ServerNetworkNone    ServerNetwork = "none"
	ServerNetworkGateway ServerNetwork = "gateway"
)

// Bounds of MCP servers.
const (
	MaxMCPServers     = 64
	maxServerName     = 20
	maxServerArgs     = 256
	maxServerText     = 32 << 10 // bytes of arguments and environment together
	maxServerSecrets  = 16
	maxServerTools    = 256
	maxServerAllowed  = 256
	maxServerTenants  = 256
	maxServerMounts   = 8
	defaultServerIdle = 10 * time.Minute
	defaultAnswer     = 16 * MiB
	// DefaultSilence is how long a call to a server may say nothing, where its declaration does not say it.
	DefaultSilence = time.Minute
)

// WithDefaults fills in what is not said. The limits are those of agents.
func (s MCPServer) WithDefaults(limits AgentLimits) MCPServer {
	if s.Template == "" && s.Agent == "" {
		s.Template = "clawbot"
	}
	if len(s.Tenants) == 0 {
		s.Tenants = []string{"default"}
	}
	if s.Network == "" {
		s.Network = ServerNetworkNone
	}
	if s.Idle == 0 {
		s.Idle = defaultServerIdle
	}
	setDefault(&s.Answer, defaultAnswer)
	s.Limits = s.Limits.or(limits)
	return s
}

// or takes from another what is zero.
func (l AgentLimits) or(other AgentLimits) AgentLimits {
	setDefault(&l.Memory, other.Memory)
	setDefault(&l.CPU, other.CPU)
	setDefault(&l.Tasks, other.Tasks)
	setDefault(&l.Tmp, other.Tmp)
	setDefault(&l.Files, other.Files)
	return l
}

func setDefault[T comparable](v *T, usual T) {
	var zero T
	if *v == zero {
		*v = usual
	}
}

// Serves says whether a tenant may use the server.
func (s MCPServer) Serves(tenant string) bool {
	return slices.Contains(s.Tenants, tenant) || slices.Contains(s.Tenants, "*")
}

// Offers says whether a tool is one of those that are offered.
func (s MCPServer) Offers(tool string) bool {
	return s.Tools == nil || slices.ContainsFunc(s.Tools, func(pattern string) bool { return matchStar(pattern, tool) })
}

// OffersResources says whether the resources of the server are offered.
func (s MCPServer) OffersResources() bool { return s.offersElse(s.Resources) }

// OffersPrompts says whether the prompts of the server are offered.
func (s MCPServer) OffersPrompts() bool { return s.offersElse(s.Prompts) }

func (s MCPServer) offersElse(said *bool) bool {
	if said != nil {
		return *said
	}
	return s.Tools == nil
}

// matchStar says whether a text is like a pattern in which * stands for any text.
func matchStar(pattern, text string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	if !more {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		part, after, again := strings.Cut(rest, "*")
		if !again {
			return strings.HasSuffix(text, part)
		}
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(part):], after
	}
}

// Validate reports everything that is wrong at once, as a *problem.ValidationError with the code bad_config. Defaults need not be filled in.
func (s MCPServer) Validate() error {
	v := &validation{problem.ValidationError{Code: problem.BadConfig}}
	s.validate(v, "")
	return v.Err()
}

func (c Config) validateServers(v *validation) {
	if len(c.MCPServers) > MaxMCPServers {
		v.flaw("mcp_servers", "", "has more than %d servers", MaxMCPServers)
	}
	for _, s := range c.MCPServers {
		s.validate(v, "mcp_servers."+s.Name+".")
	}
}

func (s MCPServer) validate(v *validation, at string) {
	if !wordOf(s.Name, maxServerName, "-") {
		v.flaw(at+"name", "write 1 to 20 of a-z, 0-9 and -", "%q is not the name of an MCP server", texts.Clip(s.Name, 80))
	}
	s.validateCommand(v, at)
	s.validatePlace(v, at)
	s.validateSecrets(v, at)
	s.validateNetwork(v, at)
	if len(s.Tools) > maxServerTools {
		v.flaw(at+"tools", "use patterns, such as read_*", "has more than %d entries", maxServerTools)
	}
	for i, tool := range s.Tools {
		if tool == "" || len(tool) > 128 || strings.ContainsFunc(tool, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			v.flaw(fmt.Sprintf("%stools[%d]", at, i), "write a name such as read_file, or a pattern such as read_*", "%q is not the name of a tool", texts.Clip(tool, 80))
		}
	}
	v.bounds(at, s)
}

func (s MCPServer) validateCommand(v *validation, at string) {
	switch {
	case len(s.Command) == 0:
		v.flaw(at+"command", "write the program and its arguments, such as [/usr/bin/node, /srv/server.js]", "is missing")
	case len(s.Command) > maxServerArgs:
		v.flaw(at+"command", "", "has more than %d arguments", maxServerArgs)
	case !path.IsAbs(s.Command[0]):
		v.flaw(at+"command[0]", "write the absolute path of the program inside the jail", "%q is not an absolute path", texts.Clip(s.Command[0], 80))
	}
	total := 0
	for i, a := range s.Command {
		total += len(a)
		if strings.ContainsRune(a, 0) {
			v.flaw(fmt.Sprintf("%scommand[%d]", at, i), "", "has a NUL byte")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value, field := s.Env[name], at+"env."+name
		total += len(name) + len(value)
		if !variable(name) {
			v.flaw(at+"env", "use letters, digits and underscores, not starting with a digit", "%q is not the name of a variable", texts.Clip(name, 80))
			continue
		}
		if strings.ContainsRune(value, 0) {
			v.flaw(field, "", "has a NUL byte")
		}
		if looksSecret(value) {
			v.flaw(field, "put it into the vault (clawjail secret set NAME) and name it in secrets", "looks like a secret, and the environment is no place for one")
		}
	}
	if total > maxServerText {
		v.flaw(at+"command", "", "and env have %d bytes together, more than %d", total, maxServerText)
	}
}

// validatePlace checks where the server runs, and which agents may use it.
func (s MCPServer) validatePlace(v *validation, at string) {
	if s.Template != "" && !wordOf(s.Template, 20, "") {
		v.flaw(at+"template", "write 1 to 20 of a-z and 0-9", "%q is not the name of a template", texts.Clip(s.Template, 80))
	}
	if s.Agent != "" {
		if !ValidName(s.Agent) {
			v.flaw(at+"agent", "write the name of an agent", "%q is not the name of an agent", texts.Clip(s.Agent, 80))
		}
		for _, other := range []struct {
			key string
			set bool
		}{{"template", s.Template != ""}, {"secrets", len(s.Secrets) > 0}, {"limits", s.Limits != AgentLimits{}}, {"mounts", len(s.Mounts) > 0},
			{"network", s.Network != ""}, {"allow", len(s.Allow) > 0}} {
			if other.set {
				v.flaw(at+other.key, "leave it out, or leave agent out", "belongs to a jail of the server's own, and this one runs in that of an agent")
			}
		}
	}
	if len(s.Tenants) > maxServerTenants {
		v.flaw(at+"tenants", "", "has more than %d entries", maxServerTenants)
	}
	for i, tenant := range s.Tenants {
		if tenant != "*" && !ValidName(tenant) {
			v.flaw(fmt.Sprintf("%stenants[%d]", at, i), `write the id of a tenant, or "*" for all`, "%q is not the id of a tenant", texts.Clip(tenant, 80))
		}
	}
	s.Limits.validateServer(v, at+"limits.")
	if len(s.Mounts) > maxServerMounts {
		v.flaw(at+"mounts", "", "has more than %d entries", maxServerMounts)
	}
	seen := map[string]bool{}
	for i, m := range s.Mounts {
		field := fmt.Sprintf("%smounts[%d]", at, i)
		v.path(field+".source", m.Source)
		inside := m.Target == "/workspace" || strings.HasPrefix(m.Target, "/workspace/") || strings.HasPrefix(m.Target, "/mnt/")
		if !inside || path.Clean(m.Target) != m.Target || len(m.Target) > 200 || strings.ContainsAny(m.Target, "\x00\n") {
			v.flaw(field+".target", "mount at /workspace, or below /workspace or /mnt", "nothing can be mounted at %q", texts.Clip(m.Target, 80))
		}
		if seen[m.Target] {
			v.flaw(field+".target", "", "two folders are mounted there")
		}
		seen[m.Target] = true
	}
}

func (s MCPServer) validateSecrets(v *validation, at string) {
	if len(s.Secrets) > maxServerSecrets {
		v.flaw(at+"secrets", "", "has more than %d entries", maxServerSecrets)
	}
	for i, one := range s.Secrets {
		field := at + "secrets." + one.Name
		if !variable(one.Name) || len(one.Name) > 64 {
			v.flaw(at+"secrets", "use letters, digits and underscores, not starting with a digit", "%q is not the name of a variable", texts.Clip(one.Name, 80))
			continue
		}
		if one.Env && slices.Contains([]string{"BASHOPTS", "BASHPID", "BASH_VERSINFO", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "LINENO", "OPTIND", "PIPESTATUS", "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "SRANDOM", "UID"}, one.Name) {
			v.flaw(field, "give it another name, or deliver it as a file: leave `as: env` out", "shells keep this variable for themselves")
		}
		if !wordOf(one.Secret, 64, "._-") {
			v.flaw(field, "write the name that `clawjail secret ls` shows", "%q is not the name of a secret", texts.Clip(one.Secret, 80))
		}
		if _, taken := s.Env[one.Name]; taken || slices.ContainsFunc(s.Secrets[:i], func(o ServerSecret) bool { return o.Name == one.Name }) {
			v.flaw(field, "", "is given twice")
		}
	}
}

func (s MCPServer) validateNetwork(v *validation, at string) {
	switch s.Network {
	case "", ServerNetworkNone, ServerNetworkGateway:
	default:
		v.flaw(at+"network", "write none or gateway", "%q is not a network", texts.Clip(string(s.Network), 80))
	}
	if len(s.Allow) > 0 && s.Network != ServerNetworkGateway {
		v.flaw(at+"allow", "write network: gateway", "says what may be reached, and the jail has no network")
	}
	if len(s.Allow) > maxServerAllowed {
		v.flaw(at+"allow", "use patterns, such as *.example.com", "has more than %d entries", maxServerAllowed)
	}
	for i, target := range s.Allow {
		if _, _, err := AllowedHost(target); err != nil {
			v.flaw(fmt.Sprintf("%sallow[%d]", at, i), "write example.com, *.example.com or example.com:8443", "%q is not a host", texts.Clip(target, 80))
		}
	}
}

// AllowedHost takes an entry of MCPServer.Allow apart: the hosts, and the port, or 80 and 443 where there is none.
func AllowedHost(target string) (policy.Pattern, []policy.PortRange, error) {
	ports := policy.Ports(80, 443)
	host, last, found := target, "", false
	if at := strings.LastIndexByte(target, ':'); at >= 0 && !strings.HasSuffix(target, "]") && strings.Count(target[:at], ":") == 0 {
		host, last, found = target[:at], target[at+1:], true
	}
	if found {
		n, err := strconv.ParseUint(last, 10, 16)
		if err != nil || n == 0 || last[0] == '0' || last[0] == '+' {
			return policy.Pattern{}, nil, fmt.Errorf("%q is not a port", texts.Clip(last, 80))
		}
		ports = policy.Ports(uint16(n))
	}
	pattern, err := policy.ParsePattern(host)
	return pattern, ports, err
}

// validateServer looks at limits in which zero is what agents have.
func (l AgentLimits) validateServer(v *validation, at string) {
	if l.Memory != 0 {
		atLeast(v, at+"memory", l.Memory, 16*MiB)
	}
	if l.Tmp != 0 {
		atLeast(v, at+"tmp", l.Tmp, MiB)
	}
	if l.State != 0 {
		v.flaw(at+"state", "leave it out; tmp is the size of /tmp and of the home directory", "is of agents: the jail of a server keeps nothing")
	}
	if l.CPU != 0 && !(l.CPU >= 0.01 && l.CPU <= 1024) {
		v.flaw(at+"cpu", "write a number of cores, such as 0.5", "%v is not between 0.01 and 1024", l.CPU)
	}
	if l.Tasks != 0 && (l.Tasks < 4 || l.Tasks > 4_000_000) {
		v.flaw(at+"tasks", "leave it out for the default", "%d is not between 4 and 4000000", l.Tasks)
	}
	if l.Files != 0 && (l.Files < 64 || l.Files > 1<<20) {
		v.flaw(at+"files", "leave it out for the default", "%d is not between 64 and 1048576", l.Files)
	}
}

// wordOf accepts a-z, 0-9 and the named marks, beginning with a letter or a digit.
func wordOf(s string, limit int, marks string) bool {
	const plain = "abcdefghijklmnopqrstuvwxyz0123456789"
	return s != "" && len(s) <= limit && strings.IndexByte(plain, s[0]) >= 0 && strings.Trim(s, plain+marks) == ""
}

func variable(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	return s != "" && len(s) <= 256 && strings.IndexByte(letters, s[0]) >= 0 && strings.Trim(s, letters+"0123456789") == ""
}

// looksSecret knows how keys of well-known services begin.
func looksSecret(value string) bool {
	for _, begin := range []string{"sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "AIza", "-----BEGIN", "eyJhbGciOi"} {
		if strings.HasPrefix(value, begin) && len(value) >= 16 {
			return true
		}
	}
	return false
}
