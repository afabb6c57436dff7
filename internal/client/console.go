package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
)

// ConsoleLink makes a link with which the caller signs in to the console, once. The code is not_found when there is no console.
func (c *Client) ConsoleLink(ctx context.Context) (out api.ConsoleLink, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("console", "links"), nil, nil, &out)
	return out, err
}
