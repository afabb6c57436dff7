package op

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// AllowRequest is the body that permits an agent the use of an account.
type AllowRequest struct {
	Tenant        string       `json:"tenant,omitempty" doc:"the caller's own, or default, when it is left out" flag:"tenant"`
	Domain        string       `json:"domain" doc:"registrable domain of the account" arg:"1" complete:"accounts"`
	Agent         string       `json:"agent" doc:"the agent's name or id" flag:"agent" value:"name" usage:"name of the agent" need:"whom it is for is missing: --agent NAME" complete:"agents"`
	Access        grant.Access `json:"access,omitempty" enum:"tools,cdp" doc:"widest access of its sessions; tools is the default" flag:"access" usage:"widest access of its sessions: tools (the default), or cdp: scripts read what pages show and store, and cookies without HttpOnly; the jar and the headers are closed"`
	EgressDomains []string     `json:"egress_domains,omitempty" nullable:"false" doc:"other domains, or hosts, that its sessions may reach; those that are kept with the account when it is left out" flag:"egress-domain" value:"domain" usage:"domain or host that its sessions may reach besides; those that are kept with the account when it is left out"`
	Ask           grant.Ask    `json:"ask,omitempty" enum:"never,first,always" doc:"ask a person before each use, before the first, or never, which is the default" flag:"ask" usage:"ask a person before each use (always), before the first (first), or never, which is the default"`
	Hours         grant.Hours  `json:"hours,omitempty" doc:"the hours of the day in which it is valid, in UTC, such as 08-18" flag:"hours" value:"hours" usage:"hours of the day in which it is valid, in UTC, such as 08-18 or 22-06"`
	Times         *int         `json:"times,omitempty" minimum:"1" doc:"for how many sessions; any number when it is left out" flag:"times" value:"number"`
	For           string       `json:"for,omitempty" doc:"for how long, such as 30d or 12h; without an end when it is left out" flag:"for" is:"span"`
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

type (
	// Allowing is a permission to be given.
	Allowing struct{ Body[AllowRequest] }

	// PermissionsListed says which permissions are listed.
	PermissionsListed struct {
		OfTenant
		Domain string `query:"domain" maxLength:"253" doc:"only permissions for the account of this domain" arg:"1?" complete:"allowed accounts"`
		Agent  string `query:"agent" maxLength:"64" doc:"only permissions of the agent with this name or id" flag:"agent" value:"name" usage:"only those of the agent with this name" complete:"agents"`
	}

	// PermissionNamed names a permission.
	PermissionNamed struct {
		ID     string `path:"id" maxLength:"64" doc:"the permission's id"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, any"`
	}
)

// AllowAccount permits an agent the use of an account, in the place of what it was permitted before.
func AllowAccount() Op[Allowing, grant.Permission] {
	return Op[Allowing, grant.Permission]{Method: http.MethodPost, Path: "/v1/account-permissions", ID: "allow-account",
		Summary: "Permit an agent an account, for many sessions", Right: identity.CookiesAllow,
		Command: Command{Use: "allow DOMAIN --agent NAME", Short: "Let an agent use an account in many sessions",
			Long: "Permits an agent to open sessions with an account without a grant in hand: for each of them a grant is issued, used and recorded at " +
				"once. What the agent was permitted with the account before is replaced; its open sessions go on, unless their access is wider than " +
				"it may be now. `clawjail cookies disallow` takes a permission back, and ends the sessions that have it. Removing the agent or the " +
				"account ends it too.",
			Example: "  clawjail cookies allow example.com --agent shopper\n  clawjail cookies allow example.com --agent shopper --for 30d --times 20 " +
				"--hours 08-18 --ask first"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in Allowing) (grant.Permission, error) {
			lasts, err := grant.ParseFor(in.Of.For)
			if err := errors.Join(err, CheckTenant(in.Of.Tenant)); err != nil {
				return grant.Permission{}, err
			}
			return s.Credentials.AllowAccount(ctx, by, credential.Allow{Tenant: in.Of.Tenant, Domain: in.Of.Domain, Agent: in.Of.Agent, Access: in.Of.Access,
				EgressDomains: in.Of.EgressDomains, Ask: in.Of.Ask, Hours: in.Of.Hours, Times: in.Of.Times, For: lasts})
		},
		View: allowedView}
}

// allowedView says in words what an agent may.
func allowedView(p grant.Permission) []Block {
	text := Joined{p.AgentName, " may use the account of ", p.Domain, " with ", p.Access}
	if p.Left != nil {
		text = append(text, " in ", Count{*p.Left, "session"})
	}
	if p.Hours != "" {
		text = append(text, ", in the hours ", p.Hours, " (UTC)")
	}
	if p.ExpiresAt.IsZero() {
		text = append(text, ", until it is taken back")
	} else {
		text = append(text, ", until ", p.ExpiresAt)
	}
	text = append(text, map[grant.Ask]string{grant.AskFirst: "; a person is asked before the first use", grant.AskAlways: "; a person is asked before each use"}[p.Ask])
	if len(p.EgressDomains) > 0 {
		text = append(text, "; its sessions may also reach ", strings.Join(p.EgressDomains, ", "))
	}
	return []Block{line("%s", text)}
}

// known refuses a name of nothing, for which an empty list would be no answer.
func (in PermissionsListed) known(ctx context.Context, s Backend, by identity.Principal) error {
	if in.Domain != "" {
		all, err := s.Credentials.Cookies(ctx, by, in.Tenant)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(c vault.CookieSet) bool { return strings.EqualFold(c.Domain, in.Domain) }) {
			return problem.New(problem.NotFound, "list them: clawjail cookies ls", "there is no account of %s", quote(in.Domain))
		}
	}
	if in.Agent == "" {
		return nil
	}
	all, err := s.People.Agents(ctx, by, by.Among(in.Tenant))
	if err == nil && !slices.ContainsFunc(all, func(a identity.Agent) bool { return a.Name == in.Agent || a.ID == in.Agent }) {
		err = problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %s", quote(in.Agent))
	}
	return err
}

