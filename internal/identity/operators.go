package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Operator is a person, or a program of theirs, with a key.
type Operator = store.Operator

// NewOperator is an operator to be made.
type NewOperator struct {
	Name string // for people; not unique
	// Tenant is empty for an admin of all tenants.
	Tenant string
	Role   Role
	// Life is how long the key is good, or [NeverExpires].
	Life time.Duration
}

// CreateOperator makes an operator. The key is returned here and never again.
func (s *Service) CreateOperator(ctx context.Context, by Principal, n NewOperator) (Key, Operator, error) {
	if err := s.Authorize(ctx, by, OperatorCreate, n.Tenant); err != nil {
		return Key{}, Operator{}, err
	}
	expires, lifeErr := s.expiry(n.Life)
	if err := errors.Join(checkName("operator", n.Name), lifeErr); err != nil {
		return Key{}, Operator{}, err
	}
	if n.Role.rank() == 0 || n.Tenant == "" && n.Role != RoleAdmin {
		return Key{}, Operator{}, problem.New(problem.BadRequest, "give the role viewer, operator or admin, and a tenant with viewer and operator",
			"the role is missing or unknown, or no tenant is named for a viewer or an operator")
	}
	if n.Tenant != "" {
		if _, err := s.tenant(ctx, n.Tenant); err != nil {
			return Key{}, Operator{}, err
		}
	}
	key := newKey(PrefixOperator)
	o := Operator{
		ID: newID("op_"), Name: n.Name, Tenant: n.Tenant, Role: string(n.Role),
		KeyHash: key.Hash(), KeyHint: key.Hint(), CreatedAt: s.now(), ExpiresAt: expires,
	}
	err := s.Record(ctx, operatorIntent(OperatorCreate, by, o), func() error { return s.o.Store.CreateOperator(ctx, o) })
	if err != nil {
		return Key{}, Operator{}, fmt.Errorf("create operator %s: %w", n.Name, err)
	}
	return key, o, nil
}

// RotateOperator makes a new key for an operator's name, tenant and role, and revokes the old one at once. For an overlap
// of the two, make a second key with CreateOperator first. The new key has the id of its own row.
func (s *Service) RotateOperator(ctx context.Context, by Principal, id string, life time.Duration) (Key, Operator, error) {
	old, err := s.operator(ctx, by, OperatorRotate, id)
	if err != nil {
		return Key{}, Operator{}, err
	}
	if reason := s.over(old.ExpiresAt, old.RevokedAt); reason != "" {
		return Key{}, Operator{}, problem.New(problem.Conflict, "make a new one: clawjail operator create NAME --role ROLE", "the operator's key is %s", reason)
	}
	expires, err := s.expiry(life)
	if err != nil {
		return Key{}, Operator{}, err
	}
	key := newKey(PrefixOperator)
	fresh := old
	fresh.ID, fresh.KeyHash, fresh.KeyHint = newID("op_"), key.Hash(), key.Hint()
	fresh.CreatedAt, fresh.ExpiresAt, fresh.RevokedAt = s.now(), expires, time.Time{}
	err = s.Record(ctx, operatorIntent(OperatorRotate, by, old), func() error {
		if err := s.o.Store.CreateOperator(ctx, fresh); err != nil {
			return err
		}
		// A rotation that did not work leaves the old key as it was, and no new one that its caller never gets.
		if err := s.o.Store.RevokeOperator(ctx, old.ID, s.now()); err != nil {
			ending, cancel := ToTheEnd(ctx)
			defer cancel()
			return errors.Join(err, s.o.Store.RevokeOperator(ending, fresh.ID, s.now()))
		}
		s.connections.cut(isOperator(old.ID))
		return nil
	})
	if err != nil {
		return Key{}, Operator{}, fmt.Errorf("rotate the key of operator %s: %w", id, err)
	}
	return key, fresh, nil
}

// RevokeOperator ends an operator's key and everything that is open with it. Idempotent.
func (s *Service) RevokeOperator(ctx context.Context, by Principal, id string) error {
	ctx, cancel := ToTheEnd(ctx)
	defer cancel()
	o, err := s.operator(ctx, by, OperatorRevoke, id)
	if err != nil {
		return err
	}
	now := s.now()
	err = s.cutOff(ctx, operatorIntent(OperatorRevoke, by, o), id, isOperator(id),
		func(ctx context.Context) error { return s.o.Store.RevokeOperator(ctx, id, now) })
	if err != nil {
		return fmt.Errorf("revoke operator %s: %w", id, err)
	}
	return nil
}

// Operators lists the operators of a tenant; of all when tenant is empty.
func (s *Service) Operators(ctx context.Context, by Principal, tenant string) ([]Operator, error) {
	if err := s.Authorize(ctx, by, OperatorList, tenant); err != nil {
		return nil, err
	}
	list, err := s.o.Store.ListOperators(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("list operators: %w", err)
	}
	return list, nil
}

// operator looks one up for an operation. One of another tenant's does not exist.
func (s *Service) operator(ctx context.Context, by Principal, op Operation, id string) (Operator, error) {
	if err := s.Authorize(ctx, by, op, by.Tenant); err != nil {
		return Operator{}, err
	}
	o, err := s.o.Store.Operator(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && !by.of(o.Tenant):
		return Operator{}, s.Refuse(by, op, id,
			problem.New(problem.NotFound, "list them: clawjail operator ls", "there is no operator %q", texts.Clip(id, 80)))
	case err != nil:
		return Operator{}, fmt.Errorf("look up an operator: %w", err)
	}
	return o, nil
}

func operatorIntent(op Operation, by Principal, o Operator) audit.Intent {
	return audit.Intent{Action: string(op), Tenant: o.Tenant, Actor: by.Actor(), Target: o.ID,
		Detail: Detail(map[string]string{"presented": o.KeyHint, "role": o.Role, "of_tenant": o.Tenant})}
}

func isOperator(id string) func(Principal) bool {
	return func(p Principal) bool { return p.Kind == KindOperator && p.ID == id }
}
