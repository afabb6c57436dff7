package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

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

// Ask asks the operator for access, with the key of an agent.
func (c *Client) Ask(ctx context.Context, q api.AccessQuestion) (out egress.AccessRequest, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("access-requests"), nil, q, &out)
	return out, err
}

// AccessRequests lists what agents ask for; with all, also what is answered or has expired.
func (c *Client) AccessRequests(ctx context.Context, tenant string, all bool) ([]egress.AccessRequest, error) {
	query := url.Values{}
	if tenant != "" {
		query.Set("tenant", tenant)
	}
	if all {
		query.Set("all", "true")
	}
	var out api.AccessRequests
	err := c.do(ctx, http.MethodGet, pathOf("access-requests"), query, nil, &out)
	return out.Requests, err
}

// AccessRequest returns what an agent asks for, and waits for its answer at most so long.
func (c *Client) AccessRequest(ctx context.Context, id string, wait time.Duration) (out egress.AccessRequest, err error) {
	query := url.Values{}
	if wait > 0 {
		query.Set("wait", wait.String())
	}
	err = c.do(ctx, http.MethodGet, pathOf("access-requests", id), query, nil, &out)
	return out, err
}

// Answer approves or refuses what an agent asks for.
func (c *Client) Answer(ctx context.Context, id string, answer api.AccessAnswer) (out egress.AccessRequest, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("access-requests", id, "answer"), nil, answer, &out)
	return out, err
}
