package op

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// GrantRequest is the body that issues a grant.
type GrantRequest struct {
	Tenant        string       `json:"tenant,omitempty" doc:"whose accounts it is for; the caller's own, or default, when it is left out" flag:"tenant"`
	Domains       []string     `json:"domains" nullable:"false" doc:"registrable domains whose accounts a session may use" flag:"domain" value:"domain" usage:"domain whose accounts the session may use" need:"whose accounts it permits is missing: --domain example.com" complete:"accounts" example:"[\"example.com\"]"`
	EgressDomains []string     `json:"egress_domains,omitempty" nullable:"false" doc:"other domains, or hosts, that it may reach" flag:"egress-domain" value:"domain" usage:"domain or host that the session may reach besides"`
	Access        grant.Access `json:"access,omitempty" enum:"tools,cdp" doc:"access of the session; tools is the default" flag:"access" usage:"access of the session: tools (the default), or cdp: scripts read what pages show and store, and cookies without HttpOnly; the jar and the headers are closed"`
	TTL           string       `json:"ttl,omitempty" doc:"how long the grant is valid, such as 10m" flag:"ttl" usage:"how long the grant is valid, such as 10m (the default)" is:"duration"`
	Origin        string       `json:"origin,omitempty" doc:"the only session that may use it" flag:"origin" value:"session" usage:"the only session that may use it" complete:"sessions"`
}

// Request reads the texts. Whether their values are allowed is the service's to say.
func (r GrantRequest) Request() (grant.Request, error) {
	if err := CheckTenant(r.Tenant); err != nil {
		return grant.Request{}, err
	}
	out := grant.Request{Tenant: r.Tenant, Domains: r.Domains, EgressDomains: r.EgressDomains, Access: r.Access, Origin: r.Origin}
	if r.TTL == "" {
		return out, nil // the service has a default, and a zero that was written is an error
	}
	var err error
	if out.TTL, err = texts.Duration(r.TTL); err != nil || out.TTL <= 0 {
		return out, problem.New(problem.BadLimit, "write a number with s, m, h or d, such as 10m", "ttl %s is not a positive duration", quote(r.TTL))
	}
	return out, nil
}

// Grant is what became of a grant, without its token.
type Grant struct {
	ID            string    `json:"id"`
	State         string    `json:"state" enum:"active,pending,used,expired,revoked"`
	Tenant        string    `json:"tenant"`
	Domains       []string  `json:"domains" nullable:"false" doc:"domains of the accounts that it is for"`
	EgressDomains []string  `json:"egress_domains" nullable:"false" doc:"other domains, or hosts, that the session may reach"`
	Access        string    `json:"access" enum:"tools,cdp"`
	Origin        string    `json:"origin,omitempty" doc:"the only session that may use it"`
	Operator      string    `json:"operator" doc:"operator who issued the grant"`
	IssuedAt      time.Time `json:"issued_at"`
	NotBefore     time.Time `json:"not_before"`
	ExpiresAt     time.Time `json:"expires_at"`
	UsedAt        time.Time `json:"used_at,omitzero"`
	UsedBy        string    `json:"used_by,omitempty" doc:"the session that was opened with it"`
	RevokedAt     time.Time `json:"revoked_at,omitzero"`
	RevokedBy     string    `json:"revoked_by,omitempty"`
}

// Grants is the answer to a listing.
type Grants struct {
	Grants []Grant `json:"grants" nullable:"false"`
}

// IssuedGrant is a new grant with its token, which is told once. It prints without the token.
type IssuedGrant struct {
	Token string `json:"token" doc:"the token of the grant, for the client that opens the session; shown only once"`
	Grant Grant  `json:"grant"`
}

// Format implements fmt.Formatter, for every verb.
func (i IssuedGrant) Format(f fmt.State, _ rune) { WithoutKey(f, "grant "+i.Grant.ID) }

// LogValue implements slog.LogValuer.
func (i IssuedGrant) LogValue() slog.Value { return slog.StringValue("grant " + i.Grant.ID) }

// GrantKey is one of the keys that grants are signed with.
type GrantKey struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	Signs     bool      `json:"signs" doc:"new grants are signed with it"`
	// VerifiesUntil is of a key that signs no more.
	VerifiesUntil time.Time `json:"verifies_until,omitzero" doc:"until when grants signed with it are valid"`
}

// GrantKeys is the answer to a listing, the key that signs first.
type GrantKeys struct {
	Keys []GrantKey `json:"keys" nullable:"false"`
}

type (
	// NewGrant is a grant to be issued.
	NewGrant struct{ Body[GrantRequest] }

	// GrantsListed says which grants are listed.
	GrantsListed struct {
		OfTenant
		Usable bool `query:"usable" doc:"only those that can be used, now or when their time comes" flag:"all,a" usage:"also those that were used or revoked, or have expired" is:"absent"`
	}

	// GrantNamed names a grant.
	GrantNamed struct {
		ID     string `path:"id" maxLength:"64" doc:"the grant's id"`
		Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, any"`
	}
)

func grantOf(g grant.Grant, now time.Time) Grant {
	return Grant{
		ID: g.ID, State: grant.State(g, now), Tenant: g.Tenant, Domains: listOf(g.Domains, same), EgressDomains: listOf(g.EgressDomains, same), Access: g.Access,
		Origin: g.Origin, Operator: g.Operator, IssuedAt: g.IssuedAt, NotBefore: g.NotBefore, ExpiresAt: g.ExpiresAt,
		UsedAt: g.UsedAt, UsedBy: g.UsedBy, RevokedAt: g.RevokedAt, RevokedBy: g.RevokedBy,
	}
}

