package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
)

// Settings returns what is set and what is in effect: for an agent, for all of a tenant, or for all.
func (c *Client) Settings(ctx context.Context, w op.Whose) (out api.SettingsShown, err error) {
	path, query := settingsOf(w)
	err = c.do(ctx, http.MethodGet, path, query, nil, &out)
	return out, err
}

// PutSettings replaces what is set. With a version it refuses to replace another one.
func (c *Client) PutSettings(ctx context.Context, w op.Whose, r api.SettingsRequest) (out egress.Settings, err error) {
	path, query := settingsOf(w)
	err = c.do(ctx, http.MethodPut, path, query, r, &out)
	return out, err
}

func settingsOf(w op.Whose) (path string, query url.Values) {
	if w.Agent != "" {
		return pathOf("agents", w.Agent, "settings"), ofTenant(w.Tenant)
	}
	if w.AllTenants {
		return pathOf("settings"), url.Values{"all_tenants": {"true"}}
	}
	return pathOf("settings"), ofTenant(w.Tenant)
}
