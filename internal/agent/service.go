package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// Options are what a Service is made from. Everything but Log is required.
type Options struct {
	// Keeper keeps jails, and Driver makes those of single programs. The host daemon's client is both.
	Keeper jail.Keeper
	Driver Driver
	// Composed lists the containers of docker-compose, as the host daemon's client does. It is asked where Docker says so.
	Composed func(ctx context.Context, after uint64) (version uint64, all []jail.Composed, err error)
	// Gateway is told which address is whose.
	Gateway  Gateway
	Identity *identity.Service
	Book     *egress.Book
	// Accounts has what agents may use of accounts.
	Accounts Accounts
	Store    Store
	Audit    audit.Records
	// Agents and Docker are of the configuration.
	Agents config.Agents
	Docker config.Docker
	// Workspaces is the folder that is one of the workspace_roots by default. Empty where it is none.
	Workspaces string
	// AddedRoots are further workspace_roots, of the tenant default, asked for each time. May be nil.
	AddedRoots func() ([]string, error)
	// Default is the driver of agents that name neither template nor image: linux or docker.
	Default string
	// GatewayURL is the gateway's as jails see it.
	GatewayURL string
	// Node is the name of this control plane among those of its database.
	Node string
	// Nodes are the control planes of the database; nil where there is this one alone.
	Nodes func(ctx context.Context) ([]store.Node, error)
	// Takers are the control planes that take over the agents of this one while it drains: none while it does not. It is nil where the
	// state of agents is on the machine.
	Takers func(ctx context.Context) ([]string, error)
	// Servers are the names of the MCP servers that there are.
	Servers func(ctx context.Context, tenant string) ([]string, error)
	// ServersChanged hears that ServersOf answers something else than before. It must not block, and may be nil.
	ServersChanged func()
	// Quotas say how much of what agents share one tenant may hold: of MaxAgents that are kept, and of the Disk of their volumes,
	// in bytes.
	Quotas    config.Quotas
	MaxAgents int
	Disk      func() (int64, error)
	// Volumes are how large the volumes may become that there are, in bytes, by the keys of their agents: also of agents that are
	// gone, and of those that declare less than they did.
	Volumes func(ctx context.Context) (map[string]int64, error)
	// Dir is a folder for what programs print.
	Dir string
	Log *slog.Logger
	Now func() time.Time
}

// The drivers of agents' jails.
const (
	DriverLinux  = "linux"
	DriverDocker = "docker"
)

// Driver makes the jails of programs. The host daemon's client is one.
type Driver interface {
	// CreateWith makes a jail, as [jail.Driver] does. ready is called when nothing of its program has run yet; an error of it
	// ends the jail.
	CreateWith(ctx context.Context, spec jail.Spec, ready func(jail.Name, jail.Lease) error) (*jail.Jail, error)
	Wait(ctx context.Context, name jail.Name) (jail.Exit, error)
	Destroy(ctx context.Context, name jail.Name) error
}

// Store is what a Service keeps, and where it looks agents up.
type Store interface {
	store.Entries
	Agent(ctx context.Context, tenant, name string) (store.Agent, error)
	ListAgents(ctx context.Context, tenant string) ([]store.Agent, error)
}

// Gateway admits addresses. *gateway.Gateway is one.
type Gateway interface {
	Admit(addr netip.Addr, who gateway.Caller) error
	Forget(addr netip.Addr, jail string) error
}

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	m := &problem.ValidationError{Code: problem.BadConfig}
	for _, part := range []struct {
		name  string
		there bool
	}{
		{"keeper", o.Keeper != nil}, {"driver", o.Driver != nil}, {"composed", o.Composed != nil || !o.Docker.Compose}, {"gateway", o.Gateway != nil}, {"identity", o.Identity != nil},
		{"book", o.Book != nil}, {"accounts", o.Accounts != nil}, {"store", o.Store != nil}, {"audit", o.Audit != nil}, {"servers", o.Servers != nil},
		{"node", o.Node != ""}, {"dir", o.Dir != ""}, {"now", o.Now != nil}, {"quotas", o.Quotas.Tenant > 0 && o.Quotas.Agent > 0 && o.MaxAgents > 0 && o.Disk != nil && o.Volumes != nil}, {"gateway_url", o.GatewayURL != ""},
	} {
		if !part.there {
			m.Add(part.name, "is missing")
		}
	}
	if o.Default != DriverLinux && o.Default != DriverDocker {
		m.Add("default", "%q is neither %s nor %s", o.Default, DriverLinux, DriverDocker)
	}
	if err := (jail.Limits{
		Memory: int64(o.Agents.Limits.Memory), MilliCPU: milli(o.Agents.Limits.CPU), Tasks: o.Agents.Limits.Tasks, Disk: int64(o.Agents.Limits.Tmp),
		SharedMemory: int64(o.Agents.Limits.Tmp), Files: o.Agents.Limits.Files, WallClock: jail.MaxWallClock,
	}).Validate(); err != nil {
		m.Add("agents.limits", "%s", err)
	}
	if o.Agents.Limits.State < jail.MinState || o.Agents.Limits.State > jail.MaxState {
		m.Add("agents.limits.state", "is %s, not between 1MiB and 1TiB", o.Agents.Limits.State)
	}
	return m.Err()
}

// Service implements Agents. Follow must be called for jails to reach the gateway; Close ends what it has started.
type Service struct {
	o Options
	// changes lets those who change what is a tenant's do it one at a time, so that each finds the tenant as the one before has
	// left it.
	changes *quota.Turns
	// parsing lets one text at a time be read: what it becomes takes a hundred times as much memory.
	parsing    *quota.Turns
	admissions admissions
	// servers are the MCP servers that are declared for each agent, by its id. reading is held while they are looked up.
	servers atomic.Pointer[map[string]declaredServers]
	reading sync.Mutex
	processes
}

var _ Agents = (*Service)(nil)

// New makes a Service. Close must be called.
func New(o Options) (*Service, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Service{o: o, changes: quota.TurnsOfTenants(1), parsing: quota.NewTurns(1, nil), admissions: newAdmissions()}
	if err := s.open(o); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends what the service has started but jails that are kept, which run on.
func (s *Service) Close(ctx context.Context) error { return s.close(ctx) }

// may says whether somebody may do something with what is a tenant's.
func (s *Service) may(ctx context.Context, by identity.Principal, op identity.Operation, tenant string) error {
	return s.o.Identity.Authorize(ctx, by, op, tenant)
}

// noAgent is what everybody is told about an agent that does not exist for them.
func noAgent(name string) error {
	return problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", texts.Clip(name, 60))
}
