// Package store is what clawjail keeps in its database: the rows, and what can be done with them.
//
// Two packages implement it, store/sqlite (embedded, the default) and store/postgres. They share store/sqldb, and both pass
// the suite in store/storetest. Values that are secret are ciphertext before they come here: a database that is stolen
// without the key file tells who has accounts where, and nothing that opens them.
//
// All methods may be called concurrently, also by several processes. Times are UTC and are kept to the microsecond,
// rounded down; an empty list comes back as nil. A row that does not exist is ErrNotFound, also one that is only
// referred to, such as the tenant of a new agent; one that exists already is ErrExists. A written row is still
// there after a loss of power.
package store

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"
)

// Errors that callers act upon.
var (
	ErrNotFound = errors.New("no such row")
	ErrExists   = errors.New("the row exists already")
	// ErrUnavailable wraps what the database says when it cannot be reached or its disk is full: nothing was
	// changed, and it may work again later. One case cannot be told from the others: when the connection to a
	// database on another machine breaks while a change is being confirmed, the change may have been made. A caller that
	// tries again looks first.
	ErrUnavailable = errors.New("the database is not available")
	// ErrGap is an audit row whose seq does not follow the newest one of its node.
	ErrGap = errors.New("the row does not follow the newest one")
	// ErrInvalid is a value that no database keeps: a text that is not UTF-8 or holds a NUL, a time that is missing
	// or beyond the year 9999, a limit below 1. Trying again does not help.
	ErrInvalid = errors.New("the value cannot be kept")
)

// DefaultTenant exists from the start.
const DefaultTenant = "default"

// Store is a database.
type Store interface {
	Tenants
	Operators
	Agents
	CookieSets
	Secrets
	Grants
	Audit
	Entries
	Usages
	SignIns
	Passkeys
	Nodes
	// Ping returns nil when the database answers and can be written to.
	Ping(ctx context.Context) error
	Close() error
}

// Tenant owns agents, credentials and sessions.
type Tenant struct {
	ID        string // [a-z0-9-]{1,40}
	CreatedAt time.Time
	// ForbidOperatorMode refuses every session with credentials.
	ForbidOperatorMode bool
	// ForbidAccountPermissions refuses those that an agent opens without a grant that a person issued for it.
	ForbidAccountPermissions bool
}

// Tenants of the installation.
type Tenants interface {
	CreateTenant(ctx context.Context, t Tenant) error
	Tenant(ctx context.Context, id string) (Tenant, error)
	// ListTenants by ID.
	ListTenants(ctx context.Context) ([]Tenant, error)
	// UpdateTenant changes everything but the time of creation of a tenant that was read as was; ErrExists when it is no longer so.
	UpdateTenant(ctx context.Context, was, t Tenant) error
}

// Operator is a person or a program that works for a tenant with a key.
type Operator struct {
	ID      string // random
	Name    string
	Tenant  string // empty: all tenants, which only the role admin may have
	Role    string // admin, operator, viewer
	KeyHash []byte // SHA-256 of the key
	// KeyHint is the beginning of the key, for people to recognise it.
	KeyHint   string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: does not expire
	RevokedAt time.Time // zero: is not revoked
}

// Operators and their keys.
type Operators interface {
	CreateOperator(ctx context.Context, o Operator) error
	Operator(ctx context.Context, id string) (Operator, error)
	// OperatorByKey finds an operator by the hash of a key, also a revoked or expired one: the caller says which.
	OperatorByKey(ctx context.Context, hash []byte) (Operator, error)
	// ListOperators of a tenant, oldest first; of all when tenant is empty.
	ListOperators(ctx context.Context, tenant string) ([]Operator, error)
	// RevokeOperator is idempotent; the first time stays.
	RevokeOperator(ctx context.Context, id string, at time.Time) error
}

// Agent is an identity that programs in jails have.
type Agent struct {
	ID        string // random
	Tenant    string
	Name      string // [a-z0-9-]{1,40}, unique in its tenant among agents that are not removed
	CreatedAt time.Time
	RevokedAt time.Time // zero: is not revoked
}

// Token is one of an agent's tokens. During a rotation it has two.
type Token struct {
	ID        string // random; names the token in events
	Agent     string
	Hash      []byte // SHA-256
	Hint      string // its beginning
	CreatedAt time.Time
	ExpiresAt time.Time // zero: does not expire
	RevokedAt time.Time // zero: is not revoked
	UsedAt    time.Time // about when it was used last
}

