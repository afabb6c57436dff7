package op

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/identity"
)

// Principal is who calls.
type Principal struct {
	Kind      identity.Kind `json:"kind" enum:"admin,operator,agent"`
	ID        string        `json:"id"`
	Name      string        `json:"name"`
	Tenant    string        `json:"tenant,omitempty" doc:"missing for a principal of all tenants"`
	Role      identity.Role `json:"role,omitempty" enum:"viewer,operator,admin" doc:"missing for agents"`
	ExpiresAt time.Time     `json:"expires_at,omitzero" doc:"when the key expires; missing when it never does"`
	// Scope and Session are there when it is a token for one session; the rest is of who made it.
	Scope   identity.Scope `json:"scope,omitempty" enum:"view,control,cdp" doc:"of a token for one session"`
	Session string         `json:"session,omitempty" doc:"the session that the token is for"`
}

// Operator is a person, or a program of theirs, with a key.
type Operator struct {
	ID        string        `json:"id"`
	Name      string        `json:"name"`
	Tenant    string        `json:"tenant,omitempty" doc:"missing for an admin of all tenants"`
	Role      identity.Role `json:"role" enum:"viewer,operator,admin"`
	KeyHint   string        `json:"key_hint" doc:"the beginning of the key"`
	CreatedAt time.Time     `json:"created_at"`
	ExpiresAt time.Time     `json:"expires_at,omitzero"`
	RevokedAt time.Time     `json:"revoked_at,omitzero"`
}

// Operators is the answer to a listing.
type Operators struct {
	Operators []Operator `json:"operators" nullable:"false"`
}

// IssuedOperator is an operator with a new key, which is told once. It prints without the key.
type IssuedOperator struct {
	Key      string   `json:"key" doc:"the key; shown only once"`
	Operator Operator `json:"operator"`
}

// Format implements fmt.Formatter, for every verb.
func (i IssuedOperator) Format(f fmt.State, _ rune) { WithoutKey(f, "operator "+i.Operator.ID) }

// LogValue implements slog.LogValuer.
func (i IssuedOperator) LogValue() slog.Value { return slog.StringValue("operator " + i.Operator.ID) }

// WithoutKey prints the name of a value that holds a key on its way to the key's owner, instead of the value.
func WithoutKey(w io.Writer, what string) {
	_, _ = io.WriteString(w, what+" "+secret.Redacted) // the writers of fmt do not fail
}

// OperatorRequest is the body that makes an operator.
type OperatorRequest struct {
	Name   string `json:"name" doc:"1 to 40 of a-z, 0-9 and -; not unique" arg:"1" example:"ada"`
	Tenant string `json:"tenant,omitempty" doc:"the caller's own when it is left out; of a caller of all tenants, that is all" flag:"tenant"`
	Role   string `json:"role" enum:"viewer,operator,admin" flag:"role" usage:"admin, operator or viewer" need:"what they may do is missing: --role admin, operator or viewer" example:"viewer"`
	Life   string `json:"life,omitempty" doc:"how long the key is valid, such as 30d, or never, the default" flag:"expires" usage:"how long the key is valid, such as 30d, or never" is:"life" offer:"24h,30d,never"`
}

// LifeRequest is the body that makes a new key of an operator's.
type LifeRequest struct {
	Life string `json:"life,omitempty" doc:"how long the key is valid, such as 30d, or never, the default" flag:"expires" usage:"how long the key is valid, such as 30d, or never" is:"life" offer:"24h,30d,never" example:"1h"`
}

type (
	// NewOperator is an operator to be made.
	NewOperator struct{ Body[OperatorRequest] }

	// OperatorNamed names an operator.
	OperatorNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the operator's id" arg:"1" complete:"operators"`
	}

	// NewKey is a key to be made for an operator.
	NewKey struct {
		OperatorNamed
		Body[LifeRequest]
	}
)

func operatorOf(o identity.Operator) Operator {
	return Operator{ID: o.ID, Name: o.Name, Tenant: o.Tenant, Role: identity.Role(o.Role), KeyHint: o.KeyHint, CreatedAt: o.CreatedAt, ExpiresAt: o.ExpiresAt,
		RevokedAt: o.RevokedAt}
}

func (i IssuedOperator) view() []Block {
	o := i.Operator
	return keyOf(i.Key, fmt.Sprintf("the %s %s (%s)", o.Role, o.Name, o.ID), o.ExpiresAt)
}

// keyOf is a new key: alone, so that a script can keep it, and beside it whose it is.
func keyOf(key, whose string, expires time.Time) []Block {
	said := line("this is the key of %s; it is shown once. It expires: %s", whose, Ends(expires))
	said.Aside = true
	return []Block{line("%s", key), said}
}

