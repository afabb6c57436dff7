package identity

import (
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
)

// longestAdminFile is more than a key and a line end.
const longestAdminFile = 256

// LoadAdminKey reads the admin key of a file, and makes both when there is none. A file that others can read is
// refused: it is not known who has read it. So is a text that was not made here, because people choose weak keys.
func LoadAdminKey(path string) (AdminKey, error) {
	key, err := ReadAdminKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := keyfile.Write(path, 0o600, []byte(newKey(PrefixAdmin).Reveal()+"\n"), os.Link); err != nil && !errors.Is(err, fs.ErrExist) {
			return AdminKey{}, fmt.Errorf("make the admin key: %w", err)
		}
		key, err = ReadAdminKey(path)
	}
	if err != nil {
		return AdminKey{}, err
	}
	forNodes, err := hkdf.Key(sha256.New, []byte(key.Reveal()), nil, "clawjail nodes 1", sha256.Size)
	if err != nil {
		return AdminKey{}, fmt.Errorf("derive the key of nodes: %w", err)
	}
	return AdminKey{sum: secret.Own(key.Hash()), nodes: secret.Own(forNodes)}, nil
}

// ReadAdminKey reads the admin key of a file, for a client that presents it. A file that is no admin key, or not a file of its own, is not
// read: the folder is not root's, and root must not send the content of another file to a server.
func ReadAdminKey(path string) (Key, error) {
	text, err := readAdminFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the admin key: %w", err)
	}
	key, prefix, err := parseKey(strings.TrimSuffix(text, "\n"))
	if err != nil || prefix != PrefixAdmin {
		return Key{}, problem.New(problem.BadConfig, "remove the file, and a new key is made on the next start",
			"the admin key in %s is damaged, or was not made by clawjail", path)
	}
	return key, nil
}

// readAdminFile says of a file that is refused what to do.
func readAdminFile(path string) (string, error) {
	data, _, err := keyfile.Read(path, longestAdminFile)
	if refused, ok := errors.AsType[*keyfile.Refused](err); ok {
		if refused.Why == keyfile.Strange {
			return "", problem.New(problem.BadConfig, "give it to the user that clawjail runs as", "the admin key %s is %s", path, refused.What())
		}
		return "", errAdminFile(path, refused.What())
	}
	return string(data), err
}

func errAdminFile(path, mode string) error {
	return problem.New(problem.BadConfig, "remove it: a new key is made on the next start, and the old one is void then",
		"the admin key %s is %s; it must be a file of mode 0600", path, mode)
}
