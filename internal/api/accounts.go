package api

import (
	"context"
	"errors"
	"fmt"
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
	Cookies(ctx context.Context, by identity.Principal, tenant string) ([]vault.CookieSet, error)
	CookieSet(ctx context.Context, by identity.Principal, tenant, domain string) (vault.CookieSet, error)
	SetRules(ctx context.Context, by identity.Principal, tenant, domain string, r vault.Rules) (vault.CookieSet, error)
	SetSignedIn(ctx context.Context, by identity.Principal, tenant, domain string, i vault.SignedIn) (vault.CookieSet, error)
	DeleteCookies(ctx context.Context, by identity.Principal, tenant, domain string) error
	Capture(ctx context.Context, by identity.Principal, session string, domains []string, change func(*vault.Rules)) ([]vault.CookieSet, error)
	// FinishRefresh keeps what somebody has logged in to, and ends the session; NeedsRefresh lists what somebody has to log in to.
	FinishRefresh(ctx context.Context, by identity.Principal, f credential.FinishRefresh) ([]vault.CookieSet, error)
	NeedsRefresh(ctx context.Context, by identity.Principal, tenant string) ([]credential.Alert, error)

	PutSecret(ctx context.Context, by identity.Principal, name vault.SecretName, value secret.Value, origins ...string) error
}

type (
	ofTenantInput = op.OfTenant

	domainInput struct {
		Domain string `path:"domain" maxLength:"253" doc:"registrable"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out"`
	}

	domainBody struct {
		Domain  string `path:"domain" maxLength:"253" doc:"registrable"`
		RawBody []byte `contentType:"application/json"`
	}

	captureInput struct {
		ID      string `path:"id" maxLength:"64" doc:"the session's id"`
		RawBody []byte `contentType:"application/json"`
	}

	secretBody struct {
		Service string `path:"service" maxLength:"64"`
		RawBody []byte `contentType:"application/json"`
	}
)

