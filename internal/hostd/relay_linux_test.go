package hostd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// The key is made once, is the control plane's, and whatever stands in its place nothing outside the folder is written.
func TestTheRelaysKeyIsMadeOnceBeneathItsFolder(t *testing.T) {
	testenv.Need(t, testenv.Root)
	const uid = 990
	dir := t.TempDir()
	path := filepath.Join(dir, relayKeyName)
	if err := makeRelayKey(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	var st unix.Stat_t
	if err := errors.Join(err, unix.Stat(path, &st)); err != nil || len(first) != 32 || st.Uid != uid || st.Mode&0o777 != 0o400 {
		t.Fatalf("%d bytes, of %d with mode %o: %v", len(first), st.Uid, st.Mode, err)
	}
	if err := makeRelayKey(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(first, again) {
		t.Errorf("it is made again: %v", err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, plant := range map[string]func() error{
		"a link":       func() error { return os.Symlink(outside, path) },
		"a hard link":  func() error { return os.Link(outside, path) },
		"a FIFO":       func() error { return unix.Mkfifo(path, 0o600) },
		"a torn write": func() error { return os.WriteFile(path, first[:7], 0o400) },
		"an open file": func() error { return errors.Join(os.WriteFile(path, first, 0o644), os.Chown(path, uid, uid)) },
		"somebody's":   func() error { return os.WriteFile(path, first, 0o400) },
	} {
		if err := errors.Join(os.Remove(path), plant(), makeRelayKey(dir, uid, uid)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		now, err := os.ReadFile(path)
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || bytes.Equal(now, first) || len(now) != 32 {
			t.Errorf("%s: the key is not a new one: mode %o, %v", what, st.Mode, err)
		}
		if text, err := os.ReadFile(outside); err != nil || string(text) != "untouched" {
			t.Errorf("%s: %q was written outside, %v", what, text, err)
		}
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := makeRelayKey(dir, uid, uid); err == nil {
		t.Error("a folder is taken for a key")
	}
}
