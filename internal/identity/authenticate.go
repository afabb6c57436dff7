package identity

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Why a key was refused. The caller is told none of them apart.
const (
	reasonMalformed = "malformed"
	reasonUnknown   = "unknown"
	reasonExpired   = "expired"
	reasonRevoked   = "revoked"
	reasonBraked    = "braked"
)

// usedEvery is how exactly a token's last use is known: a write for each request would be too much.
const usedEvery = time.Minute

// Authenticate finds out whose key was presented. remote is where it came from, see [ClientAddr].
//
// A place that has presented too many wrong keys waits, whatever it presents now (rate_limited; [RetryAfter] says how
// long). A key that is malformed, unknown, expired or revoked is unauthorized, in the same words; which of them it
// was is in the audit log. An error that is neither means that the store could not be asked.
func (s *Service) Authenticate(ctx context.Context, presented string, remote netip.Addr) (Principal, error) {
	if err := s.RateLimited(ctx, remote); err != nil {
		return Principal{}, err
	}
	if presented == "" {
		return Principal{}, problem.New(problem.Unauthorized, "send a key: the content of admin.key, an operator's key or an agent's token",
			"no key was sent")
	}
	key, prefix, err := parseKey(presented)
	reason, hint := reasonMalformed, ""
	var p Principal
	if err == nil {
		hint = key.Hint()
		if p, reason, err = s.identify(ctx, key, prefix); err != nil {
			return Principal{}, fmt.Errorf("look up a key: %w", err)
		}
		if reason == "" && s.revocations.has(p) {
			reason = reasonRevoked
		}
	}
	if reason != "" {
		s.Wrong(ctx, remote)
		return Principal{}, s.unauthenticated(notGood(), reason, hint, remote)
	}
	s.rateLimiter.right(callerIn(ctx, remote))
	return p, nil
}

// Redeem is Authenticate for a token that the caller looks up elsewhere, as that of a session: look is not called while remote is
// rate limited. A refusal by look does not count as a wrong key: tokens end with their sessions, and clients come back with old ones.
func (s *Service) Redeem(ctx context.Context, remote netip.Addr, look func() (Principal, error)) (Principal, error) {
	if err := s.RateLimited(ctx, remote); err != nil {
		return Principal{}, err
	}
	return look()
}

// RateLimited says whether a place has presented too much that was wrong, and must wait (rate_limited; [RetryAfter] says how
// long). A face that lets people in by something else than a key asks it first.
func (s *Service) RateLimited(ctx context.Context, remote netip.Addr) error {
	wait, first := s.rateLimiter.blocked(callerIn(ctx, remote))
	if wait <= 0 {
		return nil
	}
	err := problem.New(problem.RateLimited, "wait, then send a valid key", "too many wrong keys came from your address").
		With(problem.RetryAfter, int(math.Ceil(wait.Seconds())))
	if !first {
		return err
	}
	return s.unauthenticated(err, reasonBraked, "", remote)
}

// Wrong counts something wrong that a place has presented. See [Service.RateLimited].
func (s *Service) Wrong(ctx context.Context, remote netip.Addr) {
	s.rateLimiter.wrong(callerIn(ctx, remote))
}

// notGood is the one answer to every key that is not good, and the reason that cut connections are given.
func notGood() *problem.Error {
	return problem.New(problem.Unauthorized, "ask an admin for an operator's key, or an operator for an agent's token", "invalid or expired key")
}

// RetryAfter is how long a caller has to wait after an error of Authenticate's.
func RetryAfter(err error) (time.Duration, bool) {
	p, ok := problem.As(err)
	if !ok {
		return 0, false
	}
	seconds, ok := p.Details[problem.RetryAfter].(int)
	return time.Duration(seconds) * time.Second, ok
}

// unauthenticated writes a refusal down.
func (s *Service) unauthenticated(err *problem.Error, reason, hint string, remote netip.Addr) error {
	s.Note(audit.Event{Action: "auth.refuse", Detail: Detail(map[string]string{"reason": reason, "presented": hint, "remote": Address(remote)})})
	return err
}

// identify looks a key up. The reason is empty when it is good.
func (s *Service) identify(ctx context.Context, key Key, prefix string) (p Principal, reason string, err error) {
	switch prefix {
	case PrefixAdmin:
		if !s.o.Admin.matches(key) {
			return Principal{}, reasonUnknown, nil
		}
		return theAdmin(), "", nil
	case PrefixOperator:
		return s.operatorOf(ctx, key)
	case PrefixAgent:
		return s.agentOf(ctx, key)
	}
	return Principal{}, reasonUnknown, nil
}