// Agents and their tokens.
type Agents interface {
	CreateAgent(ctx context.Context, a Agent) error
	Agent(ctx context.Context, tenant, name string) (Agent, error)
	AgentByID(ctx context.Context, id string) (Agent, error)
	// ListAgents of a tenant, by name; of all when tenant is empty.
	ListAgents(ctx context.Context, tenant string) ([]Agent, error)
	// RevokeAgent sets or, with a zero time, takes back the revocation.
	RevokeAgent(ctx context.Context, id string, at time.Time) error
	// DeleteAgent removes an agent with its tokens and its own secrets. Its name is free again.
	DeleteAgent(ctx context.Context, id string) error

	CreateToken(ctx context.Context, t Token) error
	// TokenByHash finds a token, also a revoked or expired one, and its agent.
	TokenByHash(ctx context.Context, hash []byte) (Token, Agent, error)
	// ListTokens of an agent, oldest first.
	ListTokens(ctx context.Context, agent string) ([]Token, error)
	// ListTenantTokens of all agents of a tenant, by agent, oldest first; of all tenants when tenant is empty.
	ListTenantTokens(ctx context.Context, tenant string) ([]Token, error)
	// RevokeToken is idempotent; the first time stays.
	RevokeToken(ctx context.Context, id string, at time.Time) error
	// ExpireToken shortens a token's life to at; it never lengthens it.
	ExpireToken(ctx context.Context, id string, at time.Time) error
	// TouchToken says that a token was used. An earlier time than the known one changes nothing.
	TouchToken(ctx context.Context, id string, at time.Time) error
}

// CookieSet is the cookies of one registrable domain of one tenant, encrypted.
type CookieSet struct {
	ID         string // random, stays when the set is replaced; part of what the ciphertext is bound to
	Tenant     string
	Domain     string // registrable
	Ciphertext []byte
	Count      int
	// Scopes are the grant scopes that may inject the set; see package grant.
	Scopes []string
	// MaxLeases is how many sessions may use the set at the same time; at least 1.
	MaxLeases       int
	CreatedAt       time.Time
	LastRefreshedAt time.Time
	LastInjectedAt  time.Time // zero: never
	// ExpiresAt is when the first of its persistent cookies expires; zero when it has none.
	ExpiresAt time.Time
	// EgressDomains are other domains that its site needs; they are proposed for grants.
	EgressDomains []string
	SignedIn      SignedIn
	// SignedOutAt is when a session first saw that the site has forgotten the login, and SignedOutBy what it saw; zero and
	// empty while none did since LastRefreshedAt.
	SignedOutAt time.Time
	SignedOutBy string
}

// SignedIn says how a site shows that somebody is signed in.
type SignedIn struct {
	// Page is the address of a page that shows it, and Marker a CSS selector of what only a signed-in page has. Either may be empty.
	Page, Marker string
	// Unwatched says that sessions do not check it.
	Unwatched bool
}

// SignedOut is what a session saw of an account.
type SignedOut struct {
	// Opened is when the session was opened: it says nothing of cookies that were stored later.
	Opened time.Time
	At     time.Time
	By     string // empty: it saw that the account is signed in
}

// CookieSets of all tenants.
type CookieSets interface {
	// PutCookieSet makes a set where was is zero, and otherwise replaces the set that was read as was. ErrExists when the place is taken,
	// or when that set is no longer there with its content, rules and hints: then nothing is changed. The ID stays, and so do leases,
	// CreatedAt and LastInjectedAt; SignedOutAt stays unless LastRefreshedAt changes.
	PutCookieSet(ctx context.Context, was, s CookieSet) error
	CookieSet(ctx context.Context, tenant, domain string) (CookieSet, error)
	// ListCookieSets of a tenant, by domain; of all when tenant is empty.
	ListCookieSets(ctx context.Context, tenant string) ([]CookieSet, error)
	// DeleteCookieSet removes a set with its leases.
	DeleteCookieSet(ctx context.Context, tenant, domain string) error
	// MarkInjected sets LastInjectedAt. An earlier time than the known one changes nothing.
	MarkInjected(ctx context.Context, tenant, domain string, at time.Time) error
	// MarkSignedOut sets SignedOutAt and SignedOutBy where they are not set, or clears them. A sign-out that was seen in a session that
	// was opened before LastRefreshedAt changes nothing.
	MarkSignedOut(ctx context.Context, tenant, domain string, m SignedOut) error

	// LeaseCookieSets takes one lease on each of the domains' sets for a session, all or none. It returns the
	// domains that have no lease left, sorted, and ErrNotFound when a set does not exist. A session's second lease
	// on the same set is no second one. Leases of others count until their ExpiresAt.
	LeaseCookieSets(ctx context.Context, l Lease, domains []string) (busy []string, err error)
	// ReleaseLeases gives back every lease of a session. Idempotent.
	ReleaseLeases(ctx context.Context, session string) error
	// ReleaseNodeLeases gives back every lease of a node's: it has just started, so it has no sessions.
	ReleaseNodeLeases(ctx context.Context, node string) error
}

