// Package health says how a whole installation is doing, in one value, and what in it needs somebody.
//
// It promises:
//
//   - A look changes nothing, and records no refusal for what its caller may not know: a caller of one tenant gets the part of
//     that tenant.
//   - A part that cannot be known is left out and told of in the list of what needs somebody. It does not spoil the others.
//   - A look takes no longer than [Bound]: the host daemon is asked once for all who look within some seconds.
//   - Names of accounts, agents, hosts and tenants are in it; values of cookies, secrets, keys and tokens are not.
package health

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/keypair"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// Bound is how long a look at everything may take.
const Bound = 5 * time.Second

// Sessions are those of this control plane. *session.Service has them.
type Sessions interface {
	List(ctx context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error)
	Status() session.Status
}

// Identity knows principals and tenants. *identity.Service is one.
type Identity interface {
	Authorize(ctx context.Context, by identity.Principal, op identity.Operation, tenant string) error
	Agents(ctx context.Context, by identity.Principal, tenant string) ([]identity.Agent, error)
	TenantTokens(ctx context.Context, by identity.Principal, tenant string) ([]identity.Token, error)
	Operators(ctx context.Context, by identity.Principal, tenant string) ([]identity.Operator, error)
	Tenants(ctx context.Context, by identity.Principal) ([]identity.Tenant, error)
	CountTenants(ctx context.Context, among string) (int, error)
}

// Accounts are the stored logins. *credential.Service has them.
type Accounts interface {
	Cookies(ctx context.Context, by identity.Principal, tenant string) ([]vault.CookieSet, error)
	NeedsRefresh(ctx context.Context, by identity.Principal, tenant string) ([]credential.Alert, error)
	ExpiringSoon(ctx context.Context, by identity.Principal, tenant string) ([]credential.Alert, error)
	VaultStatus(ctx context.Context, by identity.Principal) (vault.Status, error)
}

// Requests are what agents ask to reach. *egress.Book has them.
type Requests interface {
	AccessRequests(ctx context.Context, by identity.Principal, tenant string, all bool) ([]egress.AccessRequest, error)
}

// Agents are the jails of agents. *agent.Service has them.
type Agents interface {
	List(ctx context.Context, by identity.Principal, tenant string) ([]agent.Status, error)
}

// Database is asked whether it can be written to. A store.Store is one.
type Database interface {
	Ping(ctx context.Context) error
}

// Options say what is looked at. Sessions, Identity, Accounts, Requests, Divided, Machine and Now are required; the part of what is nil
// or empty is left out.
type Options struct {
	Sessions Sessions
	Identity Identity
	Accounts Accounts
	Requests Requests
	Agents   Agents
	// Divided says how much of what there is one tenant may hold, and Held how much it does.
	Divided config.Quotas
	Held    []quota.Look
	// Machine is the Look of a [Watch].
	Machine func(ctx context.Context) (Machine, error)
	Audit   func() audit.Status
	// Checkpoints is the file that the host daemon notes checkpoints of the audit log in.
	Checkpoints string
	Database    Database
	// Nodes are the control planes of the database.
	Nodes func(ctx context.Context, by identity.Principal) ([]peer.Node, error)
	// DatabaseKind is embedded or postgresql, and DatabaseDir the folder of an embedded one.
	DatabaseKind, DatabaseDir string
	// Gateway counts what it was asked and refused since the start, and GatewayAt is where it listens.
	Gateway   func() (requests, refusals uint64)
	GatewayAt string
	// API is where the API and the console listen.
	API string
	// Certificate is that of the API, or nil when there is none.
	Certificate *keypair.Pair
	Version     string
	Node        string
	Log         *slog.Logger
	Now         func() time.Time
}

// Service looks.
type Service struct {
	Options
	started time.Time
}

