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

// Services lists the services that agents use.
func (c *Client) Services(ctx context.Context, tenant string) ([]api.Service, error) {
	var out api.Services
	err := c.do(ctx, http.MethodGet, pathOf("services"), ofTenant(tenant), nil, &out)
	return out.Services, err
}

// PutService makes a service, or replaces the one of the same tenant, agent and name.
func (c *Client) PutService(ctx context.Context, r api.ServiceRequest) (out api.Service, err error) {
	err = c.do(ctx, http.MethodPut, pathOf("services"), nil, r, &out)
	return out, err
}

// RemoveService removes a service. Its secret stays.
func (c *Client) RemoveService(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, pathOf("services", id), nil, nil, nil)
}

// Providers lists the providers of models.
func (c *Client) Providers(ctx context.Context, tenant string) ([]api.Provider, error) {
	var out api.Providers
	err := c.do(ctx, http.MethodGet, pathOf("providers"), ofTenant(tenant), nil, &out)
	return out.Providers, err
}

// PutProvider makes a provider, or replaces the one of the same tenant, agent and name.
func (c *Client) PutProvider(ctx context.Context, r api.ProviderRequest) (out api.Provider, err error) {
	err = c.do(ctx, http.MethodPut, pathOf("providers"), nil, r, &out)
	return out, err
}

// RemoveProvider removes a provider. Its secret stays.
func (c *Client) RemoveProvider(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, pathOf("providers", id), nil, nil, nil)
}

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

// Usage lists the use of models from a day on (2006-01-02); today's when it is empty.
func (c *Client) Usage(ctx context.Context, tenant, from string) ([]api.ModelUsage, error) {
	query := url.Values{}
	for name, value := range map[string]string{"tenant": tenant, "from": from} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var out api.ModelUsages
	err := c.do(ctx, http.MethodGet, pathOf("usage"), query, nil, &out)
	return out.Usage, err
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
