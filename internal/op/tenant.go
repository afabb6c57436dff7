package op

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Tenant owns agents, accounts and sessions.
type Tenant struct {
	ID                       string    `json:"id"`
	ForbidOperatorMode       bool      `json:"forbid_operator_mode" doc:"the tenant may have no sessions with accounts"`
	ForbidAccountPermissions bool      `json:"forbid_account_permissions" doc:"its agents may not open sessions with accounts by permission, without a grant"`
	CreatedAt                time.Time `json:"created_at"`
}

// TenantUse is a tenant with what it holds of what all share.
type TenantUse struct {
	Tenant
	Quotas []quota.Use `json:"quotas" nullable:"false"`
}

// Tenants is the answer to a listing.
type Tenants struct {
	Tenants []Tenant `json:"tenants" nullable:"false"`
}

// Disconnected says how much was ended.
type Disconnected struct {
	Ended int `json:"ended" doc:"how many open connections and sessions were ended"`
}

// TenantRequest is the body that makes a tenant.
type TenantRequest struct {
	ID                 string `json:"id" doc:"1 to 40 of a-z, 0-9 and -" arg:"1" example:"gamma"`
	ForbidOperatorMode bool   `json:"forbid_operator_mode" required:"false" doc:"refuse every session with accounts" flag:"forbid-operator-mode"`
	// ForbidAccountPermissions leaves grants as the only way to accounts.
	ForbidAccountPermissions bool `json:"forbid_account_permissions,omitzero" required:"false" doc:"refuse sessions with accounts that agents open by permission, without a grant" flag:"forbid-account-permissions"`
}

// TenantPolicy is the body that changes what a tenant may. Members that are left out stay as they are.
type TenantPolicy struct {
	ForbidOperatorMode       *bool `json:"forbid_operator_mode,omitempty" doc:"refuse every session with accounts" flag:"forbid-operator-mode" example:"false"`
	ForbidAccountPermissions *bool `json:"forbid_account_permissions,omitempty" doc:"refuse sessions with accounts that agents open by permission, without a grant" flag:"forbid-account-permissions"`
}

type (
	// NewTenant is a tenant to be made.
	NewTenant struct{ Body[TenantRequest] }

	// TenantNamed names a tenant.
	TenantNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the tenant's id" arg:"1" complete:"tenants"`
	}

	// TenantChange is what is changed of a tenant.
	TenantChange struct {
		TenantNamed
		Body[TenantPolicy]
	}
)

func tenantOf(t identity.Tenant) Tenant {
	return Tenant{ID: t.ID, ForbidOperatorMode: t.ForbidOperatorMode, ForbidAccountPermissions: t.ForbidAccountPermissions, CreatedAt: t.CreatedAt}
}

// mode says in a few words which accounts the tenant's sessions may use.
func (t Tenant) mode() string {
	switch {
	case t.ForbidOperatorMode:
		return "forbidden"
	case t.ForbidAccountPermissions:
		return "allowed with a grant"
	}
	return "allowed"
}

func (t Tenant) view() []Block {
	return []Block{line("tenant %s: sessions that use accounts are %s", t.ID, t.mode())}
}

// ListTenants lists the tenants that exist for the caller.
func ListTenants() Op[None, Tenants] {
	return Op[None, Tenants]{Method: http.MethodGet, Path: "/v1/tenants", ID: "list-tenants", Summary: "List tenants", Right: identity.TenantRead,
		Command: Command{Use: "ls", Aliases: []string{"list"}},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (Tenants, error) {
			all, err := s.People.Tenants(ctx, by)
			return Tenants{listOf(all, tenantOf)}, err
		},
		View: func(all Tenants) []Block {
			return []Block{table(all.Tenants, []any{"ID", "MADE", "OPERATOR MODE"}, func(t Tenant) []any { return []any{t.ID, t.CreatedAt, t.mode()} })}
		}}
}

// CreateTenant makes a tenant.
func CreateTenant() Op[NewTenant, Tenant] {
	return Op[NewTenant, Tenant]{Method: http.MethodPost, Path: "/v1/tenants", ID: "create-tenant", Summary: "Make a tenant", Right: identity.TenantCreate,
		Status:  http.StatusCreated,
		Command: Command{Use: "create ID", Example: "  sudo clawjail tenant create acme\n  sudo clawjail operator create ada --tenant acme --role admin"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewTenant) (Tenant, error) {
			t, err := s.People.CreateTenant(ctx, by, in.Of.ID,
				identity.Policy{ForbidOperatorMode: in.Of.ForbidOperatorMode, ForbidAccountPermissions: in.Of.ForbidAccountPermissions})
			return tenantOf(t), err
		},
		View: Tenant.view}
}

