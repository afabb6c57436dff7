package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Actions that are not an identity.Operation of a caller.
const (
	actionInject  = "session.inject"
	actionRefresh = "session.needs_refresh"
	actorSystem   = "system"
)

// intent is the beginning of an action on a session.
func (svc *Service) intent(s *session, actor, action, target string, fields audit.Fields) audit.Intent {
	svc.mu.Lock()
	name := s.jail
	svc.mu.Unlock()
	return audit.Intent{Action: action, Tenant: s.plan.tenant, Actor: actor, Session: s.id, Jail: string(name), Target: clip(target),
		Detail: audit.NewDetail(fields)}
}

// maxTarget is how much of an address is recorded, in bytes.
const maxTarget = 800

// clip makes a text of a caller's fit for a record. The part that is cut off is told from others by its hash.
func clip(target string) string {
	whole := target
	target = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return unicode.ReplacementChar
		}
		return c
	}, target)
	if len(target) <= maxTarget {
		return target
	}
	cut := maxTarget
	for cut > 0 && !utf8.RuneStart(target[cut]) {
		cut--
	}
	sum := sha256.Sum256([]byte(whole))
	return target[:cut] + "…" + hex.EncodeToString(sum[:8])
}

// record does something that a caller asked for, between its intent and its outcome.
func (svc *Service) record(ctx context.Context, s *session, by identity.Principal, op identity.Operation, target string, fields audit.Fields, do func() error) error {
	record, err := svc.Records.Begin(ctx, svc.intent(s, by.Actor(), string(op), target, fields))
	if err != nil {
		return err
	}
	err = do()
	record.End(outcome(err, nil))
	return err
}

// outcome is how something went.
func outcome(err error, fields audit.Fields) audit.Outcome {
	out := audit.OutcomeOf(err, fields)
	if err != nil && refusal(err) {
		out.Result = audit.Refused
	}
	return out
}

// refusal says whether an error is a no rather than a failure.
func refusal(err error) bool {
	switch problem.CodeOf(err) {
	case problem.GrantMissing, problem.GrantInvalid, problem.GrantWrongTenant, problem.GrantRevoked, problem.GrantUsed, problem.GrantExpired,
		problem.GrantWrongOrigin, problem.GrantScope, problem.AccountNotAllowed, problem.Forbidden, problem.NeedsRefresh, problem.AccountBusy:
		return true
	}
	return errors.Is(err, errRevoked)
}
