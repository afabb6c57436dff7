package vault

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/clawjail/clawjail/internal/store"
)

// form is the first byte of an entry: the version of what follows, and of what it is bound to.
const form = 1

// formBound is that of a secret with what it is bound to in front of its value.
const formBound = 2

// Kinds of entries.
const (
	kindCookies = "cookies"
	kindSecret  = "secret"
)

// place is what an entry is bound to: ciphertext that is moved to another row does not open.
type place struct {
	kind, tenant string
	name         []string // what the row is looked up by, beside the tenant
	row          string   // its ID
	form         byte     // zero: form
}

func (p place) version() byte {
	if p.form == 0 {
		return form
	}
	return p.form
}

func placeOfCookies(s store.CookieSet) place {
	return place{kindCookies, s.Tenant, []string{s.Domain}, s.ID, form}
}

func placeOfSecret(s store.Secret) place {
	p := place{kindSecret, s.Tenant, []string{s.Agent, s.Service}, s.ID, form}
	if len(s.Ciphertext) > 0 && s.Ciphertext[0] == formBound {
		p.form = formBound
	}
	return p
}

// String is for messages. It has nothing secret.
func (p place) String() string {
	if p.kind == kindCookies {
		return fmt.Sprintf("the cookie set %s of tenant %s", p.name[0], p.tenant)
	}
	if p.name[0] == "" {
		return fmt.Sprintf("the secret %s of tenant %s", p.name[1], p.tenant)
	}
	return fmt.Sprintf("the secret %s of agent %s of tenant %s", p.name[1], p.name[0], p.tenant)
}

// bound is the associated data: every part with its length in front, so that no two places give the same bytes.
func (p place) bound() []byte {
	b := []byte{p.version()}
	parts := append([]string{"clawjail vault", p.kind, p.tenant, p.row}, p.name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(parts)))
	for _, part := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// seal encrypts with the primary key.
func (k *keyring) seal(p place, plain []byte) ([]byte, error) {
	sealed, err := k.aead.Encrypt(plain, p.bound())
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", p, err)
	}
	return append([]byte{p.version()}, sealed...), nil
}

var errOpen = errors.New("it does not open")

// open decrypts. It says no more than that it did not work.
func (k *keyring) open(p place, ciphertext []byte) ([]byte, error) {
	if len(ciphertext) == 0 || ciphertext[0] != p.version() {
		return nil, errOpen
	}
	plain, err := k.aead.Decrypt(ciphertext[1:], p.bound())
	if err != nil {
		return nil, errOpen
	}
	return plain, nil
}

// keyOf is the key that an entry names. Tink writes a byte 1 and the key's number in front of what it encrypts.
func keyOf(ciphertext []byte) (id keyID, ok bool) {
	if len(ciphertext) < 6 || ciphertext[0] != form && ciphertext[0] != formBound || ciphertext[1] != 1 {
		return 0, false
	}
	return keyID(binary.BigEndian.Uint32(ciphertext[2:6])), true
}
