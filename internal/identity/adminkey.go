package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

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
		if err := writeAdminFile(path, newKey(PrefixAdmin)); err != nil && !errors.Is(err, fs.ErrExist) {
			return AdminKey{}, fmt.Errorf("make the admin key: %w", err)
		}
		key, err = ReadAdminKey(path)
	}
	if err != nil {
		return AdminKey{}, err
	}
	return AdminKey{sum: secret.Own(key.Hash())}, nil
}

// ReadAdminKey reads the admin key of a file, for who presents it. What is no admin key, or no file of its own, is not
// read: the folder is not root's, and root must not send other people's files to whom it has been led to.
func ReadAdminKey(path string) (Key, error) {
	text, err := readAdminFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the admin key: %w", err)
	}
	key, prefix, err := parseKey(strings.TrimSuffix(text, "\n"))
	if err != nil || prefix != PrefixAdmin {
		return Key{}, problem.New(problem.BadConfig, "remove the file, and a new key is made on the next start",
			"the admin key in %s is not one that clawjail has made, or is not whole", path)
	}
	return key, nil
}

// readAdminFile reads through one descriptor, so that what is checked is what is read.
func readAdminFile(path string) (text string, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) { // the second is FreeBSD's
		return "", errAdminFile(path, "a symbolic link")
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", errAdminFile(path, info.Mode().String())
	}
	data, err := io.ReadAll(io.LimitReader(f, longestAdminFile))
	return string(data), err
}

func errAdminFile(path, mode string) error {
	return problem.New(problem.BadConfig, "remove it: a new key is made on the next start, and the old one is worth nothing then",
		"the admin key %s is %s; it must be a file of mode 0600", path, mode)
}

// writeAdminFile makes the file whole or not at all, and never over another.
func writeAdminFile(path string, key Key) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".admin.key-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.WriteString(key.Reveal() + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
