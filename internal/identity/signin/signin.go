// Package signin signs people in to the console and knows them by their cookies.
//
// A person signs in with a key, with a link that is good once, or with a passkey (WebAuthn). What they get is 256 random
// bits in a cookie; the store has their SHA-256. A sign-in ends when nobody used it for its idle time, after its life,
// when it is ended, and with the key or the operator it stands for: who it is is looked up at every request.
//
// Agents have no console.
package signin

import (
	"context"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
)

// From is where somebody signs in from.
type From struct {
	Remote    netip.Addr
	UserAgent string // shortened, for people to recognise it
	// Origin is that of the console as the browser has it: http://localhost:18780. Passkeys belong to its host.
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

// Passkey is one without its key.
type Passkey struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Host      string    `json:"host"` // where it can be used
	CreatedAt time.Time `json:"created_at"`
	UsedAt    time.Time `json:"used_at,omitzero"`
}

// Service signs people in. All methods may be called at the same time.
type Service struct{}

// WithKey signs in with a key: the admin's or an operator's. Wrong keys are braked as everywhere. The cookie's text is returned here and never again.
func (s *Service) WithKey(ctx context.Context, key string, from From) (cookie string, in SignIn, err error) {
	panic("contract")
}

// NewLink makes a link with which the caller signs in, once.
func (s *Service) NewLink(ctx context.Context, by identity.Principal) (Link, error) {
	panic("contract")
}

// WithLink signs in with a link's code.
func (s *Service) WithLink(ctx context.Context, code string, from From) (cookie string, in SignIn, err error) {
	panic("contract")
}

// Who is behind a cookie. It counts as use. The code is unauthorized when it is not good, or not any more.
func (s *Service) Who(ctx context.Context, cookie string) (identity.Principal, SignIn, error) {
	panic("contract")
}

// List lists the sign-ins of the caller; of an admin of the installation everybody's, or those of its tenant of an admin of one. in is the caller's own.
func (s *Service) List(ctx context.Context, by identity.Principal, in SignIn) ([]SignIn, error) {
	panic("contract")
}

// End ends one, and what is open with it: one's own, or as an admin any that List shows.
func (s *Service) End(ctx context.Context, by identity.Principal, id string) error { panic("contract") }

// Hold is [identity.Service.Hold] for a sign-in: cancel is called when the sign-in ends too.
func (s *Service) Hold(ctx context.Context, by identity.Principal, in SignIn, cancel context.CancelCauseFunc) (release func(), err error) {
	panic("contract")
}

// BeginPasskey begins adding one. options are JSON for navigator.credentials.create, and challenge names this attempt for five minutes.
func (s *Service) BeginPasskey(ctx context.Context, by identity.Principal, from From) (options []byte, challenge string, err error) {
	panic("contract")
}

// FinishPasskey keeps the passkey that the browser made; response is its JSON.
func (s *Service) FinishPasskey(ctx context.Context, by identity.Principal, challenge, name string, response []byte, from From) (Passkey, error) {
	panic("contract")
}

// BeginSignIn begins signing in with a passkey, before it is known who.
func (s *Service) BeginSignIn(ctx context.Context, from From) (options []byte, challenge string, err error) {
	panic("contract")
}

// WithPasskey signs in with what the browser answered.
func (s *Service) WithPasskey(ctx context.Context, challenge string, response []byte, from From) (cookie string, in SignIn, err error) {
	panic("contract")
}

// Passkeys lists the caller's own.
func (s *Service) Passkeys(ctx context.Context, by identity.Principal) ([]Passkey, error) {
	panic("contract")
}

// RemovePasskey removes one of the caller's own.
func (s *Service) RemovePasskey(ctx context.Context, by identity.Principal, id string) error {
	panic("contract")
}
