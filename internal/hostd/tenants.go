package hostd

import (
	"context"
	"sync"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// severalTenants is how many there are for as long as the control plane has not said it: what is made meanwhile leaves others
// their part.
const severalTenants = 2

// ShareOfSeveral is what a tenant may take of a whole while it is not known how many there are.
func ShareOfSeveral(q config.Quotas) func(whole int64) int64 {
	return (&tenants{quotas: q, count: severalTenants}).share
}

// tenants is what is known of those who share the host.
type tenants struct {
	quotas config.Quotas
	// memory is how much their jails may declare together.
	memory int64
	// divide is Parts.Divide. May be nil.
	divide func(ctx context.Context, share func(whole int64) int64) error

	mu    sync.Mutex
	count int
}

func newTenants(o Options) *tenants {
	return &tenants{quotas: o.Quotas, memory: o.Memory, divide: o.Parts.Divide, count: severalTenants}
}

func (t *tenants) several() (count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// share is what one of them may take of a whole.
func (t *tenants) share(whole int64) int64 { return quota.Divide(t.quotas, whole, t.several()).Tenant }

// check is an error when a tenant has declared so much memory that it may not declare more. A single tenant may declare more
// than there is: no other tenant loses by it.
func (t *tenants) check(tenant string, held, more int64) error {
	if n := t.several(); n > 1 && tenant != "" && t.memory > 0 {
		return quota.Divide(t.quotas, t.memory, n).Check(quota.Memory(), quota.Holder{Tenant: tenant}, quota.Held{Tenant: held}, more)
	}
	return nil
}

// Declared is how much memory jails have by their limits, and may have, together.
type Declared struct {
	Whole   int64            `json:"whole"`
	Tenants map[string]int64 `json:"tenants"`
}

// share is the operation: the control plane says how many tenants there are, and hears what they have.
func (s *server) share(ctx context.Context, a shareArguments) (any, error) {
	if a.Tenants < 1 {
		return nil, problem.New(problem.BadRequest, "", "there cannot be %d tenants", a.Tenants)
	}
	t := s.tenants
	t.mu.Lock()
	t.count = a.Tenants
	t.mu.Unlock()
	var err error
	if t.divide != nil {
		err = t.divide(ctx, t.share)
	}
	return Declared{Whole: t.memory, Tenants: s.bound.memory()}, err
}

// Share tells the host daemon how many tenants there are. It has to be repeated: bounds that are below what a tenant has taken
// come down with what it gives back.
func (c *Client) Share(ctx context.Context, tenants int) (Declared, error) {
	return ask[Declared](ctx, c, OpShare, shareArguments{Tenants: tenants})
}

// Held is what a tenant has of it.
func (d Declared) Held(asks quota.Holder) []quota.Amount {
	held := quota.Held{}
	for tenant, n := range d.Tenants {
		held.Count(quota.Holder{Tenant: asks.Tenant}, quota.Holder{Tenant: tenant}, n)
	}
	return []quota.Amount{{Kind: quota.Memory(), Whole: d.Whole, Held: held}}
}

// declared is what a jail counts for.
type declared struct {
	tenant string
	memory int64
}

func declaredBy(s jail.Spec) declared { return declared{s.Tenant(), s.Limits.Memory} }
