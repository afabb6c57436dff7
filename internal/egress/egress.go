// Package egress is what operators decided about the way out: which hosts an agent may reach, which tools, services and
// models it may use and how much of them, and what agents have asked for.
//
// The decisions stand in the database as entries, are held in memory in a form that is ready for use, and take
// effect on what is running the moment they are changed, also when another process changed them within [Options.Recheck], or at [Book.Look].
// Package gateway asks for a [EffectivePolicy] with every request. A decision that cannot be read denies. An entry that makes no sense to this
// version is left out when it allows; when it denies, it is not known what, and its whole scope is denied. When the
// database has not answered ten times in a row, every new View denies until it does; what is under way goes on.
//
// Every method that changes or shows something first asks whether the caller may, then writes down what is about to be
// done, then does it. No entry, record or answer holds the value of a credential: they name secrets of the vault.
package egress

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Meta is what every entry has.
type Meta struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant,omitempty"` // empty: all tenants
	Agent  string `json:"agent,omitempty"`  // its id; empty: all of the tenant
	// Note is for people.
	Note      string    `json:"note,omitempty"`
	CreatedBy string    `json:"created_by,omitempty"` // as the audit log names principals
	CreatedAt time.Time `json:"created_at,omitzero"`
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Version   int64     `json:"version,omitempty"`
}

// Rule is a rule of the policy. Lower priorities come first; of equal ones, a rule that denies comes before one that allows,
// and a narrower one (session, agent, tenant, all) before a wider one.
//
// A rule without Agent and Session is for all agents of the tenant and for clean sessions; one of an agent is for its
// jail and for the sessions that the agent opens. Sessions with accounts are for the grant to widen: of all rules they only
// obey those that deny.
type Rule struct {
	Meta
	policy.Rule
	// Session is the id of the session that it is for, if it is for one.
	Session  string `json:"session,omitempty"`
	Priority int    `json:"priority"` // 1 to 999; 100 when nobody says
	// Once: the rule goes with its first use.
	Once bool `json:"once,omitempty"`
}

// Injection is how a credential goes into a request.
type Injection struct {
	Type InjectionType `json:"type"`
	// Name is that of the header or the query parameter, where there is one to choose.
	Name string `json:"name,omitempty"`
	// User is the user name of basic; the secret is the password. Without it the secret is "user:password".
	User string `json:"user,omitempty"`
}

// InjectionType is one of the ways.
type InjectionType string

// The ways. InjectNone is for a service that needs no credential.
const (
	InjectNone   InjectionType = "none"
	InjectBearer InjectionType = "bearer" // Authorization: Bearer SECRET
	InjectBasic  InjectionType = "basic"  // Authorization: Basic base64(USER:SECRET)
	InjectHeader InjectionType = "header" // NAME: SECRET
	InjectQuery  InjectionType = "query"  // ?NAME=SECRET
	InjectPath   InjectionType = "path"   // in place of [Placeholder] in the path of the base URL; of services alone
)

// Scrub is what happens to an answer that has the credential in it.
type Scrub string

// The settings. Redact is the default.
const (
	ScrubRedact Scrub = "redact" // the value is replaced
	ScrubBlock  Scrub = "block"  // the answer is cut off
	ScrubOff    Scrub = "off"    // nothing is looked at, for a service without a credential; else as redact
)

// Compressed is what happens to an answer that is compressed although identity was asked for.
type Compressed string

// The settings. Decode is the default.
const (
	CompressedDecode Compressed = "decode" // gzip and deflate are decoded, others are refused
	CompressedRefuse Compressed = "refuse"
)

// EncodedSlash is what becomes of a request whose path has an encoded slash (%2F).
type EncodedSlash string

// The settings. Deny is the default.
const (
	EncodedSlashDeny  EncodedSlash = "deny"
	EncodedSlashAllow EncodedSlash = "allow" // the server takes it for a part of the segment
)

