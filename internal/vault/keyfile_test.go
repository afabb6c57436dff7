package vault

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func mode(t testing.TB, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

func TestKeyFileIsMadeOnceAndForItsOwnerAlone(t *testing.T) {
	w := newFixture(t)
	w.open()
	if got := mode(t, w.keyFile); got != 0o600 {
		t.Errorf("the file has mode %v", got)
	}
	if got := mode(t, filepath.Dir(w.keyFile)); got != 0o700|fs.ModeDir {
		t.Errorf("its folder has mode %v", got)
	}
	before := readFile(t, w.keyFile)
	v := w.open()
	w.put(v, "default", "example.com", "v")
	if !bytes.Equal(before, readFile(t, w.keyFile)) {
		t.Error("a second start changed it")
	}
	if _, err := os.Stat(w.keyFile + newEnding); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was written beside it is left: %v", err)
	}
}

func TestProcessesThatStartTogetherMakeOneKey(t *testing.T) {
	w := newFixture(t)
	vaults := make([]*Vault, 8)
	var group sync.WaitGroup
	for i := range vaults {
		group.Go(func() {
			v, err := Open(t.Context(), w.options())
			if err != nil {
				t.Error(err)
				return
			}
			vaults[i] = v
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	for _, v := range vaults {
		if v.current().primary != vaults[0].current().primary {
			t.Errorf("keys %s and %s", v.current().primary, vaults[0].current().primary)
		}
	}
}

func TestMissingKeyFileIsNotMadeAnewWhileThereAreEntries(t *testing.T) {
	w := newFixture(t)
	w.open()
	// Nothing is lost yet: a new one is made.
	if err := os.Remove(w.keyFile); err != nil {
		t.Fatal(err)
	}
	v := w.open()
	w.putSecret(v, SecretName{Tenant: "default", Service: "mail"}, "x")
	kept := readFile(t, w.keyFile)
	if err := os.Remove(w.keyFile); err != nil {
		t.Fatal(err)
	}
	before := w.rowsNow()
	_, err := Open(t.Context(), w.options())
	wantProblem(t, err, problem.VaultKeyMissing)
	// A process that runs does not encrypt with a key that is nowhere but in its memory.
	_, err = v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: jar("v")})
	wantProblem(t, err, problem.VaultKeyMissing)
	_, err = v.Rotate(t.Context())
	wantProblem(t, err, problem.VaultKeyMissing)
	_, err = v.Status(t.Context())
	wantProblem(t, err, problem.VaultKeyMissing)
	if _, err := os.Stat(w.keyFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key file was made: %v", err)
	}
	if w.rowsNow() != before {
		t.Error("rows changed")
	}
	writeFile(t, w.keyFile, kept)
	w.wantSecret(w.open(), SecretName{Tenant: "default", Service: "mail"}, "x")
}

func TestWrongKeyFileIsRefused(t *testing.T) {
	w, other := newFixture(t), newFixture(t)
	other.open()
	w.put(w.open(), "default", "example.com", "v")
	right, wrong := readFile(t, w.keyFile), readFile(t, other.keyFile)
	writeFile(t, w.keyFile, wrong)
	before := w.rowsNow()
	_, err := Open(t.Context(), w.options())
	wantProblem(t, err, problem.VaultKeyWrong)
	if w.rowsNow() != before || !bytes.Equal(readFile(t, w.keyFile), wrong) {
		t.Error("something was changed")
	}
	writeFile(t, w.keyFile, right)
	w.wantCookies(w.open(), "default", "example.com", "v")
}

func TestDamagedKeyFileIsRefusedAndLeftAsItIs(t *testing.T) {
	w := newFixture(t)
	w.put(w.open(), "default", "example.com", "v")
	whole := readFile(t, w.keyFile)
	try := func(what string, data []byte) {
		t.Helper()
		writeFile(t, w.keyFile, data)
		_, err := Open(t.Context(), w.options())
		if problem.CodeOf(err) != problem.VaultKeyDamaged {
			t.Errorf("%s: %v", what, err)
		}
		if !bytes.Equal(readFile(t, w.keyFile), data) {
			t.Errorf("%s: it was overwritten", what)
		}
	}
	for n := 0; n < len(whole)-2; n += 7 {
		try("cut", whole[:n])
	}
	for i := 0; i < len(whole)-1; i += 5 {
		changed := bytes.Clone(whole)
		changed[i] ^= 1
		// The sum is over what the text means; a bit of the text may mean nothing, at the end of Base64.
		if _, wrong := decodeKeyFile(changed); wrong == "" {
			continue
		}
		try("changed", changed)
	}
	try("of another version", bytes.Replace(whole, []byte("key 1"), []byte("key 2"), 1))
	try("followed by more", append(bytes.Clone(whole), whole...))
	try("too large", append(bytes.Clone(whole), bytes.Repeat([]byte(" "), longestKeyFile)...))
	try("a private key of another kind", []byte("-----BEGIN PRIVATE KEY-----\n"))
	writeFile(t, w.keyFile, whole)
	w.wantCookies(w.open(), "default", "example.com", "v")
}

// The sum finds what JSON and Tink would let pass.
func TestEveryFieldOfTheKeyFileIsSummed(t *testing.T) {
	w := newFixture(t)
	w.open()
	var f keyFile
	if err := json.Unmarshal(readFile(t, w.keyFile), &f); err != nil {
		t.Fatal(err)
	}
	decode := func(f keyFile) string {
		data, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		_, wrong := decodeKeyFile(data)
		return wrong
	}
	if wrong := decode(f); wrong != "" {
		t.Fatal(wrong)
	}
	changed := f
	changed.Keyset = bytes.Clone(f.Keyset)
	changed.Keyset[len(changed.Keyset)/2] ^= 1
	if decode(changed) == "" {
		t.Error("another key is accepted")
	}
	changed = f
	changed.Keys = map[string]time.Time{}
	for id := range f.Keys {
		changed.Keys[id] = epoch.Add(time.Hour)
	}
	if decode(changed) == "" {
		t.Error("another time is accepted")
	}
	// With a sum that fits, the keys have to fit as well.
	changed.Keys["00000001"] = epoch
	changed.SHA256 = changed.sum()
	if decode(changed) == "" {
		t.Error("a key that is not in the keyset is accepted")
	}
}

func TestKeyFileThatOthersCanUseIsRefused(t *testing.T) {
	w := newFixture(t)
	w.open()
	folder := filepath.Dir(w.keyFile)
	kept := readFile(t, w.keyFile)
	restore := func() {
		t.Helper()
		for _, err := range []error{os.Chmod(folder, 0o700), os.RemoveAll(w.keyFile)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		writeFile(t, w.keyFile, kept)
	}
	for name, change := range map[string]func() error{
		"read by all":       func() error { return os.Chmod(w.keyFile, 0o644) },
		"in an open folder": func() error { return os.Chmod(folder, 0o777) },
		"in a group folder": func() error { return os.Chmod(folder, 0o770) },
		"a folder":          func() error { return errors.Join(os.Remove(w.keyFile), os.Mkdir(w.keyFile, 0o700)) },
		"a symbolic link": func() error {
			return errors.Join(os.Rename(w.keyFile, w.keyFile+".x"), os.Symlink(w.keyFile+".x", w.keyFile))
		},
		"nothing is changed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			defer restore()
			if change == nil {
				w.open()
				return
			}
			if err := change(); err != nil {
				t.Fatal(err)
			}
			_, err := Open(t.Context(), w.options())
			wantProblem(t, err, problem.VaultKeyExposed)
		})
	}
	if err := os.Chmod(folder, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	w.open()
}

// The service must be able to use files that root's commands make.
func TestFilesThatRootMakesBelongToTheOwnerOfTheFolder(t *testing.T) {
	testenv.Need(t, testenv.Root)
	w := newFixture(t)
	folder := filepath.Dir(w.keyFile)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(folder, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	v := w.open()
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || ownerOf(info) != 65534 || groupOf(info) != 65534 || info.Mode() != 0o600 {
			t.Errorf("%s is %v of %d, %v", e.Name(), info.Mode(), ownerOf(info), err)
		}
	}
}

func TestWhatAnInterruptedWriteLeftDoesNotStandInTheWay(t *testing.T) {
	w := newFixture(t)
	if err := os.MkdirAll(filepath.Dir(w.keyFile), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.keyFile+newEnding, []byte("half"))
	v := w.open()
	writeFile(t, w.keyFile+newEnding, []byte("half"))
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The file itself is never replaced by a first one.
	before := readFile(t, w.keyFile)
	k, err := newKeyring(epoch)
	if err != nil {
		t.Fatal(err)
	}
	if err := createKeyFile(w.keyFile, k); err == nil || !bytes.Equal(before, readFile(t, w.keyFile)) {
		t.Errorf("a key file was replaced: %v", err)
	}
}

// A keyset that fits its sum, and is anything: somebody wrote it by hand.
func FuzzKeyFile(f *testing.F) {
	k, err := newKeyring(epoch)
	if err != nil {
		f.Fatal(err)
	}
	raw, err := k.marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, k.primary.String(), true)
	f.Add([]byte{}, "", false)
	f.Fuzz(func(t *testing.T, raw []byte, id string, sum bool) {
		file := keyFile{Format: keyFileFormat, Keys: map[string]time.Time{id: epoch}, Keyset: raw}
		if file.SHA256 = "x"; sum {
			file.SHA256 = file.sum()
		}
		data, err := json.Marshal(file)
		if err != nil {
			t.Skip()
		}
		k, wrong := decodeKeyFile(data)
		if (k == nil) == (wrong == "") {
			t.Fatalf("%v, %q", k, wrong)
		}
		if k != nil {
			p := place{kindSecret, "t", []string{"", "s"}, "r", form}
			sealed, err := k.seal(p, []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := keyOf(sealed); !ok || got != k.primary || !k.has(got) {
				t.Fatalf("encrypted with %s, %v", got, ok)
			}
		}
		_, _ = decodeKeyFile(raw)
	})
}
