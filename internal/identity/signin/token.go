package signin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// The beginnings of what is shown here, by which people and scanners for secrets recognise it.
const (
	PrefixCookie = "cjweb_"
	PrefixLink   = "cjlink_"
)

// newToken makes a text with 256 random bits, some of which a tag takes the place of, and its hash, which is all that is kept.
func newToken(prefix, tag string) (text string, sum [sha256.Size]byte) {
	var random [32]byte
	rand.Read(random[:]) // never fails, see its documentation
	text = prefix + tag + base64.RawURLEncoding.EncodeToString(random[:])[len(tag):]
	return text, sha256.Sum256([]byte(text))
}

// hashOf is the hash of a text that somebody shows; ok is false for what cannot be one of ours.
func hashOf(prefix, text string) (sum [sha256.Size]byte, ok bool) {
	rest, found := strings.CutPrefix(text, prefix)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if !found || err != nil || len(raw) != 32 {
		return sum, false
	}
	return sha256.Sum256([]byte(text)), true
}

// newID is a random id of a kind.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }
