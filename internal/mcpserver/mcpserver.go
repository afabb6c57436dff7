// Package mcpserver runs MCP servers of others in jails, and offers what they have to agents.
//
// A server is a program that speaks the Model Context Protocol over its standard input and output. It is started when it
// is called, in a jail of its own that nothing but its own pipes leads out of, unless its declaration says more;
// it is ended when it was not called for a while. Each caller has an instance of its own, with what it keeps in mind, unless
// the declaration says that it is shared: then there is one of each tenant. The offers of a server belong to its declaration.
//
// It promises:
//
//   - Everything that a server says is hostile text: messages, lists, descriptions, schemas and answers are bounded before
//     they are kept, and control characters are gone from what a model is told of what it has.
//   - A server that crashes, hangs or floods costs its own callers an error, and other callers nothing. After a few crashes
//     within a minute it is left alone for another minute: for the caller, or for all when no call had started it.
//   - An instance ends when its owner may not use anything any more. When all places are taken, an idle one makes room.
//   - A call is recorded before it is made, without its arguments. It is never made twice: what it did before an answer was
//     lost is not known.
//   - Requests of a server to its client (sampling, elicitation, roots) are refused.
//   - Secrets are in files of the jail, and in nothing that describes it.
package mcpserver

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
)

// Driver makes the jails. The host daemon's client is one.
type Driver interface {
	// CreateWith makes a jail, as [jail.Driver] does. ready is called when nothing of its program has run yet; an error of it
	// ends the jail.
	CreateWith(ctx context.Context, spec jail.Spec, ready func(jail.Name, jail.Lease) error) (*jail.Jail, error)
	Wait(ctx context.Context, name jail.Name) (jail.Exit, error)
	Destroy(ctx context.Context, name jail.Name) error
}

// Keeper has the jails of agents. A jail.Keeper is one.
type Keeper interface {
	Kept(ctx context.Context, after uint64, usage bool) (uint64, []jail.KeptStatus, error)
	ExecIn(ctx context.Context, name jail.Name, p jail.Program) (*jail.Running, error)
}

// Gateway admits addresses. *gateway.Gateway is one.
type Gateway interface {
	Admit(addr netip.Addr, who gateway.Caller) error
	Forget(addr netip.Addr, jail string) error
}

// Vault has the secrets. *vault.Vault is one.
type Vault interface {
	UseSecret(ctx context.Context, n vault.SecretName, to vault.Destination, use func(secret.Value) error) error
	MarkUsed(ctx context.Context, n vault.SecretName, at time.Time) error
}

