package gateway

import (
	"net/netip"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// keptRefusals is how many refusals of a caller are kept in memory, the newest, to explain why something was not reached. All of
// them are in the audit log.
const keptRefusals = 32

// refusedWay is one of them.
type refusedWay struct {
	to      hostport.Endpoint
	at      time.Time
	problem *problem.Error
}

// refuse keeps a refusal.
func (c *caller) refuse(r refusedWay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusals = append(c.refusals, r)
	if extra := len(c.refusals) - keptRefusals; extra > 0 {
		c.refusals = slices.Delete(c.refusals, 0, extra)
	}
}

// Refused is the last refusal of a connection from an address to a host, since a time; nil when there is none. A browser says of each
// refusal of a tunnel that the tunnel could not be made, and nothing else.
func (g *Gateway) Refused(addr netip.Addr, to hostport.Endpoint, since time.Time) *problem.Error {
	who := g.at(addr)
	if who == nil {
		return nil
	}
	who.mu.Lock()
	defer who.mu.Unlock()
	for _, r := range slices.Backward(who.refusals) {
		if r.to == to && !r.at.Before(since) {
			return r.problem
		}
	}
	return nil
}
