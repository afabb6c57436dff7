// Package vault keeps logins of sites and API credentials encrypted in the database, with a key that is not in it.
//
// It promises:
//
//   - A database without the key file opens nothing, and neither does a key file without the database.
//   - An entry opens only in its own place: what it is bound to (tenant, kind, name, row, form) is authenticated, so
//     that rows cannot be swapped, copied to another tenant, or written by somebody without the key.
//   - Values come out through [Vault.UseLogin] and [Vault.UseSecret] alone, for as long as a function runs, and are
//     overwritten afterwards as far as Go allows. Listings have names, flags and times.
//   - A key file that is missing, wrong, damaged or open to others is refused, and nothing is changed. A new one is made
//     only when there is nothing yet that it would have to open.
//
// The key file is a Tink keyset in the clear, protected by its mode. A keyset that is wrapped by a key management
// service would be read by keyset.Read with that service's AEAD in the one place that reads it now, see keyring.go;
// rows would not change.
//
// Every control plane on a database needs the same key file. Several processes on one host may share it: they agree by
// locks beside the file. On several hosts, rotate on one while the others are stopped, and copy the file.
package vault

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Rows is what the vault needs of a store.
type Rows interface {
	PutCookieSet(ctx context.Context, was, s store.CookieSet) error
	CookieSet(ctx context.Context, tenant, domain string) (store.CookieSet, error)
	ListCookieSets(ctx context.Context, tenant string) ([]store.CookieSet, error)
	DeleteCookieSet(ctx context.Context, tenant, domain string) error

	PutSecret(ctx context.Context, was, s store.Secret) error
	Secret(ctx context.Context, tenant, agent, service string) (store.Secret, error)
	ListSecrets(ctx context.Context, tenant string) ([]store.Secret, error)
	ListSealed(ctx context.Context) ([]store.Sealed, error)
	DeleteSecret(ctx context.Context, tenant, agent, service string) error
	MarkUsed(ctx context.Context, tenant, agent, service string, at time.Time) error
}

// Options of a vault. All but Quotas and Tenants must be set.
type Options struct {
	// KeyFile is an absolute path outside the database's folder of backups. The file is made on the first run,
	// and its folder if it is missing. Files of the same name with an ending are locks and a half-written successor.
	KeyFile string
	Store   Rows
	Now     func() time.Time
	// Quotas and Tenants divide what the vault has room for; see [quota.GateOptions].
	Quotas  config.Quotas
	Tenants func() int
}

// Validate reports everything that is wrong at once.
func (o Options) Validate() error {
	wrong := &problem.ValidationError{Code: problem.BadConfig}
	if !filepath.IsAbs(o.KeyFile) {
		wrong.Add("vault.key_file", "must be an absolute path")
	}
	if o.Store == nil {
		wrong.Add("store", "is missing")
	}
	if o.Now == nil {
		wrong.Add("now", "is missing")
	}
	return wrong.Err()
}

// Vault is safe for use by many goroutines.
type Vault struct {
	path  string
	store Rows
	now   func() time.Time
	room  room

	// writing is held by the goroutine that changes rows or the key file. It is taken before the lock between processes,
	// so that goroutines wait without polling.
	writing chan struct{}

	mu   sync.RWMutex
	keys *keyring // guarded by mu

	named Named // guarded by mu
}

