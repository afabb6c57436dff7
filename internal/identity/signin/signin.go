// Package signin signs people in to the console and knows them by their cookies.
//
// A person signs in with a key, with a link that is good once, or with a passkey (WebAuthn). They get 256 random
// bits in a cookie; the store has their SHA-256. A sign-in ends when it was not used for its idle time, after its life,
// when it is ended, and with the key or the operator it stands for, which is looked up at every request.
//
// A view that stays open without a click counts as use: a person who watches a browser is not signed out meanwhile.
//
// A passkey is its owner's as a key is: it ends with the operator, also when the operator is given a new key, and with
// the admin key that was there when it was added. Links, and what is under way with a passkey, are kept in memory: a
// restart ends them.
//
// Agents have no console.
package signin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// From is where somebody signs in from.
type From struct {
	Remote    netip.Addr
	UserAgent string // shortened, for people to recognise it
	// Origin is that of the console as the browser has it: http://localhost:18780. Passkeys belong to its host, and all of
	// its ports have them: the caller makes sure that the port is the console's. Without it there are no passkeys.
	Origin string
}

// SignIn is somebody who is signed in.
type SignIn struct {
	ID        string    `json:"id"`
	Actor     string    `json:"actor"` // as the audit log names principals
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant,omitempty"`
	Method    string    `json:"method"` // key, link or passkey
	Remote    string    `json:"remote,omitempty"`
	UserAgent string    `json:"user_agent,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UsedAt    time.Time `json:"used_at"`
	ExpiresAt time.Time `json:"expires_at"` // at the latest
	Current   bool      `json:"current"`    // it is the caller's own
}

// Link is good once, for ten minutes.
type Link struct {
	Code      string    `json:"code"` // told once
	ExpiresAt time.Time `json:"expires_at"`
}

// Format implements fmt.Formatter, for every verb: a link prints without its code.
func (l Link) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, secret.Redacted) // fmt has no way to hand on an error of its writer here
}

// Passkey is one without its key.
type Passkey struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Host      string    `json:"host"` // where it can be used
	CreatedAt time.Time `json:"created_at"`
	UsedAt    time.Time `json:"used_at,omitzero"`
}

// Store keeps sign-ins and passkeys, and knows operators.
type Store interface {
	store.SignIns
	store.Passkeys
	Operator(ctx context.Context, id string) (store.Operator, error)
	ListOperators(ctx context.Context, tenant string) ([]store.Operator, error)
}

// Options are what a Service needs.
type Options struct {
	Store    Store
	Identity *identity.Service
	// Tag is in the codes of links and in what passkeys are asked, so that other control planes know who has begun a sign-in; see
	// [store.NodeTag]. May be empty.
	Tag string
	// Idle is how long a sign-in may go unused, Life how long it may last.
	Idle, Life time.Duration
	Now        func() time.Time
}

// The bounds of Idle and Life.
const (
	MinIdle     = time.Minute
	LongestLife = 30 * 24 * time.Hour
)

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	m := &problem.ValidationError{Code: problem.BadConfig}
	if o.Store == nil {
		m.Add("store", "is missing")
	}
	if o.Identity == nil {
		m.Add("identity", "is missing")
	}
	if o.Now == nil {
		m.Add("now", "is missing")
	}
	if o.Idle < MinIdle || o.Idle > o.Life || o.Life > LongestLife {
		m.Add("idle", "and life are %s and %s; they must be %s or more, idle not more than life, and life not more than %s", o.Idle, o.Life, MinIdle, LongestLife)
	}
	return m.Err()
}

// Service signs people in. All methods may be called at the same time.
type Service struct {
	o          Options
	uses       uses
	held       held
	links      links
	challenges *challenges
	look       wake.Signal // for a comparison with the store

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open makes a Service. Close must be called.
func Open(ctx context.Context, o Options) (*Service, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Service{o: o, challenges: newChallenges(o.Tag), look: wake.New()}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.running.Go(func() { s.watch(ctx) })
	return s, nil
}

// Close stops watching over what is held, and waits until that is done. It cuts nothing: it belongs to those who hold it.
func (s *Service) Close() {
	s.stop()
	s.running.Wait()
}

// Purge removes sign-ins that are over, and says how many.
func (s *Service) Purge(ctx context.Context) (int, error) {
	now := s.now()
	s.uses.forget(now.Add(-s.o.Idle))
	s.links.forget(now)
	s.challenges.removeExpired(now)
	n, err := s.o.Store.DeleteSignInsBefore(ctx, now, now.Add(-s.o.Idle))
	if err != nil {
		return 0, fmt.Errorf("remove old sign-ins: %w", err)
	}
	return n, nil
}

// now is the time as the store keeps it.
func (s *Service) now() time.Time { return store.Microsecond(s.o.Now()) }

// owner is a principal as rows name it.
func (s *Service) owner(p identity.Principal) store.Owner {
	if p.Kind == identity.KindAdmin {
		return store.Owner{AdminKey: s.o.Identity.AdminFingerprint()}
	}
	return store.Owner{Operator: p.ID}
}

// standing is an owner as it is now.
func (s *Service) standing(ctx context.Context, owner store.Owner) (identity.Principal, error) {
	switch {
	case owner.Operator != "":
		return s.o.Identity.Standing(ctx, identity.KindOperator, owner.Operator)
	case owner.AdminKey != "" && owner.AdminKey == s.o.Identity.AdminFingerprint():
		return s.o.Identity.Standing(ctx, identity.KindAdmin, string(identity.KindAdmin))
	}
	return identity.Principal{}, notSignedIn() // with another admin key
}

// notSignedIn is the one answer to every cookie that is not good.
func notSignedIn() error {
	return problem.New(problem.Unauthorized, "sign in again", "invalid or expired sign-in")
}

// agentsHaveNone is what agents are told.
func agentsHaveNone() error {
	return problem.New(problem.Forbidden, "sign in with an operator's key: an admin makes one with `clawjail operator create NAME --role ROLE`",
		"the console is for people, and this is an agent's token")
}

// notThere is an error of the store's that says so.
func notThere(err error) bool { return errors.Is(err, store.ErrNotFound) }