// Lease is a session's use of cookie sets.
type Lease struct {
	Tenant, Session, Node string
	// At is when it is taken. From ExpiresAt on it counts no more, also when it was not given back: its node may never come back.
	At, ExpiresAt time.Time
}

// Sealed is what may be known of an encrypted row without its content: enough to tell whose it is, by which key it was
// encrypted, and how large it is.
type Sealed struct {
	ID, Tenant string
	Agent      string // of a secret; its ID
	Name       string // the domain of a cookie set, the service of a secret
	Secret     bool   // it is a secret and no cookie set
	Head       []byte // the first [SealedHead] bytes of the ciphertext
	Bytes      int64  // of all of it
}

// SealedHead is how many bytes of a ciphertext tell by which key it was encrypted.
const SealedHead = 16

// Secret is an API credential of a service, for one agent or for a whole tenant, encrypted.
type Secret struct {
	ID         string // random, stays when the secret is replaced
	Tenant     string
	Agent      string // its ID; empty: the tenant's
	Service    string
	Ciphertext []byte
	CreatedAt  time.Time
	UpdatedAt  time.Time
	UsedAt     time.Time // zero: never
}

// Secrets of all tenants.
type Secrets interface {
	// PutSecret makes the secret, or replaces the one that was read as was, as PutCookieSet does. CreatedAt and UsedAt stay.
	// The agent must be of the tenant: ErrNotFound.
	PutSecret(ctx context.Context, was, s Secret) error
	Secret(ctx context.Context, tenant, agent, service string) (Secret, error)
	// ListSecrets of a tenant, by service and agent; of all when tenant is empty.
	ListSecrets(ctx context.Context, tenant string) ([]Secret, error)
	DeleteSecret(ctx context.Context, tenant, agent, service string) error
	// ListSealed is all cookie sets and secrets of all tenants, without what is in them, in no order.
	ListSealed(ctx context.Context) ([]Sealed, error)
	MarkUsed(ctx context.Context, tenant, agent, service string, at time.Time) error
}

// Grant is an operator's permission to inject cookie sets once.
type Grant struct {
	ID            string // the token's jti
	Tenant        string
	Domains       []string // registrable
	EgressDomains []string
	Access        string // tools or cdp
	Origin        string // the session that it was issued for; empty: any caller
	Operator      string // the operator that issued it
	IssuedAt      time.Time
	NotBefore     time.Time
	ExpiresAt     time.Time
	UsedAt        time.Time // zero: not used
	UsedBy        string    // the session
	RevokedAt     time.Time // zero: not revoked
	RevokedBy     string
}

// Grants of all tenants.
type Grants interface {
	CreateGrant(ctx context.Context, g Grant) error
	Grant(ctx context.Context, id string) (Grant, error)
	// ListGrants of a tenant, newest first; of all when tenant is empty.
	ListGrants(ctx context.Context, tenant string) ([]Grant, error)
	// UseGrant marks the grant as used by a session if it is of the tenant, neither used nor revoked, and now is
	// within its life, [NotBefore, ExpiresAt): one conditional update decides, whatever else happens at the same time on whichever
	// node. used says whether this call was the one; the row is as it is afterwards, so that the caller can say
	// why not.
	UseGrant(ctx context.Context, id, tenant, session string, now time.Time) (g Grant, used bool, err error)
	// RevokeGrant is idempotent; the first time stays.
	RevokeGrant(ctx context.Context, id, by string, at time.Time) error
	// DeleteGrantsBefore removes grants that expired before a time, and says how many.
	DeleteGrantsBefore(ctx context.Context, expired time.Time) (int, error)
}

// AuditRow is one record of the audit log as the database has it. Package audit makes and verifies them.
type AuditRow struct {
	Node string
	Seq  int64 // from 1, without gaps, per node
	Time time.Time
	// ID names the record; Ref is the ID of the intent that an outcome belongs to.
	ID, Ref string
	Phase   string // intent, outcome, event, tombstone
	Action  string // session.open, grant.issue, …
	Result  string // of an outcome or an event: ok, refused, failed, unknown; empty for an intent
	Tenant  string
	Actor   string // operator:ID, agent:ID, admin, system
	Session string
	Jail    string
	Target  string // what it was done to
	// Detail is canonical JSON without values of credentials.
	Detail   []byte
	PrevHash []byte // of the row before, 32 bytes
	Hash     []byte // 32 bytes
}

// auditRowCost is about what a row takes in a database beyond its target and its detail: its other columns and the indexes.
// The databases count the same, in SQL.
const auditRowCost = 512

// Bytes is what a row counts as, where it is counted whose records take how much room.
func (r AuditRow) Bytes() int64 { return auditRowCost + int64(len(r.Target)+len(r.Detail)) }

// Agent is the ID of the agent that acted; empty when none did.
func (r AuditRow) Agent() string {
	if id, agent := strings.CutPrefix(r.Actor, "agent:"); agent {
		return id
	}
	return ""
}

// AuditSize is what the rows of one tenant's agent take together, or of its people.
type AuditSize struct {
	Tenant string // empty: of the installation
	Agent  string // its ID; empty: people, and what runs by itself
	Bytes  int64  // as [AuditRow.Bytes] counts
}

// AuditFilter selects rows. Empty fields match all.
type AuditFilter struct {
	Node, Tenant, Actor, Action, Session, Jail, Phase, Result, Ref string
	// ActionPrefix matches "session." and the like.
	ActionPrefix string
	Since, Until time.Time // [Since, Until)
	AfterSeq     int64     // with Node: rows behind this one
	// Limit is at least 1. Newest says that the newest rows are wanted; they come in order all the same.
	Limit  int
	Newest bool
}

// InTimes reports whether the index of times has all that decides whether a row is asked for, which is not only its time.
func (f AuditFilter) InTimes() bool {
	some := f.Action != "" || f.ActionPrefix != "" || f.Tenant != "" || f.Actor != "" || f.Result != ""
	return some && f.Node == "" && f.Session == "" && f.Jail == "" && f.Phase == "" && f.Ref == ""
}

// Audit log, append only.
type Audit interface {
	// AppendAudit writes rows in one transaction and returns when they survive the loss of power. A row whose
	// (node, seq) or ID exists is ErrExists, one that leaves a gap ErrGap, and none is written.
	AppendAudit(ctx context.Context, rows []AuditRow) error
	// LastAudit is the newest row of a node. ErrNotFound when it has none.
	LastAudit(ctx context.Context, node string) (AuditRow, error)
	// FindAudit by ID.
	FindAudit(ctx context.Context, id string) (AuditRow, error)
	// ListAudit in the order of (time, node, seq); with Node set in the order of seq. AfterSeq without Node is
	// ErrInvalid.
	ListAudit(ctx context.Context, f AuditFilter) ([]AuditRow, error)
	// WalkAudit yields every row of a node in the order of seq, from a seq on, without holding them all. It sees the
	// log as it is when it starts, whatever is appended or trimmed meanwhile. An error is yielded once, as the last.
	WalkAudit(ctx context.Context, node string, from int64) iter.Seq2[AuditRow, error]
	// AuditSizes is how much room the rows that there are take, by tenant and agent. It is kept beside the rows, not counted.
	AuditSizes(ctx context.Context) ([]AuditSize, error)
	// AuditNodes are the nodes that have rows, sorted.
	AuditNodes(ctx context.Context) ([]string, error)
	// OpenIntents are the intents of a node that have no outcome, oldest first.
	OpenIntents(ctx context.Context, node string) ([]AuditRow, error)
	// TrimAudit removes a node's rows up to and including a seq. It is for retention, which appends a tombstone
	// first: the tombstone names what goes. The newest row therefore always stays, and a seq that would take it is
	// ErrInvalid. With a duty that another run has taken meanwhile it is ErrNotFound. Nothing else removes or changes a row; the
	// database refuses it.
	TrimAudit(ctx context.Context, node string, upTo int64, duty Duty) (removed int, err error)
}

