package weblogin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

const planted = "value-of-"

func origin(name string, pairs ...string) Origin {
	o := Origin{Origin: name}
	for n := 0; n+1 < len(pairs); n += 2 {
		o.Local = append(o.Local, Item{pairs[n], secret.New([]byte(pairs[n+1]))})
	}
	return o
}

func someLogin() Login {
	return Login{
		Cookies: []cookies.Cookie{{Name: "sid", Value: secret.New([]byte(planted + "sid")), Domain: "example.com", Path: "/", Expires: cookies.Session, Session: true}},
		Origins: []Origin{
			origin("https://example.com", "token", planted+"token", "ü", "\x00\n\"\\😀", "", "", "list", `["a"]`),
			{Origin: "http://a.example.com:8080", Local: origin("", "token", planted+"other").Local, Databases: []Database{database("db", 3, `{"key":1,"value":"`+planted+`"}`)}},
		},
	}
}

// database is one with a store that has records.
func database(name string, version int, records ...string) Database {
	d, err := decodeDatabase([]byte(fmt.Sprintf(`{"name":%q,"version":%d,"stores":[{"name":"s","keyPath":"id","autoIncrement":false,"indexes":[],"records":[%s]}]}`, name, version, strings.Join(records, ","))))
	if err != nil {
		panic(err) // the test's own
	}
	return d
}

func TestALoginIsReadAsItWasWritten(t *testing.T) {
	for name, l := range map[string]Login{"whole": someLogin(), "cookies alone": {Cookies: someLogin().Cookies}, "storage alone": {Origins: someLogin().Origins}} {
		raw := Encode(l)
		back, err := Decode(raw)
		if err != nil || !bytes.Equal(Encode(back), raw) || len(back.Cookies) != len(l.Cookies) || len(Compare(l.Origins, back.Origins))+len(Compare(back.Origins, l.Origins)) > 0 {
			t.Errorf("%s: %s became %s, %v", name, raw, Encode(back), err)
		}
		list, storage, err := Peek(raw)
		if err != nil || len(list) != len(l.Cookies) || fmt.Sprint(storage) != fmt.Sprint(Describe(l.Origins)) {
			t.Errorf("%s: looking at it answers %v, %v, %v", name, list, storage, err)
		}
		if n := room(l.Origins); len(EncodeOrigins(l.Origins)) > n {
			t.Errorf("%s: %d bytes were made room for, and there are %d", name, n, len(EncodeOrigins(l.Origins)))
		}
	}
	// A login without storage is encoded as earlier versions wrote it.
	if got := Encode(Login{Cookies: someLogin().Cookies}); !bytes.Equal(got, cookies.Encode(someLogin().Cookies)) {
		t.Errorf("cookies alone are %s", got)
	}
}

func TestNothingPrintsAValue(t *testing.T) {
	l := someLogin()
	text, err := json.Marshal(l)
	said := fmt.Sprintf("%v %+v %#v %s %v", l, l, l, text, Describe(l.Origins))
	if err != nil || strings.Contains(said, planted) {
		t.Errorf("it says %s, %v", said, err)
	}
	listed, _ := json.Marshal(Describe(l.Origins))
	if string(listed) != `[{"origin":"http://a.example.com:8080","items":1,"databases":1,"records":1,"bytes":160},{"origin":"https://example.com","items":4,"bytes":38}]` {
		t.Errorf("it is listed as %s", listed)
	}
	l.Wipe()
	for _, o := range l.Origins {
		for _, d := range o.Databases {
			if len(bytes.Trim(d.JSON.Append(nil), "\x00")) > 0 {
				t.Errorf("the database %s was not wiped", d.Name)
			}
		}
		for _, item := range o.Local {
			if len(bytes.Trim(item.Value.Append(nil), "\x00")) > 0 {
				t.Errorf("%s was not wiped", item.Name)
			}
		}
	}
}

func TestOriginsAreThoseThatBrowsersWrite(t *testing.T) {
	for address, want := range map[string]string{
		"https://example.com/a?b#c": "https://example.com", "https://example.com:443/": "https://example.com", "http://example.com:80": "http://example.com",
		"http://A.example.com:8443/x": "http://a.example.com:8443", "https://bücher.example.com": "https://xn--bcher-kva.example.com", "https://example.com.": "https://example.com",
		"ftp://example.com": "", "https://": "", "https://10.0.0.1/": "", "https://[::1]:80": "", "http://localhost": "", "https://com": "", "about:blank": "",
		"https://user@example.com": "", "data:text/html,x": "", "blob:https://example.com/x": "", "null": "", "": "", "https://exa mple.com": "", "//example.com": "",
	} {
		if got, err := OriginOf(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is of %q, %v; want %q", address, got, err, want)
		}
	}
	for _, odd := range []string{"https://example.com/", "https://EXAMPLE.com", "https://example.com:443", "https://example.com/a"} {
		if domain, err := DomainOf(odd); err == nil {
			t.Errorf("%q is of %s", odd, domain)
		}
	}
}