// ListPermissions lists which agents may use which accounts without a grant.
func ListPermissions() Op[PermissionsListed, Permissions] {
	return Op[PermissionsListed, Permissions]{Method: http.MethodGet, Path: "/v1/account-permissions", ID: "list-account-permissions",
		Summary: "List which agent may use which account", Right: identity.CookiesList,
		Command: Command{Use: "allowed [DOMAIN]", Short: "List which agents may use which accounts"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in PermissionsListed) (Permissions, error) {
			all, err := s.Credentials.Permissions(ctx, by, in.Tenant)
			out := Permissions{[]grant.Permission{}}
			for _, p := range all {
				if (in.Domain == "" || strings.EqualFold(p.Domain, in.Domain)) && (in.Agent == "" || p.AgentName == in.Agent || p.Agent == in.Agent) {
					out.Permissions = append(out.Permissions, p)
				}
			}
			if err == nil && len(out.Permissions) == 0 {
				err = in.known(ctx, s, by)
			}
			return out, err
		},
		View: func(all Permissions) []Block {
			heading := []any{"DOMAIN", "TENANT", "AGENT", "ACCESS", "SINCE", "UNTIL", "LEFT", "HOURS (UTC)", "ASK", "USED", "LAST USED", "BY"}
			out := table(all.Permissions, heading, func(p grant.Permission) []any {
				var left any = "any"
				if p.Left != nil {
					left = *p.Left
				}
				by := p.By
				if p.Declared {
					by += " (clawbots.yml)"
				}
				return []any{p.Domain, p.Tenant, p.AgentName, p.Access, p.CreatedAt, Ends(p.ExpiresAt), left, p.Hours, p.Ask, p.Used, p.LastUsedAt, by}
			})
			out.Folds = 2
			return []Block{out}
		}}
}

// DisallowAccount takes a permission back, and ends the sessions that were opened with it.
func DisallowAccount() Op[PermissionNamed, Disallowed] {
	return Op[PermissionNamed, Disallowed]{Method: http.MethodDelete, Path: "/v1/account-permissions/{id}", ID: "disallow-account",
		Summary: "Take a permission back, and end its sessions", Right: identity.CookiesDisallow,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in PermissionNamed) (Disallowed, error) {
			p, ended, err := s.Credentials.DisallowAccount(ctx, by, in.Tenant, in.ID)
			return Disallowed{p, ended}, err
		}}
}
