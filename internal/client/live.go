package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/session"
)

// TakeOver gives the browser of a session to the caller, as a person; with force also when another has it.
func (c *Client) TakeOver(ctx context.Context, id string, force bool) (out session.Session, err error) {
	err = c.do(ctx, http.MethodPost, sessionPath(id, "take-over"), nil, api.TakeOverRequest{Force: force}, &out)
	return out, err
}

// HandBack ends a take-over; with anyway also while a password stands in a page.
func (c *Client) HandBack(ctx context.Context, id string, anyway bool) (out session.Session, err error) {
	err = c.do(ctx, http.MethodPost, sessionPath(id, "hand-back"), nil, api.HandBackRequest{Anyway: anyway}, &out)
	return out, err
}

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
