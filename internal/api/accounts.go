package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Credentials manages accounts, secrets and grants. *credential.Service is one.
type Credentials interface {
	op.Credentials

	Import(ctx context.Context, by identity.Principal, i credential.Import) (vault.CookieSet, error)
	// FinishRefresh keeps what somebody has logged in to, and ends the session.
	FinishRefresh(ctx context.Context, by identity.Principal, f credential.FinishRefresh) ([]vault.CookieSet, error)
	PutSecret(ctx context.Context, by identity.Principal, name vault.SecretName, value secret.Value, origins ...string) error
}

type (
	domainBody struct {
		Domain  string `path:"domain" maxLength:"253" doc:"registrable"`
		RawBody []byte `contentType:"application/json"`
	}

	secretBody struct {
		Service string `path:"service" maxLength:"64"`
		RawBody []byte `contentType:"application/json"`
	}
)

func (a *API) accountRoutes() {
	provide(a, op.ListCookies())
	provide(a, op.ShowCookies())
	add(a, route{method: http.MethodPut, path: "/v1/cookies/{domain}", id: "import-cookies", summary: "Store the login of an account",
		status: http.StatusOK, body: reflect.TypeFor[ImportRequest](), jars: identity.CookiesImport}, a.importCookies)
	provide(a, op.SetCookieRules())
	provide(a, op.RemoveCookies())
	provide(a, op.CaptureCookies())
	provide(a, op.ListNeedsRefresh())

	provide(a, op.ListSecrets())
	add(a, route{method: http.MethodPut, path: "/v1/secrets/{service}", id: "put-secret", summary: "Store a secret",
		status: http.StatusNoContent, body: reflect.TypeFor[SecretRequest]()}, a.putSecret)
	provide(a, op.RemoveSecret())
	provide(a, op.IssueGrant())
	provide(a, op.ListGrants())
	provide(a, op.RevokeGrant())
	provide(a, op.ListGrantKeys())
	provide(a, op.RotateGrantKeys())
	provide(a, op.AllowAccount())
	provide(a, op.ListPermissions())
	provide(a, op.DisallowAccount())
	provide(a, op.ShowVault())
	provide(a, op.RotateVault())
}

func (a *API) importCookies(ctx context.Context, by identity.Principal, in *domainBody) (*answer[vault.CookieSet], error) {
	defer clear(in.RawBody)
	body, err := decode[ImportRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	defer body.Cookies.Wipe()
	defer body.Origins.Wipe()
	if err := body.Check(body.Tenant); err != nil {
		return nil, err
	}
	list, err := body.Cookies.cookies()
	if err != nil {
		return nil, err
	}
	defer cookies.Wipe(list)
	origins, err := body.Origins.origins()
	if err != nil {
		return nil, err
	}
	defer weblogin.WipeOrigins(origins)
	request := credential.Import{Tenant: body.Tenant, Domain: in.Domain, Cookies: list, Origins: origins}
	if request.Rules, err = body.Of(ctx, a.Credentials, by, body.Tenant, in.Domain); err != nil {
		return nil, err
	}
	out, err := a.Credentials.Import(ctx, by, request)
	if err != nil {
		return nil, err
	}
	return &answer[vault.CookieSet]{out}, nil
}

// cookies reads a list. A mistake in it is said by number and field.
func (j Jar) cookies() (list []cookies.Cookie, err error) {
	if j.Len() == 0 {
		return nil, nil
	}
	err = j.Use(func(raw []byte) error {
		list, err = cookies.Decode(raw)
		return err
	})
	if err != nil {
		return nil, problem.New(problem.BadCookie, "send what Storage.getCookies of the DevTools Protocol returns", "the cookies cannot be read: %v", err)
	}
	return list, nil
}

// origins reads what pages have stored. A mistake in it is said by number and field.
func (o Origins) origins() (list []weblogin.Origin, err error) {
	if o.Len() == 0 {
		return nil, nil
	}
	err = o.Use(func(raw []byte) error {
		list, err = weblogin.DecodeOrigins(raw)
		return err
	})
	if err != nil {
		return nil, problem.New(problem.BadStorage, "send the origins of a storage state of Playwright", "the origins cannot be read: %v", err)
	}
	return list, nil
}

func (a *API) putSecret(ctx context.Context, by identity.Principal, in *secretBody) (*nothing, error) {
	defer clear(in.RawBody)
	body, err := decode[SecretRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	defer body.Value.Wipe()
	if err := errors.Join(op.CheckTenant(body.Tenant), op.CheckName("agent", body.Agent)); err != nil {
		return nil, err
	}
	return nil, a.Credentials.PutSecret(ctx, by, vault.SecretName{Tenant: body.Tenant, Agent: body.Agent, Service: in.Service}, body.Value, body.Origins...)
}
