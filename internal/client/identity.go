package client

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Where a method takes a tenant, empty is the caller's own. A caller of all tenants means all of them in a listing, and
// the tenant default elsewhere.

// Cookies lists accounts, without the values of their cookies.
func (c *Client) Cookies(ctx context.Context, tenant string) ([]vault.CookieSet, error) {
	var out api.CookieSets
	err := c.do(ctx, http.MethodGet, pathOf("cookies"), ofTenant(tenant), nil, &out)
	return out.Sets, err
}

// CookieSet describes the account of a registrable domain, without the values of its cookies.
func (c *Client) CookieSet(ctx context.Context, tenant, domain string) (out vault.CookieSet, err error) {
	err = c.do(ctx, http.MethodGet, pathOf("cookies", domain), ofTenant(tenant), nil, &out)
	return out, err
}

// ImportLogin stores the login of a registrable domain, in the place of what is stored. Without rules, those of the account
// stay. The caller wipes its values.
func (c *Client) ImportLogin(ctx context.Context, tenant, domain string, l weblogin.Login, rules *vault.Rules) (out vault.CookieSet, err error) {
	request := api.ImportRequest{Tenant: tenant, Cookies: api.Jar{Value: secret.Own(cookies.Encode(l.Cookies))}}
	defer request.Cookies.Wipe()
	if len(l.Origins) > 0 {
		request.Origins = api.Origins{Value: secret.Own(weblogin.EncodeOrigins(l.Origins))}
		defer request.Origins.Wipe()
	}
	if rules != nil {
		request.Scopes, request.MaxSessions = said(rules.Scopes), &rules.MaxLeases
	}
	err = c.do(ctx, http.MethodPut, pathOf("cookies", domain), nil, request, &out)
	return out, err
}

// said is a list that is there, also when it is empty: one that is left out changes nothing.
func said(scopes []string) []string { return append([]string{}, scopes...) }

// SetCookieRules changes who may use an account.
func (c *Client) SetCookieRules(ctx context.Context, tenant, domain string, r vault.Rules) (out vault.CookieSet, err error) {
	request := api.RulesRequest{Tenant: tenant, Scopes: said(r.Scopes), MaxSessions: &r.MaxLeases}
	err = c.do(ctx, http.MethodPatch, pathOf("cookies", domain), nil, request, &out)
	return out, err
}

// SetSignedIn changes how it is seen whether the site of an account still knows it.
func (c *Client) SetSignedIn(ctx context.Context, tenant, domain string, i vault.SignedIn) (out vault.CookieSet, err error) {
	err = c.do(ctx, http.MethodPatch, pathOf("cookies", domain), nil, api.RulesRequest{Tenant: tenant, SignedIn: &i}, &out)
	return out, err
}

// DeleteCookies removes an account.
func (c *Client) DeleteCookies(ctx context.Context, tenant, domain string) error {
	return c.do(ctx, http.MethodDelete, pathOf("cookies", domain), ofTenant(tenant), nil, nil)
}

// Capture stores what the browser of a session has of some domains, one account for each.
func (c *Client) Capture(ctx context.Context, session string, r api.CaptureRequest) ([]vault.CookieSet, error) {
	var out api.CookieSets
	err := c.do(ctx, http.MethodPost, sessionPath(session, "capture"), nil, r, &out)
	return out.Sets, err
}

// PutSecret stores a secret, or replaces the one of the same name. It does not keep or wipe value.
func (c *Client) PutSecret(ctx context.Context, n vault.SecretName, value secret.Value, origins ...string) error {
	return c.do(ctx, http.MethodPut, pathOf("secrets", n.Service), nil, api.SecretRequest{Tenant: n.Tenant, Agent: n.Agent, Value: value, Origins: origins}, nil)
}