// Upstream is where requests of a service or a provider go.
type Upstream struct {
	// BaseURL is absolute, http or https, without user name, query and fragment.
	BaseURL string `json:"base_url"`
	// Address is dialled instead of looking the name up, and may be private: only an admin of all tenants sets it.
	Address netip.Addr `json:"address,omitzero"`
	// Secret is the name of the secret in the vault (the agent's own, else the tenant's); the entry's name when it is empty.
	Secret string `json:"secret,omitempty"`
}

// Allowance is a part of a service: methods (all when empty) and a path below the base URL ("" is all).
type Allowance struct {
	Methods []string `json:"methods,omitempty"`
	Path    string   `json:"path,omitempty"`
}

// Service is an HTTP service that agents use through the reverse route /svc/NAME/, and by name in execute.
type Service struct {
	Meta
	Name string `json:"name"` // [a-z0-9._-]{1,64}
	Upstream
	// Allow lists what may be done. Empty denies all.
	Allow      []Allowance `json:"allow"`
	Inject     Injection   `json:"inject"`
	Scrub      Scrub       `json:"scrub,omitempty"`
	Compressed Compressed  `json:"compressed,omitempty"`
	// EncodedSlash is for servers that have names with a slash in one segment, such as @scope%2fname of npm.
	EncodedSlash EncodedSlash `json:"encoded_slash,omitempty"`
	// Git is the prefix of repository URLs that tools in jails are pointed away from, e.g. https://github.com/.
	Git string `json:"git,omitempty"`
	// Env are variables that tools in jails get; {url} stands for the service's route there.
	Env map[string]string `json:"env,omitempty"`
}

// Wire is the language that a model provider speaks.
type Wire string

// The wires.
const (
	WireOpenAI    Wire = "openai"
	WireAnthropic Wire = "anthropic"
	WireOllama    Wire = "ollama"
)

// Price is money per million tokens. A model without a price is not counted as money, Usage says so, and an agent with a
// budget in money may not use it.
//
// The rest is for what costs otherwise. Nil is a price that is not set: tokens of a cache have a usual price then, and the
// others are, like a model, without a price.
type Price struct {
	Model  string  `json:"model"` // a pattern like those in Models
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
	// CacheRead is input from a cache; nil: as Input. CacheWrite and CacheWriteHour are input that goes into one, for
	// minutes or for an hour; nil: with Anthropic's wire 1.25 and 2 times Input, else as Input.
	CacheRead      *float64 `json:"cache_read,omitempty" doc:"input from a cache; as input when it is left out"`
	CacheWrite     *float64 `json:"cache_write,omitempty" doc:"input that goes into a cache for minutes; with anthropic 1.25 times the input when it is left out"`
	CacheWriteHour *float64 `json:"cache_write_1h,omitempty" doc:"the same for an hour; with anthropic twice the input when it is left out"`
	AudioInput     *float64 `json:"audio_input,omitempty"`
	AudioOutput    *float64 `json:"audio_output,omitempty"`
	// Call is what one use of a tool of the provider's costs.
	Call *float64 `json:"call,omitempty" doc:"one use of a tool of the provider, not a million"`
	// Priority is how many times the price a request costs that goes before others.
	Priority *float64 `json:"priority,omitempty" doc:"how many times the price a request costs that goes before others"`
}

// Provider is where requests for models go.
type Provider struct {
	Meta
	Name string `json:"name"`
	Upstream
	Wire Wire `json:"wire"`
	// Models are patterns in which * stands for any text. The first provider, by priority and then by age, that speaks the
	// wire and has the model serves it; an agent's own come before its tenant's, and those before everybody's.
	Models   []string `json:"models"`
	Priority int      `json:"priority,omitempty"` // lower first; default 100
	// Inject is how the key goes in: without a Type, as the wire has it (bearer for openai, x-api-key for anthropic, and
	// bearer for ollama if there is a secret).
	Inject Injection `json:"inject,omitzero"`
	Prices []Price   `json:"prices,omitempty"`
	// Hosted names what the provider may do by itself when an agent asks for it, such as web_search, mcp, fetch or stored.
	// Nothing, when it is empty.
	Hosted []string `json:"hosted,omitempty"`
}