func (s *Service) operatorOf(ctx context.Context, key Key) (Principal, string, error) {
	o, err := s.o.Store.OperatorByKey(ctx, key.Hash())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Principal{}, reasonUnknown, nil
	case err != nil:
		return Principal{}, "", err
	// The database has found the row by the hash; that it is the row is not left to how the database compares.
	case subtle.ConstantTimeCompare(o.KeyHash, key.Hash()) != 1:
		return Principal{}, reasonUnknown, nil
	}
	p, reason := s.operatorNow(o)
	return p, reason, nil
}

// operatorNow is an operator as its row says. The reason is empty when the key is good.
func (s *Service) operatorNow(o Operator) (p Principal, reason string) {
	if reason := s.over(o.ExpiresAt, o.RevokedAt); reason != "" {
		return Principal{}, reason
	}
	p = Principal{Kind: KindOperator, ID: o.ID, Name: o.Name, Tenant: o.Tenant, Role: Role(o.Role), TokenID: o.ID, ExpiresAt: o.ExpiresAt}
	if p.ID == "" || p.Tenant == "" && p.Role != RoleAdmin {
		return Principal{}, reasonUnknown // no row of ours
	}
	return p, ""
}

func (s *Service) agentOf(ctx context.Context, key Key) (Principal, string, error) {
	t, a, err := s.o.Store.TokenByHash(ctx, key.Hash())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Principal{}, reasonUnknown, nil
	case err != nil:
		return Principal{}, "", err
	case subtle.ConstantTimeCompare(t.Hash, key.Hash()) != 1, t.Agent != a.ID, a.Tenant == "":
		return Principal{}, reasonUnknown, nil
	}
	if reason := s.over(t.ExpiresAt, t.RevokedAt); reason != "" {
		return Principal{}, reason, nil
	}
	if reason := s.over(time.Time{}, a.RevokedAt); reason != "" {
		return Principal{}, reason, nil
	}
	if now := s.now(); now.Sub(t.UsedAt) >= usedEvery {
		// Only people look at it: a store that does not take it will say so to something that matters.
		_ = s.o.Store.TouchToken(ctx, t.ID, now)
	}
	return Principal{Kind: KindAgent, ID: a.ID, Name: a.Name, Tenant: a.Tenant, TokenID: t.ID, ExpiresAt: t.ExpiresAt}, "", nil
}

// over says whether a key is not good any more. A revocation holds from the moment it is written, whatever its time.
func (s *Service) over(expires, revoked time.Time) string {
	switch {
	case !revoked.IsZero():
		return reasonRevoked
	case !expires.IsZero() && !s.o.Now().Before(expires):
		return reasonExpired
	}
	return ""
}

// standing says how a principal that was authenticated before is doing now: why its key is not good any more, or
// empty, and when it expires.
func (s *Service) standing(ctx context.Context, p Principal) (expires time.Time, reason string, err error) {
	if s.revocations.has(p) {
		return time.Time{}, reasonRevoked, nil
	}
	switch p.Kind {
	case KindAdmin:
		return time.Time{}, "", nil // as long as the process, which has read the file once
	case KindOperator:
		o, err := s.o.Store.Operator(ctx, p.ID)
		if errors.Is(err, store.ErrNotFound) {
			return time.Time{}, reasonUnknown, nil
		}
		return o.ExpiresAt, s.over(o.ExpiresAt, o.RevokedAt), err
	case KindAgent:
		a, err := s.o.Store.AgentByID(ctx, p.ID)
		if errors.Is(err, store.ErrNotFound) {
			return time.Time{}, reasonUnknown, nil
		}
		if err != nil {
			return time.Time{}, "", err
		}
		if reason := s.over(time.Time{}, a.RevokedAt); reason != "" {
			return time.Time{}, reason, nil
		}
		if p.TokenID == ofJail(p.ID) {
			return time.Time{}, "", nil
		}
		tokens, err := s.o.Store.ListTokens(ctx, p.ID)
		if err != nil {
			return time.Time{}, "", err
		}
		for _, t := range tokens {
			if t.ID == p.TokenID {
				return t.ExpiresAt, s.over(t.ExpiresAt, t.RevokedAt), nil
			}
		}
	}
	return time.Time{}, reasonUnknown, nil
}
