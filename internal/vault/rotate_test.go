package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func jar(value string) []cookies.Cookie {
	return []cookies.Cookie{cookie("sid", value, "example.com")}
}

// fill stores four entries.
func fill(w *fixture, v *Vault) {
	w.put(v, "default", "example.com", "one")
	w.put(v, "other", "example.com", "two")
	w.putSecret(v, SecretName{Tenant: "default", Service: "mail"}, "three")
	w.putSecret(v, SecretName{Tenant: "default", Agent: w.agent, Service: "mail"}, "four")
}

func wantFilled(w *fixture, v *Vault) {
	w.t.Helper()
	w.wantCookies(v, "default", "example.com", "one")
	w.wantCookies(v, "other", "example.com", "two")
	w.wantSecret(v, SecretName{Tenant: "default", Service: "mail"}, "three")
	w.wantSecret(v, SecretName{Tenant: "default", Agent: w.agent, Service: "mail"}, "four")
}

func TestRotateEncryptsEverythingAnewAndDestroysTheOldKey(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	fill(w, v)
	if err := w.db.MarkInjected(t.Context(), "default", "example.com", epoch.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	old := w.keysIn()
	oldFile, oldRing := readFile(t, w.keyFile), v.current()
	before, err := v.ListCookies(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	w.now = epoch.Add(time.Hour)
	got, err := v.Rotate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Rotation{Key: w.keysIn()[0], Entries: 4, Destroyed: old}, got); diff != "" || got.Key == old[0] {
		t.Errorf("rotation (-want +got):\n%s", diff)
	}
	if keys := w.keysIn(); len(keys) != 1 {
		t.Errorf("the file has the keys %v", keys)
	}
	raw, err := oldRing.marshal()
	if err != nil {
		t.Fatal(err)
	}
	// The end of the keyset is the key itself.
	if bytes.Contains(readFile(t, w.keyFile), raw[len(raw)-40:]) || bytes.Equal(oldFile, readFile(t, w.keyFile)) || mode(t, w.keyFile) != 0o600 {
		t.Error("the old key is left in the file, or the file is open")
	}
	for place, ciphertext := range w.sealed() {
		if _, err := oldRing.open(place, ciphertext); err == nil {
			t.Errorf("the old key opens %s", place)
		}
	}
	wantFilled(w, v)
	wantFilled(w, w.open())
	after, err := v.ListCookies(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("a rotation changed more than the ciphertext (-before +after):\n%s", diff)
	}
	status, err := v.Status(t.Context())
	want := Status{KeyFile: w.keyFile, Keys: []KeyStatus{{ID: got.Key, Primary: true, CreatedAt: w.now, CookieSets: 2, Secrets: 2}}}
	if diff := cmp.Diff(want, status); diff != "" || err != nil {
		t.Errorf("status, %v (-want +got):\n%s", err, diff)
	}
}

// power fails after some changes to rows: from then on, nothing is stored.
type power struct {
	Rows
	left atomic.Int64
}

var errPower = errors.New("the power is out")

func (p *power) PutCookieSet(ctx context.Context, was, s store.CookieSet) error {
	if p.left.Add(-1) < 0 {
		return errPower
	}
	return p.Rows.PutCookieSet(ctx, was, s)
}

func (p *power) PutSecret(ctx context.Context, was, s store.Secret) error {
	if p.left.Add(-1) < 0 {
		return errPower
	}
	return p.Rows.PutSecret(ctx, was, s)
}

func TestRotationThatWasInterruptedAnywhereGoesOnWithItsKey(t *testing.T) {
	for after := range 5 {
		t.Run(fmt.Sprint("after ", after, " entries"), func(t *testing.T) {
			w := newFixture(t)
			fill(w, w.open())
			old := w.keysIn()[0]
			failing := &power{Rows: w.db}
			failing.left.Store(int64(after))
			o := w.options()
			o.Store = failing
			v, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			first, err := v.Rotate(t.Context())
			if after < 4 {
				if !errors.Is(err, errPower) || first.Entries != after || len(first.Destroyed) > 0 {
					t.Fatalf("got %+v, %v", first, err)
				}
				if keys := w.keysIn(); len(keys) != 2 || keys[0] != old || keys[1] != first.Key {
					t.Fatalf("the keys are %v", keys)
				}
			}
			// A new process: everything opens, and a new entry is encrypted with the new key.
			v = w.open()
			wantFilled(w, v)
			status, err := v.Status(t.Context())
			if err != nil || status.Rotating != (after < 4) || status.Unreadable != 0 {
				t.Errorf("status %+v, %v", status, err)
			}
			if after == 4 {
				return
			}
			second, err := v.Rotate(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Rotation{Key: first.Key, Entries: 4 - after, Destroyed: []string{old}, Resumed: true}, second); diff != "" {
				t.Errorf("second rotation (-want +got):\n%s", diff)
			}
			wantFilled(w, w.open())
		})
	}
}

func TestRotationThatWasLeftGoesOnToo(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	fill(w, v)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Rotate(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	wantFilled(w, w.open())
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFilled(w, w.open())
}

func TestEntriesThatCannotBeOpenedKeepTheOldKeyAlive(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	fill(w, v)
	good, err := w.db.CookieSet(t.Context(), "other", "example.com")
	if err != nil {
		t.Fatal(err)
	}
	bad := good
	bad.Ciphertext = append([]byte(nil), good.Ciphertext...)
	bad.Ciphertext[20] ^= 1
	w.overwrite(bad)
	got, err := v.Rotate(t.Context())
	wantProblem(t, err, problem.VaultRowDamaged)
	if got.Entries != 3 || len(got.Destroyed) > 0 || len(w.keysIn()) != 2 {
		t.Errorf("got %+v", got)
	}
	stored, err := w.db.CookieSet(t.Context(), "other", "example.com")
	if err != nil || !bytes.Equal(stored.Ciphertext, bad.Ciphertext) {
		t.Errorf("the damaged entry was overwritten: %v", err)
	}
	// Put back from a backup, it opens: its key is still there.
	w.overwrite(good)
	wantFilled(w, v)
	w.overwrite(bad)
	if err := v.DeleteCookies(t.Context(), "other", "example.com"); err != nil {
		t.Fatal(err)
	}
	if got, err := v.Rotate(t.Context()); err != nil || !got.Resumed || len(w.keysIn()) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEntryOfAKeyThatIsNotThere(t *testing.T) {
	w, other := newFixture(t), newFixture(t)
	v, stranger := w.open(), other.open()
	w.put(v, "default", "example.com", "one")
	s, err := w.db.CookieSet(t.Context(), "default", "example.com")
	if err != nil {
		t.Fatal(err)
	}
	w.put(v, "default", "example.org", "two")
	if s.Ciphertext, err = stranger.current().seal(placeOfCookies(s), []byte(`[]`)); err != nil {
		t.Fatal(err)
	}
	w.overwrite(s)
	v = w.open() // the rest of the vault works
	_, err = values(v, "default", "example.com")
	wantProblem(t, err, problem.VaultKeyWrong)
	w.wantCookies(v, "default", "example.org", "two")
	status, err := v.Status(t.Context())
	if err != nil || status.Unreadable != 1 {
		t.Errorf("status %+v, %v", status, err)
	}
	_, err = v.Rotate(t.Context())
	wantProblem(t, err, problem.VaultRowDamaged)
}

// Two processes share a key file: what one rotates, the other goes on with.
func TestOtherProcessesFollowARotation(t *testing.T) {
	w := newFixture(t)
	v, other := w.open(), w.open()
	fill(w, v)
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The other one read the key file before. Were it to encrypt with that, its entry would be lost.
	w.put(other, "default", "example.org", "five")
	w.wantCookies(v, "default", "example.org", "five")
	wantFilled(w, other)

	third := w.open()
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	chat := SecretName{Tenant: "default", Service: "chat"}
	w.putSecret(third, chat, "six")
	w.wantSecret(v, chat, "six")
	wantFilled(w, other)
	w.wantCookies(other, "default", "example.org", "five")
}

func TestTwoRotationsAtTheSameTimeAreOne(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	fill(w, v)
	release, err := tryLock(w.keyFile + rotatingEnding)
	if err != nil {
		t.Fatal(err)
	}
	before := readFile(t, w.keyFile)
	_, err = w.open().Rotate(t.Context())
	wantProblem(t, err, problem.VaultRotating)
	if !bytes.Equal(before, readFile(t, w.keyFile)) {
		t.Error("the key file was changed")
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Readers and writers of two processes go on while a third rotates: nobody is refused, and no change is lost.
func TestRotationDisturbsNobody(t *testing.T) {
	w := newFixture(t)
	rotating := w.open()
	fill(w, rotating)
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var last [2]int
	for i := range last {
		v, domain := w.open(), fmt.Sprintf("site%d.com", i)
		group.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				value := fmt.Sprint(n)
				_, err := v.PutCookies(context.Background(), NewCookies{Tenant: "default", Domain: domain, Cookies: []cookies.Cookie{cookie("sid", value, domain)}})
				if err != nil {
					t.Error(err)
					return
				}
				last[i] = n
				if got, err := values(v, "default", domain); err != nil || len(got) != 1 || got[0] != value {
					t.Errorf("stored %s and read %q, %v", value, got, err)
					return
				}
				if got, err := values(v, "other", "example.com"); err != nil || len(got) != 1 || got[0] != "two" {
					t.Errorf("read %q, %v", got, err)
					return
				}
			}
		})
	}
	for range 5 {
		if _, err := rotating.Rotate(t.Context()); err != nil {
			t.Error(err)
		}
	}
	stop()
	group.Wait()
	v := w.open()
	wantFilled(w, v)
	for i, n := range last {
		w.wantCookies(v, "default", fmt.Sprintf("site%d.com", i), fmt.Sprint(n))
	}
}

// meanwhile does something between the reading and the writing of an entry.
type meanwhile struct {
	Rows
	do func()
}

func (m *meanwhile) CookieSet(ctx context.Context, tenant, domain string) (store.CookieSet, error) {
	defer m.once()
	return m.Rows.CookieSet(ctx, tenant, domain)
}

func (m *meanwhile) Secret(ctx context.Context, tenant, agent, service string) (store.Secret, error) {
	defer m.once()
	return m.Rows.Secret(ctx, tenant, agent, service)
}

func (m *meanwhile) ListCookieSets(ctx context.Context, tenant string) ([]store.CookieSet, error) {
	defer m.once()
	return m.Rows.ListCookieSets(ctx, tenant)
}

func (m *meanwhile) ListSecrets(ctx context.Context, tenant string) ([]store.Secret, error) {
	defer m.once()
	return m.Rows.ListSecrets(ctx, tenant)
}

func (m *meanwhile) once() {
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
}

// What was read before a rotation has the key that the rotation destroys at its end.
func TestWhatWasReadBeforeARotationEndedOpens(t *testing.T) {
	mail := SecretName{Tenant: "default", Service: "mail"}
	for name, use := range map[string]func(*Vault) (string, error){
		"a login": func(v *Vault) (string, error) {
			got, err := values(v, "default", "example.com")
			return fmt.Sprint(got), err
		},
		"a secret": func(v *Vault) (string, error) { return secretOf(v, mail) },
		"a set": func(v *Vault) (string, error) {
			s, err := v.Cookies(context.Background(), "default", "example.com")
			return fmt.Sprint(len(s.Cookies), s.Problem), err
		},
		"sets": func(v *Vault) (string, error) {
			list, err := v.ListCookies(context.Background(), "default")
			return fmt.Sprint(len(list[0].Cookies), list[0].Problem), err
		},
		"secrets": func(v *Vault) (string, error) {
			list, err := v.ListSecrets(context.Background(), "default")
			return fmt.Sprint(list[0].BoundTo), err
		},
		"declared secrets": func(v *Vault) (string, error) { return "", v.BindDeclared(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			between := &meanwhile{Rows: w.db}
			o := w.options()
			o.Store = between
			v, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			w.put(v, "default", "example.com", "one")
			w.putSecret(v, mail, "value")
			only := func(context.Context, SecretName) ([]Destination, error) {
				return []Destination{"https://elsewhere.example"}, nil
			}
			v.BindBy(only)
			want, err := use(v)
			if err != nil {
				t.Fatal(err)
			}
			between.do = func() {
				if got, err := v.Rotate(t.Context()); err != nil || len(got.Destroyed) != 1 {
					t.Errorf("%+v, %v", got, err)
				}
			}
			if got, err := use(v); err != nil || got != want || between.do != nil {
				t.Errorf("got %s, %v; want %s", got, err, want)
			}
		})
	}
}

// A rotation writes back what it read: what another process stores or deletes in between would be lost or come back.
func TestRotationAndOtherChangesWaitForEachOther(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, v *Vault) error{
		"delete": func(ctx context.Context, v *Vault) error { return v.DeleteCookies(ctx, "default", "example.com") },
		"put": func(ctx context.Context, v *Vault) error {
			_, err := v.PutCookies(ctx, NewCookies{Tenant: "default", Domain: "example.com", Cookies: jar("new")})
			return err
		},
		"rules": func(ctx context.Context, v *Vault) error {
			return v.SetRules(ctx, "default", "example.com", Rules{MaxLeases: 7})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			other := w.open()
			w.put(other, "default", "example.com", "old")
			between := &meanwhile{Rows: w.db}
			o := w.options()
			o.Store = between
			v, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			changed := make(chan error, 1)
			waited := false
			between.do = func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				waited = errors.Is(change(ctx, other), context.DeadlineExceeded)
				go func() { changed <- change(context.Background(), other) }()
			}
			if _, err := v.Rotate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-changed; err != nil {
				t.Fatal(err)
			}
			if !waited {
				t.Error("the change did not wait")
			}
			switch name {
			case "delete":
				if _, err := values(v, "default", "example.com"); problem.CodeOf(err) != problem.NotFound {
					t.Errorf("what was deleted came back: %v", err)
				}
			case "put":
				w.wantCookies(v, "default", "example.com", "new")
			case "rules":
				w.wantCookies(v, "default", "example.com", "old")
				if s, err := v.Cookies(t.Context(), "default", "example.com"); err != nil || s.MaxLeases != 7 {
					t.Errorf("got %+v, %v", s, err)
				}
			}
		})
	}
}

