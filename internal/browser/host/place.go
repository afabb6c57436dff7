package host

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// DataDir is where the browser of a user is kept. No other user and no other browser has this folder.
func DataDir(e config.Environment) (string, error) {
	base := e.Getenv("XDG_DATA_HOME")
	switch {
	case e.GOOS == "darwin" && filepath.IsAbs(e.Home):
		base = filepath.Join(e.Home, "Library", "Application Support")
	case filepath.IsAbs(base):
	case filepath.IsAbs(e.Home):
		base = filepath.Join(e.Home, ".local", "share")
	default:
		return "", noHome()
	}
	return filepath.Join(base, "clawjail", "browser", ProfileName), nil
}

// TokenPath is the file with the token that the control server wants to see.
func TokenPath(e config.Environment) (string, error) {
	base := e.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		if !filepath.IsAbs(e.Home) {
			return "", noHome()
		}
		base = filepath.Join(e.Home, ".config")
	}
	return filepath.Join(base, "clawjail", "browser.token"), nil
}

func noHome() error {
	return problem.New(problem.BadConfig, "set HOME", "you have no home directory, so there is no place for a browser of yours")
}

// private makes a folder that only its owner can look into.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the browser: %w", err)
	}
	// The profile may hold logins; a folder that was there may have been open.
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("close the folder of the browser to others: %w", err)
	}
	return nil
}

// Token is what a client of the control server shows. It prints as [redacted].
type Token struct{ secret.Text }

const tokenPrefix = "cjbr_"

// ReadToken reads the token. It refuses a file that others can read.
func ReadToken(path string) (Token, error) {
	real, err := filepath.EvalSymlinks(path) // it may be kept with other settings
	if err != nil {
		return Token{}, fmt.Errorf("read the token of the host browser: %w", err)
	}
	data, _, err := keyfile.Read(real, 1<<10)
	if refused, ok := errors.AsType[*keyfile.Refused](err); ok {
		if refused.Why == keyfile.Shared {
			return Token{}, problem.New(problem.BadConfig, "others may know it: delete the file and start `clawjail browser serve` again",
				"the token of the host browser can be read by others: %s has the mode %04o", path, refused.Mode.Perm())
		}
		return Token{}, problem.New(problem.BadConfig, "delete the file and start `clawjail browser serve` again",
			"%s, which is to hold the token of the host browser, is %s", path, refused.What())
	}
	if err != nil {
		return Token{}, fmt.Errorf("read the token of the host browser: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if !strings.HasPrefix(text, tokenPrefix) || len(text) < len(tokenPrefix)+32 || strings.ContainsAny(text, " \n") {
		return Token{}, problem.New(problem.BadConfig, "delete the file and start `clawjail browser serve` again",
			"%s holds no token of a host browser", path)
	}
	return Token{secret.NewText(text)}, nil
}

// EnsureToken reads the token, and makes one where there is none. Two that do so at once get the same.
func EnsureToken(path string) (Token, error) {
	token, err := ReadToken(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Token{}, fmt.Errorf("make the folder of the token: %w", err)
	}
	var random [32]byte
	rand.Read(random[:]) // never fails
	err = keyfile.Write(path, 0o600, []byte(tokenPrefix+hex.EncodeToString(random[:])+"\n"), os.Link)
	if err != nil && !errors.Is(err, fs.ErrExist) { // of two processes the second takes the token of the first
		return Token{}, fmt.Errorf("make the token of the host browser: %w", err)
	}
	return ReadToken(path)
}
