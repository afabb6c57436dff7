package gateway

import (
	"net/netip"
	"slices"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// maxHosts is how many hosts are remembered of one address.
const maxHosts = 500

// hosts are those that a session's jail was let connect to, in the order of the first time.
type hosts struct {
	known map[string]struct{}
	order []string
}

func (h *hosts) add(name string) {
	if _, known := h.known[name]; known || len(h.order) >= maxHosts {
		return
	}
	if h.known == nil {
		h.known = map[string]struct{}{}
	}
	h.known[name] = struct{}{}
	h.order = append(h.order, name)
}

// reaches notes that the caller was let connect to a host. Only of sessions somebody ever asks.
func (c *caller) reaches(host hostport.Host) {
	if c.Session == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts.add(host.String())
}

// Hosts are those that the jail of a session at an address was let connect to since it was admitted, in the order of the
// first time: the first five hundred. There are none of an address that is not admitted.
func (g *Gateway) Hosts(addr netip.Addr) []string {
	who := g.at(addr)
	if who == nil {
		return nil
	}
	who.mu.Lock()
	defer who.mu.Unlock()
	return slices.Clone(who.hosts.order)
}
