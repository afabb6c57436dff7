package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash/crc32"
	"math/big"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
)

// The beginnings of keys, by which people and scanners for secrets recognise them.
const (
	PrefixAdmin    = "cjadm_"
	PrefixOperator = "cjop_"
	PrefixAgent    = "cjagt_"
)

// A key is its prefix, 43 characters that are 256 random bits in base 62, and 6 that are the CRC-32 of what is before
// them in base 62. The checksum is no secret: it lets a typing error, or a text that only looks like a key, be told
// without asking the store.
const (
	bodyLength     = 43
	checksumLength = 6
	// hintLength is how much of the body a hint shows: 24 of 256 bits.
	hintLength = 4
	digits     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// Key is the text of a new key. It is shown once; it prints as [redacted].
type Key struct{ secret.Text }

// newKey makes a key.
func newKey(prefix string) Key {
	var random [sha256.Size]byte
	rand.Read(random[:]) // never fails, see its documentation
	body := prefix + base62(new(big.Int).SetBytes(random[:]), bodyLength)
	return Key{secret.NewText(body + checksum(body))}
}

// Hash is what the store has of a key.
func (k Key) Hash() []byte {
	sum := sha256.Sum256([]byte(k.Reveal()))
	return sum[:]
}

// Hint is the beginning of a key, for people to recognise it.
func (k Key) Hint() string {
	text := k.Reveal()
	return text[:min(len(text), strings.Index(text, "_")+1+hintLength)]
}

// errMalformed is all that is said about a text that is no key, so that nothing of it gets anywhere.
var errMalformed = errors.New("not a key")

// parseKey reads a text that somebody presents as a key, and tells its prefix.
func parseKey(text string) (k Key, prefix string, err error) {
	for _, prefix := range []string{PrefixAdmin, PrefixOperator, PrefixAgent} {
		rest, found := strings.CutPrefix(text, prefix)
		if !found {
			continue
		}
		if len(rest) != bodyLength+checksumLength || strings.Trim(rest, digits) != "" {
			return Key{}, "", errMalformed
		}
		if body := text[:len(text)-checksumLength]; text != body+checksum(body) {
			return Key{}, "", errMalformed
		}
		return Key{secret.NewText(text)}, prefix, nil
	}
	return Key{}, "", errMalformed
}

func checksum(body string) string {
	return base62(new(big.Int).SetUint64(uint64(crc32.ChecksumIEEE([]byte(body)))), checksumLength)
}

// base62 writes a number with a fixed count of digits.
func base62(n *big.Int, length int) string {
	out := make([]byte, length)
	base, digit := big.NewInt(int64(len(digits))), new(big.Int)
	for i := length - 1; i >= 0; i-- {
		n.DivMod(n, base, digit)
		out[i] = digits[digit.Int64()]
	}
	return string(out)
}

// AdminKey is the installation's admin key as a server needs it: its SHA-256. The key itself is in its file and with
// its users. The zero AdminKey is no key.
type AdminKey struct {
	secret.Hidden
	sum   secret.Value
	nodes secret.Value
}

// ForNodes is the secret of the control planes that have the same admin key.
func (a AdminKey) ForNodes() secret.Value { return a.nodes }

// IsZero reports whether there is no key.
func (a AdminKey) IsZero() bool { return a.sum.Len() == 0 }

// matches compares in constant time; both sides are hashes. Without a key nothing matches: lengths differ.
func (a AdminKey) matches(k Key) bool {
	return a.sum.Equal(secret.Own(k.Hash()))
}