// afterwards does something when an entry has been stored.
type afterwards struct {
	Rows
	do func()
}

func (a *afterwards) PutCookieSet(ctx context.Context, was, s store.CookieSet) error {
	err := a.Rows.PutCookieSet(ctx, was, s)
	if do := a.do; do != nil {
		a.do = nil
		do()
	}
	return err
}

// Another node has the old key file still, and is not held up by the locks of this host.
func TestEntryThatAnotherNodeStoresWithTheOldKeyIsNotLost(t *testing.T) {
	w := newFixture(t)
	old := w.open()
	w.put(old, "default", "example.com", "one")
	late := &afterwards{Rows: w.db}
	late.do = func() {
		_, s, err := old.nextSet(t.Context(), NewCookies{Tenant: "default", Domain: "example.org"})
		if err == nil {
			s.Ciphertext, err = old.current().seal(placeOfCookies(s), cookies.Encode(jar("late")))
		}
		if err := errors.Join(err, w.db.PutCookieSet(t.Context(), store.CookieSet{}, s)); err != nil {
			t.Error(err)
		}
	}
	o := w.options()
	o.Store = late
	v, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Rotate(t.Context()); err != nil || got.Entries != 2 || len(got.Destroyed) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	w.wantCookies(w.open(), "default", "example.org", "late")
}
