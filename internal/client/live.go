package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/credential"
)

// OpenRefresh opens a session in which a person logs in to a site.
func (c *Client) OpenRefresh(ctx context.Context, r api.RefreshRequest) (out api.RefreshSession, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("refreshes"), nil, r, &out)
	return out, err
}

// NeedsRefresh lists the accounts that somebody has to log in to again.
func (c *Client) NeedsRefresh(ctx context.Context, tenant string) ([]credential.Alert, error) {
	var out api.NeedsRefresh
	err := c.do(ctx, http.MethodGet, pathOf("accounts", "needs-refresh"), ofTenant(tenant), nil, &out)
	return out.Accounts, err
}
