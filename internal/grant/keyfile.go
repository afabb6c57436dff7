package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"aidanwoods.dev/go-paseto"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	keyFileVersion = 1
	// longestKeyFile is for some hundred keys; there are two or three.
	longestKeyFile = 64 << 10
)

// keyFile is the file of a Keyring: its keys, the newest first. Only the first one has a seed: it signs, and the others verify.
type keyFile struct {
	Version int            `json:"version"`
	Keys    []keyFileEntry `json:"keys"`
}

type keyFileEntry struct {
	ID            string    `json:"kid"`
	CreatedAt     time.Time `json:"created_at"`
	VerifiesUntil time.Time `json:"verifies_until,omitzero"`
	Public        string    `json:"public,omitempty"` // hexadecimal, of a key that only verifies
	Seed          string    `json:"seed,omitempty"`   // hexadecimal, of the key that signs
}

// errDamaged is for a file that is not as it was written. Without it no grant can be issued or used; a new one makes
// every grant invalid that has not been used yet, and nothing else.
func errDamaged(path, what string) error {
	return problem.New(problem.BadConfig,
		"restore it from a backup, or remove it: a new one is made on the next start, and grants that have not been used are void then",
		"the file of the grant keys %s is damaged: %s", path, what)
}

// readKeys reads the file, and says of one that is refused what to do.
func readKeys(path string) (keys []key, info fs.FileInfo, err error) {
	data, info, err := keyfile.Read(path, longestKeyFile)
	if refused, ok := errors.AsType[*keyfile.Refused](err); ok {
		if refused.Why == keyfile.Large {
			return nil, nil, errDamaged(path, "it is too long")
		}
		if refused.Why == keyfile.Strange {
			return nil, nil, problem.New(problem.BadConfig, "give it to the user that clawjail runs as", "the file of the grant keys %s is %s", path, refused.What())
		}
		return nil, nil, errExposed(path, refused.What())
	}
	if err != nil {
		return nil, nil, err
	}
	keys, what := parseKeys(data)
	if what != "" {
		return nil, nil, errDamaged(path, what)
	}
	return keys, info, nil
}

func errExposed(path, mode string) error {
	return problem.New(problem.BadConfig,
		"remove it: a new one is made on the next start, and grants that have not been used are void then, also those that somebody else has made with it",
		"the file of the grant keys %s is %s; it must be a file of mode 0600, because whoever reads it can sign grants", path, mode)
}

// parseKeys reads what is in a file, or says what is wrong with it, without quoting from it.
func parseKeys(data []byte) (keys []key, wrong string) {
	var file keyFile
	if err := strict(data, &file); err != nil {
		return nil, "it is not whole, or not JSON"
	}
	if file.Version != keyFileVersion {
		return nil, fmt.Sprintf("its version is %d, and this clawjail knows %d", file.Version, keyFileVersion)
	}
	if len(file.Keys) == 0 {
		return nil, "it has no keys"
	}
	for n, entry := range file.Keys {
		k := key{KeyInfo: KeyInfo{ID: entry.ID, CreatedAt: entry.CreatedAt, VerifiesUntil: entry.VerifiesUntil}}
		if (n == 0) != k.Signs() || k.Signs() != (entry.Seed != "") || k.Signs() != (entry.Public == "") {
			return nil, "not its first key alone signs"
		}
		if entry.Seed != "" {
			own, err := paseto.NewV4AsymmetricSecretKeyFromSeed(entry.Seed)
			if err != nil {
				return nil, "a seed is not 64 hexadecimal digits"
			}
			k.public, k.secret = own.Public(), secret.NewText(entry.Seed)
		} else {
			public, err := paseto.NewV4AsymmetricPublicKeyFromHex(entry.Public)
			if err != nil {
				return nil, "a public key is not 64 hexadecimal digits"
			}
			k.public = public
		}
		if id, err := keyID(k.public.ExportBytes()); err != nil || id != entry.ID {
			return nil, "a key does not belong to its id"
		}
		keys = append(keys, k)
	}
	return keys, ""
}

// writeKeys puts a file in its place whole or not at all: place is os.Link, which replaces no file, or os.Rename.
func writeKeys(path string, keys []key, place func(from, to string) error) error {
	file := keyFile{Version: keyFileVersion}
	for _, k := range keys {
		entry := keyFileEntry{ID: k.ID, CreatedAt: k.CreatedAt, VerifiesUntil: k.VerifiesUntil, Seed: k.secret.Reveal()}
		if entry.Seed == "" {
			entry.Public = k.public.ExportHex()
		}
		file.Keys = append(file.Keys, entry)
	}
	data, err := json.MarshalIndent(file, "", "\t")
	if err != nil {
		return err
	}
	return keyfile.Write(path, 0o600, append(data, '\n'), place)
}
