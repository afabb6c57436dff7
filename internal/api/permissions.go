package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
)

// AllowRequest is the body that permits an agent the use of an account.
type AllowRequest struct {
	Tenant        string   `json:"tenant,omitempty" doc:"the caller's own, or default, when it is left out"`
	Domain        string   `json:"domain" doc:"registrable domain of the account"`
	Agent         string   `json:"agent" doc:"the agent's name or id"`
	Access        string   `json:"access,omitempty" enum:"tools,cdp" doc:"the widest that its sessions may be steered with; tools is the default"`
	EgressDomains []string `json:"egress_domains,omitempty" nullable:"false" doc:"other domains, or hosts, that its sessions may reach; those that are kept with the account when it is left out"`
	Ask           string   `json:"ask,omitempty" enum:"never,first,always" doc:"ask a person before each use, before the first, or never, which is the default"`
	Hours         string   `json:"hours,omitempty" doc:"the hours of the day in which it is good, in UTC, such as 08-18"`
	Times         *int     `json:"times,omitempty" minimum:"1" doc:"for how many sessions; any number when it is left out"`
	For           string   `json:"for,omitempty" doc:"for how long, such as 30d or 12h; for good when it is left out"`
}

// Permissions is the answer to a listing.
type Permissions struct {
	Permissions []grant.Permission `json:"permissions" nullable:"false"`
}

// Disallowed is a permission that was taken back.
type Disallowed struct {
	grant.Permission
	SessionsEnded int `json:"sessions_ended" doc:"how many sessions ended that were opened with it"`
}

type permissionInput struct {
	ID     string `path:"id" maxLength:"64" doc:"the permission's id"`
	Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, any"`
}

func (a *API) permissionRoutes() {
	add(a, route{method: http.MethodPost, path: "/v1/account-permissions", id: "allow-account", summary: "Permit an agent an account, for many sessions",
		status: http.StatusOK, body: reflect.TypeFor[AllowRequest]()}, a.allowAccount)
	add(a, route{method: http.MethodGet, path: "/v1/account-permissions", id: "list-account-permissions", summary: "List which agent may use which account"}, a.permissions)
	add(a, route{method: http.MethodDelete, path: "/v1/account-permissions/{id}", id: "disallow-account",
		summary: "Take a permission back, and end its sessions", status: http.StatusOK}, a.disallowAccount)
}

func (a *API) allowAccount(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[grant.Permission], error) {
	body, err := decode[AllowRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	lasts, err := grant.ParseFor(body.For)
	if err := errors.Join(err, op.CheckTenant(body.Tenant)); err != nil {
		return nil, err
	}
	p, err := a.Credentials.AllowAccount(ctx, by, credential.Allow{Tenant: body.Tenant, Domain: body.Domain, Agent: body.Agent, Access: grant.Access(body.Access),
		EgressDomains: body.EgressDomains, Ask: grant.Ask(body.Ask), Hours: grant.Hours(body.Hours), Times: body.Times, For: lasts})
	if err != nil {
		return nil, err
	}
	return &answer[grant.Permission]{p}, nil
}

func (a *API) permissions(ctx context.Context, by identity.Principal, in *ofTenantInput) (*answer[Permissions], error) {
	all, err := a.Credentials.Permissions(ctx, by, in.Tenant)
	if err != nil {
		return nil, err
	}
	return &answer[Permissions]{Permissions{list(all)}}, nil
}

func (a *API) disallowAccount(ctx context.Context, by identity.Principal, in *permissionInput) (*answer[Disallowed], error) {
	p, ended, err := a.Credentials.DisallowAccount(ctx, by, in.Tenant, in.ID)
	if err != nil {
		return nil, err
	}
	return &answer[Disallowed]{Disallowed{p, ended}}, nil
}
