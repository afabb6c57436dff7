//go:build linux

package docs

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// tokenIn is the form in which a text has the token of the server; empty when it does not.
func tokenIn(text []byte) string { return secretIn(text, gitToken) }

// secretIn is [tokenIn] for another secret.
func secretIn(text []byte, secret string) string {
	// In this order: 15 bytes stand before the token on the wire, so that its own base64 is a part of that form.
	for _, form := range []struct{ name, value string }{
		{"itself", secret},
		{"hexadecimal", hex.EncodeToString([]byte(secret))},
		{"what goes over the wire", base64.StdEncoding.EncodeToString([]byte("x-access-token:" + secret))},
		{"base64", base64.RawStdEncoding.EncodeToString([]byte(secret))},
	} {
		if bytes.Contains(text, []byte(form.value)) {
			return form.name
		}
	}
	return ""
}

// filesBelow reads all files below a folder.
func filesBelow(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := readData(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was a moment's
		}
		out[path] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// readData reads a file without its holes, which are most of an image of a file system.
func readData(path string) (out []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	for end := int64(0); ; {
		start, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return out, nil // there is nothing after it
		}
		if err != nil {
			return nil, err
		}
		if end, err = f.Seek(start, unix.SEEK_HOLE); err != nil {
			return nil, err
		}
		text := make([]byte, end-start)
		n, err := f.ReadAt(text, start)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		out = append(out, text[:n]...)
	}
}

// TestTheSearchForTheTokenFindsIt plants the token in every form where the agent could have it.
func TestTheSearchForTheTokenFindsIt(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"itself": gitToken, "hexadecimal": hex.EncodeToString([]byte(gitToken)),
		"what goes over the wire": base64.StdEncoding.EncodeToString([]byte("x-access-token:" + gitToken)),
		"base64":                  base64.StdEncoding.EncodeToString([]byte(gitToken)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("before "+text+" after"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// In an image of a file system it stands behind a hole of any size, and before another.
	image, err := os.Create(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = image.WriteAt([]byte(gitToken), 1<<40)
	if err := errors.Join(err, image.Truncate(1<<41), image.Close()); err != nil {
		t.Fatal(err)
	}
	files := filesBelow(t, dir)
	for path, text := range files {
		if form := tokenIn(text); form != filepath.Base(path) && (form != "itself" || filepath.Base(path) != "image") {
			t.Errorf("%s is found as %q", filepath.Base(path), form)
		}
	}
	if len(files) != 5 || tokenIn([]byte("ghp_another")) != "" {
		t.Errorf("%d files", len(files))
	}
}
