package signin

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// challengeLife is how long somebody may take to use a passkey, or to make one.
const challengeLife = 5 * time.Minute

// purpose is what a challenge is for.
type purpose byte

const (
	toAdd    purpose = 1
	toSignIn purpose = 2
)

// challenges makes and checks WebAuthn challenges without storing them, since anybody may ask for one: a challenge carries
// its own state and a MAC under a key of this process. Only used challenges are stored, until they expire.
type challenges struct {
	key [32]byte
	tag string

	mu   sync.Mutex
	used map[[sha256.Size]byte]time.Time // when the challenge expires
}

func newChallenges(tag string) *challenges {
	c := &challenges{tag: tag, used: map[[sha256.Size]byte]time.Time{}}
	rand.Read(c.key[:]) // never fails, see its documentation
	return c
}

// A challenge is its purpose, when it expires (in seconds since 1970), the tag of its maker, a nonce, the handle of the owner, and a MAC.
const (
	tagAt         = 1 + 8
	tagSize       = 5
	nonceSize     = 16
	handleSize    = 32
	signedSize    = tagAt + tagSize + nonceSize + handleSize
	challengeSize = signedSize + sha256.Size
)

// issue makes a challenge. It is bound to who (an actor; empty for a sign-in) and to origin.
func (c *challenges) issue(p purpose, who, origin string, handle []byte, now time.Time) []byte {
	challenge := binary.BigEndian.AppendUint64([]byte{byte(p)}, uint64(now.Add(challengeLife).Unix()))
	nonce := make([]byte, tagSize+nonceSize)
	rand.Read(nonce[copy(nonce, c.tag):]) // never fails
	challenge = append(challenge, nonce...)
	padded := make([]byte, handleSize)
	copy(padded, handle)
	challenge = append(challenge, padded...)
	return append(challenge, c.mac(challenge, who, origin)...)
}

// MakerOf is an id that begins with the tag of a challenge's maker, as the code of a link does; empty for what is no challenge.
func MakerOf(challenge string) string {
	raw, err := base64.RawURLEncoding.DecodeString(challenge)
	if err != nil || len(raw) != challengeSize {
		return ""
	}
	return "_" + string(raw[tagAt:tagAt+tagSize])
}

// mac authenticates the signed part of a challenge together with who and origin.
func (c *challenges) mac(signed []byte, who, origin string) []byte {
	mac := hmac.New(sha256.New, c.key[:])
	mac.Write(signed)
	for _, text := range []string{who, origin} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
		mac.Write([]byte(text))
	}
	return mac.Sum(nil)
}

// verify decodes a challenge that a browser sent back, and checks that it was issued for this and has not expired. Whether
// it was used before, use says.
func (c *challenges) verify(p purpose, who, origin, text string, now time.Time) (challenge, handle []byte, err error) {
	challenge, decodeErr := base64.RawURLEncoding.Strict().DecodeString(text)
	if decodeErr != nil || len(challenge) != challengeSize || purpose(challenge[0]) != p ||
		!hmac.Equal(challenge[signedSize:], c.mac(challenge[:signedSize], who, origin)) ||
		now.Unix() >= int64(binary.BigEndian.Uint64(challenge[1:])) {
		return nil, nil, notValid()
	}
	return challenge, challenge[signedSize-handleSize : signedSize], nil
}

func notValid() error {
	return problem.New(problem.BadRequest, "start again: click the button once more",
		"this passkey attempt has expired, was used already, or was begun before clawjail restarted")
}

// use marks a challenge as used. It is an error when that was done before.
func (c *challenges) use(challenge []byte, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := sha256.Sum256(challenge)
	if _, ok := c.used[sum]; ok {
		return notValid()
	}
	c.used[sum] = now.Add(challengeLife)
	return nil
}

// removeExpired drops used challenges that have expired.
func (c *challenges) removeExpired(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sum, expires := range c.used {
		if now.After(expires) {
			delete(c.used, sum)
		}
	}
}
