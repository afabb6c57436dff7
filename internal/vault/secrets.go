package vault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// longestSecret bounds a secret, in bytes: a key file of some service is a few kilobytes.
const longestSecret = 64 << 10

// SecretName identifies a secret.
type SecretName struct {
	Tenant string
	// Agent is the ID of the agent whose secret it is; empty: the tenant's, for all its agents.
	Agent   string
	Service string // [a-z0-9._-]{1,64}, the first one a letter or a digit
}

func (n SecretName) check() error {
	wrong := &problem.ValidationError{Code: problem.BadSecret}
	if n.Tenant == "" {
		wrong.Add("tenant", "is missing")
	}
	if n.Agent != "" && !printable(n.Agent, longScope) {
		wrong.Add("agent", "is not an ID")
	}
	if !serviceName(n.Service) {
		wrong.Add("service", "must be 1 to 64 of a-z, 0-9, dot, underscore and hyphen")
	}
	return wrong.Err()
}

func serviceName(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	return len(s) >= 1 && len(s) <= 64 && strings.IndexByte(letters, s[0]) >= 0 && strings.Trim(s, letters+"._-") == ""
}

func noSecret(n SecretName) error {
	return problem.New(problem.NotFound, "an operator has to store it first", "there is no secret of the service %s", n.Service)
}

// Secret is what may be known about a secret without using it.
type Secret struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"tenant"`
	Agent     string    `json:"agent,omitempty"`
	Service   string    `json:"service"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	UsedAt    time.Time `json:"used_at,omitzero"`
	// BoundTo is where it may go: origins, or jail. Nothing: its first use binds it.
	BoundTo []Destination `json:"bound_to,omitempty"`
}

// PutSecret encrypts a secret with what it is bound to, and replaces the one of the same name. It does not keep or wipe
// value. Without a destination, it is bound to those of the one that it replaces, or to the only one that is declared.
func (v *Vault) PutSecret(ctx context.Context, n SecretName, value secret.Value, to ...Destination) error {
	if err := n.check(); err != nil {
		return err
	}
	if value.Len() == 0 || value.Len() > longestSecret {
		return problem.New(problem.BadSecret, "", "a secret has 1 to %d bytes", longestSecret)
	}
	return v.exclusively(ctx, func() error {
		keys, err := v.reload()
		if err != nil {
			return err
		}
		return decided(func() error { return v.putSecret(ctx, keys, n, value, to) })
	})
}