// New makes a Service, which takes now for the start of this control plane.
func New(o Options) (*Service, error) {
	if o.Sessions == nil || o.Identity == nil || o.Accounts == nil || o.Requests == nil || o.Machine == nil || o.Now == nil || o.Divided.Tenant <= 0 || o.Divided.Agent <= 0 {
		return nil, errors.New("health: sessions, identity, accounts, requests, quotas, the machine and a clock are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{Options: o, started: o.Now()}, nil
}

// Machine says how the host is doing.
func (s *Service) Machine(ctx context.Context) (Machine, error) { return s.Options.Machine(ctx) }

// Status is how everything is doing. Fields about the installation are missing for a principal of one tenant.
type Status struct {
	// Level is the worst of what needs somebody.
	Level   Level     `json:"level" enum:"ok,notice,failed"`
	Version string    `json:"version"`
	Node    string    `json:"node,omitempty"`
	Since   time.Time `json:"since,omitzero" doc:"when the control plane was started"`
	API     string    `json:"api,omitempty" doc:"where the API and the console listen"`
	// ControlPlane is false when what is said was found out without one.
	ControlPlane bool `json:"control_plane" doc:"the control plane answers"`

	Machine  *Machine         `json:"machine,omitempty"`
	Units    []Unit           `json:"units,omitempty" doc:"services of the machine, looked at when the control plane does not answer"`
	Sessions *Sessioned       `json:"sessions,omitempty"`
	Agents   *AgentCount      `json:"agents,omitempty"`
	Accounts *AccountCount    `json:"accounts,omitempty"`
	Waiting  *int             `json:"access_requests,omitempty" doc:"requests for access that wait for an answer"`
	Gateway  *GatewayStatus   `json:"gateway,omitempty"`
	Audit    *AuditStatus     `json:"audit,omitempty"`
	Database *DatabaseStatus  `json:"database,omitempty"`
	TLS      *CertificateLife `json:"certificate,omitempty"`
	Nodes    []peer.Node      `json:"nodes,omitempty" doc:"the control planes of the database that have not stopped; how many sessions they have is said by GET /v1/nodes"`

	Quotas []quota.Use `json:"quotas,omitempty" doc:"how much tenants hold of shared resources, fullest first, at most 20"`

	Attention []Attention `json:"attention" nullable:"false" doc:"items that a person has to act on, worst first"`
}

// Sessioned counts sessions.
type Sessioned struct {
	Open     int            `json:"open"`
	Max      int            `json:"most,omitempty"`
	WarmOpen int            `json:"warm_ready"`
	WarmSize int            `json:"warm_size"`
	States   map[string]int `json:"states,omitempty"`
}

// AgentCount counts agents, by the state of their jails; those without a jail are "no jail".
type AgentCount struct {
	All    int            `json:"all"`
	States map[string]int `json:"states,omitempty"`
}

// AccountCount counts stored logins.
type AccountCount struct {
	Sets       int `json:"sets"`
	NeedsLogin int `json:"needs_login"`
	Expiring   int `json:"expiring"`
}

// GatewayStatus is the way out.
type GatewayStatus struct {
	Listen   string `json:"listen,omitempty"`
	Requests uint64 `json:"requests" doc:"decided since the start"`
	Refusals uint64 `json:"refusals"`
}

// AuditStatus is the audit log of this node.
type AuditStatus struct {
	Rows       int64     `json:"rows" doc:"rows written, with those that retention has removed"`
	Uncovered  int64     `json:"uncovered" doc:"rows behind the last checkpoint"`
	Checkpoint time.Time `json:"checkpoint,omitzero" doc:"when the last checkpoint was written on this machine"`
	Spilled    int64     `json:"spilled,omitempty" doc:"records in the file beside the database"`
	Lost       int64     `json:"lost,omitempty"`
	Down       bool      `json:"down,omitempty"`
	Broken     bool      `json:"broken,omitempty"`
}

// DatabaseStatus is the database.
type DatabaseStatus struct {
	Kind    string `json:"kind" enum:"embedded,postgresql"`
	Bytes   int64  `json:"bytes,omitempty" doc:"size of an embedded database"`
	Answers bool   `json:"answers"`
}

// CertificateLife is the certificate of the API.
type CertificateLife struct {
	Expires time.Time `json:"expires"`
}

// Status looks at everything that the principal may know.
func (s *Service) Status(ctx context.Context, by identity.Principal) (Status, error) {
	if err := s.Identity.Authorize(ctx, by, identity.StatusRead, by.TenantOr("")); err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	look := s.look(ctx, by)
	out := Status{Version: s.Version, ControlPlane: true, Attention: look.listed(), Sessions: look.sessions, Agents: look.agents, Accounts: look.accounts, Waiting: look.waiting,
		Quotas: look.quotas}
	out.Level = worst(out.Attention)
	if by.Tenant != "" {
		return out, nil
	}
	out.Node, out.Since, out.API, out.Machine = s.Node, s.started, s.API, look.machine
	out.Audit, out.Database = look.audit, look.database
	out.Nodes = slices.DeleteFunc(look.nodes, func(n peer.Node) bool { return n.State == peer.NodeStopped })
	if s.Gateway != nil {
		out.Gateway = &GatewayStatus{Listen: s.GatewayAt}
		out.Gateway.Requests, out.Gateway.Refusals = s.Gateway()
	}
	if c := s.Certificate.Leaf(); c != nil {
		out.TLS = &CertificateLife{c.NotAfter}
	}
	return out, nil
}

// Attention is what needs somebody, worst first, as far as the principal may know it.
func (s *Service) Attention(ctx context.Context, by identity.Principal) ([]Attention, error) {
	if err := s.Identity.Authorize(ctx, by, identity.StatusRead, by.TenantOr("")); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	return s.look(ctx, by).listed(), nil
}

// auditStatus is nil where there is no audit log to ask.
func (s *Service) auditStatus() *AuditStatus {
	if s.Audit == nil {
		return nil
	}
	a := s.Audit()
	out := &AuditStatus{Rows: a.Head, Uncovered: max(0, a.Head-a.Noted), Spilled: a.Spilled, Lost: a.Lost, Down: a.Down, Broken: a.Broken}
	if info, err := os.Stat(s.Checkpoints); err == nil && info.Size() > 0 {
		out.Checkpoint = info.ModTime()
	}
	return out
}

// databaseStatus asks the database.
func (s *Service) databaseStatus(ctx context.Context) *DatabaseStatus {
	if s.Database == nil {
		return nil
	}
	out := &DatabaseStatus{Kind: s.DatabaseKind}
	if err := s.Database.Ping(ctx); err != nil {
		s.Log.Warn("ask the database whether it can be written to", "error", err)
	} else {
		out.Answers = true
	}
	if s.DatabaseDir == "" {
		return out
	}
	files, err := os.ReadDir(s.DatabaseDir)
	if err != nil {
		return out // its size is left out
	}
	for _, f := range files {
		if info, err := os.Stat(filepath.Join(s.DatabaseDir, f.Name())); err == nil && info.Mode().IsRegular() {
			out.Bytes += info.Size()
		}
	}
	return out
}

// said is an error as others may read it: what has no code is in the log alone.
func (s *Service) said(what string, err error) string {
	s.Log.Warn(what, "error", err)
	if p, ok := problem.As(err); ok {
		return p.Message
	}
	return "the log of the control plane says why"
}