func (a *API) accountRoutes() {
	add(a, route{method: http.MethodGet, path: "/v1/cookies", id: "list-cookies", summary: "List accounts"}, a.cookies)
	add(a, route{method: http.MethodGet, path: "/v1/cookies/{domain}", id: "get-cookies", summary: "Show an account, without values"}, a.cookieSet)
	add(a, route{method: http.MethodPut, path: "/v1/cookies/{domain}", id: "import-cookies", summary: "Store the login of an account",
		status: http.StatusOK, body: reflect.TypeFor[ImportRequest](), jars: identity.CookiesImport}, a.importCookies)
	add(a, route{method: http.MethodPatch, path: "/v1/cookies/{domain}", id: "set-cookie-rules", summary: "Change who may use an account",
		status: http.StatusOK, body: reflect.TypeFor[RulesRequest]()}, a.setCookieRules)
	add(a, route{method: http.MethodDelete, path: "/v1/cookies/{domain}", id: "delete-cookies", summary: "Remove an account",
		status: http.StatusNoContent}, a.deleteCookies)
	add(a, route{method: http.MethodPost, path: "/v1/sessions/{id}/capture", id: "capture-cookies", summary: "Store what a session's browser has",
		status: http.StatusOK, body: reflect.TypeFor[CaptureRequest]()}, a.capture)

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

func (a *API) cookies(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[CookieSets], error) {
	all, err := a.Credentials.Cookies(ctx, by, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &answer[CookieSets]{CookieSets{Sets: all}}, nil
}

func (a *API) cookieSet(ctx context.Context, by identity.Principal, in *domainInput) (*answer[vault.CookieSet], error) {
	out, err := a.Credentials.CookieSet(ctx, by, in.Tenant, in.Domain)
	if err != nil {
		return nil, err
	}
	return &answer[vault.CookieSet]{out}, nil
}

func (a *API) importCookies(ctx context.Context, by identity.Principal, in *domainBody) (*answer[vault.CookieSet], error) {
	defer clear(in.RawBody)
	body, err := decode[ImportRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	defer body.Cookies.Wipe()
	defer body.Origins.Wipe()
	if err := errors.Join(op.CheckTenant(body.Tenant), checkScopes(body.Scopes)); err != nil {
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
	if request.Rules, err = a.rules(ctx, by, body.Tenant, in.Domain, body.Scopes, body.MaxSessions); err != nil {
		return nil, err
	}
	out, err := a.Credentials.Import(ctx, by, request)
	if err != nil {
		return nil, err
	}
	return &answer[vault.CookieSet]{out}, nil
}

// cookies reads a list. What is wrong with it is said by number and field.
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

// origins reads what pages have stored. What is wrong with it is said by number and field.
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

func (a *API) setCookieRules(ctx context.Context, by identity.Principal, in *domainBody) (*answer[vault.CookieSet], error) {
	body, err := decode[RulesRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(op.CheckTenant(body.Tenant), checkScopes(body.Scopes)); err != nil {
		return nil, err
	}
	rules, err := a.rules(ctx, by, body.Tenant, in.Domain, body.Scopes, body.MaxSessions)
	if err != nil {
		return nil, err
	}
	if rules == nil && body.SignedIn == nil {
		return nil, problem.New(problem.BadRequest, "send scopes, max_sessions or signed_in", "nothing was said to be changed")
	}
	var out vault.CookieSet
	if body.SignedIn != nil {
		if out, err = a.Credentials.SetSignedIn(ctx, by, body.Tenant, in.Domain, *body.SignedIn); err != nil {
			return nil, err
		}
	}
	if rules != nil {
		if out, err = a.Credentials.SetRules(ctx, by, body.Tenant, in.Domain, *rules); err != nil {
			return nil, err
		}
	}
	return &answer[vault.CookieSet]{out}, nil
}

// rules are those that somebody asks for; nil when nothing is said. What is left out of two is as it is.
func (a *API) rules(ctx context.Context, by identity.Principal, tenant, domain string, scopes []string, most *int) (*vault.Rules, error) {
	out := credential.DefaultRules()
	switch {
	case scopes == nil && most == nil:
		return nil, nil
	case scopes == nil || most == nil:
		set, err := a.Credentials.CookieSet(ctx, by, tenant, domain)
		if err == nil {
			out = vault.Rules{Scopes: set.Scopes, MaxLeases: set.MaxLeases}
		} else if problem.CodeOf(err) != problem.NotFound {
			return nil, err
		}
	}
	said(&out, scopes, most)
	return &out, nil
}

// said puts what was said into rules.
func said(rules *vault.Rules, scopes []string, most *int) {
	if scopes != nil {
		rules.Scopes = scopes
	}
	if most != nil {
		rules.MaxLeases = *most
	}
}

func (a *API) deleteCookies(ctx context.Context, by identity.Principal, in *domainInput) (*nothing, error) {
	return nil, a.Credentials.DeleteCookies(ctx, by, in.Tenant, in.Domain)
}

func (a *API) capture(ctx context.Context, by identity.Principal, in *captureInput) (*answer[CookieSets], error) {
	body, err := decode[CaptureRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	if err := checkScopes(body.Scopes); err != nil {
		return nil, err
	}
	var change func(*vault.Rules)
	if body.Scopes != nil || body.MaxSessions != nil {
		change = func(r *vault.Rules) { said(r, body.Scopes, body.MaxSessions) }
	}
	sets, err := a.Credentials.Capture(ctx, by, in.ID, body.Domains, change)
	if err != nil {
		return nil, err
	}
	return &answer[CookieSets]{CookieSets{Sets: sets}}, nil
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

func checkScopes(scopes []string) error {
	const most = 64
	if len(scopes) > most {
		return problem.New(problem.BadRequest, "name tools or cdp", "there are %d scopes", len(scopes))
	}
	var errs []error
	for n, scope := range scopes {
		errs = append(errs, op.CheckName(fmt.Sprintf("scopes[%d]", n), scope))
	}
	return errors.Join(errs...)
}
