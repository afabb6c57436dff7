package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
)

// MCPServers lists the MCP servers that a tenant may use; for an admin of all tenants, all that there are.
func (c *Client) MCPServers(ctx context.Context, tenant string) ([]api.MCPServer, error) {
	var out api.MCPServers
	err := c.do(ctx, http.MethodGet, pathOf("mcp-servers"), ofTenant(tenant), nil, &out)
	return out.Servers, err
}

// PutMCPServer adds an MCP server, or replaces the one of the same name that was added before.
func (c *Client) PutMCPServer(ctx context.Context, r api.MCPServerRequest) (out api.MCPServer, err error) {
	err = c.do(ctx, http.MethodPut, pathOf("mcp-servers"), nil, r, &out)
	return out, err
}

// RemoveMCPServer removes an MCP server that was added, and ends it.
func (c *Client) RemoveMCPServer(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, pathOf("mcp-servers", name), nil, nil, nil)
}

// TestMCPServer starts an MCP server, asks for what it offers, and ends it. What went wrong with it is in the report.
func (c *Client) TestMCPServer(ctx context.Context, tenant, name string) (out api.MCPServerReport, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("mcp-servers", name, "test"), ofTenant(tenant), nil, &out)
	return out, err
}