// Entry is one thing that operators decided about what agents may reach: a rule, a service, a model provider, settings,
// a request for access, an account. Its content is in Body, as JSON that package egress writes, reads and validates; the database
// keeps it, and finds it by the columns.
type Entry struct {
	ID     string // random
	Kind   string // rule, service, provider, settings, access, permission: [a-z]{1,20}
	Tenant string // empty: all tenants
	Agent  string // its ID; empty: all agents of the tenant. An agent's entries go with it
	Name   string // unique among entries of the same kind, tenant and agent, if it is not empty; at most [LongestName] bytes
	Body   []byte // JSON, at most [LongestBody] bytes; it comes back byte by byte
	// Version counts changes, from 1.
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
	ExpiresAt time.Time // zero: never
}

// Entries of all tenants.
type Entries interface {
	// CreateEntry makes an entry with version 1, whatever e.Version is. The agent must be of the tenant: ErrNotFound. An
	// agent without a tenant is ErrInvalid.
	CreateEntry(ctx context.Context, e Entry) error
	Entry(ctx context.Context, id string) (Entry, error)
	// ListEntries of a kind, or of all kinds when kind is empty, oldest first.
	ListEntries(ctx context.Context, kind string) ([]Entry, error)
	// AgentEntries are those of a kind of one agent, oldest first: without reading all others.
	AgentEntries(ctx context.Context, kind, tenant, agent string) ([]Entry, error)
	// UpdateEntry replaces name, body, UpdatedAt and ExpiresAt of the entry with e.ID if its version is still e.Version, and
	// counts the version up. The other fields of e are not looked at. ErrExists when the entry has another version by now, or
	// another one has the name; ErrNotFound when it is gone.
	UpdateEntry(ctx context.Context, e Entry) error
	// DeleteEntry is ErrNotFound when it is not there.
	DeleteEntry(ctx context.Context, id string) error
	// DeleteEntriesBefore removes entries of a kind, or of all kinds when kind is empty, that expired before a time, and says
	// how many.
	DeleteEntriesBefore(ctx context.Context, kind string, expired time.Time) (int, error)
	// EntriesRevision grows with every change of any entry, also one that another process makes, and also when an agent
	// is deleted with its entries. It never has the same value for two different states, and a state that is listed
	// after it was read has all that it counts: a caller that caches entries reads the revision first, and then lists.
	EntriesRevision(ctx context.Context) (int64, error)
}

// UsageKey identifies the use of models by an agent on a day.
type UsageKey struct {
	Tenant   string
	Agent    string // its ID
	Day      string // 2006-01-02, UTC
	Provider string // empty: the sum over all, which budgets are about
	Model    string // empty with Provider
}

// MaxUsage is how much a sum says at most, and bounds amounts and limits as well: what is more counts as this much. Tokens
// and costs come from other people's answers, and neither they nor their sums may overflow.
const MaxUsage = 1 << 53

// Usage is what was used, and reserved for what is under way.
type Usage struct {
	UsageKey
	Requests     int64
	InputTokens  int64
	OutputTokens int64
	// MicroCost is money, in millionths of the currency that prices are in.
	MicroCost int64
}

// UsageLimit bounds a day. 0 is no bound here: package egress decides what zero means to people.
type UsageLimit struct {
	Tokens    int64 // input and output together
	MicroCost int64
}

// Usages of all agents.
type Usages interface {
	// ChargeUsage adds an amount, which may be negative, to a row, making it where it is missing, and returns charged true
	// and the row as it is afterwards. No sum falls below 0 or rises above MaxUsage.
	//
	// It adds nothing and returns charged false when a sum that the limit bounds, and that the amount does not lower, would
	// be beyond the limit, or is at it already; see [UsageLimit.Allows]. One conditional change decides, whatever happens
	// at the same time on whichever node. The row is then as it is found, with zeros where there is none.
	ChargeUsage(ctx context.Context, amount Usage, limit UsageLimit) (now Usage, charged bool, err error)
	// ListUsage of a tenant, or of all when it is empty, from a day on, by day, agent, provider and model. An agent's
	// usage stays when the agent is deleted. A day that is none is ErrInvalid, here and below.
	ListUsage(ctx context.Context, tenant, fromDay string) ([]Usage, error)
	// DeleteUsageBefore removes the rows of days before one, and says how many.
	DeleteUsageBefore(ctx context.Context, day string) (int, error)
}
