package vault

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	keyFileFormat = "clawjail vault key 1"
	// longestKeyFile is for hundreds of keys; there is one, or two during a rotation.
	longestKeyFile = 64 << 10
	// Endings of the files beside the key file.
	lockEnding     = ".lock"
	rotatingEnding = ".rotating"
	newEnding      = ".new"
)

var errNoKeyFile = errors.New("there is no key file")

// keyFile is the file: a keyset, when its keys were made, and a sum by which a damaged file is told from a wrong one.
type keyFile struct {
	Format string               `json:"format"`
	Keys   map[string]time.Time `json:"keys"`
	Keyset []byte               `json:"keyset"`
	SHA256 string               `json:"sha256"`
}

// sum is over everything else in the file.
func (f keyFile) sum() string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(f.Format), f.Keyset} {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	// A map is written in the order of its keys.
	keys, err := json.Marshal(f.Keys)
	if err != nil {
		// A time beyond the year 9999, which no file has.
		return ""
	}
	h.Write(keys)
	return hex.EncodeToString(h.Sum(nil))
}

func encodeKeyFile(k *keyring) ([]byte, error) {
	raw, err := k.marshal()
	if err != nil {
		return nil, err
	}
	f := keyFile{Format: keyFileFormat, Keys: map[string]time.Time{}, Keyset: raw}
	for id, at := range k.created {
		f.Keys[id.String()] = at
	}
	f.SHA256 = f.sum()
	out, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the key file: %w", err)
	}
	return append(out, '\n'), nil
}

// decodeKeyFile says in words what is wrong with a file, and never what is in it.
func decodeKeyFile(data []byte) (k *keyring, wrong string) {
	var f keyFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil || len(bytes.TrimSpace(data[d.InputOffset():])) > 0 {
		return nil, "it is cut, or is no key file"
	}
	switch {
	case f.Format != keyFileFormat:
		return nil, "it is of another version, or is no key file"
	case f.SHA256 != f.sum():
		return nil, "it is not as it was written"
	}
	created := map[keyID]time.Time{}
	for name, at := range f.Keys {
		id, err := strconv.ParseUint(name, 16, 32)
		if err != nil || keyID(id).String() != name {
			return nil, "it names a key in another way"
		}
		created[keyID(id)] = at
	}
	k, err := unmarshal(f.Keyset, created)
	clear(f.Keyset)
	if err != nil {
		return nil, "its keyset cannot be used"
	}
	return k, ""
}

func unusable(path, wrong string) error {
	return problem.New(problem.VaultKeyDamaged, "put the key file back from its backup; nothing was changed",
		"the key file %s is damaged: %s", path, wrong)
}

func exposed(path, wrong, hint string) error {
	return problem.New(problem.VaultKeyExposed, hint, "the key file %s cannot be trusted: %s", path, wrong)
}

// makeFolder makes the folder of the key file for its owner alone, and refuses one in which others may replace files.
func makeFolder(path string) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make the folder of the key file: %w", err)
	}
	info, err := os.Stat(folder)
	if err != nil {
		return fmt.Errorf("look at the folder of the key file: %w", err)
	}
	// In a sticky folder, such as /tmp, a user cannot remove or replace another user's file.
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return exposed(path, fmt.Sprintf("others may write to its folder (mode %04o)", info.Mode().Perm()), "chmod 0700 "+folder)
	}
	return nil
}

// readKeyFile says of a file that is refused what to do.
func readKeyFile(path string) (k *keyring, err error) {
	data, _, err := keyfile.Read(path, longestKeyFile)
	defer clear(data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoKeyFile
	}
	if refused, ok := errors.AsType[*keyfile.Refused](err); ok {
		switch refused.Why {
		case keyfile.Link:
			return nil, exposed(path, "it is a symbolic link", "give the path of the file itself")
		case keyfile.Irregular:
			return nil, exposed(path, "it is not a file", "give the path of a file")
		case keyfile.Shared:
			return nil, exposed(path, fmt.Sprintf("others may use it (mode %04o)", refused.Mode.Perm()),
				"chmod 0600 "+path+"; if somebody may have read it, rotate the key then")
		case keyfile.Strange:
			return nil, exposed(path, fmt.Sprintf("it belongs to user %d", refused.Owner), "give it to the user that clawjail runs as")
		case keyfile.Large:
			return nil, unusable(path, "it is too large")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	k, wrong := decodeKeyFile(data)
	if wrong != "" {
		return nil, unusable(path, wrong)
	}
	return k, nil
}

// createKeyFile makes the file, for the owner of its folder. It never replaces one.
func createKeyFile(path string, k *keyring) error {
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("make the key file: %w", err)
	}
	return writeKeyFile(path, k, folder, func(from, to string) error {
		// Unlike a rename, a link does not replace what is there.
		if err := os.Link(from, to); err != nil {
			return err
		}
		return os.Remove(from)
	})
}

// replaceKeyFile puts a new file in the place of the one that is there, in one step, for the same owner.
func replaceKeyFile(path string, k *keyring) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("replace the key file: %w", err)
	}
	return writeKeyFile(path, k, info, os.Rename)
}

// writeKeyFile writes beside the place, down to the disk, and then puts the file there. The caller holds the lock.
func writeKeyFile(path string, k *keyring, like fs.FileInfo, put func(from, to string) error) (err error) {
	data, err := encodeKeyFile(k)
	if err != nil {
		return err
	}
	defer clear(data)
	beside := path + newEnding
	// A process that ended while it was writing may have left this file.
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the key file: %w", err)
	}
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write the key file: %w", err)
	}
	defer func() {
		if err == nil {
			return
		}
		if gone := os.Remove(beside); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		err = fmt.Errorf("write the key file: %w", err)
	}()
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := giveTo(f, like); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := put(beside, path); err != nil {
		return err
	}
	return keyfile.SyncFolder(filepath.Dir(path))
}