// ShowTenant shows a tenant with what it holds of what all share.
func ShowTenant() Op[TenantNamed, TenantUse] {
	const summary = "Show a tenant, and what it holds of what all share"
	return Op[TenantNamed, TenantUse]{Method: http.MethodGet, Path: "/v1/tenants/{id}", ID: "show-tenant", Summary: summary, Right: identity.TenantRead,
		Command: Command{Use: "show ID", Long: "Shows a tenant, and how much it holds of resources that all tenants share, such as places for sessions. How much one tenant and one agent may " +
			"hold is in the configuration, in quotas."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in TenantNamed) (TenantUse, error) {
			all, err := s.People.Tenants(ctx, by)
			if err != nil {
				return TenantUse{}, err
			}
			n := slices.IndexFunc(all, func(t identity.Tenant) bool { return t.ID == in.ID })
			if n < 0 {
				return TenantUse{}, problem.New(problem.NotFound, "list them: clawjail tenant ls", "there is no tenant %s", quote(in.ID))
			}
			uses, err := s.Health.Quotas(ctx, by, in.ID)
			return TenantUse{tenantOf(all[n]), uses}, err
		},
		View: func(t TenantUse) []Block {
			return append(t.view(), table(t.Quotas, []any{"OF", "HELD", "AT MOST", "ONE AGENT", "IN ALL"}, func(u quota.Use) []any {
				return []any{u.Kind, Share(u, u.Held), Share(u, u.Max), Share(u, u.MaxAgent), Share(u, u.All)}
			}))
		}}
}

// SetTenant changes what a tenant may.
func SetTenant() Op[TenantChange, Tenant] {
	return Op[TenantChange, Tenant]{Method: http.MethodPatch, Path: "/v1/tenants/{id}", ID: "set-tenant", Summary: "Change what a tenant may do", Right: identity.TenantUpdate,
		Command: Command{Use: "set ID --forbid-operator-mode=true|false", Short: "Change what a tenant may do",
			Long: "Changes what a tenant may do. Sessions that are open stay open: close them, or end what its principals have " +
				"open with `clawjail tenant disconnect`.",
			Nothing: "say what to change: --forbid-operator-mode=true or --forbid-operator-mode=false"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in TenantChange) (Tenant, error) {
			// A policy that says nothing is none: left out, false would allow what is forbidden.
			if in.Of == (TenantPolicy{}) {
				return Tenant{}, problem.New(problem.BadRequest, "send forbid_operator_mode or forbid_account_permissions as true or false", "the request changes nothing")
			}
			t, err := s.People.SetPolicy(ctx, by, in.ID, func(p *identity.Policy) {
				if in.Of.ForbidOperatorMode != nil {
					p.ForbidOperatorMode = *in.Of.ForbidOperatorMode
				}
				if in.Of.ForbidAccountPermissions != nil {
					p.ForbidAccountPermissions = *in.Of.ForbidAccountPermissions
				}
			})
			return tenantOf(t), err
		},
		View: Tenant.view}
}

// DisconnectTenant ends what is open for a tenant's principals.
func DisconnectTenant() Op[TenantNamed, Disconnected] {
	return Op[TenantNamed, Disconnected]{Method: http.MethodPost, Path: "/v1/tenants/{id}/disconnect", ID: "disconnect-tenant",
		Summary: "End what is open for a tenant's principals", Right: identity.TenantDisconnect,
		Command: Command{Use: "disconnect ID", Short: "End everything that is open for a tenant's principals",
			Long: "Ends every connection and every session that the principals of a tenant have open. Their keys stay valid: revoke " +
				"them as well, or they come back."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in TenantNamed) (Disconnected, error) {
			n, err := s.People.DisconnectTenant(ctx, by, in.ID)
			return Disconnected{Ended: n}, err
		},
		View: func(d Disconnected) []Block { return []Block{line("ended %s", Count{d.Ended, "connection"})} }}
}
