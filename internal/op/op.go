// Package op describes the operations of management, each once for all faces.
//
// An [Op] is a request of the control API, the right that it needs, its input and its output, and the call of a
// service that does it. The control API serves it, a client sends it and the command line makes a command of it, each
// from this description alone. Nothing is decided here: whether a caller may is the service's to say.
//
// The input of an operation is a struct. Its tags are
//
//   - path and query, for what is in the address; what is in the body is in its [Body];
//   - doc, enum, pattern, maxLength and example, which the document of the API has;
//   - arg, the place among the arguments of the command, from 1, with ? where it may be left out;
//   - flag, the name of a flag, perhaps with its letter; a flag called tenant has its text and its names from the command line;
//   - usage, the text of a flag where doc is not for people, and value, the word in it that stands for the value;
//   - complete, whose names a shell offers, and default, the number of a flag that is not there;
//   - is, what the command line looks at before anybody is asked: a life, a duration, a span that can be of days, a day, methods, a scope,
//     a positive or natural number, or one of the enum; or absent, of what is true while its flag is not there;
//   - need, what is said when a flag is missing, read, when it cannot be read, and alone, the flags that it cannot be with;
//   - offer, words that a shell offers, where there is no enum.
package op

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// Op is one operation.
type Op[In, Out any] struct {
	Method, Path string
	// ID is unique, and never renamed: programs of others have it in the names of their functions.
	ID, Summary string
	// Right is the row of [identity.Table] that the service asks for. It is empty where every key may.
	Right identity.Operation
	// Status is that of the answer. Zero is 200, or 204 without one.
	Status int
	// Call does it. Errors are problems that a caller may see.
	Call func(ctx context.Context, s Backend, by identity.Principal, in In) (Out, error)
	// Command is what the command line has besides.
	Command Command
	// View is what people read of an answer.
	View func(Out) []Block
	// Warns is what people are told beside an answer, also where a program reads it. Nil, and an empty text, are nothing.
	Warns func(Out) string
	// Fails is why the command fails, of an answer that people have read. May be nil.
	Fails func(Out) error
}

// Command is what is known of an operation on the command line alone.
type Command struct {
	// Use is the name with the arguments behind it. One that ends with … is done with each argument.
	Use     string
	Aliases []string
	// Short is the summary when it is empty.
	Short, Long, Example string
	// Nothing is said when no flag is given, where there is nothing to do then.
	Nothing string
	// Without are flags that it does not have, of one of several commands.
	Without []string
	// Key is whether the answer has a key that is shown once.
	Key bool
}

// Backend is the services that operations call.
type Backend struct {
	People      People
	Health      Health
	Nodes       Nodes
	Egress      Egress
	Credentials Credentials
	Audit       Audit
	Agents      Jails   // may be nil
	Servers     Servers // may be nil
	Sessions    Sessions
	SignIns     ConsoleSignIns // may be nil
	Now         func() time.Time
	// Failed is an error as it is sent, a *Problem. It logs what only operators are told.
	Failed func(ctx context.Context, doing string, err error) error
}

