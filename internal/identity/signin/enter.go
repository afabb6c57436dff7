package signin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// How people sign in.
const (
	methodKey     = "key"
	methodLink    = "link"
	methodPasskey = "passkey"
)

// maxSignIns is how many sign-ins an owner has: the oldest ends where there would be more.
const maxSignIns = 64

// longestUserAgent is how many letters are kept of what a browser says of itself.
const longestUserAgent = 160

// WithKey signs in with a key: the admin's or an operator's. Wrong keys are limited as everywhere. The cookie's text is
// returned here and never again.
func (s *Service) WithKey(ctx context.Context, key string, from From) (cookie string, in SignIn, err error) {
	p, err := s.o.Identity.Authenticate(ctx, key, from.Remote)
	if err != nil {
		if key != "" && problem.CodeOf(err) == problem.Unauthorized {
			err = s.refuse(methodKey, identity.Principal{}, from, err)
		}
		return "", SignIn{}, err
	}
	return s.enter(ctx, p, methodKey, from, nil)
}

// enter signs an authenticated principal in. before is done first, as part of it.
func (s *Service) enter(ctx context.Context, p identity.Principal, method string, from From, before func() error) (cookie string, in SignIn, err error) {
	if p.Kind == identity.KindAgent {
		return "", SignIn{}, s.refuse(method, p, from, agentsHaveNone())
	}
	if err := s.o.Identity.Authorize(ctx, p, identity.SignIn, p.Tenant); err != nil {
		return "", SignIn{}, err
	}
	cookie, sum := newToken(PrefixCookie, "")
	now := s.now()
	row := store.SignIn{ID: newID("si_"), Hash: sum[:], Owner: s.owner(p), Method: method, UserAgent: plain(from.UserAgent, longestUserAgent),
		CreatedAt: now, UsedAt: now, ExpiresAt: now.Add(s.o.Life)}
	if from.Remote.IsValid() {
		row.Remote = from.Remote.Unmap().WithZone("").String()
	}
	if !p.ExpiresAt.IsZero() && p.ExpiresAt.Before(row.ExpiresAt) {
		row.ExpiresAt = store.Microsecond(p.ExpiresAt)
	}
	i := audit.Intent{Action: string(identity.SignIn), Tenant: p.Tenant, Actor: p.Actor(), Target: row.ID, Detail: identity.Detail(map[string]string{"method": method, "remote": identity.Address(from.Remote)})}
	err = s.o.Identity.Record(ctx, i, func() error {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		if err := s.endOldest(ctx, p); err != nil {
			return err
		}
		return s.o.Store.CreateSignIn(ctx, row)
	})
	if err != nil {
		return "", SignIn{}, fmt.Errorf("sign in: %w", err)
	}
	return cookie, s.shown(row, p, true), nil
}

// endOldest makes room for one more sign-in of a principal.
func (s *Service) endOldest(ctx context.Context, p identity.Principal) error {
	rows, err := s.o.Store.ListSignIns(ctx, store.SignInFilter{Owner: s.owner(p), Limit: maxListed})
	if err != nil {
		return err
	}
	for len(rows) >= maxSignIns {
		last := len(rows) - 1
		if err := s.endOne(ctx, p, rows[last], p.Tenant, "too_many"); err != nil {
			return err
		}
		rows = rows[:last]
	}
	return nil
}

// refuse records that a sign-in was refused. p is the zero Principal when the person is not known.
func (s *Service) refuse(method string, p identity.Principal, from From, err error) error {
	e := audit.Event{Action: string(identity.SignIn), Tenant: p.Tenant, Detail: identity.Detail(map[string]string{"method": method, "reason": problem.CodeOf(err), "remote": identity.Address(from.Remote)})}
	if p.Kind != "" {
		e.Actor = p.Actor()
	}
	s.o.Identity.Note(e)
	return err
}

// guessed is refuse for what may have been a guess.
func (s *Service) guessed(ctx context.Context, method string, from From, err error) error {
	s.o.Identity.Wrong(ctx, from.Remote)
	return s.refuse(method, identity.Principal{}, from, err)
}

// shown is a row for people. p is whose it is.
func (s *Service) shown(row store.SignIn, p identity.Principal, current bool) SignIn {
	return SignIn{ID: row.ID, Actor: p.Actor(), Name: p.Name, Tenant: p.Tenant, Method: row.Method, Remote: row.Remote, UserAgent: row.UserAgent,
		CreatedAt: row.CreatedAt, UsedAt: s.uses.last(row), ExpiresAt: s.end(row), Current: current}
}

// end is when a sign-in is over at the latest: a life that was made shorter counts at once.
func (s *Service) end(row store.SignIn) time.Time {
	if end := row.CreatedAt.Add(s.o.Life); end.Before(row.ExpiresAt) {
		return end
	}
	return row.ExpiresAt
}

// plain makes one line of a text that a client sent, cut to limit characters.
func plain(text string, limit int) string {
	return texts.Fit(strings.TrimSpace(texts.Printable(strings.ToValidUTF8(text, ""), -1)), limit)
}