// Open reads the key file, or makes it if neither it nor any entry is there, and checks that it is the one that the
// entries were written with.
func Open(ctx context.Context, o Options) (*Vault, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	v := &Vault{path: o.KeyFile, store: o.Store, now: o.Now, room: newRoom(o), writing: make(chan struct{}, 1)}
	if err := makeFolder(v.path); err != nil {
		return nil, err
	}
	err := v.exclusively(ctx, func() error {
		rows, err := v.rows(ctx)
		if err != nil {
			return err
		}
		keys, err := readKeyFile(v.path)
		if errors.Is(err, errNoKeyFile) {
			if len(rows) > 0 {
				return missing(v.path, len(rows))
			}
			keys, err = v.first()
		}
		if err != nil {
			return err
		}
		v.keys = keys
		return wrongKeys(v.path, keys, rows)
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// first makes the key file of a new installation.
func (v *Vault) first() (*keyring, error) {
	keys, err := newKeyring(v.now())
	if err != nil {
		return nil, err
	}
	if err := createKeyFile(v.path, keys); err != nil {
		return nil, err
	}
	return keys, nil
}

// wrongKeys refuses a key file that opens nothing of what is there. A few entries of another key are not the file's
// fault; they are named when they are used.
func wrongKeys(path string, keys *keyring, rows []row) error {
	for _, r := range rows {
		if id, ok := keyOf(r.head); ok && keys.has(id) {
			return nil
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return problem.New(problem.VaultKeyWrong, "put the key file back that this database was written with; nothing was changed",
		"the key file %s opens none of the %d entries of the vault", path, len(rows))
}

func missing(path string, rows int) error {
	return problem.New(problem.VaultKeyMissing,
		"put the key file back from its backup, or copy it from another node; without it, delete the entries from the database and import them anew",
		"the key file %s is not there, and the vault has %d entries that only it opens", path, rows)
}

// current is the keyring as it was read last.
func (v *Vault) current() *keyring {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.keys
}

// reload reads the key file again: another process may have rotated it.
func (v *Vault) reload() (*keyring, error) {
	keys, err := readKeyFile(v.path)
	if errors.Is(err, errNoKeyFile) {
		return nil, problem.New(problem.VaultKeyMissing, "put the key file back; until then nothing can be stored", "the key file %s is gone", v.path)
	}
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.keys = keys
	return keys, nil
}

// exclusively runs f while no other goroutine and no other process on this host changes the key file, or rows.
func (v *Vault) exclusively(ctx context.Context, f func() error) (err error) {
	select {
	case v.writing <- struct{}{}:
		defer func() { <-v.writing }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the vault: %w", context.Cause(ctx))
	}
	release, err := lock(ctx, v.path+lockEnding)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	return f()
}

// attempts is how often a change starts again because another node made one in between.
const attempts = 5

// decided runs f, which reads a row and writes what follows from it, again when another node has changed the row in between. The
// lock of this host does not keep it from that.
func decided(f func() error) (err error) {
	for range attempts {
		if err = f(); !errors.Is(err, store.ErrExists) {
			break
		}
	}
	return err
}

// row is what is known of an entry of either kind without reading it.
type row struct {
	place place
	head  []byte // of its ciphertext
	bytes int64  // of all of it
}

// rows are all entries of all tenants.
func (v *Vault) rows(ctx context.Context) ([]row, error) {
	all, err := v.store.ListSealed(ctx)
	if err != nil {
		return nil, fmt.Errorf("list what is in the vault: %w", err)
	}
	out := make([]row, len(all))
	for i, s := range all {
		out[i] = row{head: s.Head, bytes: s.Bytes, place: placeOfCookies(store.CookieSet{ID: s.ID, Tenant: s.Tenant, Domain: s.Name})}
		if s.Secret {
			out[i].place = placeOfSecret(store.Secret{ID: s.ID, Tenant: s.Tenant, Agent: s.Agent, Service: s.Name, Ciphertext: s.Head})
		}
	}
	return out, nil
}

// reread says of the error of unseal that the entry has to be read again, once: a rotation may have ended since it was read, which
// destroys the key of what was there before.
func reread(err error) bool { return problem.CodeOf(err) == problem.VaultKeyWrong }

// unseal opens an entry. The caller wipes the plaintext.
func (v *Vault) unseal(p place, ciphertext []byte) ([]byte, error) {
	keys := v.current()
	id, ok := keyOf(ciphertext)
	if ok && !keys.has(id) {
		var err error
		if keys, err = v.reload(); err != nil {
			return nil, err
		}
		if !keys.has(id) {
			return nil, problem.New(problem.VaultKeyWrong, "compare the key files of all nodes, or store the entry anew",
				"%s was encrypted with key %s, which is not in the key file", p, id)
		}
	}
	plain, err := keys.open(p, ciphertext)
	if err != nil {
		return nil, damaged(p, err)
	}
	return plain, nil
}

func damaged(p place, err error) error {
	return problem.Wrap(err, problem.VaultRowDamaged, "find out who writes to the database; then delete the entry and store it anew",
		"%s was changed in the database, or moved from another place", p)
}

// newID names a row: 26 random characters.
func newID() string { return rand.Text() }
