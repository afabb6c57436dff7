package grant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"aidanwoods.dev/go-paseto"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/secret"
)

// KeyInfo describes a key of a Keyring.
type KeyInfo struct {
	ID        string
	CreatedAt time.Time
	// VerifiesUntil is set for a key that signs no more: it verifies what it has signed until then.
	VerifiesUntil time.Time
}

// Signs says whether new grants are signed with the key.
func (k KeyInfo) Signs() bool { return k.VerifiesUntil.IsZero() }

// key is one key in memory; secret only for the one that signs.
type key struct {
	KeyInfo
	public paseto.V4AsymmetricPublicKey
	secret secret.Text // the seed, in hexadecimal digits
}

// Keyring is the keys of grants: one signs, and those before it verify for as long as a grant of theirs may live.
// They are in a file of mode 0600. When another process has changed the file, the next use sees it.
type Keyring struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	file fs.FileInfo // as it was when keys was read
	keys []key       // the first signs
}

// retiring is how much longer than the longest grant an old key verifies: a process that signs while another one
// rotates may be a little late.
const retiring = time.Minute

// OpenKeyring reads the key file, and makes it with a first key when there is none. A file that others can read, or
// that is damaged, is refused and left as it is.
func OpenKeyring(path string, now func() time.Time) (*Keyring, error) {
	k := &Keyring{path: path, now: now}
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.refresh()
	if errors.Is(err, fs.ErrNotExist) {
		if err := k.first(); err != nil {
			return nil, fmt.Errorf("make the grant keys: %w", err)
		}
		err = k.refresh()
	}
	if err != nil {
		return nil, fmt.Errorf("open the grant keys: %w", err)
	}
	return k, nil
}

// first makes a file with one key, unless another process just has.
func (k *Keyring) first() error {
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return err
	}
	fresh, err := newKey(k.now())
	if err != nil {
		return err
	}
	err = writeKeys(k.path, []key{fresh}, os.Link)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Rotate adds a key that signs from now on. The one before it forgets its secret half; keys whose last grant has
// expired go. Grants that have been issued stay good.
func (k *Keyring) Rotate() (info KeyInfo, err error) {
	unlock, err := lockFile(k.path + ".lock")
	if err != nil {
		return KeyInfo{}, fmt.Errorf("rotate the grant keys: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(); err != nil {
		return KeyInfo{}, fmt.Errorf("rotate the grant keys: %w", err)
	}
	now := k.now()
	fresh, err := newKey(now)
	if err != nil {
		return KeyInfo{}, err
	}
	keys := []key{fresh}
	for _, old := range k.keys {
		if old.Signs() {
			old.VerifiesUntil = now.Add(MaxTTL + retiring).UTC().Truncate(time.Second)
			old.secret = secret.Text{}
		}
		if now.Before(old.VerifiesUntil) {
			keys = append(keys, old)
		}
	}
	if err := writeKeys(k.path, keys, os.Rename); err != nil {
		return KeyInfo{}, fmt.Errorf("rotate the grant keys: %w", err)
	}
	if err := k.refresh(); err != nil {
		return KeyInfo{}, fmt.Errorf("rotate the grant keys: %w", err)
	}
	return fresh.KeyInfo, nil
}

// Keys lists the keys, the one that signs first.
func (k *Keyring) Keys() ([]KeyInfo, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(); err != nil {
		return nil, fmt.Errorf("list the grant keys: %w", err)
	}
	out := make([]KeyInfo, len(k.keys))
	for n, key := range k.keys {
		out[n] = key.KeyInfo
	}
	return out, nil
}

// Format prints nothing of the keys.
func (k *Keyring) Format(f fmt.State, _ rune) { fmt.Fprint(f, "grant keys of "+k.path) }

// refresh reads the file if it is not the one that was read last.
func (k *Keyring) refresh() error {
	info, err := os.Lstat(k.path)
	if err != nil {
		return err
	}
	if k.file != nil && os.SameFile(info, k.file) && info.ModTime().Equal(k.file.ModTime()) && info.Size() == k.file.Size() && info.Mode() == k.file.Mode() {
		return nil
	}
	keys, info, err := readKeys(k.path)
	if err != nil {
		return err
	}
	k.keys, k.file = keys, info
	return nil
}

// signer is the key that signs now.
func (k *Keyring) signer() (paseto.V4AsymmetricSecretKey, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(); err != nil {
		return paseto.V4AsymmetricSecretKey{}, "", fmt.Errorf("read the grant keys: %w", err)
	}
	secret, err := paseto.NewV4AsymmetricSecretKeyFromSeed(k.keys[0].secret.Reveal())
	if err != nil {
		return paseto.V4AsymmetricSecretKey{}, "", errDamaged(k.path, "the seed is not one")
	}
	return secret, k.keys[0].ID, nil
}

// public is the key of an id, if it still verifies.
func (k *Keyring) public(id string) (paseto.V4AsymmetricPublicKey, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refresh(); err != nil {
		return paseto.V4AsymmetricPublicKey{}, false, fmt.Errorf("read the grant keys: %w", err)
	}
	now := k.now()
	for _, key := range k.keys {
		if key.ID == id {
			return key.public, key.Signs() || now.Before(key.VerifiesUntil), nil
		}
	}
	return paseto.V4AsymmetricPublicKey{}, false, nil
}

// newKey makes a key from 256 random bits.
func newKey(now time.Time) (key, error) {
	own := paseto.NewV4AsymmetricSecretKey()
	id, err := keyID(own.Public().ExportBytes())
	if err != nil {
		return key{}, err
	}
	return key{
		KeyInfo: KeyInfo{ID: id, CreatedAt: now.UTC().Truncate(time.Second)},
		public:  own.Public(), secret: secret.NewText(own.ExportSeedHex()),
	}, nil
}

// lockFile keeps two processes from rotating at the same time. It waits. The file stays.
func lockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, errors.Join(err, f.Close())
		default:
			return f.Close, nil
		}
	}
}
