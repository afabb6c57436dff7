package vault

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// keyID names a key, in its file and in front of every ciphertext.
type keyID uint32

func (id keyID) String() string { return fmt.Sprintf("%08x", uint32(id)) }

// keyring is the keys of a vault. It does not change. The primary key encrypts; the others open what is not yet
// encrypted anew during a rotation.
type keyring struct {
	handle  *keyset.Handle
	aead    tink.AEAD
	primary keyID
	created map[keyID]time.Time
}

// newKeyring makes the first key.
func newKeyring(now time.Time) (*keyring, error) {
	return addKey(keyset.NewManager(), nil, now)
}

// rotated has a new primary key, and all others.
func (k *keyring) rotated(now time.Time) (*keyring, error) {
	return addKey(keyset.NewManagerFromHandle(k.handle), k.created, now)
}

func addKey(manager *keyset.Manager, created map[keyID]time.Time, now time.Time) (*keyring, error) {
	// 256-bit AES-GCM with a random 96-bit nonce: one key is good for 2^32 entries, far more than are ever written.
	id, err := manager.Add(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if err := manager.SetPrimary(id); err != nil {
		return nil, fmt.Errorf("make a key the primary one: %w", err)
	}
	handle, err := manager.Handle()
	if err != nil {
		return nil, fmt.Errorf("make a keyset: %w", err)
	}
	out := map[keyID]time.Time{keyID(id): now.UTC().Truncate(time.Second)}
	maps.Copy(out, created)
	return newRing(handle, out)
}

// alone has the primary key only: the others are destroyed.
func (k *keyring) alone() (*keyring, error) {
	manager := keyset.NewManagerFromHandle(k.handle)
	created := map[keyID]time.Time{k.primary: k.created[k.primary]}
	for id := range k.created {
		if id == k.primary {
			continue
		}
		if err := manager.Delete(uint32(id)); err != nil {
			return nil, fmt.Errorf("destroy key %s: %w", id, err)
		}
	}
	handle, err := manager.Handle()
	if err != nil {
		return nil, fmt.Errorf("make a keyset: %w", err)
	}
	return newRing(handle, created)
}

// newRing checks that every key of a keyset is one that this package makes: enabled, named in front of its
// ciphertexts, and with a time.
func newRing(handle *keyset.Handle, created map[keyID]time.Time) (*keyring, error) {
	info := handle.KeysetInfo()
	for _, key := range info.GetKeyInfo() {
		id := keyID(key.GetKeyId())
		if key.GetStatus() != tinkpb.KeyStatusType_ENABLED || key.GetOutputPrefixType() != tinkpb.OutputPrefixType_TINK {
			return nil, fmt.Errorf("key %s is not of a form that the vault uses", id)
		}
		if created[id].IsZero() {
			return nil, fmt.Errorf("key %s has no time", id)
		}
	}
	if len(info.GetKeyInfo()) != len(created) {
		return nil, fmt.Errorf("there are %d keys instead of %d", len(info.GetKeyInfo()), len(created))
	}
	primitive, err := aead.New(handle)
	if err != nil {
		return nil, fmt.Errorf("use the keyset: %w", err)
	}
	return &keyring{handle: handle, aead: primitive, primary: keyID(info.GetPrimaryKeyId()), created: created}, nil
}

func (k *keyring) has(id keyID) bool { _, ok := k.created[id]; return ok }

// ids are sorted by age, the oldest first; the primary key is the last one.
func (k *keyring) ids() []keyID {
	out := slices.Collect(maps.Keys(k.created))
	slices.SortFunc(out, func(a, b keyID) int {
		if (a == k.primary) != (b == k.primary) {
			if a == k.primary {
				return 1
			}
			return -1
		}
		if order := k.created[a].Compare(k.created[b]); order != 0 {
			return order
		}
		return int(int64(a) - int64(b))
	})
	return out
}

// marshal writes the keyset in the clear. This and unmarshal are where a key management service would come in: with
// handle.Write and keyset.Read, and the service's AEAD as the master key.
func (k *keyring) marshal() ([]byte, error) {
	var b bytes.Buffer
	if err := insecurecleartextkeyset.Write(k.handle, keyset.NewBinaryWriter(&b)); err != nil {
		return nil, fmt.Errorf("write the keyset: %w", err)
	}
	return b.Bytes(), nil
}

func unmarshal(raw []byte, created map[keyID]time.Time) (*keyring, error) {
	handle, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, fmt.Errorf("read the keyset: %w", err)
	}
	return newRing(handle, created)
}
