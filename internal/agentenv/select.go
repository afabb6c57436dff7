package agentenv

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
)

// Select picks what an agent has out of what a tenant has: of several of one name its own, else its tenant's, else
// everybody's. Those of other agents or tenants are left out.
func Select(services []egress.Service, providers []egress.Provider, tenant, agent string) ([]egress.Service, []egress.Provider) {
	return narrowest(services, tenant, agent, func(s egress.Service) (egress.Meta, string) { return s.Meta, s.Name }),
		narrowest(providers, tenant, agent, func(p egress.Provider) (egress.Meta, string) { return p.Meta, p.Name })
}

func narrowest[T any](all []T, tenant, agent string, of func(T) (egress.Meta, string)) []T {
	width := func(entry T) int {
		m, _ := of(entry)
		switch {
		case m.Agent != "":
			return 0
		case m.Tenant != "":
			return 1
		}
		return 2
	}
	var out []T
	for _, entry := range all {
		m, name := of(entry)
		if m.Tenant != "" && m.Tenant != tenant || m.Agent != "" && m.Agent != agent {
			continue
		}
		same := slices.IndexFunc(out, func(other T) bool { _, n := of(other); return n == name })
		switch {
		case same < 0:
			out = append(out, entry)
		case width(entry) < width(out[same]):
			out[same] = entry
		}
	}
	slices.SortFunc(out, func(a, b T) int {
		_, left := of(a)
		_, right := of(b)
		return strings.Compare(left, right)
	})
	return out
}
