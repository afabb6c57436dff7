package cookies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// answer is what Chromium 156 says to Storage.getCookies, with a field that no protocol has yet.
const answer = `[
 {"name":"__Host-sid","value":"caf\u00e9 \"x\"","domain":"example.test","path":"/","expires":1830000000.123457,"size":20,
  "httpOnly":true,"secure":true,"session":false,"sameSite":"Strict","priority":"High","sourceScheme":"Secure","sourcePort":8443},
 {"name":"chip","value":"","domain":".w.example.test","path":"/a","expires":-1,"size":4,"httpOnly":false,"secure":true,
  "session":true,"sameSite":"None","priority":"Medium","sourceScheme":"Unset","sourcePort":-1,
  "partitionKey":{"topLevelSite":"https://other.test","hasCrossSiteAncestor":true},"partitionKeyOpaque":true,
  "newThing":{"deep":[1.50,"x"]}}
]`

func decode(t testing.TB, raw string) []Cookie {
	t.Helper()
	list, err := Decode([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestEveryFieldOfTheProtocolIsKept(t *testing.T) {
	list := decode(t, answer)
	var want, got any
	if err := json.Unmarshal([]byte(answer), &want); err != nil {
		t.Fatal(err)
	}
	stored := Encode(list)
	if err := json.Unmarshal(stored, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after decoding and encoding (-want +got):\n%s", diff)
	}
	if !bytes.Contains(stored, []byte(`[1.50,"x"]`)) {
		t.Error("a field that is not known was written anew")
	}
	again := decode(t, string(stored))
	if !slices.EqualFunc(list, again, Cookie.Equal) {
		t.Error("a second round differs")
	}
}

func TestParamsAreWhatStorageSetCookiesTakes(t *testing.T) {
	want := `[{"name":"__Host-sid","value":"café \"x\"","domain":"example.test","path":"/","expires":1830000000.123457,` +
		`"httpOnly":true,"secure":true,"sameSite":"Strict","priority":"High","sourceScheme":"Secure","sourcePort":8443},` +
		`{"name":"chip","value":"","domain":".w.example.test","path":"/a","expires":-1,"httpOnly":false,"secure":true,` +
		`"sameSite":"None","priority":"Medium","sourceScheme":"Unset","sourcePort":-1,` +
		`"partitionKey":{"topLevelSite":"https://other.test","hasCrossSiteAncestor":true}}]`
	if diff := cmp.Diff(want, string(Params(decode(t, answer)))); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	if got := string(Params(nil)); got != "[]" {
		t.Errorf("no cookies are %s", got)
	}
	// A field that a source did not have is left to the browser.
	bare := Cookie{Name: "a", Value: secret.New([]byte("b")), Domain: "example.test", Path: "/", Expires: Session}
	want = `[{"name":"a","value":"b","domain":"example.test","path":"/","expires":-1,"httpOnly":false,"secure":false}]`
	if diff := cmp.Diff(want, string(Params([]Cookie{bare}))); diff != "" {
		t.Errorf("a bare cookie (-want +got):\n%s", diff)
	}
}

// A browser in miniature: it keeps what it is given and answers with all fields.
func TestGetStoreSetGetIsIdentical(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		jar := jarOf(epoch).Draw(t, "jar")
		got, err := Decode(Encode(jar))
		if err != nil {
			t.Fatal(err)
		}
		stored, err := Decode(Encode(got))
		if err != nil {
			t.Fatal(err)
		}
		set, err := Decode(Params(stored))
		if err != nil {
			t.Fatal(err)
		}
		for i := range set {
			set[i].Session, set[i].Size = !set[i].Persistent(), int64(len(set[i].Name)+set[i].Value.Len())
			if err := Validate(set[i]); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.EqualFunc(jar, set, Cookie.Equal) {
			t.Fatalf("got  %s\nwant %s", Encode(set), Encode(jar))
		}
		if d := Compare(jar, set, epoch); len(d) > 0 {
			t.Fatal(d)
		}
	})
}

func TestWhatIsNotTheProtocolIsRefusedWithoutSayingWhatItIs(t *testing.T) {
	object := `{"name":"n","value":"canary-value","domain":"example.test","path":"/","expires":-1`
	tests := map[string]string{
		"not JSON":              `canary-value`,
		"not a list":            `{"cookies":[]}`,
		"a string":              `["canary-value"]`,
		"cut":                   `[` + object,
		"cut in a string":       `[{"name":"canary-va`,
		"something behind":      `[` + object + `}]canary-value`,
		"two lists":             `[][]`,
		"twice the same name":   `[` + object + `,"name":"canary-value"}]`,
		"no value":              `[{"name":"n","domain":"example.test","path":"/","expires":-1}]`,
		"no expiry":             `[{"name":"n","value":"canary-value","domain":"example.test","path":"/"}]`,
		"a number as value":     `[` + strings.Replace(object, `"canary-value"`, `5`, 1) + `}]`,
		"text as expiry":        `[` + strings.Replace(object, `-1`, `"canary-value"`, 1) + `}]`,
		"an old partition key":  `[` + object + `,"partitionKey":"https://canary-value.test"}]`,
		"half a partition key":  `[` + object + `,"partitionKey":{"topLevelSite":"https://canary-value.test"}}]`,
		"a rich partition key":  `[` + object + `,"partitionKey":{"topLevelSite":"x","hasCrossSiteAncestor":true,"z":1}}]`,
		"a flag that is a word": `[` + object + `,"secure":"canary-value"}]`,
		"half a size":           `[` + object + `,"size":1.5}]`,
		"not UTF-8":             `[` + strings.Replace(object, "canary-value", "canary-value\xff", 1) + `}]`,
	}
	for name, raw := range tests {
		t.Run(name, func(t *testing.T) {
			list, err := Decode([]byte(raw))
			if err == nil {
				t.Fatalf("read %v", list)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error quotes the input: %v", err)
			}
		})
	}
	if list := decode(t, `[`+object+`}]`); len(list) != 1 {
		t.Error("the object that the others are made of is not read")
	}
}

func TestListsAreBounded(t *testing.T) {
	one := `{"name":"n","value":"v","domain":"example.test","path":"/","expires":-1}`
	many := "[" + strings.Repeat(one+",", MaxCookies) + one + "]"
	if _, err := Decode([]byte(many)); err == nil {
		t.Error("too many cookies are read")
	}
	if _, err := Decode([]byte("[" + strings.Repeat(one+",", MaxCookies-1) + one + "]")); err != nil {
		t.Error(err)
	}
	if _, err := Decode([]byte(`[` + strings.Repeat(" ", MaxBytes) + `]`)); err == nil {
		t.Error("a list of any size is read")
	}
}

func TestCookiesPrintWithoutTheirValues(t *testing.T) {
	c := plain(func(c *Cookie) {
		c.Value = secret.New([]byte("canary-value"))
		c.setExtra("newThing", []byte(`"canary-extra"`))
	})
	type wrapper struct {
		C Cookie
		c Cookie
		l []Cookie
	}
	for _, x := range []any{c, &c, []Cookie{c}, wrapper{c, c, []Cookie{c}}, map[string]Cookie{"a": c}} {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb, x)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "x", x)
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "x", x)
		one, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		two, err := jsonv2.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(one, two...))
		// An unexported field of somebody else's shows what JSON it does not know as numbers; values never.
		for _, canary := range []string{"canary-value", "63616e6172792d76616c7565", strings.Trim(fmt.Sprint([]byte("canary-value")), "[]")} {
			if strings.Contains(out.String(), canary) {
				t.Errorf("a %T shows a value: %s", x, &out)
			}
		}
	}
	if got := fmt.Sprint(c); got != "sid of .example.test/ = [redacted]" {
		t.Errorf("got %q", got)
	}
	if !bytes.Contains(Encode([]Cookie{c}), []byte("canary-value")) || !bytes.Contains(Params([]Cookie{c}), []byte("canary-value")) {
		t.Error("the search looks for what is not there")
	}
}

func TestNamesAreFitForATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"sid": "sid", "a b": "a b", "": "", "\x1b[2J": `"\x1b[2J"`, "a\nb": `"a\nb"`, "é": `"\u00e9"`, `a"b`: `"a\"b"`,
		strings.Repeat("x", 100): strings.Repeat("x", 80) + "…",
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q is printed as %s, want %s", in, got, want)
		}
	}
}

func TestExpiry(t *testing.T) {
	at := epoch.Add(1500 * time.Millisecond)
	c := plain(func(c *Cookie) { c.Expires = seconds(at) })
	if !c.ExpiresAt().Equal(at) || !c.Persistent() {
		t.Errorf("expires at %v", c.ExpiresAt())
	}
	if c.Expired(at.Add(-time.Millisecond)) || !c.Expired(at) || plain(nil).Expired(at) {
		t.Error("Expired is wrong")
	}
	for _, f := range []float64{Session, math.Inf(1), math.NaN(), 1e300, -1e300} {
		if got := plain(func(c *Cookie) { c.Expires = f }).ExpiresAt(); !got.IsZero() {
			t.Errorf("%v is %v", f, got)
		}
	}
	later := plain(func(c *Cookie) { c.Expires = seconds(at) + 1 })
	if got := FirstExpiry([]Cookie{plain(nil), later, c}); !got.Equal(at) {
		t.Errorf("the first expiry is %v", got)
	}
	if !FirstExpiry([]Cookie{plain(nil)}).IsZero() {
		t.Error("a session cookie expires")
	}
	infinite := decode(t, `[{"name":"n","value":"v","domain":"example.test","path":"/","expires":null}]`)
	if !bytes.Contains(Encode(infinite), []byte(`"expires":null`)) || Validate(infinite[0]) == nil {
		t.Error("an infinite expiry is lost, or valid")
	}
}

func TestWipeAndClone(t *testing.T) {
	list := decode(t, answer)
	kept := list[0].Clone()
	other := list[1].Clone()
	if !kept.Equal(list[0]) || !other.Equal(list[1]) {
		t.Fatal("a clone differs")
	}
	Wipe(list)
	if got := Encode(list); bytes.Contains(got, []byte("caf")) || bytes.Contains(got, []byte("deep")) {
		t.Error("Wipe left values behind")
	}
	if got := Encode([]Cookie{kept, other}); !bytes.Contains(got, []byte("caf")) || !bytes.Contains(got, []byte("deep")) {
		t.Error("a clone was wiped with its original")
	}
}

// Whatever is read is written so that it is read as the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(answer))
	f.Add([]byte(`[{"name":"n","value":"\ud83d\ude00","domain":"","path":"","expires":1e400}]`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := Decode(raw)
		if err != nil {
			return
		}
		stored := Encode(list)
		again, err := Decode(stored)
		if err != nil {
			t.Fatalf("%q: %v", stored, err)
		}
		if !slices.EqualFunc(list, again, Cookie.Equal) {
			t.Fatalf("%q became %q", raw, stored)
		}
		for _, c := range list {
			// They must not panic.
			_ = Validate(c)
			_ = DeviceBound(c)
			_ = c.String()
			_ = c.ExpiresAt()
		}
		if out := Params(list); !json.Valid(out) {
			t.Fatalf("parameters are not JSON: %q", out)
		}
	})
}
