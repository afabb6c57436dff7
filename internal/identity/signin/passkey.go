package signin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// maxPasskeys is how many one owner may have.
	maxPasskeys = 20
	// longestPasskeyName is how many letters the name of one may have.
	longestPasskeyName = 60
)

// BeginPasskey begins adding one. options are JSON for navigator.credentials.create: an object with the member publicKey, in the form that
// PublicKeyCredential.parseCreationOptionsFromJSON takes. challenge names this attempt for five minutes.
func (s *Service) BeginPasskey(ctx context.Context, by identity.Principal, from From) (options []byte, challenge string, err error) {
	known, at, err := s.adding(ctx, by, from)
	if err != nil {
		return nil, "", err
	}
	handle := make([]byte, handleSize)
	rand.Read(handle) // never fails, see its documentation
	var exclude [][]byte
	for _, p := range known {
		handle = p.Handle
		if p.Host == at.host {
			exclude = append(exclude, p.Credential)
		}
	}
	raw := s.challenges.issue(toAdd, by.Actor(), at.origin, handle, s.o.Now())
	if options, err = at.creation(raw, handle, by.Name, exclude); err != nil {
		return nil, "", fmt.Errorf("begin to add a passkey: %w", err)
	}
	return options, base64.RawURLEncoding.EncodeToString(raw), nil
}

// adding is what both halves of adding a passkey begin with.
func (s *Service) adding(ctx context.Context, by identity.Principal, from From) (known []store.Passkey, at party, err error) {
	if err := s.o.Identity.Authorize(ctx, by, identity.PasskeyAdd, by.Tenant); err != nil {
		return nil, party{}, err
	}
	if at, err = partyAt(from.Origin); err != nil {
		return nil, party{}, err
	}
	if known, err = s.o.Store.ListPasskeys(ctx, s.owner(by)); err != nil {
		return nil, party{}, fmt.Errorf("list passkeys: %w", err)
	}
	if len(known) >= maxPasskeys {
		return nil, party{}, problem.New(problem.Conflict, "remove one that is not used", "you have %d passkeys, the most there may be", len(known))
	}
	return known, at, nil
}

// FinishPasskey keeps the passkey that the browser made; response is its JSON, as PublicKeyCredential.toJSON makes it.
func (s *Service) FinishPasskey(ctx context.Context, by identity.Principal, challenge, name string, response []byte, from From) (Passkey, error) {
	_, at, err := s.adding(ctx, by, from)
	if err != nil {
		return Passkey{}, err
	}
	if name == "" || name != plain(name, longestPasskeyName) {
		return Passkey{}, problem.New(problem.BadName, fmt.Sprintf("give 1 to %d letters, such as: my laptop", longestPasskeyName), "the name of the passkey is not valid")
	}
	raw, handle, err := s.challenges.verify(toAdd, by.Actor(), at.origin, challenge, s.o.Now())
	if err != nil {
		return Passkey{}, err
	}
	row := store.Passkey{ID: newID("pk_"), Owner: s.owner(by), Name: name, Host: at.host, Handle: handle, CreatedAt: s.now()}
	if row.Credential, row.Record, row.Count, err = at.created(raw, handle, response); err != nil {
		return Passkey{}, err
	}
	if err := s.challenges.use(raw, s.o.Now()); err != nil {
		return Passkey{}, err
	}
	i := audit.Intent{Action: string(identity.PasskeyAdd), Tenant: by.Tenant, Actor: by.Actor(), Target: row.ID,
		Detail: identity.Detail(map[string]string{"name": row.Name, "host": row.Host, "remote": identity.Address(from.Remote)})}
	if err := s.o.Identity.Record(ctx, i, func() error {
		err := s.o.Store.CreatePasskey(ctx, row)
		if errors.Is(err, store.ErrExists) {
			return problem.Wrap(err, problem.Conflict, "use another authenticator, or remove it where it was added", "this passkey is added already")
		}
		return err
	}); err != nil {
		return Passkey{}, fmt.Errorf("keep a passkey: %w", err)
	}
	return passkeyOf(row), nil
}

// BeginSignIn begins signing in with a passkey, before it is known who. options are JSON for navigator.credentials.get, as
// those of BeginPasskey are for create.
func (s *Service) BeginSignIn(_ context.Context, from From) (options []byte, challenge string, err error) {
	at, err := partyAt(from.Origin)
	if err != nil {
		return nil, "", err
	}
	raw := s.challenges.issue(toSignIn, "", at.origin, nil, s.o.Now())
	if options, err = at.request(raw); err != nil {
		return nil, "", fmt.Errorf("begin to sign in: %w", err)
	}
	return options, base64.RawURLEncoding.EncodeToString(raw), nil
}

