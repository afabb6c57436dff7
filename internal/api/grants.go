package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

type (
	jsonBody struct {
		RawBody []byte `contentType:"application/json"`
	}

	grantInput struct {
		ID     string `path:"id" maxLength:"64" doc:"the grant's id"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, any"`
	}
)

func (a *API) grantRoutes() {
	a.permissionRoutes()
	add(a, route{method: http.MethodPost, path: "/v1/grants", id: "issue-grant", summary: "Permit a session to use accounts",
		status: http.StatusCreated, body: reflect.TypeFor[GrantRequest]()}, a.issueGrant)
	add(a, route{method: http.MethodGet, path: "/v1/grants", id: "list-grants", summary: "List grants, newest first"}, a.grants)
	add(a, route{method: http.MethodDelete, path: "/v1/grants/{id}", id: "revoke-grant", summary: "Revoke a grant; its session runs on",
		status: http.StatusOK}, a.revokeGrant)
	add(a, route{method: http.MethodGet, path: "/v1/grant-keys", id: "list-grant-keys", summary: "List the keys of grants"}, a.grantKeys)
	add(a, route{method: http.MethodPost, path: "/v1/grant-keys/rotate", id: "rotate-grant-keys", summary: "Sign grants with a new key",
		status: http.StatusOK}, a.rotateGrantKeys)
	add(a, route{method: http.MethodGet, path: "/v1/vault", id: "vault-status", summary: "What is encrypted with which key"}, a.vaultStatus)
	add(a, route{method: http.MethodPost, path: "/v1/vault/rotate", id: "rotate-vault", summary: "Encrypt everything with a new key",
		status: http.StatusOK}, a.rotateVault)
}

func (a *API) grantOf(g grant.Grant) Grant {
	return Grant{
		ID: g.ID, State: grant.State(g, a.Now()), Tenant: g.Tenant, Domains: list(g.Domains), EgressDomains: list(g.EgressDomains), Access: g.Access,
		Origin: g.Origin, Operator: g.Operator, IssuedAt: g.IssuedAt, NotBefore: g.NotBefore, ExpiresAt: g.ExpiresAt,
		UsedAt: g.UsedAt, UsedBy: g.UsedBy, RevokedAt: g.RevokedAt, RevokedBy: g.RevokedBy,
	}
}

// list is never null in JSON.
func list[T any](all []T) []T { return append([]T{}, all...) }

func (a *API) issueGrant(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[IssuedGrant], error) {
	body, err := decode[GrantRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	request, err := body.Request()
	if err != nil {
		return nil, err
	}
	token, row, err := a.Credentials.IssueGrant(ctx, by, request)
	if err != nil {
		return nil, err
	}
	return &answer[IssuedGrant]{IssuedGrant{Token: token.Reveal(), Grant: a.grantOf(row)}}, nil
}

// Request reads the texts. Whether their values are allowed is the service's to say.
func (r GrantRequest) Request() (grant.Request, error) {
	if err := op.CheckTenant(r.Tenant); err != nil {
		return grant.Request{}, err
	}
	ttl, err := positive("ttl", r.TTL)
	return grant.Request{
		Tenant: r.Tenant, Domains: r.Domains, EgressDomains: r.EgressDomains, Access: grant.Access(r.Access), TTL: ttl, Origin: r.Origin,
	}, err
}

// positive reads a duration; empty is zero, which is the default of whoever gets it, so that a zero that was written is
// an error.
func positive(field, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, problem.New(problem.BadLimit, "write a number with s, m or h, such as 10m", "%s %s is not a positive duration", field, quote(text))
	}
	return d, nil
}

func (a *API) grants(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Grants], error) {
	all, err := a.Credentials.ListGrants(ctx, by, in.Tenant)
	if err != nil {
		return nil, err
	}
	out := Grants{Grants: make([]Grant, len(all))}
	for n, g := range all {
		out.Grants[n] = a.grantOf(g)
	}
	return &answer[Grants]{out}, nil
}

func (a *API) revokeGrant(ctx context.Context, by identity.Principal, in *grantInput) (*answer[Grant], error) {
	row, err := a.Credentials.RevokeGrant(ctx, by, in.Tenant, in.ID)
	if err != nil {
		return nil, err
	}
	return &answer[Grant]{a.grantOf(row)}, nil
}

func keyOf(k grant.KeyInfo) GrantKey {
	return GrantKey{ID: k.ID, CreatedAt: k.CreatedAt, Signs: k.Signs(), VerifiesUntil: k.VerifiesUntil}
}

func (a *API) grantKeys(ctx context.Context, by identity.Principal, _ *nothing) (*answer[GrantKeys], error) {
	keys, err := a.Credentials.GrantKeys(ctx, by)
	if err != nil {
		return nil, err
	}
	out := GrantKeys{Keys: make([]GrantKey, len(keys))}
	for n, k := range keys {
		out.Keys[n] = keyOf(k)
	}
	return &answer[GrantKeys]{out}, nil
}

func (a *API) rotateGrantKeys(ctx context.Context, by identity.Principal, _ *nothing) (*answer[GrantKey], error) {
	key, err := a.Credentials.RotateGrantKeys(ctx, by)
	if err != nil {
		return nil, err
	}
	return &answer[GrantKey]{keyOf(key)}, nil
}

func (a *API) vaultStatus(ctx context.Context, by identity.Principal, _ *nothing) (*answer[VaultStatus], error) {
	status, err := a.Credentials.VaultStatus(ctx, by)
	if err != nil {
		return nil, err
	}
	return &answer[VaultStatus]{VaultStatus(status)}, nil
}

func (a *API) rotateVault(ctx context.Context, by identity.Principal, _ *nothing) (*answer[vault.Rotation], error) {
	done, err := a.Credentials.RotateVault(ctx, by)
	if err != nil {
		return nil, err
	}
	done.Destroyed = list(done.Destroyed)
	return &answer[vault.Rotation]{done}, nil
}
