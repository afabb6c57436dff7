package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
)

// OpenRefresh opens a session in which a person logs in to a site.
func (c *Client) OpenRefresh(ctx context.Context, r api.RefreshRequest) (out api.RefreshSession, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("refreshes"), nil, r, &out)
	return out, err
}
