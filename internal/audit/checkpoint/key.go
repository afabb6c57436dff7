package checkpoint

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/base/secret"
)

const (
	publicFile  = ".pub"
	maxKeyFile  = 16 << 10
	privateType = "PRIVATE KEY"
	publicType  = "PUBLIC KEY"
)

// Key signs notes. It prints as [redacted], and two keys cannot be compared with ==.
type Key struct {
	secret.Hidden
	private secret.Value // an ed25519.PrivateKey
	public  ed25519.PublicKey
	id      string
}

// LoadKey reads the key of a file, and makes it on the first run: PKCS #8 in PEM, mode 0600, and beside it, with
// ".pub" behind its name, the public half, to verify with. A private key that others may read is refused, and so is
// a damaged one: neither is overwritten.
func LoadKey(path string) (*Key, error) {
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(path); err != nil {
			return nil, fmt.Errorf("make the audit key: %w", err)
		}
		data, err = readPrivate(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != privateType {
		return nil, fmt.Errorf("the audit key %s is not a private key in PEM: it is damaged, or another file", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the audit key %s is damaged: %w", path, err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the audit key %s is not an Ed25519 key", path)
	}
	key := newKey(private)
	if err := key.publish(path + publicFile); err != nil {
		return nil, fmt.Errorf("write the public half of the audit key: %w", err)
	}
	return key, nil
}

// publish writes the public half to path, unless it is there already.
func (k *Key) publish(path string) error {
	der, err := x509.MarshalPKIXPublicKey(k.public)
	if err != nil {
		return err
	}
	want := pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der})
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return keyfile.Write(path, 0o644, want, os.Rename)
}

func newKey(private ed25519.PrivateKey) *Key {
	public := private.Public().(ed25519.PublicKey)
	return &Key{private: secret.Own(private), public: public, id: keyID(public)}
}

// keyID is the beginning of the hash of the public half.
func keyID(public ed25519.PublicKey) string {
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:8])
}

func readPrivate(path string) ([]byte, error) {
	data, _, err := keyfile.Read(path, maxKeyFile)
	if refused, ok := errors.AsType[*keyfile.Refused](err); ok && refused.Why == keyfile.Irregular {
		return nil, fmt.Errorf("%s is not a regular file", path)
	} else if ok && refused.Why == keyfile.Shared {
		return nil, fmt.Errorf("%s has mode %v: it must be a file that only its owner may use (chmod 600)", path, refused.Mode)
	}
	return data, err
}

// makeKey creates the key file unless another process created it first.
func makeKey(path string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	err = keyfile.Write(path, 0o600, pem.EncodeToMemory(&pem.Block{Type: privateType, Bytes: der}), os.Link)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// ID names the key in notes.
func (k *Key) ID() string { return k.id }

// Keys has the public half, for verifying.
func (k *Key) Keys() Keys { return Keys{k.id: k.public} }

// Sign signs fields for one purpose. A signature for one purpose is not valid for another.
func (k *Key) Sign(purpose string, fields ...[]byte) (sig []byte) {
	// Use returns only the function's error, which is nil.
	_ = k.private.Use(func(private []byte) error { sig = ed25519.Sign(private, message(purpose, fields)); return nil })
	return sig
}

// Note makes the signed note of a row.
func (k *Key) Note(node string, seq int64, hash [HashSize]byte, at time.Time) Note {
	n := Note{Node: node, Seq: seq, Hash: hash, Time: at.UTC().Truncate(time.Microsecond), Kid: k.id}
	n.Sig = k.Sign(noteDomain, n.signed())
	return n
}

func message(purpose string, fields [][]byte) []byte {
	return Encode(Encode(nil, []byte(purpose)), fields...)
}

// Keys are the keys that a verifier trusts, by their ID.
type Keys map[string]ed25519.PublicKey

// Errors of a signature.
var (
	ErrUnknownKey   = errors.New("it is signed with a key that is not known")
	ErrBadSignature = errors.New("its signature is wrong")
)

// Verify checks what [Key.Sign] made.
func (k Keys) Verify(id, purpose string, sig []byte, fields ...[]byte) error {
	public, ok := k[id]
	if !ok || len(public) != ed25519.PublicKeySize {
		return ErrUnknownKey
	}
	if !ed25519.Verify(public, message(purpose, fields), sig) {
		return ErrBadSignature
	}
	return nil
}

// VerifyNote checks the signature of a note.
func (k Keys) VerifyNote(n Note) error { return k.Verify(n.Kid, noteDomain, n.Sig, n.signed()) }

// LoadKeys reads public keys in PEM. A verifier gives the current key's file and those of keys that were used before.
func LoadKeys(paths ...string) (Keys, error) {
	out := Keys{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a public audit key: %w", err)
		}
		keys, err := ParseKeys(data)
		if err != nil {
			return nil, fmt.Errorf("read the public audit key %s: %w", path, err)
		}
		maps.Copy(out, keys)
	}
	return out, nil
}

// ParseKeys reads one or more public keys in PEM.
func ParseKeys(data []byte) (Keys, error) {
	out := Keys{}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != publicType {
			return nil, fmt.Errorf("a block of type %q is not a public key", block.Type)
		}
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		public, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return nil, errors.New("it is not an Ed25519 key")
		}
		out[keyID(public)] = public
	}
	if len(out) == 0 {
		return nil, errors.New("there is no key in it")
	}
	return out, nil
}
