package client

import (
	"context"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
)

// Settings returns what is set and what is in effect: for an agent, for all of a tenant, or for all.
func (c *Client) Settings(ctx context.Context, w op.Whose) (op.SettingsShown, error) {
	if w.Agent != "" {
		return Call(ctx, c, op.GetAgentSettings(), op.OneAgent{Name: w.Agent, InTenant: op.InTenant{Tenant: w.Tenant}})
	}
	return Call(ctx, c, op.GetSettings(), op.TenantsSettings{Tenant: w.Tenant, AllTenants: w.AllTenants})
}

// PutSettings replaces what is set. With a version it refuses to replace another one.
func (c *Client) PutSettings(ctx context.Context, w op.Whose, r op.SettingsRequest) (egress.Settings, error) {
	if w.Agent != "" {
		return Call(ctx, c, op.PutAgentSettings(), op.AgentsChange{OneAgent: op.OneAgent{Name: w.Agent, InTenant: op.InTenant{Tenant: w.Tenant}}, Body: op.With(r)})
	}
	return Call(ctx, c, op.PutSettings(), op.TenantsChange{TenantsSettings: op.TenantsSettings{Tenant: w.Tenant, AllTenants: w.AllTenants}, Body: op.With(r)})
}