func TestWhatDoesNotBelongToTheAccountIsRefused(t *testing.T) {
	limit := make([]Origin, MaxOrigins+1)
	for n := range limit {
		limit[n] = origin(fmt.Sprintf("https://o%d.example.com", n))
	}
	items := Origin{Origin: "https://example.com"}
	for n := range MaxItems + 1 {
		items.Local = append(items.Local, Item{Name: fmt.Sprint(n)})
	}
	large := strings.Repeat("v", MaxValue-1)
	for name, test := range map[string]struct {
		list []Origin
		says string
	}{
		"another domain":              {[]Origin{origin("https://example.org", "a", planted)}, "is of example.org"},
		"one that looks like it":      {[]Origin{origin("https://evil-example.com", "a", planted)}, "is of evil-example.com"},
		"below another domain":        {[]Origin{origin("https://example.com.evil.org", "a", planted)}, "is of evil.org"},
		"an address":                  {[]Origin{origin("https://example.com/path", "a", planted)}, "not written as browsers write it"},
		"no domain":                   {[]Origin{origin("http://localhost", "a", planted)}, "no registrable domain"},
		"one twice":                   {[]Origin{origin("https://example.com", "a", planted), origin("https://example.com", "a", planted)}, "twice"},
		"a name twice":                {[]Origin{origin("https://example.com", "a", planted, "a", planted)}, "name twice"},
		"too many":                    {limit, "more than 50"},
		"too many entries":            {[]Origin{items}, "more than 10000"},
		"a value beyond its bound":    {[]Origin{origin("https://example.com", "ab", large)}, "more than 5 MiB"},
		"an origin beyond its bound":  {[]Origin{origin("https://example.com", "a", large, "b", large, "c", large, "d", large)}, "more than 16 MiB"},
		"a database twice":            {[]Origin{{Origin: "https://example.com", Databases: []Database{database("a", 1), database("a", 1)}}}, "database a twice"},
		"a version of nothing":        {[]Origin{{Origin: "https://example.com", Databases: []Database{database("a", 0)}}}, "in version 0, which browsers do not have"},
		"a version beyond all":        {[]Origin{{Origin: "https://example.com", Databases: []Database{database("a", maxVersion+1)}}}, "which browsers do not have"},
		"a database beyond its bound": {[]Origin{{Origin: "https://example.com", Databases: []Database{database("a", 1, `{"value":"`+strings.Repeat("v", MaxDatabase)+`"}`)}}}, "more than 10 MiB"},
		"records beyond their bound":  {[]Origin{{Origin: "https://example.com", Databases: []Database{{Name: "a", Version: 1, Records: MaxRecords + 1}}}}, "more than 10000"},
		"too many databases":          {[]Origin{{Origin: "https://example.com", Databases: make([]Database, MaxDatabases+1)}}, "has 51 databases"},
		"what is not UTF-8":           {[]Origin{origin("https://example.com", "a", "\xff")}, "not text"},
		"a name that is not UTF-8":    {[]Origin{origin("https://example.com", "\xff", "a")}, "not text"},
		"one of the domain and other": {[]Origin{origin("https://example.com"), origin("https://example.org")}, "is of example.org"},
	} {
		err := Validate(test.list, "example.com")
		if problem.CodeOf(err) != problem.BadStorage || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), planted) || len(err.Error()) > 2000 {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	good := []Origin{origin("https://example.com", "a", large, "b", large), {Origin: "http://a.b.example.com:1", Databases: []Database{database("", 1), database("a", maxVersion, `{}`)}}}
	if err := Validate(good, "example.com"); err != nil {
		t.Errorf("good ones: %v", err)
	}
}