// Tool is something that an agent may do with execute: an absolute URL whose host and path may be patterns (see
// policy.ParseURL), with methods.
type Tool struct {
	URL     string   `json:"url"`
	Methods []string `json:"methods"`
	// Services limits whose credentials may be used there; empty: any that the agent has or, of a tool that was approved,
	// those of the services whose base URL is there.
	Services []string `json:"services,omitempty"`
	// ExpiresAt and Once are of a tool that was approved for a time, or for one use.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Once      bool      `json:"once,omitempty"`
	// ID is of a tool that was approved.
	ID string `json:"id,omitempty"`
}

// Rates are requests per minute by surface; zero means the wider setting, at last the default.
type Rates struct {
	Proxy   int `json:"proxy,omitempty"`   // 3000
	Execute int `json:"execute,omitempty"` // 60
	Service int `json:"service,omitempty"` // 600
	LLM     int `json:"llm,omitempty"`     // 120
	Tunnels int `json:"tunnels,omitempty"` // at the same time; 128
}

// Budget bounds the use of models on one day (UTC). Zero means the wider setting, at last none.
type Budget struct {
	TokensPerDay int64   `json:"tokens_per_day,omitempty"`
	CostPerDay   float64 `json:"cost_per_day,omitempty"`
}

// Settings are of one agent, of a tenant's agents, or of all. A field that an agent's leave out is their tenant's, then that of all.
type Settings struct {
	Meta
	// Mode: enforce, or report, in which refusals of the policy are only written down.
	Mode policy.Mode `json:"mode,omitempty"`
	// Tools of execute. Nil: the wider setting's; a list, also an empty one, is all there is. Where none of them has a list, all is denied.
	Tools []Tool `json:"tools"`
	// Services are the names of the services of the tenant, and of all tenants, that may be used. Nil: the wider setting's,
	// at last all of them; a list, also an empty one, is all there is. A service that is an agent's own is there anyway: it
	// was made or approved for this agent.
	Services []string `json:"services,omitzero"`
	// MCP are the names of the MCP servers whose tools are offered, beside those that an agent declares. Nil: the wider
	// setting's, at last none; a list, also an empty one, is all there is.
	MCP    []string `json:"mcp,omitzero"`
	Rates  Rates    `json:"rates,omitzero"`
	Budget Budget   `json:"budget,omitzero"`
	// Browser is what the clean sessions may reach that the agent opens; default rules.
	Browser BrowserReach `json:"browser,omitempty"`
	// Hold is how long a request that no rule allows waits for an operator's answer, as text (10s, 5m); it becomes a
	// request for access then. Empty or 0s does not wait and does not ask.
	Hold string `json:"hold,omitempty"`
}

// BrowserReach is what stands behind the rules of a clean session that an agent opens.
type BrowserReach string

// The values of BrowserReach. Sessions that people open have the public web, whatever is set.
const (
	BrowserRules BrowserReach = "rules" // nothing: it has the rules of its agent
	BrowserOpen  BrowserReach = "open"  // the public web and the private destinations of the configuration
)

// AccessKind is what is asked for.
type AccessKind string

// The kinds.
const (
	AccessHost    AccessKind = "host"    // target: host or host:port, or a URL
	AccessTool    AccessKind = "tool"    // target: METHOD URL SERVICE; without it, the services whose base URL is there
	AccessService AccessKind = "service" // target: the name of a service that exists for other agents
	AccessAccount AccessKind = "account" // target: the domain of an account, with cdp behind it for DevTools clients
)

// AccessState is how far a request for access got.
type AccessState string

// The states.
const (
	AccessPending  AccessState = "pending"
	AccessApproved AccessState = "approved"
	AccessRefused  AccessState = "refused"
	AccessExpired  AccessState = "expired"
)

