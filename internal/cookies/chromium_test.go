//go:build unix

package cookies

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

type jar struct {
	t    testing.TB
	conn *cdp.Conn
}

// newJar starts a browser of its own.
func newJar(t testing.TB) jar {
	t.Helper()
	process := cdptest.Shell(t)
	conn, err := cdp.New(process.Replies, process.Commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return jar{t, conn}
}

func (j jar) call(method string, params, result any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return j.conn.Call(ctx, "", method, params, result)
}

func (j jar) set(list []Cookie) error {
	return j.call("Storage.setCookies", map[string]json.RawMessage{"cookies": Params(list)}, nil)
}

func (j jar) get() []Cookie {
	j.t.Helper()
	var out struct {
		Cookies []Cookie `json:"cookies"`
	}
	if err := j.call("Storage.getCookies", nil, &out); err != nil {
		j.t.Fatal(err)
	}
	return out.Cookies
}

func (j jar) clear() {
	j.t.Helper()
	if err := j.call("Storage.clearCookies", map[string]any{}, nil); err != nil {
		j.t.Fatal(err)
	}
}

// now is the clock of the browser.
func now() time.Time { return time.Now() }

func TestChromiumTakesAndReturnsAnyJarUnchanged(t *testing.T) {
	j := newJar(t)
	property.Check(t, func(rt *rapid.T) {
		first := jarOf(now()).Draw(rt, "jar")
		j.clear()
		if err := j.set(first); err != nil {
			rt.Fatalf("set %s: %v", Params(first), err)
		}
		got := j.get()
		if d := Compare(first, got, now()); len(d) > 0 || len(got) != len(first) {
			rt.Fatalf("%d became %d: %v", len(first), len(got), d)
		}
		// Cookies that were read go through the store's form into an empty jar, and come back the same in every field.
		stored, err := Decode(Encode(got))
		if err != nil {
			rt.Fatal(err)
		}
		j.clear()
		if err := j.set(stored); err != nil {
			rt.Fatal(err)
		}
		again := j.get()
		Sort(got)
		Sort(again)
		if !slices.EqualFunc(got, again, Cookie.Equal) {
			rt.Fatalf("first %s\nthen  %s", Encode(got), Encode(again))
		}
	})
}

// The table of verdicts is about Chromium: what it says is tried.
func TestChromiumAgreesWithValidate(t *testing.T) {
	j := newJar(t)
	for _, tt := range verdicts() {
		want := tt.chromium
		switch {
		case want != "":
		case tt.reason == "":
			want = "takes it"
		default:
			want = "refuses it"
		}
		c := plain(tt.change)
		j.clear()
		got := "takes it"
		if err := j.set([]Cookie{c}); err != nil {
			got = "refuses it"
		} else if d := Compare([]Cookie{c}, j.get(), now()); len(d) == 1 && d[0].Dropped {
			got = "drops it"
		} else if len(d) == 1 {
			got = "changes it"
		}
		if got != want {
			t.Errorf("%s: Chromium %s, want that it %s", tt.name, got, want)
		}
	}
}

func TestChromiumAgreesAboutEveryCharacter(t *testing.T) {
	j := newJar(t)
	for b := byte(1); b < 0x80; b++ {
		for place, change := range map[string]func(c *Cookie){
			"name":  func(c *Cookie) { c.Name = "a" + string(b) + "b" },
			"value": func(c *Cookie) { c.Value = secret.New([]byte{'a', b, 'b'}) },
			"path":  func(c *Cookie) { c.Path = "/a" + string(b) + "b" },
		} {
			c := plain(change)
			j.clear()
			takes := j.set([]Cookie{c}) == nil && len(Compare([]Cookie{c}, j.get(), now())) == 0
			if valid := Validate(c) == nil; valid != takes {
				t.Errorf("%q in the %s: valid is %v, Chromium takes it is %v", b, place, valid, takes)
			}
		}
	}
}

func TestChromiumDropsWhatHasExpired(t *testing.T) {
	j := newJar(t)
	c := plain(func(c *Cookie) { c.Expires, c.Session = seconds(now())-1, false })
	if err := j.set([]Cookie{c}); err != nil {
		t.Fatal(err)
	}
	if d := Compare([]Cookie{c}, j.get(), now()); len(d) != 1 || !d[0].Dropped || !c.Expired(now()) || Validate(c) != nil {
		t.Errorf("got %v", d)
	}
	far := plain(func(c *Cookie) { c.Expires, c.Session = seconds(now().AddDate(8, 0, 0)), false })
	if err := j.set([]Cookie{far}); err != nil {
		t.Fatal(err)
	}
	got := j.get()
	if d := Compare([]Cookie{far}, got, now()); len(d) > 0 || got[0].Expires >= far.Expires {
		t.Errorf("an expiry in eight years: %v", d)
	}
}

func TestChromiumSetsNothingOfABatchWithOneBadCookie(t *testing.T) {
	j := newJar(t)
	good, bad := plain(nil), plain(func(c *Cookie) { c.Name = "__Host-x" })
	if err := j.set([]Cookie{good, bad}); err == nil || Validate(bad) == nil {
		t.Fatal("a bad cookie was taken")
	}
	if d := Compare([]Cookie{good}, j.get(), now()); len(d) != 1 {
		t.Error("the good one was set")
	}
	// With a url, which Params never writes, the cookie is not the one that was read.
	raw := `[{"name":"a","value":"b","url":"https://example.test/","expires":-1}]`
	if err := j.call("Storage.setCookies", map[string]json.RawMessage{"cookies": json.RawMessage(raw)}, nil); err != nil {
		t.Fatal(err)
	}
	if got := j.get(); len(got) != 1 || !got[0].Secure || got[0].SourceScheme != SchemeSecure {
		t.Errorf("got %v", got)
	}
}

func BenchmarkChromiumSetAndCompare50(b *testing.B) {
	j := newJar(b)
	list := make([]Cookie, 50)
	for i := range list {
		list[i] = plain(func(c *Cookie) { c.Name = fmt.Sprintf("c%d", i) })
	}
	for b.Loop() {
		for _, c := range list {
			if err := Validate(c); err != nil {
				b.Fatal(err)
			}
		}
		if err := j.set(list); err != nil {
			b.Fatal(err)
		}
		if d := Compare(list, j.get(), now()); len(d) > 0 {
			b.Fatal(d)
		}
	}
}
