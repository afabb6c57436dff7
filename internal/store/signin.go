package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Owner is the person whose something is: an operator, or whoever has the admin key. Exactly one of them is set.
type Owner struct {
	Operator string // its ID
	AdminKey string // the fingerprint of the admin key: who has the next one is another
}

// SignIn is somebody who is signed in to the console.
type SignIn struct {
	ID    string // random
	Hash  []byte // SHA-256 of what the cookie has
	Owner Owner
	// Method is how it was done, Remote from where, UserAgent with which browser.
	Method    string
	Remote    string
	UserAgent string
	CreatedAt time.Time
	UsedAt    time.Time // about when it was used last
	ExpiresAt time.Time // at the latest
}

// SignIns of all tenants.
type SignIns interface {
	// CreateSignIn is ErrNotFound without its operator.
	CreateSignIn(ctx context.Context, s SignIn) error
	SignIn(ctx context.Context, id string) (SignIn, error)
	// SignInByHash finds a sign-in, also one that is over, and its operator; the zero Operator for the admin's.
	SignInByHash(ctx context.Context, hash []byte) (SignIn, Operator, error)
	// ListSignIns lists all, newest first.
	ListSignIns(ctx context.Context) ([]SignIn, error)
	// TouchSignIn says that it was used. An earlier time than the known one changes nothing.
	TouchSignIn(ctx context.Context, id string, at time.Time) error
	// DeleteSignIn ends one.
	DeleteSignIn(ctx context.Context, id string) error
	// DeleteSignInsBefore removes those that expired before a time, and those that were not used since another, and says how many.
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
	// Handle is what stands for the owner on the authenticator: the same in all passkeys of one owner, and random.
	Handle []byte
	// Record is JSON that package signin writes and reads: the public key, and what was said of it.
	Record []byte
	// Count is how often the authenticator said it was used; always 0 for those that do not count.
	Count     uint32
	CreatedAt time.Time
	UsedAt    time.Time // zero: never
}

// Passkeys of all tenants.
type Passkeys interface {
	// CreatePasskey is ErrNotFound without its operator, and ErrExists with a credential that is known.
	CreatePasskey(ctx context.Context, p Passkey) error
	PasskeyByCredential(ctx context.Context, credential []byte) (Passkey, error)
	// ListPasskeys of an owner, oldest first.
	ListPasskeys(ctx context.Context, owner Owner) ([]Passkey, error)
	// UsePasskey sets Count and UsedAt if the count is more than the known one, or both are 0: of two uses with one count the
	// second is a copy's. used says whether it did; one conditional change decides.
	UsePasskey(ctx context.Context, id string, count uint32, at time.Time) (used bool, err error)
	// DeletePasskey removes one of an owner.
	DeletePasskey(ctx context.Context, owner Owner, id string) error
}

// longestPasskey bounds each of the values of a passkey that its authenticator chooses, in bytes. An id has at most 1023 (WebAuthn, §6.5.1).
const longestPasskey = 16 << 10

func (o Owner) validate() error {
	if (o.Operator == "") == (o.AdminKey == "") {
		return fmt.Errorf("%w: it is of an operator or of the admin", ErrInvalid)
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