func TestWhatHasChangedIsNamedWithoutValues(t *testing.T) {
	put := []Origin{origin("https://example.com", "a", planted, "b", planted)}
	for name, test := range map[string]struct {
		back []Origin
		want string
	}{
		"the same":       {[]Origin{origin("https://example.com", "b", planted, "a", planted)}, ""},
		"nothing":        {nil, "https://example.com (nothing)"},
		"another origin": {[]Origin{origin("https://example.org", "b", planted, "a", planted)}, "https://example.com (nothing)"},
		"one is missing": {[]Origin{origin("https://example.com", "a", planted)}, "https://example.com (an entry is missing)"},
		"one is changed": {[]Origin{origin("https://example.com", "a", planted, "b", planted+"x")}, "https://example.com (a value is another one)"},
		"one was before": {[]Origin{origin("https://example.com", "a", planted, "b", planted, "c", planted)}, "https://example.com (it had entries before)"},
	} {
		if got := strings.Join(Compare(put, test.back), ", "); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestSecretsAreWhatATokenLooksLike(t *testing.T) {
	token, key := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "AKIA5EXAMPLE7TOKEN00"
	long := strings.Repeat("0123456789abcdef", 1000)
	l := Login{
		Cookies: []cookies.Cookie{{Value: secret.New([]byte("a cookie"))}},
		Origins: []Origin{origin("https://example.com",
			"plain", "a plain value", "json", `{"body":{"access_token":"`+token+`","scope":"openid profile","user":{"name":"Alice Example","mail":"alice@example.com"}},"n":1}`,
			"nested", `{"auth":"{\"key\":\"`+key+`\"}"}`, "long", `{"theme":"a long description of something","jwt":"`+long+`"}`,
			"unsaid", "", "no secrets", `["https://example.com/callback1234567","2026-11-27T20:00:00Z","/orders/1234567890/items","short1","words without any number"]`)},
	}
	l.Origins[0].Databases = []Database{database("db", 1, `{"keyEncoded":{"d":"2026-11-27T20:00:00.000Z"},"valueEncoded":{"o":[{"k":"refresh_token","v":"AMf-vBx0123456789"},{"k":"name","v":"Alice Example"}],"id":1}}`)}
	var got []string
	all := l.Secrets()
	for _, one := range all {
		got = append(got, string(one))
	}
	for _, want := range []string{"a cookie", "a plain value", token, key, "AMf-vBx0123456789", long[:maxWhole], `{"auth":"{\"key\":\"` + key + `\"}"}`} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is no secret", want)
		}
	}
	for _, open := range []string{"Alice Example", "alice@example.com", "openid profile", "https://example.com/callback1234567", "2026-11-27T20:00:00Z", "/orders/1234567890/items",
		"short1", "words without any number", "a long description of something"} {
		if slices.Contains(got, open) {
			t.Errorf("%q is a secret", open)
		}
	}
	all[1][0] = 'X'
	if again := l.Secrets(); bytes.Equal(again[1], all[1]) {
		t.Error("a secret is no copy")
	}
	// The longest are kept when there are too many.
	many := Login{Origins: []Origin{origin("https://example.com", "a", `["`+strings.Repeat(long+`","`, 100)+`"]`, "b", token)}}
	var distinct strings.Builder
	for n := range 2000 {
		fmt.Fprintf(&distinct, `,"%08d%s"`, n, long[:1000])
	}
	many.Origins[0].Local = append(many.Origins[0].Local, Item{"c", secret.New([]byte(`["` + long + `"` + distinct.String() + `]`))})
	sum := 0
	for _, one := range many.Secrets() {
		sum += len(one)
	}
	if sum > maxSecrets || sum < maxSecrets-2000 {
		t.Errorf("%d bytes are looked for", sum)
	}
}

func TestWhatIsNoStorageStateIsRefused(t *testing.T) {
	for name, raw := range map[string]string{
		"no list": `{}`, "no origin": `[{"localStorage":[]}]`, "an empty one": `[{"origin":""}]`, "a number": `[{"origin":1}]`, "entries that are no list": `[{"origin":"a","localStorage":{}}]`,
		"no value": `[{"origin":"a","localStorage":[{"name":"value-of-"}]}]`, "no name": `[{"origin":"a","localStorage":[{"value":"value-of-"}]}]`, "a name twice": `[{"origin":"a","origin":"b"}]`,
		"a value that is a list": `[{"origin":"a","localStorage":[{"name":"a","value":["value-of-"]}]}]`, "half a letter": `[{"origin":"a","localStorage":[{"name":"a","value":"value-of-\ud800"}]}]`,
		"more behind": `[]value-of-`, "cut": `[{"origin":"value-of-`, "none": ``, "a database without a version": `[{"origin":"a","indexedDB":[{"name":"value-of-","stores":[]}]}]`, "a version that is none": `[{"origin":"a","indexedDB":[{"name":"n","version":1.5,"stores":[]}]}]`,
		"a store without records": `[{"origin":"a","indexedDB":[{"name":"n","version":1,"stores":[{"name":"value-of-","indexes":[]}]}]}]`, "a record that is none": `[{"origin":"a","indexedDB":[{"name":"n","version":1,"stores":[{"name":"s","indexes":[],"records":["value-of-"]}]}]}]`,
		"too many": `[` + strings.Repeat(`{"origin":"a"},`, maxRead) + `{"origin":"a"}]`,
	} {
		list, err := DecodeOrigins([]byte(raw))
		if err == nil || list != nil || strings.Contains(err.Error(), planted) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	list, err := DecodeOrigins([]byte(`[{"origin":"a","localStorage":[{"name":"n","value":"v","new":"x"}],"new":[1]},{"origin":"b"}]`))
	if err != nil || len(list) != 2 || len(list[0].Local) != 1 || !list[1].Empty() {
		t.Errorf("one that is good: %v, %v", list, err)
	}
}

// A storage state is a file of somebody's: what can be read is written and read again, the same.
func FuzzDecode(f *testing.F) {
	f.Add(Encode(someLogin()))
	f.Add([]byte(`{"cookies":[],"storage":[],"origins":[{"origin":"https://example.com","localStorage":[{"name":"a","value":"b"}]}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := Decode(raw)
		if err != nil {
			return
		}
		once := Encode(l)
		again, err := Decode(once)
		if err != nil || !bytes.Equal(Encode(again), once) {
			t.Fatalf("%q became %q, %v", raw, once, err)
		}
		for _, one := range l.Secrets() {
			clear(one)
		}
		for _, o := range l.Origins {
			if domain, err := DomainOf(o.Origin); err == nil {
				_ = Validate(l.Origins, domain)
			}
		}
	})
}
