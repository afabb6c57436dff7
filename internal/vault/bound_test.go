package vault

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// given says whether a secret is given out for a destination.
func given(t *testing.T, v *Vault, n SecretName, to Destination) bool {
	t.Helper()
	used := false
	err := v.UseSecret(t.Context(), n, to, func(secret.Value) error { used = true; return nil })
	if code := problem.CodeOf(err); (err == nil) != used || err != nil && code != problem.SecretNotBound {
		t.Fatalf("%s to %q: used %v, %v", n.Service, to, used, err)
	}
	return used
}

func TestSecretGoesOnlyToWhatItIsBoundTo(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	n := SecretName{Tenant: "default", Service: "mail"}
	must := func(to ...Destination) {
		t.Helper()
		if err := v.PutSecret(t.Context(), n, secret.New([]byte("value-of-mail")), to...); err != nil {
			t.Fatal(err)
		}
	}
	all := []Destination{home, "http://api.example.com", "https://api.example.com:444", "https://api.example.org", "https://x.api.example.com", InJail, ""}
	check := func(want ...Destination) {
		t.Helper()
		for _, to := range all {
			if got := given(t, v, n, to); got != slices.Contains(want, to) {
				t.Errorf("bound to %q: to %q it goes: %v", want, to, got)
			}
		}
	}
	must()
	check()
	must(home)
	check(home)
	must() // a new value keeps where it goes
	check(home)
	must("https://api.example.org", InJail)
	check("https://api.example.org", InJail)
	if _, err := v.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("https://api.example.org", InJail)
	list, err := v.ListSecrets(t.Context(), "default")
	if err != nil || len(list) != 1 || !slices.Equal(list[0].BoundTo, []Destination{"https://api.example.org", InJail}) {
		t.Errorf("listed as %+v, %v", list, err)
	}
}

// Earlier versions bound secrets to origins as they were written.
func TestSecretGoesToAnOriginInAnEarlierSpelling(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	n := SecretName{Tenant: "default", Service: "mail"}
	if err := v.PutSecret(t.Context(), n, secret.New([]byte("value-of-mail")), "HTTPS://API.example.com.:443", InJail); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		for to, want := range map[Destination]bool{home: true, InJail: true, "https://api.example.org": false, "http://api.example.com": false} {
			if got := given(t, v, n, to); got != want {
				t.Errorf("to %q it goes: %v", to, got)
			}
		}
	}
	check()
	if list, err := v.ListSecrets(t.Context(), "default"); err != nil || len(list) != 1 || !slices.Equal(list[0].BoundTo, []Destination{home, InJail}) {
		t.Errorf("listed as %+v, %v", list, err)
	}
	if err := v.PutSecret(t.Context(), n, secret.New([]byte("another-value"))); err != nil {
		t.Fatal(err)
	}
	check()
}

// A secret that goes to a jail alone may be a file of any bytes, and one that is bound to nothing yet may become that.
func TestSecretThatCannotBeSentIsRefusedWhenItIsStored(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	v.BindBy(func(_ context.Context, n SecretName) ([]Destination, error) {
		return map[string][]Destination{"service": {home}, "server": {InJail}}[n.Service], nil
	})
	kept := SecretName{Tenant: "default", Service: "kept"}
	w.putSecret(v, kept, "value")
	for _, c := range []struct {
		service string
		to      []Destination
		sent    bool
	}{
		{"mail", []Destination{home}, true}, {"mail", []Destination{InJail, home}, true}, {"kept", nil, true}, {"service", nil, true},
		{"file", []Destination{InJail}, false}, {"server", nil, false}, {"later", nil, false},
	} {
		for value, good := range map[string]bool{
			"hunter22": true, strings.Repeat("x", 16384): true, "hunter2": false, strings.Repeat("x", 16385): false, "line1\nline2longenough": false,
			"a NUL \x00 in it": false, " hunter22": false,
		} {
			err := v.PutSecret(t.Context(), SecretName{Tenant: "default", Service: c.service}, secret.New([]byte(value)), c.to...)
			if want := good || !c.sent; (err == nil) != want || err != nil && problem.CodeOf(err) != problem.BadSecret {
				t.Errorf("%.30q for %s to %q: %v", value, c.service, c.to, err)
			}
		}
	}
	if got, err := secretOf(v, kept); err != nil || len(got) != 8 && len(got) != 16384 {
		t.Errorf("what was there is replaced by %.30q, %v", got, err)
	}
}

