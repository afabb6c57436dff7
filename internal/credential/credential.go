// Package credential is what people do with accounts and other secrets: import, capture, list and remove them, permit
// their use, and rotate the keys that they stand behind.
//
// Every method first asks whether the caller may, then writes down what is about to be done, then does it. Removing and
// revoking happen also when nothing can be written. Of another tenant's things a caller is told what it is told of
// things that do not exist. Records have domains, numbers and names, and never a value.
package credential

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Authority decides who may do what. *identity.Service is one.
type Authority interface {
	AuthorizeWith(ctx context.Context, p identity.Principal, op identity.Operation, object identity.Object) error
	// Agents lists the agents of a tenant.
	Agents(ctx context.Context, by identity.Principal, tenant string) ([]identity.Agent, error)
	// AccountPermissions says whether agents of a tenant may use accounts without a grant each time.
	AccountPermissions(ctx context.Context, tenant string) error
}

// Sessions has the browsers that accounts are captured from. *session.Service is one.
type Sessions interface {
	Get(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	// Capture gives the cookies that a session's browser has of some domains, and what their pages have stored, to a
	// function, if the caller may have them and no agent ever touched the session.
	Capture(ctx context.Context, by identity.Principal, id string, domains []string, use func(weblogin.Login) error) error
	Close(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	// WaitGone waits until nothing of a session that is ending is left.
	WaitGone(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	// EndPermitted ends the sessions that were opened with a permission and have an access that it is not for; all of them
	// when it is empty.
	EndPermitted(permission string, is grant.Access) int
}

// Options of a Service. All are required but Log.
type Options struct {
	Vault    *vault.Vault
	Grants   *grant.Issuer
	Keyring  *grant.Keyring
	Identity Authority
	Audit    audit.Records
	Sessions Sessions
	Now      func() time.Time
	Log      *slog.Logger
}

// Service manages accounts. All methods may be called at the same time.
type Service struct{ Options }

// New makes a Service.
func New(o Options) (*Service, error) {
	var errs []error
	for what, there := range map[string]bool{
		"vault": o.Vault != nil, "grants": o.Grants != nil, "keyring": o.Keyring != nil, "identity": o.Identity != nil, "audit": o.Audit != nil,
		"sessions": o.Sessions != nil, "clock": o.Now != nil,
	} {
		if !there {
			errs = append(errs, fmt.Errorf("credentials: %s is missing", what))
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{o}, errors.Join(errs...)
}

// DefaultRules are those of a new account: sessions that are steered with tools, one at a time. An account that nothing
// may use would surprise the operator who has just imported it.
func DefaultRules() vault.Rules {
	return vault.Rules{Scopes: []string{string(grant.AccessTools)}, MaxLeases: 1}
}

// may says whether somebody may do something with what is a tenant's.
func (s *Service) may(ctx context.Context, by identity.Principal, op identity.Operation, tenant string) error {
	return s.Identity.AuthorizeWith(ctx, by, op, identity.Object{Tenant: tenant})
}

// mayWith is may for one thing, which a stranger is told that it does not exist.
func (s *Service) mayWith(ctx context.Context, by identity.Principal, op identity.Operation, tenant string, missing error) error {
	err := s.may(ctx, by, op, tenant)
	if by.Hides(err) {
		return missing
	}
	return err
}

// record does something between its intent and its outcome.
func (s *Service) record(ctx context.Context, by identity.Principal, op identity.Operation, tenant, session, target string, fields audit.Fields, do func() error) error {
	return audit.Do(ctx, s.Audit, intent(by, op, tenant, session, target, fields), do)
}

// ending does something that waits only for a moment for its record.
func (s *Service) ending(by identity.Principal, op identity.Operation, tenant, target string, do func() error) error {
	return audit.Ending(s.Audit, intent(by, op, tenant, "", target, nil), do)
}

func intent(by identity.Principal, op identity.Operation, tenant, session, target string, fields audit.Fields) audit.Intent {
	return audit.Intent{Action: string(op), Tenant: tenant, Actor: by.Actor(), Session: session, Target: target, Detail: audit.NewDetail(fields)}
}

// VaultStatus describes the vault's keys.
func (s *Service) VaultStatus(ctx context.Context, by identity.Principal) (vault.Status, error) {
	if err := s.may(ctx, by, identity.VaultStatus, ""); err != nil {
		return vault.Status{}, err
	}
	return s.Vault.Status(ctx)
}

// RotateVault encrypts everything with a new key.
func (s *Service) RotateVault(ctx context.Context, by identity.Principal) (out vault.Rotation, err error) {
	if err := s.may(ctx, by, identity.VaultRotate, ""); err != nil {
		return vault.Rotation{}, err
	}
	err = s.record(ctx, by, identity.VaultRotate, "", "", "", nil, func() error {
		out, err = s.Vault.Rotate(ctx)
		return err
	})
	return out, err
}

// Secrets lists the secrets of a tenant, without their values.
func (s *Service) Secrets(ctx context.Context, by identity.Principal, tenant string) ([]vault.Secret, error) {
	tenant = by.Among(tenant)
	if err := s.may(ctx, by, identity.SecretList, tenant); err != nil {
		return nil, err
	}
	return s.Vault.ListSecrets(ctx, tenant)
}

// PutSecret stores a secret, and replaces the one of the same name. It goes to the origins only; without any,
// [vault.Vault.PutSecret] says where. The caller wipes the value.
func (s *Service) PutSecret(ctx context.Context, by identity.Principal, name vault.SecretName, value secret.Value, origins ...string) error {
	name.Tenant = by.TenantOr(name.Tenant)
	if err := s.may(ctx, by, identity.SecretPut, name.Tenant); err != nil {
		return err
	}
	to, err := vault.ParseDestinations(origins)
	if err != nil {
		return err
	}
	if n := value.Len(); n < redact.Shortest {
		// Nothing tells a shorter one from a word of an answer, so every answer of its service would be refused.
		return problem.New(problem.BadSecret, "see whether it was pasted whole", "a secret has at least %d bytes, and this one has %d", redact.Shortest, n)
	}
	return s.record(ctx, by, identity.SecretPut, name.Tenant, "", name.Service, ofAgent(name), func() error {
		return s.Vault.PutSecret(ctx, name, value, to...)
	})
}

// DeleteSecret removes a secret.
func (s *Service) DeleteSecret(ctx context.Context, by identity.Principal, name vault.SecretName) error {
	ctx, cancel := identity.ToTheEnd(ctx)
	defer cancel()
	name.Tenant = by.TenantOr(name.Tenant)
	missing := problem.New(problem.NotFound, "list them: clawjail secret ls", "there is no such secret")
	if err := s.mayWith(ctx, by, identity.SecretDelete, name.Tenant, missing); err != nil {
		return err
	}
	return s.ending(by, identity.SecretDelete, name.Tenant, name.Service, func() error {
		err := s.Vault.DeleteSecret(ctx, name)
		if problem.CodeOf(err) == problem.NotFound {
			return missing
		}
		return err
	})
}

func ofAgent(name vault.SecretName) audit.Fields {
	if name.Agent == "" {
		return nil
	}
	return audit.Fields{"agent_id": name.Agent}
}
