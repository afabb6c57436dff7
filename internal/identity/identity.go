// Package identity authenticates callers and decides what they may do.
//
// A caller presents a key and becomes a [Principal]: the admin of the installation, an operator with a role, or an
// agent. Keys are 256 random bits; the store has their SHA-256, and their text is shown once. The rights of a principal
// are one table ([Table]) that every face asks through [Service.Authorize] or [Can]. Principals of a tenant get the same
// answer for other tenants' things as for things that do not exist.
//
// Revoking ends what is open: code that holds a connection for a principal registers it with [Service.WatchValidity], and is
// told to end it when the key, the operator, the agent or the tenant is cut off, or when the key expires. A
// revocation in this process cuts at once, one that another process wrote into the store within
// [Options.Recheck], or at [Service.Look]. One that cannot be written holds in its process, which writes it when it can.
//
// Actions are recorded before they are done. Revoking and deleting are exempt: they happen also when nothing can be
// recorded.
package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// Store is what identity keeps.
type Store interface {
	store.Tenants
	store.Operators
	store.Agents
}

// Options are what a Service needs.
type Options struct {
	Store Store
	// Guesses counts wrong keys for all processes that share the Store. Nil: there is one.
	Guesses store.Guesses
	// Admin is the key of the installation's admin; the zero AdminKey is none.
	Admin AdminKey
	// Now and Audit are required.
	Now   func() time.Time
	Audit audit.Records
	// Recheck is how often open connections are compared with the store; at least a second.
	Recheck time.Duration
	// RateLimit bounds guessing.
	RateLimit RateLimit
	// Quotas say how much of what may be open one tenant may have; see [quota.NewGate].
	Quotas config.Quotas
}

// maxOpen is how much may be open for all principals together, an admin of all tenants apart.
const maxOpen = 2000

// answerTime is how long the store may take for an answer that no caller waits for.
const answerTime = 5 * time.Second

// DefaultRecheck is the Recheck when none is configured.
const DefaultRecheck = 5 * time.Second

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	m := &problem.ValidationError{Code: problem.BadConfig}
	if o.Store == nil {
		m.Add("store", "is missing")
	}
	if o.Now == nil {
		m.Add("now", "is missing")
	}
	if o.Audit == nil {
		m.Add("audit", "is missing")
	}
	if o.Recheck < time.Second {
		m.Add("recheck", "is %s, and must be at least 1s", o.Recheck)
	}
	o.RateLimit.validate(m)
	return m.Err()
}

// Service knows principals, tenants, and open connections.
type Service struct {
	o           Options
	rateLimiter *rateLimiter
	connections *connections
	gate        *quota.Gate  // of connections
	tenants     atomic.Int64 // as of the last time that they were counted
	revocations *revocations

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open makes a Service and the tenant default, if that is missing. Close must be called.
func Open(ctx context.Context, o Options) (*Service, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	first := store.Tenant{ID: store.DefaultTenant, CreatedAt: store.Microsecond(o.Now())}
	if err := o.Store.CreateTenant(ctx, first); err != nil && !errors.Is(err, store.ErrExists) {
		return nil, fmt.Errorf("make the tenant %s: %w", first.ID, err)
	}
	s := &Service{o: o, rateLimiter: newRateLimiter(o.RateLimit, o.Guesses, o.Now), revocations: newRevocations()}
	s.gate = quota.NewGate(quota.GateOptions{Kind: quota.Connections(), Whole: maxOpen, Quotas: o.Quotas, Tenants: s.Counted, Admins: true})
	if _, err := s.CountTenants(ctx, store.DefaultTenant); err != nil {
		return nil, err
	}
	s.connections = newConnections(o.Now, o.Recheck, s.standing)
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.running.Go(func() { s.connections.run(ctx) })
	s.running.Go(func() { every(ctx, o.Recheck, nil, s.recount) })
	s.running.Go(func() { every(ctx, o.Recheck, nil, s.writeRevocations) })
	if o.Guesses != nil {
		s.running.Go(func() { every(ctx, o.Recheck, s.rateLimiter.share, s.rateLimiter.exchange) })
	}
	return s, nil
}

// recount counts the tenants that other processes make.
func (s *Service) recount(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, _ = s.CountTenants(ctx, store.DefaultTenant) // a store that does not answer leaves the count as it is
}

// Close stops watching over connections, and waits until that is done. It cuts none: they belong to those who hold them.
func (s *Service) Close() {
	s.stop()
	s.running.Wait()
}

// newID is a random id of a kind.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }

// now is the time as the store keeps it.
func (s *Service) now() time.Time { return store.Microsecond(s.o.Now()) }

// checkName checks the name of a tenant, an operator or an agent.
func checkName(what, name string) error {
	if !config.ValidName(name) {
		return problem.New(problem.BadName, "use 1 to 40 of a-z, 0-9 and -", "the name of the %s is not valid", what)
	}
	return nil
}

// NeverExpires is the life of a key that is good until it is revoked.
const NeverExpires time.Duration = -1

// longestLife is more than any key should have.
const longestLife = 10 * 366 * 24 * time.Hour

// expiry is when a key that is made now ends; zero for never.
func (s *Service) expiry(life time.Duration) (time.Time, error) {
	switch {
	case life == NeverExpires:
		return time.Time{}, nil
	case life < time.Second, life > longestLife:
		return time.Time{}, problem.New(problem.BadLimit, "give a time such as 30d, or never",
			"a key can be valid for 1s to %s, not for %s", longestLife, life)
	}
	return s.now().Add(life), nil
}
