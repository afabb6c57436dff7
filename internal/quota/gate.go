package quota

import (
	"sync"

	"github.com/clawjail/clawjail/internal/config"
)

// Gate counts who holds things of a kind, and lets nobody hold more than their share. Its methods may be called at the same time.
type Gate struct {
	kind   Kind
	whole  int64
	quotas config.Quotas

	mu   sync.Mutex
	all  int64
	held map[Holder]int64
	sums map[string]int64 // by tenant
}

// NewGate makes a gate for so many things in all. Quotas that are zero are those of a configuration that says nothing.
func NewGate(k Kind, whole int64, q config.Quotas) *Gate {
	if q == (config.Quotas{}) {
		q = config.Default().Quotas
	}
	return &Gate{kind: k, whole: whole, quotas: q, held: map[Holder]int64{}, sums: map[string]int64{}}
}

// Enter lets somebody hold one more, until leave, in an installation of so many tenants. An admin of all tenants, whose tenant
// is empty, is always let in: somebody must be able to end what others hold. leave may be called more than once.
func (g *Gate) Enter(asks Holder, tenants int) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if asks.Tenant != "" {
		held := Held{All: g.all, Tenant: g.sums[asks.Tenant], Agent: g.held[asks]}
		if err := Divide(g.quotas, g.whole, tenants).Check(g.kind, asks, held, 1); err != nil {
			return nil, err
		}
	}
	g.add(asks, 1)
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.add(asks, -1)
	}), nil
}

func (g *Gate) add(h Holder, n int64) {
	g.all += n
	if g.held[h] += n; g.held[h] == 0 {
		delete(g.held, h)
	}
	if g.sums[h.Tenant] += n; g.sums[h.Tenant] == 0 {
		delete(g.sums, h.Tenant)
	}
}

// Amounts is how much is held, for whoever asks.
func (g *Gate) Amounts(asks Holder) []Amount {
	g.mu.Lock()
	defer g.mu.Unlock()
	return []Amount{{Kind: g.kind, Whole: g.whole, Held: Held{All: g.all, Tenant: g.sums[asks.Tenant], Agent: g.held[asks]}}}
}
