package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity/signin"
)

// ConsoleLink makes a link with which the caller signs in to the console, once. The code is not_found when there is no console.
func (c *Client) ConsoleLink(ctx context.Context) (out api.ConsoleLink, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("console", "links"), nil, nil, &out)
	return out, err
}

// SignIns lists who is signed in to the console.
func (c *Client) SignIns(ctx context.Context) ([]signin.SignIn, error) {
	var out api.SignIns
	err := c.do(ctx, http.MethodGet, pathOf("console", "sign-ins"), nil, nil, &out)
	return out.SignIns, err
}
