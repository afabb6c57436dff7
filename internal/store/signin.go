package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Owner is the person that a sign-in or passkey belongs to: an operator, or the holder of the admin key. Exactly one is set.
type Owner struct {
	Operator string // its ID
	AdminKey string // the fingerprint of the admin key: replacing the key makes a different owner
}

// SignIn is somebody who is signed in to the console.
type SignIn struct {
	ID    string // random
	Hash  []byte // SHA-256 of the secret in the cookie
	Owner Owner
	// Method is how the person signed in, Remote from which address, UserAgent with which browser.
	Method    string
	Remote    string
	UserAgent string
	CreatedAt time.Time
	UsedAt    time.Time // when it was last used, roughly
	ExpiresAt time.Time // at the latest
}

// SignInFilter says which sign-ins are listed: an owner's, or those of a tenant's operators, or all where neither is set. Limit is at
// least 1.
type SignInFilter struct {
	Owner  Owner
	Tenant string
	Limit  int
}

// SignIns of all tenants.
type SignIns interface {
	// CreateSignIn returns ErrNotFound if the operator does not exist.
	CreateSignIn(ctx context.Context, s SignIn) error
	SignIn(ctx context.Context, id string) (SignIn, error)
	// SignInByHash finds a sign-in, also an expired one, and its operator; the zero Operator for the admin's.
	SignInByHash(ctx context.Context, hash []byte) (SignIn, Operator, error)
	// ListSignIns lists the newest first.
	ListSignIns(ctx context.Context, f SignInFilter) ([]SignIn, error)
	// TouchSignIn sets UsedAt, unless that is later already.
	TouchSignIn(ctx context.Context, id string, at time.Time) error
	// DeleteSignIn ends one.
	DeleteSignIn(ctx context.Context, id string) error
	// DeleteSignInsBefore removes those that expired before expired or were last used before used, and says how many.
	DeleteSignInsBefore(ctx context.Context, expired, used time.Time) (int, error)
}

// Passkey is a credential of WebAuthn with which a person signs in.
type Passkey struct {
	ID    string // random
	Owner Owner
	Name  string // for people
	Host  string // where it can be used: the relying party's ID
	// Credential is its id, as the authenticator has chosen it.
	Credential []byte
	// Handle is the user handle of WebAuthn: random, and the same in all passkeys of one owner.
	Handle []byte
	// Record is JSON that package signin writes and reads: the public key, and what the authenticator said of it.
	Record []byte
	// Count is the signature counter of the authenticator; always 0 for those without one.
	Count     uint32
	CreatedAt time.Time
	UsedAt    time.Time // zero: never
}

// Passkeys of all tenants.
type Passkeys interface {
	// CreatePasskey returns ErrNotFound if the operator does not exist, and ErrExists if the credential is known.
	CreatePasskey(ctx context.Context, p Passkey) error
	PasskeyByCredential(ctx context.Context, credential []byte) (Passkey, error)
	// ListPasskeys of an owner, oldest first.
	ListPasskeys(ctx context.Context, owner Owner) ([]Passkey, error)
	// UsePasskey sets Count and UsedAt if the count is more than the known one, or both are 0: two uses with the same count mean
	// a cloned authenticator. used reports whether the row was updated, in one conditional statement.
	UsePasskey(ctx context.Context, id string, count uint32, at time.Time) (used bool, err error)
	// DeletePasskey removes one of an owner.
	DeletePasskey(ctx context.Context, owner Owner, id string) error
}

// longestPasskey bounds each of the values of a passkey that its authenticator chooses, in bytes. An id has at most 1023 (WebAuthn, §6.5.1).
const longestPasskey = 16 << 10

func (o Owner) validate() error {
	if (o.Operator == "") == (o.AdminKey == "") {
		return fmt.Errorf("%w: exactly one of operator and admin key must be set", ErrInvalid)
	}
	return Text(o.Operator, o.AdminKey)
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (s SignIn) Validate() error {
	return errors.Join(present("id", s.ID), present("method", s.Method), Text(s.ID, s.Method, s.Remote, s.UserAgent), s.Owner.validate(),
		digest("hash", s.Hash), Moment("created_at", s.CreatedAt), Moment("used_at", s.UsedAt), Moment("expires_at", s.ExpiresAt))
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (p Passkey) Validate() error {
	sized := func(name string, value []byte) error {
		if len(value) < 1 || len(value) > longestPasskey {
			return fmt.Errorf("%w: %s has %d bytes, and should have 1 to %d", ErrInvalid, name, len(value), longestPasskey)
		}
		return nil
	}
	return errors.Join(present("id", p.ID), present("name", p.Name), present("host", p.Host), Text(p.ID, p.Name, p.Host), p.Owner.validate(),
		sized("credential", p.Credential), sized("handle", p.Handle), sized("record", p.Record), Moment("created_at", p.CreatedAt), optionalMoment("used_at", p.UsedAt))
}