// People are tenants, and who acts for them. *identity.Service is one.
type People interface {
	Authorize(ctx context.Context, p identity.Principal, op identity.Operation, tenant string) error

	Tenants(ctx context.Context, by identity.Principal) ([]identity.Tenant, error)
	CreateTenant(ctx context.Context, by identity.Principal, id string, policy identity.Policy) (identity.Tenant, error)
	SetPolicy(ctx context.Context, by identity.Principal, id string, change func(*identity.Policy)) (identity.Tenant, error)
	DisconnectTenant(ctx context.Context, by identity.Principal, id string) (int, error)

	Operators(ctx context.Context, by identity.Principal, tenant string) ([]identity.Operator, error)
	CreateOperator(ctx context.Context, by identity.Principal, n identity.NewOperator) (identity.Key, identity.Operator, error)
	RotateOperator(ctx context.Context, by identity.Principal, id string, life time.Duration) (identity.Key, identity.Operator, error)
	RevokeOperator(ctx context.Context, by identity.Principal, id string) error

	Agents(ctx context.Context, by identity.Principal, tenant string) ([]identity.Agent, error)
	CreateAgent(ctx context.Context, by identity.Principal, tenant, name string, life time.Duration) (identity.Key, identity.Agent, error)
	RevokeAgent(ctx context.Context, by identity.Principal, tenant, name string) error
	RestoreAgent(ctx context.Context, by identity.Principal, tenant, name string) error
	DeleteAgent(ctx context.Context, by identity.Principal, tenant, name string) error
	Tokens(ctx context.Context, by identity.Principal, tenant, name string) ([]identity.Token, error)
	RotateToken(ctx context.Context, by identity.Principal, tenant, name string, life, overlap time.Duration) (identity.Key, identity.Token, error)
	RevokeToken(ctx context.Context, by identity.Principal, tenant, name, id string) error
}

// Jails are those that are kept for agents. An agent.Agents has them.
type Jails interface {
	List(ctx context.Context, by identity.Principal, tenant string) ([]agent.Status, error)
	Get(ctx context.Context, by identity.Principal, tenant, name string) (agent.Status, error)
	RestartAgent(ctx context.Context, by identity.Principal, tenant, name string) error
	RemoveAgent(ctx context.Context, by identity.Principal, tenant, name string, o agent.RemoveOptions) error
	RotateToken(ctx context.Context, by identity.Principal, tenant, name string, overlap time.Duration) error

	Start(ctx context.Context, by identity.Principal, tenant, name string, r agent.ProcessRequest) (agent.Process, error)
	Processes(ctx context.Context, by identity.Principal, tenant, name string) ([]agent.Process, error)
	EndProcess(ctx context.Context, by identity.Principal, tenant, name, id string) error
}

