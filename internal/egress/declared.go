package egress

import (
	"context"
	"errors"

	"github.com/clawjail/clawjail/internal/identity"
)

// CheckRule says what would keep [Book.AddRule] from making a rule, as far as the rule itself goes.
func CheckRule(r Rule) error {
	if r.Priority == 0 {
		r.Priority = defaultPriority
	}
	r.Methods = upperAll(r.Methods)
	f := newFlaws()
	validRule(f, r)
	return f.err()
}

// CheckSettings says what would keep [Book.PutSettings] from taking settings, as far as they themselves go.
func CheckSettings(s Settings) error {
	f := newFlaws()
	validSettings(f, s)
	return f.err()
}

// AllSettings lists what is set in a tenant: for the tenant itself and for its agents, whose ids are in Meta.Agent.
func (b *Book) AllSettings(ctx context.Context, by identity.Principal, tenant string) ([]Settings, error) {
	if tenant == "" {
		return nil, errors.New("list settings: no tenant is named")
	}
	if err := b.may(ctx, by, identity.SettingsRead, scope{tenant: tenant}); err != nil {
		return nil, err
	}
	s, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	var out []Settings
	now := b.o.Now()
	for _, i := range s.from {
		if i.settings != nil && i.entry.Tenant == tenant && !i.expired(now) {
			out = append(out, *i.settings)
		}
	}
	return out, nil
}
