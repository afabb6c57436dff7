package grant

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"aidanwoods.dev/go-paseto"
	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// The vectors k4.pid-1 to k4.pid-3 of the PASERK specification.
func TestKeyIDIsThatOfPASERK(t *testing.T) {
	for public, want := range map[string]string{
		strings.Repeat("00", 32): "k4.pid.S_XQmeEwHbbvRmiyfXfHYpLGjXGzjTRSDoT1YtTakWFE",
		"707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f": "k4.pid.9ShR3xc8-qVJ_di0tc9nx0IDIqbatdeM2mqLFBJsKRHs",
		"707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e90": "k4.pid.-nyvbaTz8U6TQz7OZWW-iB3va31iAxIpUgzUcVQVmW9A",
	} {
		raw, err := hex.DecodeString(public)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := keyID(raw); err != nil || got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestKeyFileIsMadeOnceAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "grant.keys")
	c := testenv.NewClock(noon)
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for n := range ids {
		wg.Go(func() {
			k, err := OpenKeyring(path, c.Now)
			if err != nil {
				t.Error(err)
				return
			}
			keys, err := k.Keys()
			if err != nil || len(keys) != 1 || !keys[0].Signs() {
				t.Errorf("got %v, %v", keys, err)
				return
			}
			ids[n] = keys[0].ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("processes that start together have different keys: %v", ids)
		}
	}
	before, err := os.ReadFile(path)
	must(t, err)
	late := &Keyring{path: path, now: c.Now} // has looked before the others had made the file
	must(t, late.first())
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Error("who comes late overwrites the keys")
	}
	for name, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestKeyFileThatIsNotRightIsRefusedAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grant.keys")
	if _, err := OpenKeyring(path, testenv.NewClock(noon).Now); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(good)
	seed := text[strings.Index(text, `"seed": "`)+9:][:64]
	write := func(content string, mode os.FileMode) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(content), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	public := strings.Repeat("00", 32)
	id, err := keyID(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(t *testing.T, path string){
		"readable by the group": write(text, 0o640),
		"empty":                 write("", 0o600),
		"cut off":               write(text[:len(text)/2], 0o600),
		"two values":            write(text+text, 0o600),
		"another version":       write(strings.Replace(text, `"version": 1`, `"version": 2`, 1), 0o600),
		"no keys":               write(`{"version":1,"keys":[]}`, 0o600),
		"an unknown field":      write(strings.Replace(text, `"version"`, `"extra": 1, "version"`, 1), 0o600),
		"a short seed":          write(strings.Replace(text, seed, seed[:62], 1), 0o600),
		"another seed":          write(strings.Replace(text, seed, strings.Repeat("ab", 32), 1), 0o600),
		"no key that signs":     write(fmt.Sprintf(`{"version":1,"keys":[{"kid":%q,"created_at":"2031-05-06T12:00:00Z","verifies_until":"2031-05-06T12:00:00Z","public":%q}]}`, id, public), 0o600),
		"a key that always verifies": write(strings.Replace(text, "\n\t]", fmt.Sprintf(`, {"kid":%q,"created_at":"2031-05-06T12:00:00Z","public":%q}]`,
			id, public), 1), 0o600),
		"too long":        write(text+strings.Repeat(" ", longestKeyFile), 0o600),
		"a symbolic link": func(t *testing.T, p string) { must(t, os.Symlink(path, p)) },
	} {
		t.Run(name, func(t *testing.T) {
			planted := filepath.Join(t.TempDir(), "grant.keys")
			plant(t, planted)
			before, _ := os.ReadFile(planted)
			_, err := OpenKeyring(planted, testenv.NewClock(noon).Now)
			if problem.CodeOf(err) != problem.BadConfig {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(fmt.Sprintf("%v %+v", err, err), seed[:16]) {
				t.Errorf("the seed is in %v", err)
			}
			if after, _ := os.ReadFile(planted); string(after) != string(before) {
				t.Error("the file was changed")
			}
		})
	}
	planted := filepath.Join(t.TempDir(), "grant.keys")
	write(text, 0o600)(t, planted)
	if _, err := OpenKeyring(planted, testenv.NewClock(noon).Now); err != nil {
		t.Errorf("the file without a fault: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRotationKeepsGrantsGood(t *testing.T) {
	w := newFixture(t)
	// Another process with the same key file.
	second, err := OpenKeyring(w.keys.path, w.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	o := w.options()
	o.Keys = second
	elsewhere, err := New(o)
	if err != nil {
		t.Fatal(err)
	}

	long := func(r *Request) { r.TTL = MaxTTL }
	old, _ := w.issue(long)
	before, err := w.keys.Keys()
	must(t, err)
	fresh, err := w.keys.Rotate()
	must(t, err)
	if fresh.ID == before[0].ID || !fresh.Signs() {
		t.Errorf("got %+v", fresh)
	}
	after, err := second.Keys()
	must(t, err)
	expected := []KeyInfo{fresh, {ID: before[0].ID, CreatedAt: before[0].CreatedAt, VerifiesUntil: noon.Add(MaxTTL + retiring).Truncate(time.Second)}}
	if diff := cmp.Diff(expected, after); diff != "" {
		t.Errorf("keys of the other process (-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(w.keys.path)
	must(t, err)
	if strings.Count(string(data), `"seed"`) != 1 {
		t.Error("the old key has kept its secret half")
	}

	young, _ := w.issue(long)
	w.clock.Forward(MaxTTL - time.Second)
	for name, token := range map[string]Token{"old": old, "young": young} {
		if _, err := elsewhere.Verify(t.Context(), token, want()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.works(old, want())
}

// A key verifies for as long as a grant may live, and no longer: a token with a longer life, which only somebody
// with the key could have made, ends with it.
func TestOldKeyVerifiesNoLonger(t *testing.T) {
	w := newFixture(t)
	forever := Grant{
		ID: "g_forever", Tenant: "default", Domains: []string{"example.com"}, Access: "tools", Operator: "operator:o1",
		IssuedAt: noon, NotBefore: noon, ExpiresAt: noon.Add(1000 * time.Hour),
	}
	must(t, w.store.CreateGrant(t.Context(), forever))
	token := w.sign(claimsOf("ab12", forever))
	_, err := w.keys.Rotate()
	must(t, err)
	w.clock.Forward(MaxTTL + retiring - time.Second)
	if _, err := w.Verify(t.Context(), token, want()); err != nil {
		t.Fatalf("while the key verifies: %v", err)
	}
	w.clock.Forward(time.Second)
	w.refusal(token, want(), problem.GrantInvalid)

	keys, err := w.keys.Keys()
	must(t, err)
	if len(keys) != 2 {
		t.Errorf("%d keys", len(keys))
	}
	_, err = w.keys.Rotate()
	must(t, err)
	keys, err = w.keys.Keys()
	must(t, err)
	if len(keys) != 2 {
		t.Errorf("the next rotation leaves %d keys, not two", len(keys))
	}
}

func TestRotationsAtTheSameTimeLoseNoKey(t *testing.T) {
	c := testenv.NewClock(noon)
	path := filepath.Join(t.TempDir(), "grant.keys")
	var wg sync.WaitGroup
	for range 4 {
		k, err := OpenKeyring(path, c.Now)
		must(t, err)
		wg.Go(func() {
			for range 3 {
				if _, err := k.Rotate(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	k, err := OpenKeyring(path, c.Now)
	must(t, err)
	keys, err := k.Keys()
	must(t, err)
	if len(keys) != 13 {
		t.Errorf("%d keys, want the first and 12", len(keys))
	}
}

// The file that goes bad while the program runs stops grants, and is not overwritten.
func TestKeyFileThatGoesBadStopsGrants(t *testing.T) {
	w := newFixture(t)
	token, _ := w.issue()
	good, err := os.ReadFile(w.keys.path)
	must(t, err)
	must(t, os.WriteFile(w.keys.path, good[:20], 0o600))
	if _, err := w.Verify(t.Context(), token, want()); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("Verify: %v", err)
	}
	if _, _, err := w.Issue(t.Context(), request()); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("Issue: %v", err)
	}
	if _, err := w.keys.Rotate(); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("Rotate: %v", err)
	}
	must(t, os.WriteFile(w.keys.path, good, 0o600))
	w.works(token, want())
}

func TestKeysAreNotPrinted(t *testing.T) {
	w := newFixture(t)
	data, err := os.ReadFile(w.keys.path)
	must(t, err)
	seed := string(data)[strings.Index(string(data), `"seed": "`)+9:][:64]
	raw, err := hex.DecodeString(seed)
	must(t, err)
	secret, err := paseto.NewV4AsymmetricSecretKeyFromSeed(seed)
	must(t, err)
	plain := fmt.Sprintf("%+v", secret)
	printed := fmt.Sprintf("%v %+v %#v %s %+v %#v %+v", w.keys, w.keys, w.keys, w.keys, w.Issuer, w.Issuer, w.keys.keys)
	numbers := strings.Trim(fmt.Sprint(raw), "[]")
	if !strings.Contains(plain, numbers) {
		t.Fatal("the search does not find a key that is printed")
	}
	for _, form := range []string{seed, numbers} {
		if strings.Contains(printed, form) {
			t.Errorf("the key is in %s", printed)
		}
	}
}
