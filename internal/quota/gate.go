package quota

import (
	"sync"

	"github.com/clawjail/clawjail/internal/config"
)

// Gate counts what holders have of a kind of things, and lets none hold more than its share. Its methods may be called at the same time.
type Gate struct {
	o GateOptions

	mu   sync.Mutex
	all  int64
	held map[Holder]int64
	sums map[string]int64 // by tenant
}

// GateOptions say what a gate counts, and how much there is.
type GateOptions struct {
	Kind  Kind
	Whole int64
	// Agent is the most of one agent, where that is less than its share. 0 is its share.
	Agent int64
	// Quotas that are zero are those of a configuration that says nothing.
	Quotas config.Quotas
	// Tenants is how many tenants there are now; nil is one.
	Tenants func() int
	// Admins lets who has no tenant, an admin of all of them, hold as much as they want: somebody must be able to end what others
	// hold.
	Admins bool
}

// NewGate makes a gate.
func NewGate(o GateOptions) *Gate {
	if o.Quotas == (config.Quotas{}) {
		o.Quotas = config.Default().Quotas
	}
	if o.Tenants == nil {
		o.Tenants = func() int { return 1 }
	}
	return &Gate{o: o, held: map[Holder]int64{}, sums: map[string]int64{}}
}

// Enter lets somebody hold one more, until leave. leave may be called more than once.
func (g *Gate) Enter(asks Holder) (leave func(), err error) {
	if err := g.Take(asks, 1); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { g.Give(asks, 1) }), nil
}

// Take lets somebody hold n more.
func (g *Gate) Take(asks Holder, n int64) error { return g.TakeOf(asks, n, n) }

// TakeOf is Take where there has to be room for more than what is taken.
func (g *Gate) TakeOf(asks Holder, n, room int64) error {
	bounds := g.bounds()
	g.mu.Lock()
	defer g.mu.Unlock()
	if asks.Tenant != "" || !g.o.Admins {
		held := Held{All: g.all, Tenant: g.sums[asks.Tenant], Agent: g.held[asks]}
		if err := bounds.Check(g.o.Kind, asks, held, room); err != nil {
			return err
		}
	}
	g.add(asks, n)
	return nil
}

func (g *Gate) bounds() Bounds {
	b := Divide(g.o.Quotas, g.o.Whole, g.o.Tenants())
	if g.o.Agent > 0 {
		b.Agent = min(b.Agent, g.o.Agent)
	}
	return b
}

// Alone says whether an agent may not hold n more because of what it holds itself.
func (g *Gate) Alone(asks Holder, n int64) bool {
	bounds := g.bounds()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[asks]+n > bounds.Agent
}

// Add counts n more that somebody holds, whatever there is room for.
func (g *Gate) Add(holds Holder, n int64) { g.Give(holds, -n) }

// Set counts what is held anew.
func (g *Gate) Set(held map[Holder]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all, g.held, g.sums = 0, map[Holder]int64{}, map[string]int64{}
	for h, n := range held {
		g.add(h, n)
	}
}

// Give takes back what somebody was let hold.
func (g *Gate) Give(asks Holder, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(asks, -n)
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

// Amounts is how much is held: by all, by the tenant of a holder and by the holder.
func (g *Gate) Amounts(asks Holder) []Amount {
	g.mu.Lock()
	defer g.mu.Unlock()
	return []Amount{{Kind: g.o.Kind, Whole: g.o.Whole, Held: Held{All: g.all, Tenant: g.sums[asks.Tenant], Agent: g.held[asks]}}}
}