// WithPasskey signs in with what the browser answered, as PublicKeyCredential.toJSON makes it.
func (s *Service) WithPasskey(ctx context.Context, challenge string, response []byte, from From) (cookie string, in SignIn, err error) {
	if err := s.o.Identity.RateLimited(ctx, from.Remote); err != nil {
		return "", SignIn{}, err
	}
	at, err := partyAt(from.Origin)
	if err != nil {
		return "", SignIn{}, err
	}
	raw, _, err := s.challenges.verify(toSignIn, "", at.origin, challenge, s.o.Now())
	if err != nil {
		return "", SignIn{}, err
	}
	var row store.Passkey
	count, err := at.asserted(raw, response, func(id []byte) (record, handle []byte, err error) {
		row, err = s.o.Store.PasskeyByCredential(ctx, id)
		if notThere(err) || err == nil && (row.Host != at.host || !bytes.Equal(row.Credential, id)) {
			err = unknownPasskey()
		}
		return row.Record, row.Handle, err
	})
	switch code := problem.CodeOf(err); {
	case err == nil:
	case code == problem.BadRequest, code == problem.Unauthorized:
		return "", SignIn{}, s.guessed(ctx, methodPasskey, from, problem.Wrap(err, problem.Unauthorized, "sign in with a key or a link: clawjail console",
			"the passkey is invalid, or not registered here"))
	default:
		return "", SignIn{}, fmt.Errorf("look up a passkey: %w", err)
	}
	if err := s.challenges.use(raw, s.o.Now()); err != nil {
		return "", SignIn{}, err
	}
	p, err := s.standing(ctx, row.Owner)
	if err != nil {
		return "", SignIn{}, s.refuse(methodPasskey, identity.Principal{}, from, err)
	}
	return s.enter(ctx, p, methodPasskey, from, func() error {
		used, err := s.o.Store.UsePasskey(ctx, row.ID, count, s.now())
		if err == nil && !used {
			return problem.New(problem.Unauthorized, "sign in with a key or a link, remove this passkey and add a new one", "the passkey may have been copied: its signature counter went back")
		}
		return err
	})
}

func unknownPasskey() error {
	return problem.New(problem.Unauthorized, "sign in with a key or a link: clawjail console", "the passkey is not registered here")
}

// Passkeys lists the caller's own.
func (s *Service) Passkeys(ctx context.Context, by identity.Principal) ([]Passkey, error) {
	if err := s.o.Identity.Authorize(ctx, by, identity.PasskeyList, by.Tenant); err != nil {
		return nil, err
	}
	rows, err := s.o.Store.ListPasskeys(ctx, s.owner(by))
	if err != nil {
		return nil, fmt.Errorf("list passkeys: %w", err)
	}
	out := []Passkey{}
	for _, row := range rows {
		out = append(out, passkeyOf(row))
	}
	return out, nil
}

// RemovePasskey removes one of the caller's own. Sign-ins that were made with it stay.
func (s *Service) RemovePasskey(ctx context.Context, by identity.Principal, id string) error {
	ctx, cancel := identity.ToTheEnd(ctx)
	defer cancel()
	if err := s.o.Identity.Authorize(ctx, by, identity.PasskeyRemove, by.Tenant); err != nil {
		return err
	}
	rows, err := s.o.Store.ListPasskeys(ctx, s.owner(by))
	if err != nil {
		return fmt.Errorf("list passkeys: %w", err)
	}
	for _, row := range rows {
		if row.ID != id {
			continue
		}
		i := audit.Intent{Action: string(identity.PasskeyRemove), Tenant: by.Tenant, Actor: by.Actor(), Target: id,
			Detail: identity.Detail(map[string]string{"name": row.Name, "host": row.Host})}
		return s.o.Identity.Ending(i, func() error {
			if err := s.o.Store.DeletePasskey(ctx, row.Owner, id); err != nil && !notThere(err) {
				return fmt.Errorf("remove a passkey: %w", err)
			}
			return nil
		})
	}
	return s.o.Identity.Refuse(by, identity.PasskeyRemove, id, problem.New(problem.NotFound, "the console lists them in its settings", "there is no passkey %q", plain(id, 40)))
}

func passkeyOf(row store.Passkey) Passkey {
	return Passkey{ID: row.ID, Name: row.Name, Host: row.Host, CreatedAt: row.CreatedAt, UsedAt: row.UsedAt}
}
