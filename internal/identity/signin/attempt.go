package signin

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// attemptLife is how long somebody may take to use a passkey, or to make one.
const attemptLife = 5 * time.Minute

// purpose is what an attempt is for.
type purpose byte

const (
	toAdd    purpose = 1
	toSignIn purpose = 2
)

// attempts are under way with passkeys. Anybody may begin one, so nothing is kept of them: what has to be known at the end
// is in the challenge, with a code over it that only this process can make. That each is used once is remembered of those
// that somebody has signed.
type attempts struct {
	key [32]byte

	mu    *sync.Mutex
	spent map[[sha256.Size]byte]time.Time // when they are over anyhow
}

func newAttempts() attempts {
	a := attempts{mu: &sync.Mutex{}, spent: map[[sha256.Size]byte]time.Time{}}
	rand.Read(a.key[:]) // never fails, see its documentation
	return a
}

// A challenge is its purpose, when it is over (in seconds since 1970), random bits, the handle of the owner, and a code.
const (
	nonceSize     = 16
	handleSize    = 32
	saidSize      = 1 + 8 + nonceSize + handleSize
	challengeSize = saidSize + sha256.Size
)

// begin makes a challenge. It is good for the one who is named, at one origin.
func (a *attempts) begin(what purpose, who, origin string, handle []byte, now time.Time) (challenge []byte) {
	challenge = append(challenge, byte(what))
	challenge = binary.BigEndian.AppendUint64(challenge, uint64(now.Add(attemptLife).Unix()))
	nonce := make([]byte, nonceSize)
	rand.Read(nonce) // never fails
	challenge = append(challenge, nonce...)
	said := make([]byte, handleSize)
	copy(said, handle)
	challenge = append(challenge, said...)
	return append(challenge, a.code(challenge, who, origin)...)
}

// code is over a challenge, whom it is for and where.
func (a *attempts) code(said []byte, who, origin string) []byte {
	mac := hmac.New(sha256.New, a.key[:])
	mac.Write(said)
	for _, text := range []string{who, origin} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
		mac.Write([]byte(text))
	}
	return mac.Sum(nil)
}

// check reads a challenge that comes back.
func (a *attempts) check(what purpose, who, origin, text string, now time.Time) (challenge, handle []byte, err error) {
	challenge, decodeErr := base64.RawURLEncoding.Strict().DecodeString(text)
	if decodeErr != nil || len(challenge) != challengeSize || purpose(challenge[0]) != what ||
		!hmac.Equal(challenge[saidSize:], a.code(challenge[:saidSize], who, origin)) ||
		now.Unix() >= int64(binary.BigEndian.Uint64(challenge[1:])) || a.isSpent(challenge) {
		return nil, nil, attemptOver()
	}
	return challenge, bytes.Clone(challenge[saidSize-handleSize : saidSize]), nil
}

func attemptOver() error {
	return problem.New(problem.BadRequest, "begin again", "the attempt is not one that was begun here, or took longer than %s", attemptLife)
}

// spend uses a challenge up, and says whether it was not yet.
func (a *attempts) spend(challenge []byte, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := sha256.Sum256(challenge)
	if _, ok := a.spent[sum]; ok {
		return false
	}
	a.spent[sum] = now.Add(attemptLife)
	return true
}

func (a *attempts) isSpent(challenge []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.spent[sha256.Sum256(challenge)]
	return ok
}

// forget forgets what is over anyhow.
func (a *attempts) forget(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for sum, over := range a.spent {
		if now.After(over) {
			delete(a.spent, sum)
		}
	}
}