// AccessRequest is an agent's question to the operator.
type AccessRequest struct {
	Meta
	AgentName string      `json:"agent_name,omitempty"`
	Kind      AccessKind  `json:"kind"`
	Target    string      `json:"target"`
	Reason    string      `json:"reason"`
	State     AccessState `json:"state"`
	// AnsweredBy and Answer are the operator's; Answer is shown to the agent.
	AnsweredBy string    `json:"answered_by,omitempty"`
	AnsweredAt time.Time `json:"answered_at,omitzero"`
	Answer     string    `json:"answer,omitempty"`
	// Made is the id of the entry that an approval made.
	Made string `json:"made,omitempty"`
}

// AccessAnswer is what an operator says.
type AccessAnswer struct {
	Approve bool `json:"approve"`
	// Once lets one request pass; For is how long (1h); neither: for good.
	Once bool   `json:"once,omitempty"`
	For  string `json:"for,omitempty"`
	// Comment is shown to the agent.
	Comment string `json:"comment,omitempty"`
}

// Usage of models by one agent on one day.
type Usage struct {
	Tenant       string  `json:"tenant"`
	Agent        string  `json:"agent"`
	Day          string  `json:"day"`
	Provider     string  `json:"provider"`
	Model        string  `json:"model"`
	Requests     int64   `json:"requests"`
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	Cost         float64 `json:"cost"`
}

// Who is the caller that asks the gateway for something.
type Who struct {
	Tenant string
	// Agent is the agent whose jail, or whose token, it is.
	Agent string
	// Session is the session whose jail it is, and Opener the agent that opened it.
	Session, Opener string
	Base            policy.Policy // see gateway.Caller.Policy
	Confined        bool          // see gateway.Caller.Confined
}

// Way is the gateway, as explanations ask it.
type Way interface {
	// CallerIn is the caller behind the jail of a session, while there is one.
	CallerIn(session string) (Who, bool)
	// Clean is what a clean session may reach when no rule says otherwise.
	Clean() policy.Policy
	// Reach says why the gateway would not connect to a host that rules allow, and returns nil when it would; private is
	// where a rule leads it. Names are looked up with lookup only.
	Reach(ctx context.Context, to hostport.Endpoint, private netip.Addr, lookup bool) *problem.Error
}

// Options of a Book. All are required but Fixed, Way, Accounts and Log.
type Options struct {
	Store    Store
	Identity Authority
	Audit    audit.Records
	Now      func() time.Time
	// Recheck is how often the entries are compared with the store, for what other processes change.
	Recheck time.Duration
	// Fixed rules are those of the configuration. They come before all others of their priority. They have names.
	Fixed []Rule
	// Way is asked by explanations for what rules do not say. Nil: explanations are about the rules alone.
	Way Way
	// Accounts gives agents the accounts that are approved. Nil: agents cannot ask for them.
	Accounts Accounts
	// Log hears of entries that cannot be read and of a store that does not answer; nil is silence.
	Log *slog.Logger
}

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	f := &flaws{code: problem.BadConfig}
	f.check(o.Store != nil, "store", "is missing")
	f.check(o.Identity != nil, "identity", "is missing")
	f.check(o.Audit != nil, "audit", "is missing")
	f.check(o.Now != nil, "now", "is missing")
	f.check(o.Recheck > 0, "recheck", "is %s, and must be above 0", o.Recheck)
	f.check(len(o.Fixed) <= maxRules, "fixed", "has more than %d rules", maxRules)
	names := map[string]bool{}
	for i, r := range o.Fixed {
		at := fmt.Sprintf("fixed.%d", i)
		f.check(r.Name != "" && !names[r.Name], at, "has no name, or one that is there twice")
		f.check(!r.Once, at, "a rule of the configuration cannot be for one use")
		names[r.Name] = true
		validRule(f.at(at), r)
	}
	return f.err()
}

// Store is what a Book keeps.
type Store interface {
	store.Entries
	store.Usages
	AgentByID(ctx context.Context, id string) (store.Agent, error)
	Agent(ctx context.Context, tenant, name string) (store.Agent, error)
}

// Authority decides who may do what. *identity.Service is one.
type Authority interface {
	AuthorizeWith(ctx context.Context, p identity.Principal, op identity.Operation, object identity.Object) error
}