// Authority decides who may do what, and writes refusals down. *identity.Service is one.
type Authority interface {
	AuthorizeWith(ctx context.Context, p identity.Principal, op identity.Operation, object identity.Object) error
	// WatchValidity registers what is open for a principal: see [identity.Service.WatchValidity].
	WatchValidity(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (release func(), err error)
}

// Options are what a Service is made from. Everything is required but Servers, Keeper, Now and what is said to be optional.
type Options struct {
	Driver Driver
	// Keeper may be nil: then no server runs in the jail of an agent.
	Keeper   Keeper
	Gateway  Gateway
	Vault    Vault
	Store    store.Entries
	Identity Authority
	Audit    audit.Records
	// ServersOf are the names of the servers whose tools an agent may use.
	ServersOf func(tenant, agentID string) []string
	// Servers are those of the configuration.
	Servers []config.MCPServer
	// Templates are the names of those that jails can be made of. May be nil.
	Templates func(ctx context.Context) ([]string, error)
	// Limits of jails whose server does not say its own.
	Limits config.AgentLimits
	// Proxy is the gateway's URL as jails see it.
	Proxy   string
	Version string
	Log     *slog.Logger
	Now     func() time.Time
	// Quotas and Tenants divide the servers that may run; see [quota.GateOptions].
	Quotas  config.Quotas
	Tenants func() int
}

// Validate reports everything that is missing at once.
func (o Options) Validate() error {
	var errs []error
	for _, need := range []struct {
		what    string
		missing bool
	}{{"driver", o.Driver == nil}, {"gateway", o.Gateway == nil}, {"vault", o.Vault == nil}, {"store", o.Store == nil}, {"identity", o.Identity == nil},
		{"audit log", o.Audit == nil}, {"list of what agents may use", o.ServersOf == nil}, {"gateway's URL", o.Proxy == ""}, {"log", o.Log == nil}} {
		if need.missing {
			errs = append(errs, errors.New("mcpserver: the "+need.what+" is missing"))
		}
	}
	for _, s := range o.Servers {
		errs = append(errs, s.Validate())
	}
	return errors.Join(errs...)
}

// Bounds of what servers and their callers may do.
const (
	callsOfServer = 16 // at the same time, of one instance
	callsOfCaller = 4  // at the same time
	maxRunning    = 64 // servers of all tenants together
	// maxMessages bounds the large messages of all servers that are in memory while they are read, in bytes.
	maxMessages = 256 << 20
	// listPatience is how long a listing waits for servers whose tools are not known yet.
	listPatience = 2 * time.Second
)

// pace has the times that tests shorten.
type pace struct {
	start   time.Duration // until a server has answered its first message
	call    time.Duration // of a call without progress
	maxCall time.Duration // of a call with it
	ping    time.Duration // between two looks whether it still answers
	pong    time.Duration // until the answer to that
	write   time.Duration // until it has read a message
	list    time.Duration // of a listing of what it offers
	soon    time.Duration // of a listing of what it offers beside tools, when it starts
	listGap time.Duration // between two that it asks for
	destroy time.Duration // of its jail, once
	exit    time.Duration // until it is known how it ended
	first   time.Duration // pause after its first crash
	life    time.Duration // of a server, however much it is used; the next call starts another
	window  time.Duration // in which crashes are counted, and the pause after too many
}

func usualPace() pace {
	return pace{start: 60 * time.Second, call: 60 * time.Second, maxCall: 10 * time.Minute, ping: 30 * time.Second, pong: 10 * time.Second,
		write: 30 * time.Second, list: 20 * time.Second, soon: time.Second, listGap: time.Second, destroy: 60 * time.Second, exit: 2 * time.Second,
		first: time.Second, life: maxLife, window: time.Minute}
}

// Service runs the servers. All methods may be called concurrently.
type Service struct {
	o    Options
	pace pace

	// ctx ends with the service; tasks are what has to be waited for then.
	ctx    context.Context
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	instances map[instanceKey]*instance
	offers    map[offerKey]*offer
	runs      map[*run]string          // the tenant of each that has a place
	watchers  map[chan struct{}]string // the tenant of each
	running   *quota.Gate
	messages  *quota.Gate
	callers   map[string]int
	stored    storedServers
	changes   int // of servers at run time, so far
	tests     map[testedKey]tested
}

// New makes a Service. It starts nothing.
func New(o Options) (*Service, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	places := quota.NewGate(quota.GateOptions{Kind: quota.Servers(), Whole: maxRunning, Quotas: o.Quotas, Tenants: o.Tenants})
	messages := quota.NewGate(quota.GateOptions{Kind: quota.ServerMessages(), Whole: maxMessages, Quotas: o.Quotas, Tenants: o.Tenants})
	s := &Service{o: o, running: places, messages: messages, pace: usualPace(), instances: map[instanceKey]*instance{},
		offers: map[offerKey]*offer{}, runs: map[*run]string{}, watchers: map[chan struct{}]string{}, callers: map[string]int{}}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s, nil
}

// held is what the messages of one tenant's servers may take of the memory. It implements room.
type held struct {
	gate *quota.Gate
	by   quota.Holder
}

// Take implements room.
func (h held) Take(n int64) bool { return h.gate.Take(h.by, n) == nil }

// Give implements room.
func (h held) Give(n int64) { h.gate.Give(h.by, n) }

// Close ends every server, and returns when nothing of them is left, or ctx ends.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.dismiss()
	s.mu.Unlock()
	s.cancel(errClosing())
	done := make(chan struct{})
	go func() { s.tasks.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin counts a task in, unless the service is closed. Every true is followed by tasks.Done.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.tasks.Add(1)
	return true
}

// retireAll ends every instance of a server: its declaration was changed or removed.
func (s *Service) retireAll(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, i := range s.instances {
		if key.name == name {
			i.retire()
			delete(s.instances, key)
		}
	}
	maps.DeleteFunc(s.offers, func(key offerKey, _ *offer) bool { return key.name == name })
	s.changes++
	s.announce("")
}

func errClosing() error {
	return problem.New(problem.ShuttingDown, "try again when clawjail has started again", "clawjail is being stopped")
}

// errChanged says that servers were changed since they were read: they are to be read again.
var errChanged = errors.New("the MCP servers were changed meanwhile")

// stand refuses to start a server when the servers have changed since the given count of changes. The lock is held.
func (s *Service) stand(changes int) error {
	switch {
	case s.closed:
		return errClosing()
	case s.changes != changes:
		return errChanged
	}
	return nil
}

// enter lets a caller do one more call, until leave.
func (s *Service) enter(who string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.callers[who] >= callsOfCaller {
		return nil, problem.New(problem.RateLimited, "wait for answers before asking for more", "%d calls of yours to MCP servers are under way", callsOfCaller)
	}
	s.callers[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.callers[who]--; s.callers[who] == 0 {
			delete(s.callers, who)
		}
	}, nil
}
