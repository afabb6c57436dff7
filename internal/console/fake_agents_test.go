package console

import (
	"context"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/identity"
)

// fakeAgents has agents that are only described.
type fakeAgents struct {
	agent.Agents // what a test does not need panics
	authority    *identity.Service
	all          []agent.Status
}

func (f *fakeAgents) List(_ context.Context, by identity.Principal, tenant string) ([]agent.Status, error) {
	tenant = by.Among(tenant)
	if err := identity.Can(by, identity.AgentList, tenant); err != nil {
		return nil, err
	}
	out := []agent.Status{}
	for _, s := range f.all {
		if tenant == "" || s.Tenant == tenant {
			out = append(out, s)
		}
	}
	return out, nil
}
