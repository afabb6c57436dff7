package client

import (
	"context"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpVersion is the version of the protocol that is spoken to the control plane. Later ones have no sessions: a client of them would
// not notice that it hears of changes no more.
const mcpVersion = "2025-11-25"

// MCP connects a client of the Model Context Protocol to the control plane's tools.
func (c *Client) MCP(ctx context.Context, of *sdk.Client) (*sdk.ClientSession, error) {
	target, err := c.at("/mcp")
	if err != nil {
		return nil, err
	}
	asks := *c.http
	asks.Transport = keyed{c}
	return of.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: target.String(), HTTPClient: &asks}, &sdk.ClientSessionOptions{ProtocolVersion: mcpVersion})
}

// keyed sends the key with every request.
type keyed struct{ c *Client }

// RoundTrip implements http.RoundTripper.
func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.c.key)
	return k.c.http.Transport.RoundTrip(r)
}