func grantKeyOf(k grant.KeyInfo) GrantKey {
	return GrantKey{ID: k.ID, CreatedAt: k.CreatedAt, Signs: k.Signs(), VerifiesUntil: k.VerifiesUntil}
}

// view has the token alone, so that a script can keep it, and beside it in words what the grant is good for.
func (i IssuedGrant) view() []Block {
	g, more := i.Grant, ""
	if len(g.EgressDomains) > 0 {
		more = "; it may also reach " + strings.Join(g.EgressDomains, ", ")
	}
	if g.Origin != "" {
		more += "; only for " + g.Origin
	}
	words := line("grant %s lets one session of %s use %s with %s, until %s%s", g.ID, g.Tenant, strings.Join(g.Domains, ", "), g.Access, Deadline(g.ExpiresAt), more)
	words.Aside = true
	return []Block{line("%s", i.Token), words}
}

// IssueGrant issues a grant. Its token is in the answer, and in no other.
func IssueGrant() Op[NewGrant, IssuedGrant] {
	return Op[NewGrant, IssuedGrant]{Method: http.MethodPost, Path: "/v1/grants", ID: "issue-grant", Summary: "Issue a grant: permit one session to use accounts", Right: identity.GrantIssue,
		Status: http.StatusCreated,
		Command: Command{Use: "issue --domain DOMAIN", Short: "Issue a grant, and print its token",
			Long: "Issues a grant. The token alone is on standard output, so that a script can keep it; what it permits is on " +
				"standard error. Give the token to the client that opens the session, in the variable CLAWJAIL_GRANT or on standard " +
				"input: an argument can be read by other users of the machine.",
			Example: "  export CLAWJAIL_GRANT=$(clawjail grant issue --domain example.com --ttl 10m)\n" +
				"  clawjail session open --mode operator --domain example.com https://example.com/", Key: true},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewGrant) (IssuedGrant, error) {
			request, err := in.Of.Request()
			if err != nil {
				return IssuedGrant{}, err
			}
			token, g, err := s.Credentials.IssueGrant(ctx, by, request)
			return IssuedGrant{Token: token.Reveal(), Grant: grantOf(g, s.Now())}, err
		},
		View: IssuedGrant.view}
}

// ListGrants lists grants, newest first.
func ListGrants() Op[GrantsListed, Grants] {
	return Op[GrantsListed, Grants]{Method: http.MethodGet, Path: "/v1/grants", ID: "list-grants", Summary: "List grants, newest first", Right: identity.GrantList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List the grants that can be used"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in GrantsListed) (Grants, error) {
			all, err := s.Credentials.ListGrants(ctx, by, in.Tenant)
			out := Grants{[]Grant{}}
			for _, g := range all {
				if one := grantOf(g, s.Now()); !in.Usable || one.State == "active" || one.State == "pending" {
					out.Grants = append(out.Grants, one)
				}
			}
			return out, err
		},
		View: func(all Grants) []Block {
			out := table(all.Grants, []any{"ID", "TENANT", "STATE", "DOMAINS", "ACCESS", "EXPIRES", "ISSUED BY", "USED BY"}, func(g Grant) []any {
				return []any{g.ID, g.Tenant, g.State, g.Domains, g.Access, g.ExpiresAt, g.Operator, g.UsedBy}
			})
			out.Folds = 2
			return []Block{out}
		}}
}

// RevokeGrant ends a grant. A session that it has opened runs on; UsedBy names it, and the command can close it as well.
func RevokeGrant() Op[GrantNamed, Grant] {
	return Op[GrantNamed, Grant]{Method: http.MethodDelete, Path: "/v1/grants/{id}", ID: "revoke-grant", Summary: "Revoke a grant; its session runs on", Right: identity.GrantRevoke,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in GrantNamed) (Grant, error) {
			g, err := s.Credentials.RevokeGrant(ctx, by, in.Tenant, in.ID)
			return grantOf(g, s.Now()), err
		}}
}

// ListGrantKeys lists the keys that grants are signed with, the one that signs first.
func ListGrantKeys() Op[None, GrantKeys] {
	return Op[None, GrantKeys]{Method: http.MethodGet, Path: "/v1/grant-keys", ID: "list-grant-keys", Summary: "List the keys of grants", Right: identity.GrantKeysRotate,
		Command: Command{Use: "keys", Short: "List the keys that grants are signed with"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (GrantKeys, error) {
			keys, err := s.Credentials.GrantKeys(ctx, by)
			return GrantKeys{listOf(keys, grantKeyOf)}, err
		},
		View: func(all GrantKeys) []Block {
			return []Block{table(all.Keys, []any{"ID", "MADE", "STATE"}, func(k GrantKey) []any {
				var state any = "signs"
				if !k.Signs {
					state = Joined{"verifies until ", k.VerifiesUntil}
				}
				return []any{k.ID, k.CreatedAt, state}
			})}
		}}
}

// RotateGrantKeys makes a key that grants are signed with from now on.
func RotateGrantKeys() Op[None, GrantKey] {
	return Op[None, GrantKey]{Method: http.MethodPost, Path: "/v1/grant-keys/rotate", ID: "rotate-grant-keys", Summary: "Sign grants with a new key", Right: identity.GrantKeysRotate,
		Command: Command{Use: "rotate-keys", Long: "Makes a new key that grants are signed with from now on. Grants that have been issued stay valid."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (GrantKey, error) {
			key, err := s.Credentials.RotateGrantKeys(ctx, by)
			return grantKeyOf(key), err
		},
		View: func(k GrantKey) []Block { return []Block{line("grants are signed with %s from now on", k.ID)} }}
}
