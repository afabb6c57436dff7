package identity

import (
	"context"
	"slices"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Operation is something that a principal may or may not do. Its name is the action in the audit log too.
type Operation string

// The operations, in the order of the table.
const (
	InfoRead     Operation = "info.read"
	StatusRead   Operation = "status.read" // how everything is doing
	NodeList     Operation = "node.list"   // control planes of the database
	NodeDrain    Operation = "node.drain"  // one opens no new sessions
	NodeResume   Operation = "node.resume" // it does again
	TemplateList Operation = "template.list"
	JailReap     Operation = "jail.reap"

	SessionOpen         Operation = "session.open"
	SessionOpenOperator Operation = "session.open_operator" // with accounts; a grant is needed besides
	SessionList         Operation = "session.list"
	SessionRead         Operation = "session.read"
	SessionLook         Operation = "session.look"   // see what its browser shows
	SessionUse          Operation = "session.use"    // steer its browser
	SessionAttach       Operation = "session.attach" // with a DevTools client
	SessionToken        Operation = "session.token"  // make a token for one session
	SessionClose        Operation = "session.close"
	SessionRecording    Operation = "session.recording" // see what was recorded
	RecordingRemove     Operation = "recording.remove"
	SessionWatch        Operation = "session.watch"   // see it live, as a person
	SessionControl      Operation = "session.control" // take it over, and steer it as a person
	SessionRefresh      Operation = "session.refresh" // log in, for cookies to be kept
	// TaskRun has a model reach a goal, as an agent and at its cost.
	TaskRun Operation = "task.run"

	CookiesList    Operation = "cookies.list" // names, never values
	CookiesImport  Operation = "cookies.import"
	CookiesCapture Operation = "cookies.capture"
	CookiesUpdate  Operation = "cookies.update" // scopes and leases
	CookiesDelete  Operation = "cookies.delete"
	// CookiesAllow lets an agent use an account without a grant each time, and CookiesDisallow takes that back.
	CookiesAllow    Operation = "cookies.allow"
	CookiesDisallow Operation = "cookies.disallow"

	SecretList   Operation = "secret.list" // names, never values
	SecretPut    Operation = "secret.put"
	SecretDelete Operation = "secret.delete"

	VaultStatus Operation = "vault.status"
	VaultRotate Operation = "vault.rotate"

	GrantIssue      Operation = "grant.issue"
	GrantList       Operation = "grant.list"
	GrantRevoke     Operation = "grant.revoke"
	GrantKeysRotate Operation = "grant.rotate_keys"

	AuditRead   Operation = "audit.read"
	AuditExport Operation = "audit.export"
	AuditVerify Operation = "audit.verify"
	AuditTrim   Operation = "audit.trim"

	AgentList    Operation = "agent.list"
	AgentCreate  Operation = "agent.create"
	AgentRevoke  Operation = "agent.revoke"
	AgentRestore Operation = "agent.restore"
	AgentDelete  Operation = "agent.delete"
	// An agent's jail: what it prints, and what is done with it.
	AgentSync    Operation = "agent.sync"
	AgentRestart Operation = "agent.restart"
	AgentLog     Operation = "agent.log"
	AgentType    Operation = "agent.type"
	AgentExec    Operation = "agent.exec"
	AgentWebhook Operation = "agent.webhook"
	ProcessList  Operation = "process.list"
	ProcessStart Operation = "process.start"
	ProcessEnd   Operation = "process.end"
	// ServerList and the others are about MCP servers in jails; ServerCall is a call of one of their tools.
	ServerList   Operation = "mcp_server.list"
	ServerChange Operation = "mcp_server.change"
	ServerCall   Operation = "mcp_server.call"
	TokenList    Operation = "token.list"
	TokenRotate  Operation = "token.rotate"
	TokenRevoke  Operation = "token.revoke"

	OperatorList   Operation = "operator.list"
	OperatorCreate Operation = "operator.create"
	OperatorRotate Operation = "operator.rotate"
	OperatorRevoke Operation = "operator.revoke"

	// SignIn and the others are about people in the console.
	SignIn        Operation = "console.sign_in"
	SignInList    Operation = "console.list"
	SignInEnd     Operation = "console.end"
	PasskeyAdd    Operation = "passkey.add"
	PasskeyList   Operation = "passkey.list"
	PasskeyRemove Operation = "passkey.remove"

	RuleList    Operation = "rule.list"
	RuleExplain Operation = "rule.explain"
	RuleChange  Operation = "rule.change"
	// EgressInside is a decision that leads into the private network of the host, or is for all tenants.
	EgressInside   Operation = "egress.inside"
	ServiceList    Operation = "service.list"
	ServiceChange  Operation = "service.change"
	ProviderList   Operation = "provider.list"
	ProviderChange Operation = "provider.change"
	SettingsRead   Operation = "settings.read"
	SettingsChange Operation = "settings.change"
	AccessAsk      Operation = "access.ask"
	AccessList     Operation = "access.list"
	AccessAnswer   Operation = "access.answer"
	UsageRead      Operation = "usage.read"
	MetricsRead    Operation = "metrics.read"

	TenantRead       Operation = "tenant.read"
	TenantCreate     Operation = "tenant.create"
	TenantUpdate     Operation = "tenant.update"
	TenantDisconnect Operation = "tenant.disconnect"
)

// Reach is whose things an operation is about.
type Reach string

// A tenant's things are for its own principals and for those of all tenants; the installation's only for the latter.
const (
	ReachTenant       Reach = "tenant"
	ReachInstallation Reach = "installation"
)

// Agents says what agents have of an operation.
type Agents string

// Own is what the agent has itself opened or made.
const (
	AgentsNever Agents = ""
	AgentsOwn   Agents = "own"
	AgentsAll   Agents = "all"
)

// Rule is one row of the table.
type Rule struct {
	Operation Operation
	// Min is the least role that may.
	Min    Role
	Reach  Reach
	Agents Agents
}

// Table says which roles and agents may do each operation. An operation that is not in it is forbidden to all.
func Table() []Rule {
	return []Rule{
		{InfoRead, RoleViewer, ReachTenant, AgentsAll},
		{StatusRead, RoleViewer, ReachTenant, AgentsNever},
		{NodeList, RoleAdmin, ReachInstallation, AgentsNever},
		{NodeDrain, RoleAdmin, ReachInstallation, AgentsNever},
		{NodeResume, RoleAdmin, ReachInstallation, AgentsNever},
		{TemplateList, RoleViewer, ReachTenant, AgentsNever},
		{JailReap, RoleAdmin, ReachInstallation, AgentsNever},

		{SessionOpen, RoleOperator, ReachTenant, AgentsOwn},
		{SessionOpenOperator, RoleOperator, ReachTenant, AgentsOwn},
		{SessionList, RoleViewer, ReachTenant, AgentsOwn},
		{SessionRead, RoleViewer, ReachTenant, AgentsOwn},
		{SessionLook, RoleOperator, ReachTenant, AgentsOwn},
		{SessionUse, RoleOperator, ReachTenant, AgentsOwn},
		{SessionAttach, RoleOperator, ReachTenant, AgentsOwn},
		{SessionToken, RoleOperator, ReachTenant, AgentsOwn},
		{SessionClose, RoleOperator, ReachTenant, AgentsOwn},
		// A picture of a page can show what is in an account.
		{SessionRecording, RoleOperator, ReachTenant, AgentsOwn},
		// It is what others look at to see what was done.
		{RecordingRemove, RoleAdmin, ReachTenant, AgentsNever},
		{SessionWatch, RoleOperator, ReachTenant, AgentsNever},
		{SessionControl, RoleOperator, ReachTenant, AgentsNever},
		{SessionRefresh, RoleOperator, ReachTenant, AgentsNever},
		{TaskRun, RoleOperator, ReachTenant, AgentsOwn},

		{CookiesList, RoleViewer, ReachTenant, AgentsNever},
		{CookiesImport, RoleOperator, ReachTenant, AgentsNever},
		{CookiesCapture, RoleOperator, ReachTenant, AgentsNever},
		{CookiesUpdate, RoleOperator, ReachTenant, AgentsNever},
		{CookiesDelete, RoleOperator, ReachTenant, AgentsNever},
		{CookiesAllow, RoleOperator, ReachTenant, AgentsNever},
		{CookiesDisallow, RoleOperator, ReachTenant, AgentsNever},

		{SecretList, RoleViewer, ReachTenant, AgentsNever},
		{SecretPut, RoleOperator, ReachTenant, AgentsNever},
		{SecretDelete, RoleOperator, ReachTenant, AgentsNever},

		{VaultStatus, RoleAdmin, ReachInstallation, AgentsNever},
		{VaultRotate, RoleAdmin, ReachInstallation, AgentsNever},

		{GrantIssue, RoleOperator, ReachTenant, AgentsNever},
		{GrantList, RoleViewer, ReachTenant, AgentsNever},
		{GrantRevoke, RoleOperator, ReachTenant, AgentsNever},
		{GrantKeysRotate, RoleAdmin, ReachInstallation, AgentsNever},

		{AuditRead, RoleViewer, ReachTenant, AgentsNever},
		{AuditExport, RoleAdmin, ReachTenant, AgentsNever},
		{AuditVerify, RoleAdmin, ReachInstallation, AgentsNever},
		{AuditTrim, RoleAdmin, ReachInstallation, AgentsNever},

		{AgentList, RoleViewer, ReachTenant, AgentsNever},
		{AgentCreate, RoleOperator, ReachTenant, AgentsNever},
		{AgentRevoke, RoleOperator, ReachTenant, AgentsNever},
		{AgentRestore, RoleOperator, ReachTenant, AgentsNever},
		{AgentDelete, RoleOperator, ReachTenant, AgentsNever},
		{AgentSync, RoleOperator, ReachTenant, AgentsNever},
		{AgentRestart, RoleOperator, ReachTenant, AgentsNever},
		// The output of an agent may show what it saw of an account.
		{AgentLog, RoleOperator, ReachTenant, AgentsNever},
		{AgentType, RoleOperator, ReachTenant, AgentsNever},
		{AgentExec, RoleOperator, ReachTenant, AgentsNever},
		{AgentWebhook, RoleOperator, ReachTenant, AgentsNever},
		{ProcessList, RoleViewer, ReachTenant, AgentsNever},
		{ProcessStart, RoleOperator, ReachTenant, AgentsNever},
		{ProcessEnd, RoleOperator, ReachTenant, AgentsNever},
		{ServerList, RoleViewer, ReachTenant, AgentsNever},
		{ServerChange, RoleAdmin, ReachInstallation, AgentsNever},
		{ServerCall, RoleOperator, ReachTenant, AgentsOwn},
		{TokenList, RoleViewer, ReachTenant, AgentsNever},
		{TokenRotate, RoleOperator, ReachTenant, AgentsNever},
		{TokenRevoke, RoleOperator, ReachTenant, AgentsNever},

		{OperatorList, RoleAdmin, ReachTenant, AgentsNever},
		{OperatorCreate, RoleAdmin, ReachTenant, AgentsNever},
		{OperatorRotate, RoleAdmin, ReachTenant, AgentsNever},
		{OperatorRevoke, RoleAdmin, ReachTenant, AgentsNever},

		// Of one's own. Those of others are an admin's; package signin says whose are whose.
		{SignIn, RoleViewer, ReachTenant, AgentsNever},
		{SignInList, RoleViewer, ReachTenant, AgentsNever},
		{SignInEnd, RoleViewer, ReachTenant, AgentsNever},
		{PasskeyAdd, RoleViewer, ReachTenant, AgentsNever},
		{PasskeyList, RoleViewer, ReachTenant, AgentsNever},
		{PasskeyRemove, RoleViewer, ReachTenant, AgentsNever},

		{RuleList, RoleViewer, ReachTenant, AgentsNever},
		{RuleExplain, RoleViewer, ReachTenant, AgentsOwn},
		{RuleChange, RoleOperator, ReachTenant, AgentsNever},
		{EgressInside, RoleAdmin, ReachInstallation, AgentsNever},
		{ServiceList, RoleViewer, ReachTenant, AgentsNever},
		{ServiceChange, RoleOperator, ReachTenant, AgentsNever},
		{ProviderList, RoleViewer, ReachTenant, AgentsNever},
		{ProviderChange, RoleOperator, ReachTenant, AgentsNever},
		{SettingsRead, RoleViewer, ReachTenant, AgentsOwn},
		{SettingsChange, RoleOperator, ReachTenant, AgentsNever},
		// Only an agent asks, for itself; package egress says so to others.
		{AccessAsk, RoleOperator, ReachTenant, AgentsOwn},
		{AccessList, RoleViewer, ReachTenant, AgentsOwn},
		{AccessAnswer, RoleOperator, ReachTenant, AgentsNever},
		{UsageRead, RoleViewer, ReachTenant, AgentsOwn},
		{MetricsRead, RoleAdmin, ReachInstallation, AgentsNever},

		{TenantRead, RoleViewer, ReachTenant, AgentsNever},
		// The rights of a tenant are decided for it.
		{TenantCreate, RoleAdmin, ReachInstallation, AgentsNever},
		{TenantUpdate, RoleAdmin, ReachInstallation, AgentsNever},
		{TenantDisconnect, RoleAdmin, ReachInstallation, AgentsNever},
	}
}

// Scope is what a token for one session lets its holder do there; each lets do what those before it do.
type Scope string

// The scopes.
const (
	ScopeView    Scope = "view"    // see what the browser shows
	ScopeControl Scope = "control" // and steer it
	ScopeCDP     Scope = "cdp"     // and attach DevTools clients
)

// rank orders the scopes; an unknown one is below all.
func (s Scope) rank() int { return slices.Index([]Scope{ScopeView, ScopeControl, ScopeCDP}, s) + 1 }

// Valid says whether it is a scope.
func (s Scope) Valid() bool { return s.rank() > 0 }

// scopeOf is the least scope of an operation for the holder of a session's token; empty for what takes a key.
func scopeOf(op Operation) Scope {
	switch op {
	case SessionRead, SessionLook, SessionRecording, SessionWatch:
		return ScopeView
	case SessionUse, SessionControl:
		return ScopeControl
	case SessionAttach:
		return ScopeCDP
	}
	return ""
}

// Object is what an operation is done to.
type Object struct {
	// Tenant is whose it is; empty for what is of all tenants, such as a list of everything.
	Tenant string
	// Agent is the id of the agent that has opened or made it; empty when no agent has.
	Agent string
	// Session is the id of the session that it is; empty for what is none.
	Session string
}

// Can says whether a principal may do an operation with something of a tenant's; tenant is empty for what is of all
// tenants. An agent that has the operation only for its own things may do it here: the caller that lists or opens checks the
// owner of each. For one thing that exists, ask [CanWith].
//
// The answer is nil, forbidden, or not_found for what belongs to another tenant. A caller that answers not_found must do so in
// the words that it has for a thing that does not exist.
func Can(p Principal, op Operation, tenant string) error {
	return decide(Table(), p, op, Object{Tenant: tenant, Agent: p.ID})
}

// CanWith is Can for one thing: what an agent has not made itself does not exist for it.
func CanWith(p Principal, op Operation, object Object) error { return decide(Table(), p, op, object) }

// decide reads the table.
func decide(table []Rule, p Principal, op Operation, object Object) error {
	for _, rule := range table {
		if rule.Operation == op {
			return rule.decide(p, object)
		}
	}
	return forbidden(op)
}

func (r Rule) decide(p Principal, object Object) error {
	switch p.Kind {
	case KindAdmin, KindOperator:
		if r.Min.rank() == 0 || p.Role.rank() < r.Min.rank() || p.Tenant == "" && p.Role != RoleAdmin {
			return forbidden(r.Operation)
		}
	case KindAgent:
		if r.Agents != AgentsOwn && r.Agents != AgentsAll || p.Tenant == "" {
			return forbidden(r.Operation)
		}
	default:
		return forbidden(r.Operation)
	}
	if p.Scope != "" {
		// The holder of a token has what its maker has, for one session and within the scope.
		minimum := scopeOf(r.Operation)
		switch {
		case !minimum.Valid() || p.Session == "":
			return problem.New(problem.Forbidden, "use the key that the token was made with", "a token for a session may not do this: %s", r.Operation)
		case p.Scope.rank() < minimum.rank():
			return problem.New(problem.Forbidden, "ask who made the token for one with the scope "+string(minimum),
				"a token with the scope %s may not do this: %s", p.Scope, r.Operation)
		case object.Session != p.Session:
			return nothing()
		}
	}
	switch {
	case p.Tenant == "":
		return nil // an admin of the installation
	case r.Reach != ReachTenant, object.Tenant == "":
		return forbidden(r.Operation)
	case object.Tenant != p.Tenant, p.Kind == KindAgent && r.Agents == AgentsOwn && (p.ID == "" || object.Agent != p.ID):
		return nothing()
	}
	return nil
}

func nothing() error {
	return problem.New(problem.NotFound, "list what you may see, and check the name", "nothing that you may see has that name")
}

func forbidden(op Operation) error {
	return problem.New(problem.Forbidden, "ask an admin of the installation, or of your tenant, to do it or to give you the role",
		"you may not do this: %s", op)
}

// Authorize is [Can], with a refusal written down. A principal of all tenants gets not_found for a tenant that does not exist;
// others get it for every tenant but their own.
func (s *Service) Authorize(ctx context.Context, p Principal, op Operation, tenant string) error {
	return s.AuthorizeWith(ctx, p, op, Object{Tenant: tenant, Agent: p.ID})
}

// AuthorizeWith is [CanWith], with a refusal written down, and not_found as [Service.Authorize] has it.
func (s *Service) AuthorizeWith(ctx context.Context, p Principal, op Operation, object Object) error {
	err := s.Refuse(p, op, object.Tenant, CanWith(p, op, object))
	// Where there is a session there is its tenant.
	if err != nil || p.Tenant != "" || object.Session != "" || object.Tenant == "" || object.Tenant == store.DefaultTenant || op == TenantCreate {
		return err
	}
	if _, err = s.tenant(ctx, object.Tenant); problem.CodeOf(err) == problem.NotFound {
		return err
	}
	return nil // a store that does not answer says so to what is done next
}

// Hides says whether an error says that something does not exist for a principal, who is told so in the words for such a thing.
// The error of a tenant that does not exist is told as it is to those of all tenants.
func (p Principal) Hides(err error) bool {
	return p.Tenant != "" && problem.CodeOf(err) == problem.NotFound
}

// LacksTenant says whether an error says that a tenant does not exist, to a principal of all tenants. They may have
// the records and the jails that outlive a tenant all the same.
func (p Principal) LacksTenant(err error) bool {
	return p.Tenant == "" && problem.CodeOf(err) == problem.NotFound
}

// Refuse records a refusal, if err is one: nil stays nil. It is recorded for the principal's tenant, whatever tenant was asked for, so that
// it cannot fill another tenant's log. A principal that is refused all the time fills no log; see [audit.Log.Note].
func (s *Service) Refuse(p Principal, op Operation, target string, err error) error {
	if err == nil {
		return nil
	}
	s.Note(audit.Event{Action: string(op), Tenant: p.Tenant, Actor: p.Actor(), Target: texts.Clip(target, 80), Detail: Detail(map[string]string{"reason": problem.CodeOf(err)})})
	return err
}