// TestSecretsOfEarlierVersionsAreBoundToTheOnlyOneThatNamesThem: not to one of several, and for good.
func TestSecretsOfEarlierVersionsAreBoundToTheOnlyOneThatNamesThem(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	declared := map[string][]Destination{"one": {home, home}, "two": {home, "https://api.example.org"}, "later": nil, "server": {InJail}}
	v.BindBy(func(_ context.Context, n SecretName) ([]Destination, error) {
		return slices.Clone(declared[n.Service]), nil
	})
	name := func(service string) SecretName { return SecretName{Tenant: "default", Service: service} }
	for service := range declared {
		s := store.Secret{ID: newID(), Tenant: "default", Service: service, CreatedAt: w.now, UpdatedAt: w.now}
		var err error
		if s.Ciphertext, err = v.current().seal(placeOfSecret(s), []byte("value-of-"+service)); err != nil {
			t.Fatal(err)
		}
		if err := w.db.PutSecret(t.Context(), store.Secret{}, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.BindDeclared(t.Context()); err != nil {
		t.Fatal(err)
	}
	declared["one"] = []Destination{"https://elsewhere.example"}
	declared["later"] = []Destination{"https://api.example.net"}
	declared["server"] = append(declared["server"], "https://elsewhere.example")
	for _, c := range []struct {
		service string
		to      Destination
		want    bool
	}{
		{"one", home, true}, {"one", "https://elsewhere.example", false}, {"two", home, false}, {"two", "https://api.example.org", false},
		{"later", home, false}, {"later", "https://api.example.net", true}, {"server", InJail, true}, {"server", "https://elsewhere.example", false},
	} {
		if got := given(t, v, name(c.service), c.to); got != c.want {
			t.Errorf("%s to %s: %v", c.service, c.to, got)
		}
	}
	declared["later"] = []Destination{home}
	if given(t, v, name("later"), home) {
		t.Error("its first use did not bind it")
	}
	w.wantSecret(v, name("one"), "value-of-one")

	broken := errors.New("nobody knows")
	v.BindBy(func(context.Context, SecretName) ([]Destination, error) { return nil, broken })
	if err := v.UseSecret(t.Context(), name("two"), home, nil); !errors.Is(err, broken) {
		t.Errorf("used without knowing where it goes: %v", err)
	}
}

func TestDestinationsAreOriginsInOneSpelling(t *testing.T) {
	for text, want := range map[string]Destination{
		"https://API.example.com": home, "https://api.example.com:443/": home, "http://[2001:db8::1]:80": "http://[2001:db8::1]",
		"https://api.example.com:8443": "https://api.example.com:8443", "jail": InJail,
		"https://api.example.com.": home, "https://api.example.com.:443": home, "http://[::ffff:192.0.2.1]:8080": "http://192.0.2.1:8080",
	} {
		if got, err := ParseDestinations([]string{text, text}); err != nil || !slices.Equal(got, []Destination{want}) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "api.example.com", "ftp://api.example.com", "https://", "https://u@api.example.com", "https://api.example.com/v1",
		"https://api.example.com?q", "https://api.example.com#f", "https://exämple.com", "jail ",
		"https://api.example.com:0443", "https://api.example.com:", "https://api.example.com:0", "http://127.1"} {
		if got, err := ParseDestinations([]string{text}); problem.CodeOf(err) != problem.BadSecret {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	u, _ := url.Parse("HTTPS://API.example.com:443/v1?x=1")
	if got := Origin(u); got != home {
		t.Errorf("%s", got)
	}
}