// Sessions are those of browsers. *session.Service is one.
type Sessions interface {
	Open(ctx context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error)
	List(ctx context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error)
	Get(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	Close(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	WaitGone(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	TakeOver(ctx context.Context, by identity.Principal, id string, force bool) (session.Session, error)
	HandBack(ctx context.Context, by identity.Principal, id string, anyway bool) (session.Session, error)

	Tokens(ctx context.Context, by identity.Principal, id string) ([]session.IssuedToken, error)
	RevokeToken(ctx context.Context, by identity.Principal, id, token string) error

	ListRecordings(ctx context.Context, by identity.Principal, tenant string) ([]session.Recording, error)
	RemoveRecording(ctx context.Context, by identity.Principal, id string) error
}

// ConsoleSignIns are those of people to the console. *signin.Service is one.
type ConsoleSignIns interface {
	List(ctx context.Context, by identity.Principal, in signin.SignIn) ([]signin.SignIn, error)
	End(ctx context.Context, by identity.Principal, id string) error
}

// Health says what tenants hold of what all share. *health.Service is one.
type Health interface {
	Quotas(ctx context.Context, by identity.Principal, tenants ...string) ([]quota.Use, error)
}

// Nodes are the control planes of the database. *peer.Nodes is one.
type Nodes interface {
	List(ctx context.Context, by identity.Principal) ([]peer.Node, error)
	Drain(ctx context.Context, by identity.Principal, name string, drain bool) (peer.Node, error)
}

// Egress is what operators decide about the way out. *egress.Book is one.
type Egress interface {
	Rules(ctx context.Context, by identity.Principal, tenant string) ([]egress.Rule, error)
	AddRule(ctx context.Context, by identity.Principal, r egress.Rule) (egress.Rule, error)
	RemoveRule(ctx context.Context, by identity.Principal, id string) error
	Explain(ctx context.Context, by identity.Principal, q []egress.Question) ([]egress.Explanation, error)

	ListServices(ctx context.Context, by identity.Principal, tenant string) ([]egress.Service, error)
	PutService(ctx context.Context, by identity.Principal, s egress.Service) (egress.Service, error)
	RemoveService(ctx context.Context, by identity.Principal, id string) error
	ListProviders(ctx context.Context, by identity.Principal, tenant string) ([]egress.Provider, error)
	PutProvider(ctx context.Context, by identity.Principal, p egress.Provider) (egress.Provider, error)
	RemoveProvider(ctx context.Context, by identity.Principal, id string) error
	ShowSettings(ctx context.Context, by identity.Principal, tenant, agent string) (set, effective egress.Settings, err error)
	PutSettings(ctx context.Context, by identity.Principal, s egress.Settings) (egress.Settings, error)

	Usage(ctx context.Context, by identity.Principal, tenant, from string) ([]egress.Usage, error)

	Ask(ctx context.Context, by identity.Principal, kind egress.AccessKind, target, reason string, wait time.Duration) (egress.AccessRequest, error)
	AccessRequests(ctx context.Context, by identity.Principal, tenant string, all bool) ([]egress.AccessRequest, error)
	AccessRequest(ctx context.Context, by identity.Principal, id string, wait time.Duration) (egress.AccessRequest, error)
	Answer(ctx context.Context, by identity.Principal, id string, a egress.AccessAnswer) (egress.AccessRequest, error)
}

// Credentials are accounts, grants, permissions, secrets and the keys that guard them. *credential.Service is one.
type Credentials interface {
	IssueGrant(ctx context.Context, by identity.Principal, r grant.Request) (grant.Token, grant.Grant, error)
	ListGrants(ctx context.Context, by identity.Principal, tenant string) ([]grant.Grant, error)
	RevokeGrant(ctx context.Context, by identity.Principal, tenant, id string) (grant.Grant, error)
	AllowAccount(ctx context.Context, by identity.Principal, a credential.Allow) (grant.Permission, error)
	Permissions(ctx context.Context, by identity.Principal, tenant string) ([]grant.Permission, error)
	DisallowAccount(ctx context.Context, by identity.Principal, tenant, id string) (p grant.Permission, ended int, err error)
	Cookies(ctx context.Context, by identity.Principal, tenant string) ([]vault.CookieSet, error)
	CookieSet(ctx context.Context, by identity.Principal, tenant, domain string) (vault.CookieSet, error)
	SetRules(ctx context.Context, by identity.Principal, tenant, domain string, r vault.Rules) (vault.CookieSet, error)
	SetSignedIn(ctx context.Context, by identity.Principal, tenant, domain string, i vault.SignedIn) (vault.CookieSet, error)
	DeleteCookies(ctx context.Context, by identity.Principal, tenant, domain string) error
	Capture(ctx context.Context, by identity.Principal, session string, domains []string, change func(*vault.Rules)) ([]vault.CookieSet, error)
	NeedsRefresh(ctx context.Context, by identity.Principal, tenant string) ([]credential.Alert, error)
	GrantKeys(ctx context.Context, by identity.Principal) ([]grant.KeyInfo, error)
	RotateGrantKeys(ctx context.Context, by identity.Principal) (grant.KeyInfo, error)

	Secrets(ctx context.Context, by identity.Principal, tenant string) ([]vault.Secret, error)
	DeleteSecret(ctx context.Context, by identity.Principal, name vault.SecretName) error

	VaultStatus(ctx context.Context, by identity.Principal) (vault.Status, error)
	RotateVault(ctx context.Context, by identity.Principal) (vault.Rotation, error)
}

// Audit is the audit log: an auditor.Auditor, and the *audit.Log that it reads.
type Audit interface {
	Selection(ctx context.Context, by identity.Principal, tenant string) (string, error)
	List(ctx context.Context, f audit.Filter) ([]audit.Row, error)
	Verify(ctx context.Context, by identity.Principal) (audit.Report, error)
}

// Servers are the MCP servers of others that run in jails. *mcpserver.Service is one.
type Servers interface {
	List(ctx context.Context, by identity.Principal, tenant string) ([]mcpserver.Status, error)
	Add(ctx context.Context, by identity.Principal, server config.MCPServer) (mcpserver.Status, error)
	Remove(ctx context.Context, by identity.Principal, name string) error
	Test(ctx context.Context, by identity.Principal, tenant, name string) (mcpserver.Report, error)
}

// None is what goes in or comes out where there is nothing.
type None struct{}

// Body is the part of what goes in that is the JSON body. It is embedded.
type Body[T any] struct {
	Of  T
	err error
}

// With is the body with this content.
func With[T any](content T) Body[T] { return Body[T]{Of: content} }

// Read lets somebody read the body. [Body.Flaw] is what was wrong with it.
func (b *Body[T]) Read(into func(any) error) { b.err = into(&b.Of) }

// Flaw says why a body could not be read.
func (b Body[T]) Flaw() error { return b.err }

// Content is what is sent.
func (b Body[T]) Content() any { return b.Of }

// Row is an operation without its types, for those who go through all of them.
type Row struct {
	Method, Path, ID, Summary string
	Right                     identity.Operation
	Status                    int
	// Use is that of the command.
	Use    string
	Fields []Field
}

// Row describes the operation.
func (o Op[In, Out]) Row() Row {
	status := o.Status
	if _, none := any(*new(Out)).(None); status == 0 && none {
		status = http.StatusNoContent
	}
	return Row{Method: o.Method, Path: o.Path, ID: o.ID, Summary: o.Summary, Right: o.Right, Status: cmp.Or(status, http.StatusOK), Use: o.Command.Use, Fields: FieldsOf(reflect.TypeFor[In]())}
}

// All are the operations that are described here.
func All() []Row {
	return []Row{
		ListNodes().Row(), DrainNode().Row(), ResumeNode().Row(), ListTenants().Row(), CreateTenant().Row(), ShowTenant().Row(), SetTenant().Row(), DisconnectTenant().Row(),
		ListOperators().Row(), CreateOperator().Row(), RotateOperator().Row(), RevokeOperator().Row(), WhoAmI().Row(),
		ListRules().Row(), AddRule().Row(), RemoveRule().Row(), ExplainRules().Row(),
		ListServices().Row(), PutService().Row(), RemoveService().Row(), ListProviders().Row(), PutProvider().Row(), RemoveProvider().Row(), ListUsage().Row(),
		AskForAccess().Row(), ListAccess().Row(), ShowAccess().Row(), AnswerAccess().Row(),
		GetSettings().Row(), PutSettings().Row(), GetAgentSettings().Row(), PutAgentSettings().Row(),
		IssueGrant().Row(), ListGrants().Row(), RevokeGrant().Row(), ListGrantKeys().Row(), RotateGrantKeys().Row(), ShowVault().Row(), RotateVault().Row(),
		ListSecrets().Row(), RemoveSecret().Row(),
		ListCookies().Row(), ShowCookies().Row(), SetCookieRules().Row(), RemoveCookies().Row(), CaptureCookies().Row(), ListNeedsRefresh().Row(),
		AllowAccount().Row(), ListPermissions().Row(), DisallowAccount().Row(),
		ListAgents().Row(), ShowAgent().Row(), CreateAgent().Row(), RemoveAgent().Row(), RestartAgent().Row(), RevokeAgent().Row(), RestoreAgent().Row(),
		StartProcess().Row(), ListProcesses().Row(), EndProcess().Row(), ListSignIns().Row(), EndSignIn().Row(),
		ListTokens().Row(), RotateToken().Row(), RevokeToken().Row(), ListSessionTokens().Row(), RevokeSessionToken().Row(),
		OpenSession().Row(), ListSessions().Row(), ShowSession().Row(), CloseSession().Row(), TakeOver().Row(), HandBack().Row(),
		ListRecordings().Row(), RemoveRecording().Row(),
		ListMCPServers().Row(), PutMCPServer().Row(), TestMCPServer().Row(), RemoveMCPServer().Row(),
		ListAudit().Row(), VerifyAudit().Row(),
	}
}
