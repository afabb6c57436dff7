package api

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/problem"
)

// KeyHeader is the header that holds the admin key.
const KeyHeader = "X-Admin-Key"

const (
	keyPrefix = "cjadm_"
	keyBytes  = 32
)

// Key is an admin key as a server needs it: its SHA-256. The key itself is in its file and with its users. A Key
// prints as [redacted].
type Key struct{ sum [sha256.Size]byte }

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k == Key{} }

// String implements fmt.Stringer.
func (k Key) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (k Key) GoString() string { return "[redacted]" }

// LogValue implements slog.LogValuer.
func (k Key) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// matches compares in constant time. Both sides are hashes, so nothing about the key's length shows either.
func (k Key) matches(given string) bool {
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], k.sum[:]) == 1
}

// NewKey makes the text of a new key: 256 random bits behind a prefix that scanners for secrets can find.
func NewKey() string {
	var b [keyBytes]byte
	rand.Read(b[:]) // never fails, see its documentation
	return keyPrefix + hex.EncodeToString(b[:])
}

// ParseKey accepts the text of a key, and nothing that is shorter or has another alphabet: a weak key that somebody
// wrote into the file by hand is refused.
func ParseKey(text string) (Key, error) {
	digits, found := strings.CutPrefix(strings.TrimSpace(text), keyPrefix)
	raw, err := hex.DecodeString(digits)
	if !found || err != nil || len(raw) != keyBytes {
		return Key{}, problem.New(problem.BadConfig, "remove the file, and a new key is made on the next start",
			"the admin key is not %s and %d hexadecimal digits", keyPrefix, 2*keyBytes)
	}
	return Key{sha256.Sum256([]byte(strings.TrimSpace(text)))}, nil
}

// LoadKey reads the key of a file, and makes both when there is none. A file that others can read is refused: it is
// not known who has read it.
func LoadKey(path string) (Key, error) {
	text, err := readKeyFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := writeKeyFile(path, NewKey()); err != nil && !errors.Is(err, fs.ErrExist) {
			return Key{}, fmt.Errorf("make the admin key: %w", err)
		}
		text, err = readKeyFile(path)
	}
	if err != nil {
		return Key{}, fmt.Errorf("read the admin key: %w", err)
	}
	return ParseKey(text)
}

func readKeyFile(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", problem.New(problem.BadConfig, "remove it: a new key is made on the next start, and the old one is worth nothing then",
			"the admin key %s has mode %s; it must be a file of mode 0600", path, info.Mode())
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// writeKeyFile makes the file whole or not at all, and never over another.
func writeKeyFile(path, key string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".admin.key-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.WriteString(key + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

const (
	// guesses is how many wrong keys an address may send at once, and guessEvery how soon it gets one back.
	guesses    = 10
	guessEvery = 3 * time.Second
	// brakedMost bounds the table of addresses.
	brakedMost = 4096
)

// brake slows down who sends wrong keys. It never refuses the right one: the key cannot be guessed anyway, and a
// program that has the wrong key must not lock its owner out of the same machine. What it saves is the log.
type brake struct {
	now func() time.Time

	mu     sync.Mutex
	braked map[netip.Addr]*rate.Limiter
}

func newBrake(now func() time.Time) *brake {
	return &brake{now: now, braked: map[netip.Addr]*rate.Limiter{}}
}

// wrong counts one wrong key, and reports whether its sender has to wait.
func (b *brake) wrong(addr netip.Addr) (wait bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	l, ok := b.braked[addr]
	if !ok {
		if len(b.braked) >= brakedMost {
			b.forget(now)
		}
		l = rate.NewLimiter(rate.Every(guessEvery), guesses)
		b.braked[addr] = l
	}
	return !l.AllowN(now, 1)
}

// forget drops the addresses that have all their guesses back, or everything when there are none: somebody with
// thousands of addresses is not slowed down by this, and must not fill the memory either.
func (b *brake) forget(now time.Time) {
	for addr, l := range b.braked {
		if l.TokensAt(now) >= guesses {
			delete(b.braked, addr)
		}
	}
	if len(b.braked) >= brakedMost {
		clear(b.braked)
	}
}

// open lists what answers without a key.
func open(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/v1/health" || r.URL.Path == "/openapi.json")
}

// authenticate lets requests with the key pass, and those that need none.
func (a *API) authenticate(next http.Handler) http.Handler {
	brake := newBrake(a.Now)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.Header.Values(KeyHeader)
		switch {
		case open(r), len(given) == 1 && a.Key.matches(given[0]):
			next.ServeHTTP(w, r)
			return
		case len(given) == 0:
			w.Header().Set("WWW-Authenticate", `X-Admin-Key realm="clawjail"`)
			a.refuse(w, r, problem.New(problem.Unauthorized, "send the content of admin.key in "+KeyHeader, "no admin key was sent"))
			return
		}
		from := a.client(r)
		if brake.wrong(from) {
			retryAfter(w, guessEvery)
			a.refuse(w, r, problem.New(problem.RateLimited, "send the right key: the content of admin.key", "too many wrong admin keys"))
			return
		}
		a.Log.Warn("wrong admin key", "client", from)
		w.Header().Set("WWW-Authenticate", `X-Admin-Key realm="clawjail"`)
		a.refuse(w, r, problem.New(problem.Unauthorized, "send the content of admin.key in "+KeyHeader, "the admin key is wrong"))
	})
}
