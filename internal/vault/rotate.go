package vault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Rotation is what [Vault.Rotate] did.
type Rotation struct {
	// Key is the primary key, with which everything is encrypted now.
	Key string `json:"key"`
	// Entries is how many were encrypted anew by this call.
	Entries int `json:"entries"`
	// Destroyed are the keys that are gone.
	Destroyed []string `json:"destroyed"`
	// Resumed says that an earlier rotation had not ended, and that this one went on with its key.
	Resumed bool `json:"resumed"`
}

// Rotate makes a new primary key, encrypts every entry with it, and destroys the old keys when none needs them any more.
// The vault is in use meanwhile. A rotation that was interrupted, however, goes on where it was when Rotate is called
// again; until then the old keys are kept.
//
// Entries that cannot be opened stop it before the old keys are destroyed: they are named, and have to be deleted first.
// An earlier copy of the database can still be read with an earlier copy of the key file.
func (v *Vault) Rotate(ctx context.Context) (out Rotation, err error) {
	release, err := tryLock(v.path + rotatingEnding)
	if errors.Is(err, errLocked) {
		return out, problem.New(problem.VaultRotating, "wait until it has ended", "another process is rotating the key of the vault")
	}
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, release()) }()

	var keys *keyring
	err = v.exclusively(ctx, func() error {
		keys, err = v.reload()
		if err != nil {
			return err
		}
		if out.Resumed = len(keys.created) > 1; out.Resumed {
			return nil
		}
		next, err := keys.rotated(v.now())
		if err != nil {
			return err
		}
		keys = next
		return v.replace(keys)
	})
	if err != nil {
		return out, fmt.Errorf("add a key: %w", err)
	}
	out.Key = keys.primary.String()
	// Entries that change while a pass runs are of the next one. Other processes on this host use the new key already.
	const passes = 20
	for range passes {
		n, err := v.reencrypt(ctx, keys)
		out.Entries += n
		if err != nil {
			return out, err
		}
		if done, err := v.destroyOld(ctx, keys, &out); err != nil || done {
			return out, err
		}
	}
	return out, problem.New(problem.VaultRotating, "stop the control planes of the other nodes, and rotate again",
		"another control plane keeps storing entries that are encrypted with the old key")
}

// replace writes the key file, and uses it.
func (v *Vault) replace(keys *keyring) error {
	if err := replaceKeyFile(v.path, keys); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.keys = keys
	return nil
}

// stale are the entries that the primary key does not open.
func (v *Vault) stale(ctx context.Context, keys *keyring) ([]row, error) {
	rows, err := v.rows(ctx)
	if err != nil {
		return nil, err
	}
	var out []row
	for _, r := range rows {
		if id, ok := keyOf(r.head); !ok || id != keys.primary {
			out = append(out, r)
		}
	}
	return out, nil
}

// reencrypt encrypts every stale entry with the primary key, one at a time, so that other calls do not wait long.
func (v *Vault) reencrypt(ctx context.Context, keys *keyring) (done int, err error) {
	rows, err := v.stale(ctx, keys)
	if err != nil {
		return 0, err
	}
	var broken []string
	for _, r := range rows {
		err := v.exclusively(ctx, func() error { return v.reencryptOne(ctx, keys, r.place) })
		switch code := problem.CodeOf(err); {
		case err == nil:
			done++
		case code == problem.VaultRowDamaged || code == problem.VaultKeyWrong:
			broken = append(broken, r.place.String())
		default:
			return done, fmt.Errorf("encrypt %s anew: %w", r.place, err)
		}
	}
	if len(broken) > 0 {
		return done, problem.New(problem.VaultRowDamaged, "delete them, and rotate again; until then the old keys are kept",
			"%d entries of the vault cannot be opened: %s", len(broken), strings.Join(broken, ", ")).With("entries", broken)
	}
	return done, nil
}

// reencryptOne reads the row again under the lock: since it was listed it may have been replaced, or deleted.
func (v *Vault) reencryptOne(ctx context.Context, keys *keyring, p place) error {
	var err error
	if p.kind == kindCookies {
		var was store.CookieSet
		if was, err = v.store.CookieSet(ctx, p.tenant, p.name[0]); err == nil {
			s := was
			if s.Ciphertext, err = v.reseal(keys, placeOfCookies(s), s.Ciphertext); err == nil {
				err = v.store.PutCookieSet(ctx, was, s)
			}
		}
	} else {
		var was store.Secret
		if was, err = v.store.Secret(ctx, p.tenant, p.name[0], p.name[1]); err == nil {
			s := was
			if s.Ciphertext, err = v.reseal(keys, placeOfSecret(s), s.Ciphertext); err == nil {
				err = v.store.PutSecret(ctx, was, s)
			}
		}
	}
	// It is gone, or another node has changed it, which the next pass finds.
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExists) {
		return nil
	}
	return err
}

func (v *Vault) reseal(keys *keyring, p place, ciphertext []byte) ([]byte, error) {
	plaintext, err := v.unseal(p, ciphertext)
	if err != nil {
		return nil, err
	}
	defer clear(plaintext)
	return keys.seal(p, plaintext)
}

// destroyOld removes the old keys from the key file, if nothing is encrypted with them. Nothing can be in between:
// a call that stores an entry reads the key file first, under the same lock.
func (v *Vault) destroyOld(ctx context.Context, keys *keyring, out *Rotation) (done bool, err error) {
	err = v.exclusively(ctx, func() error {
		rows, err := v.stale(ctx, keys)
		if err != nil || len(rows) > 0 {
			return err
		}
		alone, err := keys.alone()
		if err != nil {
			return err
		}
		if err := v.replace(alone); err != nil {
			return err
		}
		for _, id := range keys.ids() {
			if id != keys.primary {
				out.Destroyed = append(out.Destroyed, id.String())
			}
		}
		done = true
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("destroy the old keys: %w", err)
	}
	return done, nil
}