func (v *Vault) putSecret(ctx context.Context, keys *keyring, n SecretName, value secret.Value, to []Destination) error {
	now := v.now()
	was, err := v.store.Secret(ctx, n.Tenant, n.Agent, n.Service)
	s := was
	if errors.Is(err, store.ErrNotFound) {
		s = store.Secret{ID: newID(), Tenant: n.Tenant, Agent: n.Agent, Service: n.Service, CreatedAt: now}
	} else if err != nil {
		return fmt.Errorf("read secret %s: %w", n.Service, err)
	}
	if len(to) == 0 {
		// The destinations stay as they were; a secret that no longer opens has none.
		to = v.boundTo(ctx, s)
	}
	if len(to) == 0 {
		if to, err = v.only(ctx, s); err != nil {
			return err
		}
	}
	s.UpdatedAt = now
	err = value.Use(func(b []byte) (err error) {
		if slices.ContainsFunc(to, func(d Destination) bool { return d != InJail }) {
			err = Sendable(b)
		}
		if err == nil {
			s.Ciphertext, err = sealBound(keys, s, to, b)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := v.fits(ctx, row{place: placeOfSecret(s), bytes: int64(len(s.Ciphertext))}); err != nil {
		return err
	}
	return stored(v.store.PutSecret(ctx, was, s), n.Tenant, "secret "+n.Service)
}

// boundTo is what a secret is bound to, as far as it can be read.
func (v *Vault) boundTo(ctx context.Context, s store.Secret) []Destination {
	if placeOfSecret(s).form != formBound {
		return nil
	}
	plaintext, to, _, err := v.openSecret(ctx, &s)
	clear(plaintext)
	if err != nil {
		return nil // its use says what is wrong
	}
	return to
}

// openSecret decrypts a secret, which may be another row afterwards; see [reread]. The caller wipes the plaintext, of which value is a part.
func (v *Vault) openSecret(ctx context.Context, s *store.Secret) (plaintext []byte, to []Destination, value []byte, err error) {
	plaintext, err = v.unseal(placeOfSecret(*s), s.Ciphertext)
	if reread(err) {
		if *s, err = v.secret(ctx, SecretName{s.Tenant, s.Agent, s.Service}); err == nil {
			plaintext, err = v.unseal(placeOfSecret(*s), s.Ciphertext)
		}
	}
	if err == nil {
		to, value, err = unbind(placeOfSecret(*s), plaintext)
	}
	return plaintext, to, value, err
}

func (v *Vault) secret(ctx context.Context, n SecretName) (store.Secret, error) {
	s, err := v.store.Secret(ctx, n.Tenant, n.Agent, n.Service)
	if errors.Is(err, store.ErrNotFound) {
		return s, noSecret(n)
	}
	if err != nil {
		return s, fmt.Errorf("read secret %s: %w", n.Service, err)
	}
	return s, nil
}

// UseSecret decrypts the agent's secret of a service, or the tenant's if the agent has none of its own, and gives it to
// a function. The value is overwritten when the function returns. Its error is returned as it is. The use is not recorded
// here: see MarkUsed, which writes to the database and need not be waited for. A secret that is not bound to the destination
// is refused, for every caller.
func (v *Vault) UseSecret(ctx context.Context, n SecretName, to Destination, use func(secret.Value) error) error {
	if err := n.check(); err != nil {
		return err
	}
	var plaintext, part []byte
	defer func() { clear(plaintext) }()
	err := decided(func() error {
		clear(plaintext)
		s, err := v.secret(ctx, n)
		if problem.CodeOf(err) == problem.NotFound && n.Agent != "" {
			s, err = v.secret(ctx, SecretName{Tenant: n.Tenant, Service: n.Service})
		}
		if err != nil {
			return err
		}
		var bound []Destination
		if plaintext, bound, part, err = v.openSecret(ctx, &s); err != nil {
			return err
		}
		return v.goesTo(ctx, s, bound, to, part)
	})
	if err != nil {
		return err
	}
	value := secret.Own(part)
	defer value.Wipe()
	return use(value)
}

// MarkUsed says that the secret that UseSecret takes was used: the agent's own, or the tenant's if the agent has none.
// An earlier time than the known one changes nothing.
func (v *Vault) MarkUsed(ctx context.Context, n SecretName, at time.Time) error {
	if err := n.check(); err != nil {
		return err
	}
	err := v.store.MarkUsed(ctx, n.Tenant, n.Agent, n.Service, at)
	if errors.Is(err, store.ErrNotFound) && n.Agent != "" {
		err = v.store.MarkUsed(ctx, n.Tenant, "", n.Service, at)
	}
	if errors.Is(err, store.ErrNotFound) {
		return noSecret(n)
	}
	if err != nil {
		return fmt.Errorf("mark secret %s as used: %w", n.Service, err)
	}
	return nil
}

// ListSecrets describes the secrets of a tenant and its agents, by service; of all tenants when tenant is empty.
func (v *Vault) ListSecrets(ctx context.Context, tenant string) ([]Secret, error) {
	rows, err := v.store.ListSecrets(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	out := make([]Secret, len(rows))
	for i, s := range rows {
		out[i] = Secret{s.ID, s.Tenant, s.Agent, s.Service, s.CreatedAt, s.UpdatedAt, s.UsedAt, v.boundTo(ctx, s)}
	}
	return out, nil
}

// DeleteSecret removes exactly the secret that is named: an agent's own, or the tenant's.
func (v *Vault) DeleteSecret(ctx context.Context, n SecretName) error {
	if err := n.check(); err != nil {
		return err
	}
	return v.exclusively(ctx, func() error {
		err := v.store.DeleteSecret(ctx, n.Tenant, n.Agent, n.Service)
		if errors.Is(err, store.ErrNotFound) {
			return noSecret(n)
		}
		if err != nil {
			return fmt.Errorf("delete secret %s: %w", n.Service, err)
		}
		return nil
	})
}
