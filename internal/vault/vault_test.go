package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestCookiesComeOutAsTheyWentIn(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	in, err := cookies.Decode([]byte(`[
		{"name":"__Host-sid","value":"caf\u00e9","domain":"example.com","path":"/","expires":1830000000.25,"size":14,"httpOnly":true,"secure":true,
		 "session":false,"sameSite":"Strict","priority":"High","sourceScheme":"Secure","sourcePort":8443,"newThing":{"x":1}},
		{"name":"chip","value":"","domain":".w.example.com","path":"/a","expires":-1,"size":4,"httpOnly":false,"secure":true,"session":true,
		 "sameSite":"None","priority":"Medium","sourceScheme":"Unset","sourcePort":-1,"partitionKey":{"topLevelSite":"https://other.test","hasCrossSiteAncestor":true}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: in}); err != nil {
		t.Fatal(err)
	}
	err = w.open().UseLogin(t.Context(), "default", "example.com", func(l weblogin.Login) error {
		out := l.Cookies
		if len(out) != len(in) || !out[0].Equal(in[0]) || !out[1].Equal(in[1]) {
			t.Errorf("got  %s\nwant %s", cookies.Encode(out), cookies.Encode(in))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestValuesAreWipedWhenTheFunctionReturns(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	w.put(v, "default", "example.com", "canary")
	name := SecretName{Tenant: "default", Service: "mail"}
	w.putSecret(v, name, "canary")
	zero := strings.Repeat("\x00", len("canary"))

	var kept weblogin.Login
	failed := errors.New("of the function")
	if err := v.UseLogin(t.Context(), "default", "example.com", func(l weblogin.Login) error { kept = l; return failed }); !errors.Is(err, failed) {
		t.Errorf("the error of the function became %v", err)
	}
	if got := string(kept.Cookies[0].Value.Append(nil)); got != zero {
		t.Errorf("a cookie that was kept is %q", got)
	}
	var value secret.Value
	func() {
		defer func() { _ = recover() }()
		_ = v.UseSecret(t.Context(), name, home, func(s secret.Value) error { value = s; panic("in the function") })
	}()
	if got := string(value.Append(nil)); got != strings.Repeat("\x00", len("canary"+lengthening)) {
		t.Errorf("a secret that was kept is %q", got)
	}
}

func TestNothingButTheFunctionsShowsAValue(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	// The canaries that are found show that the search works: a scope is stored and listed in the clear.
	set, err := v.PutCookies(t.Context(), NewCookies{
		Tenant: "default", Domain: "example.com", Cookies: []cookies.Cookie{cookie("sid", "canary-of-a-cookie", "example.com")},
		Rules: &Rules{Scopes: []string{"canary-of-a-scope"}, MaxLeases: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	name := SecretName{Tenant: "default", Agent: w.agent, Service: "mail"}
	w.putSecret(v, name, "canary-of-a-secret")
	sets, err := v.ListCookies(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := v.ListSecrets(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	status, err := v.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []any{set, sets, secrets, status, v} {
		if shows(x, "canary-of-a-cookie") || shows(x, "canary-of-a-secret") {
			t.Errorf("a %T shows a value", x)
		}
	}
	if !shows(sets, "canary-of-a-scope") || len(filesWith(t, w.dir, "canary-of-a-scope")) == 0 {
		t.Error("the search does not find what is there")
	}
	for _, value := range []string{"canary-of-a-cookie", "canary-of-a-secret"} {
		if files := filesWith(t, w.dir, value); len(files) > 0 {
			t.Errorf("%s is in %v", value, files)
		}
	}
	key, err := v.current().marshal()
	if err != nil {
		t.Fatal(err)
	}
	if files := filesWith(t, w.dir, string(key[20:40])); len(files) > 0 {
		t.Errorf("the key is in %v", files)
	}
}

func TestListingHasNamesFlagsAndTimes(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	expiring := cookie("b", "v", "www.example.com")
	expiring.Expires, expiring.Session = float64(epoch.Add(time.Hour).Unix()), false
	chip := cookie("a", "v", ".example.com")
	chip.PartitionKey = &cookies.PartitionKey{TopLevelSite: "https://other.test"}
	put, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: []cookies.Cookie{expiring, chip}})
	if err != nil {
		t.Fatal(err)
	}
	w.now = epoch.Add(2 * time.Hour)
	got, err := v.Cookies(t.Context(), "default", "example.com")
	if err != nil {
		t.Fatal(err)
	}
	want := CookieSet{
		ID: put.ID, Tenant: "default", Domain: "example.com", Count: 2, Scopes: []string{}, MaxLeases: 1, CreatedAt: epoch, LastRefreshedAt: epoch,
		ExpiresAt: epoch.Add(time.Hour),
		Cookies: []CookieInfo{
			{ID: chip.ID(), Session: true, HTTPOnly: true, Secure: true, SameSite: "Lax"},
			{ID: expiring.ID(), ExpiresAt: epoch.Add(time.Hour), HTTPOnly: true, Secure: true, SameSite: "Lax", Expired: true},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	w.put(v, "default", "google.com", "v")
	w.put(v, "other", "example.com", "v")
	for tenant, want := range map[string]int{"default": 2, "other": 1, "": 3} {
		if list, err := v.ListCookies(t.Context(), tenant); err != nil || len(list) != want {
			t.Errorf("tenant %q has %d sets, %v", tenant, len(list), err)
		}
	}
}

func TestReplacingASetKeepsItsIDAndItsRules(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	first := w.put(v, "default", "example.com", "one", "two")
	if err := v.SetRules(t.Context(), "default", "example.com", Rules{Scopes: []string{"s1", "s2"}, MaxLeases: 3}); err != nil {
		t.Fatal(err)
	}
	if err := w.db.MarkInjected(t.Context(), "default", "example.com", epoch.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.wantCookies(v, "default", "example.com", "one", "two")
	w.now = epoch.Add(time.Hour)
	second := w.put(v, "default", "example.com", "three")
	w.wantCookies(v, "default", "example.com", "three")
	if second.ID != first.ID || second.MaxLeases != 3 || len(second.Scopes) != 2 || !second.CreatedAt.Equal(epoch) ||
		!second.LastRefreshedAt.Equal(w.now) || !second.LastInjectedAt.Equal(epoch.Add(time.Minute)) || second.Count != 1 {
		t.Errorf("got %+v", second)
	}
	rules := &Rules{MaxLeases: 1}
	third, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Rules: rules, Cookies: []cookies.Cookie{cookie("a", "b", "example.com")}})
	if err != nil || third.MaxLeases != 1 || len(third.Scopes) != 0 {
		t.Errorf("got %+v, %v", third, err)
	}
	if err := v.DeleteCookies(t.Context(), "default", "example.com"); err != nil {
		t.Fatal(err)
	}
	if fourth := w.put(v, "default", "example.com", "four"); fourth.ID == first.ID {
		t.Error("a new set has the ID of the one that was deleted")
	}
}

func TestCookiesThatDoNotBelongAreNamedAndNothingIsStored(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	w.put(v, "default", "example.com", "before")
	before := w.rowsNow()
	expired := cookie("expired", "canary", "example.com")
	expired.Expires = float64(epoch.Unix())
	invalid := cookie("__Host-x", "canary", ".example.com")
	list := []cookies.Cookie{
		cookie("good", "canary", "example.com"), expired, invalid, cookie("foreign", "canary", "notexample.com"),
		cookie("twice", "canary", "example.com"), cookie("twice", "canary", "example.com"),
	}
	_, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: list, Rules: &Rules{Scopes: []string{"a b"}}})
	wantProblem(t, err, problem.BadCookie)
	for _, want := range []string{
		"expired of example.com/: it has expired", "__Host-x of .example.com/: its name's prefix", "foreign of notexample.com/: it is of another domain",
		"twice of example.com/: it is there twice", "max_sessions", "scopes",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "good") {
		t.Errorf("the error says too much: %v", err)
	}
	for _, domain := range []string{"www.example.com", "com", "", "*.example.com", "Example.com", "10.0.0.1"} {
		_, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: domain, Cookies: list[:1]})
		wantProblem(t, err, problem.BadDomain)
	}
	_, err = v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com"})
	wantProblem(t, err, problem.BadCookie)
	_, err = v.PutCookies(t.Context(), NewCookies{Domain: "example.com", Cookies: list[:1]})
	wantProblem(t, err, problem.BadCookie)
	_, err = v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: make([]cookies.Cookie, cookies.MaxCookies+1)})
	wantProblem(t, err, problem.BadCookie)
	wantProblem(t, v.SetRules(t.Context(), "default", "example.com", Rules{}), problem.BadRequest)
	if diff := cmp.Diff(before, w.rowsNow()); diff != "" {
		t.Errorf("rows changed (-before +after):\n%s", diff)
	}
}

func TestStorageIsKeptWithTheCookies(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	canary := func() []weblogin.Origin {
		return []weblogin.Origin{{Origin: "https://app.example.com", Local: []weblogin.Item{{Name: "canary-name", Value: secret.New([]byte("canary"))}}, Left: []string{"a key"}}}
	}
	list := []cookies.Cookie{cookie("sid", "canary", "example.com")}
	put, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: list, Origins: canary()})
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.open().Cookies(t.Context(), "default", "example.com")
	info := []weblogin.OriginInfo{{Origin: "https://app.example.com", Items: 1, Bytes: 17, LeftOut: []string{"a key"}}}
	if err != nil || !cmp.Equal(put.Storage, info) || !cmp.Equal(again.Storage, info) || again.Count != 1 || len(again.Cookies) != 1 {
		t.Errorf("put %+v, and described %+v, %v", put, again, err)
	}
	listed, err := v.ListCookies(t.Context(), "default")
	if text := fmt.Sprintf("%+v", listed); err != nil || !strings.Contains(text, "app.example.com") || strings.Contains(text, "canary") {
		t.Errorf("listed as %s, %v", text, err)
	}
	if rows := fmt.Sprintf("%q", w.rowsNow()); strings.Contains(rows, "canary") || strings.Contains(rows, "app.example.com") {
		t.Errorf("the database says %s", rows)
	}
	var kept weblogin.Login
	err = v.UseLogin(t.Context(), "default", "example.com", func(l weblogin.Login) error {
		kept = l
		if bad := weblogin.Compare(canary(), l.Origins); len(bad) > 0 || len(l.Cookies) != 1 {
			t.Errorf("used is %v: %q", l, bad)
		}
		return nil
	})
	if got := string(kept.Origins[0].Local[0].Value.Append(nil)); err != nil || strings.Trim(got, "\x00") != "" {
		t.Errorf("what was used is %q afterwards, %v", got, err)
	}
	// A rotation and a change of rules leave it as it is, an import without storage replaces it.
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.SetRules(t.Context(), "default", "example.com", Rules{MaxLeases: 2}); err != nil {
		t.Fatal(err)
	}
	if set, err := v.Cookies(t.Context(), "default", "example.com"); err != nil || !cmp.Equal(set.Storage, info) {
		t.Errorf("then it is %+v, %v", set, err)
	}
	for name, wrong := range map[string][]weblogin.Origin{
		"another domain":  {{Origin: "https://example.org", Local: canary()[0].Local}},
		"twice":           append(canary(), canary()...),
		"a large value":   {{Origin: "https://example.com", Local: []weblogin.Item{{Name: "canary", Value: secret.New(make([]byte, weblogin.MaxValue))}}}},
		"larger together": manyLarge(),
	} {
		_, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: list, Origins: wrong})
		if problem.CodeOf(err) != problem.BadStorage || strings.Contains(fmt.Sprintf("%+v", err), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if set, err := v.Cookies(t.Context(), "default", "example.com"); err != nil || !cmp.Equal(set.Storage, info) {
		t.Errorf("after refusals it is %+v, %v", set, err)
	}
	if _, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Origins: canary()}); err != nil {
		t.Errorf("storage alone: %v", err)
	}
	if set, err := v.PutCookies(t.Context(), NewCookies{Tenant: "default", Domain: "example.com", Cookies: list}); err != nil || set.Storage != nil {
		t.Errorf("cookies alone: %+v, %v", set, err)
	}
}

// manyLarge are origins each of which is within its bounds, and that are more than an account together.
func manyLarge() (out []weblogin.Origin) {
	for n := range 4 {
		o := weblogin.Origin{Origin: fmt.Sprintf("https://o%d.example.com", n)}
		for _, name := range []string{"a", "b"} {
			o.Local = append(o.Local, weblogin.Item{Name: name, Value: secret.New(bytes.Repeat([]byte("v"), weblogin.MaxValue-1))})
		}
		out = append(out, o)
	}
	return out
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	name := SecretName{Tenant: "default", Service: "mail"}
	_, absent := v.Cookies(t.Context(), "default", "example.com")
	_, tenant := v.PutCookies(t.Context(), NewCookies{Tenant: "absent", Domain: "example.com", Cookies: []cookies.Cookie{cookie("a", "b", "example.com")}})
	for what, err := range map[string]error{
		"use":           v.UseLogin(t.Context(), "default", "example.com", nil),
		"describe":      absent,
		"delete":        v.DeleteCookies(t.Context(), "default", "example.com"),
		"rules":         v.SetRules(t.Context(), "default", "example.com", Rules{MaxLeases: 1}),
		"secret":        v.UseSecret(t.Context(), name, home, nil),
		"delete secret": v.DeleteSecret(t.Context(), name),
		"tenant":        tenant,
		"agent":         v.PutSecret(t.Context(), SecretName{"default", "absent", "mail"}, secret.New([]byte("x"))),
		"other's agent": v.PutSecret(t.Context(), SecretName{"other", w.agent, "mail"}, secret.New([]byte("x"))),
	} {
		if problem.CodeOf(err) != problem.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestSecretsOfAgentsComeBeforeTheTenants(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	tenants, agents := SecretName{Tenant: "default", Service: "mail"}, SecretName{Tenant: "default", Agent: w.agent, Service: "mail"}
	w.putSecret(v, tenants, "of the tenant")
	w.wantSecret(v, agents, "of the tenant")
	w.putSecret(v, agents, "of the agent")
	w.wantSecret(v, agents, "of the agent")
	w.wantSecret(v, tenants, "of the tenant")
	w.now = epoch.Add(time.Hour)
	w.putSecret(v, agents, "another")
	w.wantSecret(w.open(), agents, "another")
	list, err := v.ListSecrets(t.Context(), "default")
	if err != nil || len(list) != 2 || list[1].Agent != w.agent || !list[1].UpdatedAt.Equal(w.now) || !list[1].CreatedAt.Equal(epoch) {
		t.Errorf("got %+v, %v", list, err)
	}
	if err := v.DeleteSecret(t.Context(), agents); err != nil {
		t.Fatal(err)
	}
	w.wantSecret(v, agents, "of the tenant")
	if _, err := secretOf(v, SecretName{Tenant: "other", Service: "mail"}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("another tenant: %v", err)
	}
}

// TestMarkUsedMarksTheSecretThatUseSecretTakes, and no other one.
func TestMarkUsedMarksTheSecretThatUseSecretTakes(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	tenants, agents := SecretName{Tenant: "default", Service: "mail"}, SecretName{Tenant: "default", Agent: w.agent, Service: "mail"}
	marked := func(n SecretName, at time.Time, wantTenants, wantAgents time.Time) {
		t.Helper()
		if err := v.MarkUsed(t.Context(), n, at); err != nil {
			t.Fatal(err)
		}
		list, err := v.ListSecrets(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			want := wantTenants
			if s.Agent != "" {
				want = wantAgents
			}
			if !s.UsedAt.Equal(want) {
				t.Errorf("the secret of agent %q was used at %v, want %v", s.Agent, s.UsedAt, want)
			}
		}
	}
	hour := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Hour) }
	w.putSecret(v, tenants, "of the tenant")
	marked(agents, hour(1), hour(1), time.Time{})
	marked(agents, hour(0), hour(1), time.Time{})
	w.putSecret(v, agents, "of the agent")
	marked(agents, hour(2), hour(1), hour(2))
	marked(tenants, hour(3), hour(3), hour(2))
	w.putSecret(v, agents, "another")
	marked(tenants, hour(3), hour(3), hour(2)) // a new value does not forget when the one before was used
	if err := v.DeleteSecret(t.Context(), agents); err != nil {
		t.Fatal(err)
	}
	marked(agents, hour(4), hour(4), time.Time{})
	for name, n := range map[string]SecretName{"none": {Tenant: "default", Service: "bank"}, "another tenant's": {Tenant: "other", Service: "mail"}} {
		if err := v.MarkUsed(t.Context(), n, hour(5)); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := v.MarkUsed(t.Context(), SecretName{Tenant: "default", Service: "../mail"}, hour(5)); problem.CodeOf(err) != problem.BadSecret {
		t.Errorf("a name that is none: %v", err)
	}
	if err := v.MarkUsed(t.Context(), tenants, time.Time{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("at no time: %v", err)
	}
}

func TestSecretsAndTheirNamesAreChecked(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	good := SecretName{Tenant: "default", Service: "mail"}
	for name, err := range map[string]error{
		"empty":      v.PutSecret(t.Context(), good, secret.Value{}),
		"too large":  v.PutSecret(t.Context(), good, secret.New(make([]byte, longestSecret+1))),
		"no tenant":  v.PutSecret(t.Context(), SecretName{Service: "mail"}, secret.New([]byte("x"))),
		"no service": v.PutSecret(t.Context(), SecretName{Tenant: "default"}, secret.New([]byte("x"))),
		"upper case": v.PutSecret(t.Context(), SecretName{Tenant: "default", Service: "Mail"}, secret.New([]byte("x"))),
		"path":       v.UseSecret(t.Context(), SecretName{Tenant: "default", Service: "../mail"}, home, nil),
		"dot":        v.DeleteSecret(t.Context(), SecretName{Tenant: "default", Service: ".mail"}),
		"long":       v.PutSecret(t.Context(), SecretName{Tenant: "default", Service: strings.Repeat("x", 65)}, secret.New([]byte("x"))),
		"agent":      v.PutSecret(t.Context(), SecretName{"default", "a b", "mail"}, secret.New([]byte("x"))),
	} {
		if problem.CodeOf(err) != problem.BadSecret {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := v.PutSecret(t.Context(), good, secret.New(make([]byte, longestSecret)), InJail); err != nil {
		t.Error(err)
	}
}

func TestOptionsSayEverythingThatIsWrong(t *testing.T) {
	_, err := Open(t.Context(), Options{KeyFile: "relative"})
	wantProblem(t, err, problem.BadConfig)
	for _, want := range []string{"key_file", "store", "now"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

// raceOnce puts a row in the place of another, once, as a second node would between reading and writing.
type raceOnce struct {
	Rows
	race func()
}

func (r *raceOnce) PutCookieSet(ctx context.Context, was, s store.CookieSet) error {
	if race := r.race; race != nil {
		r.race = nil
		race()
	}
	return r.Rows.PutCookieSet(ctx, was, s)
}

func TestASetThatAnotherNodeMadeInBetweenIsReplacedUnderItsID(t *testing.T) {
	w := newFixture(t)
	other := w.open()
	racing := &raceOnce{Rows: w.db}
	o := w.options()
	o.Store = racing
	v, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var theirs CookieSet
	racing.race = func() {
		// Past the lock between processes of one host, which the other node does not have.
		was, s, err := other.nextSet(t.Context(), NewCookies{Tenant: "default", Domain: "example.com"})
		if err != nil {
			t.Fatal(err)
		}
		if s.Ciphertext, err = other.current().seal(placeOfCookies(s), []byte(`[]`)); err != nil {
			t.Fatal(err)
		}
		if err := w.db.PutCookieSet(t.Context(), was, s); err != nil {
			t.Fatal(err)
		}
		theirs = other.describe(s, nil, nil)
	}
	if ours := w.put(v, "default", "example.com", "ours"); ours.ID != theirs.ID {
		t.Errorf("the set has the ID %s, and the other node's was %s", ours.ID, theirs.ID)
	}
	w.wantCookies(v, "default", "example.com", "ours")
}

func benchmarkSet(b *testing.B) (*fixture, *Vault, NewCookies) {
	w := newFixture(b)
	n := NewCookies{Tenant: "default", Domain: "example.com"}
	for i := range 50 {
		n.Cookies = append(n.Cookies, cookie(fmt.Sprint("name-of-cookie-", i), strings.Repeat("v", 120), ".example.com"))
	}
	v := w.open()
	if _, err := v.PutCookies(b.Context(), n); err != nil {
		b.Fatal(err)
	}
	return w, v, n
}

// BenchmarkEncryptAndDecrypt50 is the cost of encryption, without the database.
func BenchmarkEncryptAndDecrypt50(b *testing.B) {
	_, v, n := benchmarkSet(b)
	p := place{kindCookies, "default", []string{"example.com"}, "row", form}
	for b.Loop() {
		plaintext := cookies.Encode(n.Cookies)
		sealed, err := v.current().seal(p, plaintext)
		clear(plaintext)
		if err != nil {
			b.Fatal(err)
		}
		opened, err := v.unseal(p, sealed)
		if err != nil {
			b.Fatal(err)
		}
		list, err := cookies.Decode(opened)
		clear(opened)
		if err != nil || len(list) != 50 {
			b.Fatal(len(list), err)
		}
		cookies.Wipe(list)
	}
}

func BenchmarkUseCookies50(b *testing.B) {
	_, v, _ := benchmarkSet(b)
	for b.Loop() {
		if err := v.UseLogin(b.Context(), "default", "example.com", func(weblogin.Login) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutCookies50(b *testing.B) {
	_, v, n := benchmarkSet(b)
	for b.Loop() {
		if _, err := v.PutCookies(b.Context(), n); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUseSecret(b *testing.B) {
	w, v, _ := benchmarkSet(b)
	name := SecretName{Tenant: "default", Service: "mail"}
	w.putSecret(v, name, "a-key-of-some-service")
	for b.Loop() {
		if err := v.UseSecret(b.Context(), name, home, func(secret.Value) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
