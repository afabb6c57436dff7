package gateway

import (
	"cmp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// toldPart is which part of all connections, besides, may be of callers that are only told that they have too many.
const toldPart = 8

// places are the connections that callers have open, and those that are only told that there are too many.
type places struct{ open, told *quota.Gate }

func newPlaces(c Config) places {
	o := quota.GateOptions{Kind: quota.WaysOut(), Whole: int64(cmp.Or(c.Connections, DefaultConnections)), Quotas: c.Quotas, Tenants: c.Tenants}
	open := quota.NewGate(o)
	o.Whole = max(1, o.Whole/toldPart)
	return places{open: open, told: quota.NewGate(o)}
}

// Held is how many connections are open: of all callers, of a tenant and of an agent.
func (g *Gateway) Held(asks quota.Holder) []quota.Amount { return g.places.open.Amounts(asks) }

// place takes a connection into its caller's books, and counts it until it is closed. One too many is told so. False is for
// one that there is no room even for that, or whose caller has been forgotten; nothing is left of it in the books.
func (g *Gateway) place(c *conn, who *caller) bool {
	n, limit := who.add(c), g.limits.ConnectionsPerCaller
	if n > limit {
		c.full = problem.New(problem.RateLimited, "Close connections that are not needed, then retry.", "the jail has more than %d open connections", limit)
	}
	if n == 0 || n > 2*limit || !g.count(c, who) {
		who.remove(c)
		return false
	}
	return true
}

// count counts a connection among those of its tenant and its agent until it is closed.
func (g *Gateway) count(c *conn, who *caller) bool {
	holder := quota.Holder{Tenant: who.Tenant, Agent: cmp.Or(who.Agent, who.Opener)}
	leave, err := g.places.open.Enter(holder)
	if err != nil {
		if leave, _ = g.places.told.Enter(holder); leave == nil {
			return false
		}
		c.full, _ = problem.As(err)
	}
	c.keep(holdsPlace, leave)
	return true
}
