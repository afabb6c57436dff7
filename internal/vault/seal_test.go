package vault

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestAnEntryOpensInItsOwnPlaceOnly(t *testing.T) {
	k, err := newKeyring(epoch)
	if err != nil {
		t.Fatal(err)
	}
	own := place{kindCookies, "default", []string{"example.com"}, "row1", form}
	sealed, err := k.seal(own, []byte("plain"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.open(own, sealed); err != nil || string(got) != "plain" {
		t.Fatalf("its own place: %q, %v", got, err)
	}
	for name, other := range map[string]place{
		"kind":          {kindSecret, "default", []string{"example.com"}, "row1", form},
		"tenant":        {kindCookies, "other", []string{"example.com"}, "row1", form},
		"name":          {kindCookies, "default", []string{"example.org"}, "row1", form},
		"row":           {kindCookies, "default", []string{"example.com"}, "row2", form},
		"one more name": {kindCookies, "default", []string{"", "example.com"}, "row1", form},
		"form":          {kindCookies, "default", []string{"example.com"}, "row1", formBound},
		"shifted":       {kindCookies, "defaultr", []string{"example.com"}, "ow1", form},
	} {
		if got, err := k.open(other, sealed); err == nil {
			t.Errorf("another %s opens it: %q", name, got)
		}
	}
	if sealed2, err := k.seal(own, []byte("plain")); err != nil || bytes.Equal(sealed, sealed2) {
		t.Errorf("the same is encrypted to the same: %v", err)
	}
	other, err := newKeyring(epoch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.open(own, sealed); err == nil {
		t.Error("another key opens it")
	}
	for i := range sealed {
		changed := slices.Clone(sealed)
		changed[i] ^= 1
		if _, err := k.open(own, changed); err == nil {
			t.Errorf("it opens with byte %d changed", i)
		}
		if _, err := k.open(own, sealed[:i]); err == nil {
			t.Errorf("it opens when cut to %d bytes", i)
		}
	}
}

func TestNoTwoPlacesAreBoundToTheSame(t *testing.T) {
	part := rapid.StringMatching(`[a\x00-\x02]{0,3}`)
	// b is a with one border between two parts moved or taken away, or one added, or left as it is.
	placed := func(p []string) place { return place{p[0], p[1], p[3:], p[2], form} }
	property.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(part, 4, 5).Draw(t, "parts")
		b := slices.Clone(a)
		n := rapid.IntRange(0, len(b)-2).Draw(t, "border")
		cut := rapid.IntRange(0, len(b[n])).Draw(t, "cut")
		switch rapid.SampledFrom([]string{"move", "add", "take", "leave"}).Draw(t, "change") {
		case "move":
			b[n], b[n+1] = b[n][:cut], b[n][cut:]+b[n+1]
		case "add":
			b = slices.Concat(b[:n], []string{b[n][:cut], b[n][cut:]}, b[n+1:])
		case "take":
			if len(b) == 5 {
				b = slices.Concat(b[:n], []string{b[n] + b[n+1]}, b[n+2:])
			}
		}
		if from, to := placed(a).bound(), placed(b).bound(); bytes.Equal(from, to) != slices.Equal(a, b) {
			t.Fatalf("%q is %q, and %q is %q", a, from, b, to)
		}
	})
}

// Somebody who can write to the database moves ciphertexts about: everything that they can name.
func TestRowsThatWereSwappedAreRefusedAndNotOverwritten(t *testing.T) {
	w := newFixture(t)
	v := w.open()
	w.put(v, "default", "example.com", "one")
	w.put(v, "default", "example.org", "two")
	w.put(v, "other", "example.com", "three")
	tenants, agents := SecretName{Tenant: "default", Service: "mail"}, SecretName{Tenant: "default", Agent: w.agent, Service: "mail"}
	elses := SecretName{Tenant: "default", Service: "chat"}
	for i, n := range []SecretName{tenants, agents, elses} {
		w.putSecret(v, n, fmt.Sprint("secret", i))
	}
	set := func(tenant, domain string) store.CookieSet {
		s, err := w.db.CookieSet(t.Context(), tenant, domain)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	row := func(n SecretName) store.Secret {
		s, err := w.db.Secret(t.Context(), n.Tenant, n.Agent, n.Service)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good, goodSecret := set("default", "example.com"), row(tenants)
	for name, ciphertext := range map[string][]byte{
		"another domain": set("default", "example.org").Ciphertext, "another tenant": set("other", "example.com").Ciphertext,
		"a secret": goodSecret.Ciphertext, "cut": good.Ciphertext[:30], "empty": {}, "text": []byte("hello"),
		"a changed byte": append(slices.Clone(good.Ciphertext[:len(good.Ciphertext)-1]), good.Ciphertext[len(good.Ciphertext)-1]^1),
	} {
		bad := good
		bad.Ciphertext = ciphertext
		w.overwrite(bad)
		before := w.rowsNow()
		got, err := values(v, "default", "example.com")
		if problem.CodeOf(err) != problem.VaultRowDamaged || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		list, err := v.ListCookies(t.Context(), "default")
		if err != nil || len(list) != 2 || list[0].Problem != problem.VaultRowDamaged || list[0].Cookies != nil || list[1].Problem != "" {
			t.Errorf("%s: listed as %+v, %v", name, list, err)
		}
		if w.rowsNow() != before {
			t.Errorf("%s: rows were overwritten", name)
		}
	}
	w.overwrite(good)
	w.wantCookies(v, "default", "example.com", "one")

	for name, other := range map[string]store.Secret{"the agent's": row(agents), "another service's": row(elses)} {
		bad := goodSecret
		bad.Ciphertext = other.Ciphertext
		if err := w.db.PutSecret(t.Context(), row(tenants), bad); err != nil {
			t.Fatal(err)
		}
		if got, err := secretOf(v, tenants); problem.CodeOf(err) != problem.VaultRowDamaged || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// The row itself made anew, under another ID.
	if err := w.db.DeleteCookieSet(t.Context(), "default", "example.com"); err != nil {
		t.Fatal(err)
	}
	moved := good
	moved.ID = "another"
	if err := w.db.PutCookieSet(t.Context(), store.CookieSet{}, moved); err != nil {
		t.Fatal(err)
	}
	_, err := values(v, "default", "example.com")
	wantProblem(t, err, problem.VaultRowDamaged)
	// A damaged set can be replaced, which makes it whole.
	w.put(v, "default", "example.com", "new")
	w.wantCookies(v, "default", "example.com", "new")
}

func FuzzUnseal(f *testing.F) {
	w := newFixture(f)
	v := w.open()
	p := place{kindCookies, "default", []string{"example.com"}, "row1", form}
	sealed, err := v.current().seal(p, []byte("[]"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte{form, 1, 0, 0, 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, ciphertext []byte) {
		plain, err := v.unseal(p, ciphertext)
		switch problem.CodeOf(err) {
		case problem.VaultRowDamaged, problem.VaultKeyWrong:
		case "":
			if !bytes.Equal(ciphertext, sealed) {
				t.Fatalf("%x opens to %q", ciphertext, plain)
			}
		default:
			t.Fatal(err)
		}
	})
}
