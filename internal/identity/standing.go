package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/clawjail/clawjail/internal/store"
)

// theAdmin is the principal of the admin key.
func theAdmin() Principal {
	return Principal{Kind: KindAdmin, ID: "admin", Name: "admin", Role: RoleAdmin, TokenID: "admin"}
}

// Fingerprint tells one admin key from the next; empty for no key. It is nothing to present, and nothing to find a key by.
func (a AdminKey) Fingerprint() string {
	if a.IsZero() {
		return ""
	}
	sum := sha256.Sum256(a.sum.Append([]byte("clawjail admin key fingerprint\x00")))
	return hex.EncodeToString(sum[:16])
}

// AdminFingerprint is that of the installation's admin key. Objects that were made with another one have no owner any more.
func (s *Service) AdminFingerprint() string { return s.o.Admin.Fingerprint() }

// Standing is a principal as it is now: somebody who has shown a key before, and shows something else that stands for
// it. The code is unauthorized when the key is not good any more. Agents have no standing: they show their tokens.
func (s *Service) Standing(ctx context.Context, kind Kind, id string) (Principal, error) {
	switch kind {
	case KindAdmin:
		if s.o.Admin.IsZero() || id != theAdmin().ID {
			return Principal{}, notGood()
		}
		return theAdmin(), nil
	case KindOperator:
		o, err := s.o.Store.Operator(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return Principal{}, notGood()
		case err != nil:
			return Principal{}, fmt.Errorf("look up an operator: %w", err)
		}
		return s.OperatorStanding(o)
	}
	return Principal{}, notGood()
}

// OperatorStanding is [Service.Standing] of an operator whose row was just read.
func (s *Service) OperatorStanding(o Operator) (Principal, error) {
	p, reason := s.operatorNow(o)
	if reason != "" || s.revocations.has(p) {
		return Principal{}, notGood()
	}
	return p, nil
}
