package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Where a method takes a tenant, empty is the caller's own. A caller of all tenants means all of them in a listing, and
// the tenant default elsewhere.

// ImportLogin stores the login of a registrable domain, in the place of what is stored. The caller wipes its values.
func (c *Client) ImportLogin(ctx context.Context, tenant, domain string, l weblogin.Login, rules op.AccountRules) (out vault.CookieSet, err error) {
	request := api.ImportRequest{Tenant: tenant, Cookies: api.Jar{Value: secret.Own(cookies.Encode(l.Cookies))}, AccountRules: rules}
	defer request.Cookies.Wipe()
	if len(l.Origins) > 0 {
		request.Origins = api.Origins{Value: secret.Own(weblogin.EncodeOrigins(l.Origins))}
		defer request.Origins.Wipe()
	}
	err = c.do(ctx, http.MethodPut, pathOf("cookies", domain), nil, request, &out)
	return out, err
}

// PutSecret stores a secret, or replaces the one of the same name. It does not keep or wipe value.
func (c *Client) PutSecret(ctx context.Context, n vault.SecretName, value secret.Value, origins ...string) error {
	return c.do(ctx, http.MethodPut, pathOf("secrets", n.Service), nil, api.SecretRequest{Tenant: n.Tenant, Agent: n.Agent, Value: value, Origins: origins}, nil)
}
