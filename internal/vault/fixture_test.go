package vault

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestMain(m *testing.M) {
	if os.Getenv(childLock) != "" {
		holdLock()
		return
	}
	goleak.VerifyTestMain(m)
}

var epoch = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// fixture is a database with two tenants, an agent, and a place for a key file.
type fixture struct {
	t       testing.TB
	db      *sqlite.DB
	dir     string // of the database
	keyFile string
	now     time.Time
	agent   string // of tenant default
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, dir: t.TempDir(), keyFile: filepath.Join(t.TempDir(), "keys", "vault.key"), now: epoch, agent: "agent1"}
	db, err := sqlite.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	w.db = db
	if err := db.CreateTenant(t.Context(), store.Tenant{ID: "other", CreatedAt: epoch}); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateAgent(t.Context(), store.Agent{ID: w.agent, Tenant: store.DefaultTenant, Name: "robin", CreatedAt: epoch}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *fixture) options() Options {
	return Options{KeyFile: w.keyFile, Store: w.db, Now: func() time.Time { return w.now }}
}

// open is what a process does when it starts.
func (w *fixture) open() *Vault {
	w.t.Helper()
	v, err := Open(w.t.Context(), w.options())
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// sealed are all entries as they are stored.
func (w *fixture) sealed() iter.Seq2[place, []byte] {
	w.t.Helper()
	sets, err := w.db.ListCookieSets(w.t.Context(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	secrets, err := w.db.ListSecrets(w.t.Context(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return func(yield func(place, []byte) bool) {
		for _, s := range sets {
			if !yield(placeOfCookies(s), s.Ciphertext) {
				return
			}
		}
		for _, s := range secrets {
			if !yield(placeOfSecret(s), s.Ciphertext) {
				return
			}
		}
	}
}

func cookie(name, value, domain string) cookies.Cookie {
	return cookies.Cookie{
		Name: name, Value: secret.New([]byte(value)), Domain: domain, Path: "/", Expires: cookies.Session, Session: true,
		Secure: true, HTTPOnly: true, SameSite: cookies.SameSiteLax, Priority: "High", SourceScheme: cookies.SchemeSecure, SourcePort: 443,
	}
}

func (w *fixture) put(v *Vault, tenant, domain string, values ...string) CookieSet {
	w.t.Helper()
	n := NewCookies{Tenant: tenant, Domain: domain}
	for i, value := range values {
		n.Cookies = append(n.Cookies, cookie(fmt.Sprint("c", i), value, "."+domain))
	}
	set, err := v.PutCookies(w.t.Context(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	return set
}

// overwrite stores a row as somebody who writes to the database does.
func (w *fixture) overwrite(s store.CookieSet) {
	w.t.Helper()
	was, err := w.db.CookieSet(w.t.Context(), s.Tenant, s.Domain)
	if err == nil {
		err = w.db.PutCookieSet(w.t.Context(), was, s)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// values are what UseLogin shows, in the clear.
func values(v *Vault, tenant, domain string) (out []string, err error) {
	err = v.UseLogin(context.Background(), tenant, domain, func(l weblogin.Login) error {
		for _, c := range l.Cookies {
			out = append(out, string(c.Value.Append(nil)))
		}
		return nil
	})
	return out, err
}

func (w *fixture) wantCookies(v *Vault, tenant, domain string, want ...string) {
	w.t.Helper()
	if got, err := values(v, tenant, domain); err != nil || !slices.Equal(got, want) {
		w.t.Errorf("the cookies of %s, %s are %q, %v; want %q", tenant, domain, got, err, want)
	}
}

func (w *fixture) putSecret(v *Vault, n SecretName, value string) {
	w.t.Helper()
	if err := v.PutSecret(w.t.Context(), n, secret.New([]byte(value+lengthening)), home); err != nil {
		w.t.Fatal(err)
	}
}

// lengthening makes the values of these tests long enough to be sent.
const lengthening = "-as-a-secret"

// home is where the secrets of these tests go.
const home Destination = "https://api.example.com"

func secretOf(v *Vault, n SecretName) (out string, err error) {
	err = v.UseSecret(context.Background(), n, home, func(value secret.Value) error {
		out = strings.TrimSuffix(string(value.Append(nil)), lengthening)
		return nil
	})
	return out, err
}

func (w *fixture) wantSecret(v *Vault, n SecretName, want string) {
	w.t.Helper()
	if got, err := secretOf(v, n); err != nil || got != want {
		w.t.Errorf("the secret %v is %q, %v; want %q", n, got, err, want)
	}
}

// wantProblem checks the code of an error, and that it says what to do.
func wantProblem(t testing.TB, err error, code string) {
	t.Helper()
	e, ok := problem.As(err)
	if !ok || e.Code != code {
		t.Fatalf("got %v (%s), want %s", err, problem.CodeOf(err), code)
	}
	if e.Hint == "" && code != problem.BadCookie && code != problem.BadSecret && code != problem.BadConfig && code != problem.BadRequest {
		t.Errorf("%v has no hint", err)
	}
}

// rowsNow are all rows as they are stored, to compare before and after.
func (w *fixture) rowsNow() string {
	w.t.Helper()
	sets, err := w.db.ListCookieSets(context.Background(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	secrets, err := w.db.ListSecrets(context.Background(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := json.Marshal([]any{sets, secrets})
	if err != nil {
		w.t.Fatal(err)
	}
	return string(out)
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// filesWith are the files below a folder that have a text.
func filesWith(t testing.TB, folder, text string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && bytes.Contains(readFile(t, path), []byte(text)) {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// keysIn are the keys of the key file, the primary one last.
func (w *fixture) keysIn() []string {
	w.t.Helper()
	k, err := readKeyFile(w.keyFile)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, id := range k.ids() {
		out = append(out, id.String())
	}
	return out
}

func shows(x any, text string) bool {
	asJSON, _ := json.Marshal(x)
	return strings.Contains(string(asJSON), text) || strings.Contains(fmt.Sprintf("%v %+v %#v", x, x, x), text)
}