// ListOperators lists operators.
func ListOperators() Op[OfTenant, Operators] {
	return Op[OfTenant, Operators]{Method: http.MethodGet, Path: "/v1/operators", ID: "list-operators", Summary: "List operators", Right: identity.OperatorList,
		Command: Command{Use: "ls", Aliases: []string{"list"}},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (Operators, error) {
			all, err := s.People.Operators(ctx, by, by.Among(in.Tenant))
			return Operators{listOf(all, operatorOf)}, err
		},
		View: func(all Operators) []Block {
			return []Block{table(all.Operators, []any{"ID", "NAME", "TENANT", "ROLE", "KEY", "STATE", "MADE", "EXPIRES"}, func(o Operator) []any {
				return []any{o.ID, o.Name, allWhenNone(o.Tenant), o.Role, o.KeyHint + "…", Key{o.RevokedAt, o.ExpiresAt}, o.CreatedAt, Ends(o.ExpiresAt)}
			})}
		}}
}

// CreateOperator makes an operator.
func CreateOperator() Op[NewOperator, IssuedOperator] {
	return Op[NewOperator, IssuedOperator]{Method: http.MethodPost, Path: "/v1/operators", ID: "create-operator", Summary: "Make an operator", Right: identity.OperatorCreate,
		Status: http.StatusCreated,
		Command: Command{Use: "create NAME --role ROLE", Short: "Make an operator, and print the key",
			Long:    "Makes an operator. The key alone is on standard output, and is never shown again. Its owner sets it in the variable CLAWJAIL_KEY.",
			Example: "  clawjail operator create ada --tenant default --role operator --expires 30d -o ada.key", Key: true},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewOperator) (IssuedOperator, error) {
			life, err := Life(in.Of.Life)
			if err != nil {
				return IssuedOperator{}, err
			}
			if err := CheckTenant(in.Of.Tenant); err != nil {
				return IssuedOperator{}, err
			}
			key, o, err := s.People.CreateOperator(ctx, by,
				identity.NewOperator{Name: in.Of.Name, Tenant: by.Among(in.Of.Tenant), Role: identity.Role(in.Of.Role), Life: life})
			return IssuedOperator{Key: key.Reveal(), Operator: operatorOf(o)}, err
		},
		View: IssuedOperator.view}
}

// RotateOperator gives an operator a new key.
func RotateOperator() Op[NewKey, IssuedOperator] {
	return Op[NewKey, IssuedOperator]{Method: http.MethodPost, Path: "/v1/operators/{id}/rotate", ID: "rotate-operator", Summary: "Give an operator a new key",
		Right: identity.OperatorRotate, Status: http.StatusCreated,
		Command: Command{Use: "rotate ID", Short: "Give an operator a new key, and revoke the old one at once",
			Long: "Gives an operator a new key, which has an id of its own, and revokes the old one at once, with everything that " +
				"is open with it. To have two valid keys for a while, make a second operator first.", Key: true},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewKey) (IssuedOperator, error) {
			life, err := Life(in.Of.Life)
			if err != nil {
				return IssuedOperator{}, err
			}
			key, o, err := s.People.RotateOperator(ctx, by, in.ID, life)
			return IssuedOperator{Key: key.Reveal(), Operator: operatorOf(o)}, err
		},
		View: IssuedOperator.view}
}

// RevokeOperator ends an operator's key, and what is open with it.
func RevokeOperator() Op[OperatorNamed, None] {
	return Op[OperatorNamed, None]{Method: http.MethodDelete, Path: "/v1/operators/{id}", ID: "revoke-operator", Summary: "Revoke an operator's key", Right: identity.OperatorRevoke,
		Command: Command{Use: "revoke ID…", Short: "Revoke keys of operators, and end what is open with them"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OperatorNamed) (None, error) {
			return None{}, s.People.RevokeOperator(ctx, by, in.ID)
		}}
}

// WhoAmI says whose the key is.
func WhoAmI() Op[None, Principal] {
	return Op[None, Principal]{Method: http.MethodGet, Path: "/v1/whoami", ID: "whoami", Summary: "Show whose key is used",
		Command: Command{Use: "whoami", Short: "Show whose key is used"},
		Call: func(_ context.Context, _ Backend, by identity.Principal, _ None) (Principal, error) {
			return Principal{Kind: by.Kind, ID: by.ID, Name: by.Name, Tenant: by.Tenant, Role: by.Role, ExpiresAt: by.ExpiresAt, Scope: by.Scope, Session: by.Session}, nil
		},
		View: func(p Principal) []Block {
			return []Block{{Pairs: [][2]any{{"kind", p.Kind}, {"id", p.ID}, {"name", p.Name}, {"tenant", allWhenNone(p.Tenant)}, {"role", p.Role},
				{"key expires", Ends(p.ExpiresAt)}}}}
		}}
}
