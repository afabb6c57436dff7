package cookiefile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/weblogin"
)

const playwright = `{
 "cookies": [
  {"name":"sid","value":"v1","domain":".example.test","path":"/","expires":1830000000.5,"httpOnly":true,"secure":true,"sameSite":"Lax"},
  {"name":"host","value":"v2","domain":"www.example.test","path":"/a","expires":-1,"httpOnly":false,"secure":false,"sameSite":"None"},
  {"name":"chip","value":"v3","domain":"example.test","path":"/","expires":-1,"httpOnly":false,"secure":true,"sameSite":"None",
   "partitionKey":"https://other.test","_crHasCrossSiteAncestor":false},
  {"name":"chip2","value":"v4","domain":"example.test","path":"/","expires":-1,"httpOnly":false,"secure":true,"sameSite":"None","partitionKey":"https://other.test"},
  {"name":"chip3","value":"v5","domain":"example.test","path":"/","expires":-1,"httpOnly":false,"secure":true,"sameSite":"None","partitionKey":"https://example.test"},
  {"name":"old","value":"canary","domain":"example.test","path":"/","expires":1700000000,"httpOnly":false,"secure":true,"sameSite":"Lax"},
  {"name":"x","value":"canary","domain":".notexample.test","path":"/","expires":-1,"httpOnly":false,"secure":true,"sameSite":"Lax"}
 ],
 "origins": [{"origin":"https://example.test","localStorage":[{"name":"t","value":"v6"},{"name":"ü","value":"v7\n"}],"new":1},
  {"origin":"https://empty.example.test","localStorage":[]},{"origin":"https://notexample.test","localStorage":[{"name":"t","value":"canary"}]}]
}`

func TestPlaywrightStorageState(t *testing.T) {
	r, err := Read(t.Context(), write(t, "state.json", "\ufeff"+playwright), options())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"chip=v3; example.test; /; session; Secure; SameSite=None; in https://other.test false",
		"chip2=v4; example.test; /; session; Secure; SameSite=None; in https://other.test true",
		"chip3=v5; example.test; /; session; Secure; SameSite=None; in https://example.test false",
		"sid=v1; .example.test; /; 2027-12-28T13:20:00Z; Secure; HttpOnly; SameSite=Lax",
		"host=v2; www.example.test; /a; session",
	}
	if diff := cmp.Diff(want, inTheClear(r)); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
	stored := `[{"origin":"https://example.test","localStorage":[{"name":"t","value":"v6"},{"name":"ü","value":"v7\n"}]}]`
	if got := string(weblogin.EncodeOrigins(r.Origins)); got != stored {
		t.Errorf("storage is %s", got)
	}
	report := Report{
		Format: Playwright, Read: 7, Kept: 5,
		Domains: []DomainCount{{"example.test", 6, true, 1}, {"notexample.test", 1, false, 1}},
		Expired: []cookies.ID{{Name: "old", Domain: "example.test", Path: "/"}},
		Storage: []weblogin.OriginInfo{{Origin: "https://example.test", Items: 2, Bytes: 8}},
		Notes: []string{
			"1 cookies have SameSite=None without Secure, which is taken for no SameSite at all",
		},
	}
	if diff := cmp.Diff(report, r.Report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// Storage of an origin is read whole or not at all, and that of other domains is left alone.
func TestStorageOfAStorageState(t *testing.T) {
	large := strings.Repeat("canary", weblogin.MaxValue/6)
	for name, test := range map[string]struct{ origins, want string }{
		"of the domain and below":   {`[{"origin":"https://a.example.test","localStorage":[{"name":"n","value":"v"}]}]`, `[{"origin":"https://a.example.test","localStorage":[{"name":"n","value":"v"}]}]`},
		"of another one":            {`[{"origin":"https://example.test.evil.test","localStorage":[{"name":"n","value":"canary"}]}]`, `[]`},
		"of no domain":              {`[{"origin":"http://localhost","localStorage":[{"name":"n","value":"canary"}]}]`, `[]`},
		"one beyond its bounds":     {`[{"origin":"https://example.test","localStorage":[{"name":"name","value":"` + large + `"}]}]`, ""},
		"another's beyond bounds":   {`[{"origin":"https://other.test","localStorage":[{"name":"name","value":"` + large + `"}]}]`, `[]`},
		"one that is there twice":   {`[{"origin":"https://example.test","localStorage":[{"name":"n","value":"canary"}]},{"origin":"https://example.test","localStorage":[{"name":"n","value":"canary"}]}]`, ""},
		"entries that are damaged":  {`[{"origin":"https://example.test","localStorage":[{"name":"n","value":{"canary":1}}]}]`, ""},
		"something else in a list":  {`["canary"]`, ""},
		"no cookies but this":       {`[{"origin":"https://example.test","localStorage":[{"name":"n","value":"v"}]}], "z": 1`, `[{"origin":"https://example.test","localStorage":[{"name":"n","value":"v"}]}]`},
		"none of them has anything": {`[{"origin":"https://example.test","localStorage":[]},{"origin":"https://a.example.test"}]`, `[]`},
	} {
		head := `{"cookies":[],`
		if strings.HasPrefix(name, "no cookies") {
			head = `{`
		}
		r, err := Parse([]byte(head+`"origins":`+test.origins+`}`), options())
		if test.want == "" {
			p, _ := problem.As(err)
			if p == nil || p.Code != problem.BadStorage && p.Code != problem.BadCookieFile || strings.Contains(fmt.Sprintf("%+v", err), "canary") {
				t.Errorf("%s: %.300v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %.300v", name, err)
			continue
		}
		if got := string(weblogin.EncodeOrigins(r.Origins)); got != test.want {
			t.Errorf("%s: it is %s", name, got)
		}
		if r.Report.Format != Playwright {
			t.Errorf("%s: its format is %s", name, r.Report.Format)
		}
		r.Wipe()
	}
}

const protocol1 = `[
 {"name":"sid","value":"v1","domain":".example.test","path":"/","expires":1830000000,"size":5,"httpOnly":true,"secure":true,"session":false,
  "sameSite":"None","priority":"High","sourceScheme":"Secure","sourcePort":443,"partitionKey":{"topLevelSite":"https://other.test","hasCrossSiteAncestor":true},"new":1}
]`

func TestProtocolJSONKeepsEveryField(t *testing.T) {
	for name, text := range map[string]string{
		"list": protocol1, "answer": `{"cookies":` + protocol1 + `}`, "with other members": `{"id":1,"cookies":` + protocol1 + `,"z":[]}`,
	} {
		r, err := Parse([]byte(text), options())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want, err := cookies.Decode([]byte(protocol1))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Cookies) != 1 || !r.Cookies[0].Equal(want[0]) || r.Report.Format != CDP {
			t.Errorf("%s: got %s in a report %+v", name, cookies.Encode(r.Cookies), r.Report)
		}
	}
}

func TestNetscape(t *testing.T) {
	text := strings.Join([]string{
		"# Netscape HTTP Cookie File",
		"# a comment\twith\ttabs\tand\tmore\tof\tthem",
		"",
		".example.test\tTRUE\t/\tTRUE\t1830000000\tsid\tv=1",
		"#HttpOnly_www.example.test\tFALSE\t/a\tfalse\t0\thost\tv 2",
		"example.test\tTRUE\t/\tFALSE\t1830000000.75\tnodot\tv3",
		".example.test\tFALSE\t/\tFALSE\t-1\tdot\tv4",
		"Example.TEST\tFALSE\t/\tTRUE\t0\tempty",
		"example.test\tFALSE\t/\tTRUE\t1700000000\told\tcanary",
		"example.test\tFALSE\t/\tTRUE\t0\tcut",
		"example.test\tFALSE\t/\tTRUE\tcanary\tn\tcanary",
		"example.test\tFALSE\t/\tTRUE\t-5\tn\tcanary",
		"example.test\tcanary\t/\tTRUE\t0\tn\tcanary",
		"example.test FALSE / TRUE 0 canary canary",
		"example.test\tFALSE\t/\tTRUE\t0\ttab\tcan\tary",
		"com\tFALSE\t/\tTRUE\t0\tsuffix\tcanary",
		"other.test\tFALSE\t/\tTRUE\t0\tother\tcanary",
		"example.test\tFALSE\t/\tTRUE\t0\ttwice\tcanary",
		"example.test\tFALSE\t/\tTRUE\t0\ttwice\tv5",
		".google.com\tTRUE\t/\tTRUE\t1830000000\tSIDTS\tv6",
	}, "\r\n")
	r, err := Read(t.Context(), write(t, "cookies.txt", text), options("example.test", "google.com", "absent.test"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cut=; example.test; /; session; Secure",
		"dot=v4; example.test; /; session",
		"empty=; example.test; /; session; Secure",
		"nodot=v3; .example.test; /; 2027-12-28T13:20:00Z",
		"sid=v=1; .example.test; /; 2027-12-28T13:20:00Z; Secure",
		"twice=v5; example.test; /; session; Secure",
		"SIDTS=v6; .google.com; /; 2027-12-28T13:20:00Z; Secure",
		"host=v 2; www.example.test; /a; session; HttpOnly",
	}
	if diff := cmp.Diff(want, inTheClear(r)); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
	report := Report{
		Format: Netscape, Read: 17, Kept: 8,
		Domains: []DomainCount{{"example.test", 10, true, 0}, {"google.com", 1, true, 0}, {"absent.test", 0, true, 0}, {"", 1, false, 0}, {"other.test", 1, false, 0}},
		Expired: []cookies.ID{{Name: "old", Domain: "example.test", Path: "/"}}, DeviceBound: []cookies.ID{{Name: "SIDTS", Domain: ".google.com", Path: "/"}},
		Invalid: []Invalid{
			broken("line 11", "the expiry is not a number of seconds"),
			broken("line 12", "the expiry is not a number of seconds"),
			broken("line 13", "the second and the fourth field must be TRUE or FALSE"),
			broken("line 14", "it has 1 fields between tabs instead of 7"),
			{Cookie: &cookies.ID{Name: "tab", Domain: "example.test", Path: "/"}, Reason: cookies.BadValue,
				Text: "the value has a character that cookies cannot have, or spaces around it"},
		},
		Notes: []string{"1 cookies stand in the file more than once; the last one counts"},
	}
	if diff := cmp.Diff(report, r.Report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	shown, err := json.Marshal(r.Report)
	if err != nil || strings.Contains(string(shown)+fmt.Sprintf("%+v", r), "canary") {
		t.Errorf("the report shows values: %s", shown)
	}
}

func TestBrokenEntriesOfJSONAreNamedByTheirPlace(t *testing.T) {
	r, err := Parse([]byte(`{"cookies":[{"name":"n","value":"canary"},"canary",{"name":"sid","value":"v","domain":"example.test","path":"/","expires":-1,"sameSite":"Lax"},
		{"name":"bad","value":"canary","domain":"example.test","path":"/","expires":0,"sameSite":"Lax"}]}`), options())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, invalid := range r.Report.Invalid {
		place := invalid.Place
		if invalid.Cookie != nil {
			place = invalid.Cookie.String()
		}
		got = append(got, place+": "+string(invalid.Reason))
	}
	if diff := cmp.Diff([]string{"cookie 1: not_a_cookie", "cookie 2: not_a_cookie", "bad of example.test/: bad_expiry"}, got); diff != "" {
		t.Errorf("invalid (-want +got):\n%s", diff)
	}
	if text := fmt.Sprintf("%+v", r.Report.Invalid); strings.Contains(text, "canary") || len(r.Cookies) != 1 {
		t.Errorf("got %s, and %v", text, r.Cookies)
	}
}

func TestWhatIsNoCookieFileIsRefused(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"empty":             {" \n", "empty"},
		"prose":             {"dear canary,\nhello", "not one that clawjail knows"},
		"HTML":              {"<!doctype html><p>canary", "not one that clawjail knows"},
		"binary":            {"\x7fELF\x00canary", "not text"},
		"UTF-16":            {"\xff\xfe{\x00}\x00", "not text"},
		"JSON of something": {`{"name":"canary"}`, "no list of cookies"},
		"cut JSON":          {`{"cookies":[{"name":"canary`, "not valid"},
		"cookies as object": {`{"cookies":{"canary":1}}`, "not valid"},
		"list cut":          {`[{"name":"canary"},`, "not valid"},
		"extension": {`[{"name":"a","value":"canary","domain":".example.test","path":"/","expirationDate":1830000000,"hostOnly":false}]`,
			"browser extension"},
		"too many lines": {strings.Repeat("example.test\tFALSE\t/\tTRUE\t0\tn\tcanary\n", cookies.MaxCookies+1), "more than"},
		"too many":       {"[" + strings.Repeat("{},", cookies.MaxCookies) + "{}]", "more than"},
		"too large":      {"#" + strings.Repeat(" ", cookies.MaxBytes), "more than 32 MiB"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Read(t.Context(), write(t, "file", tt.content), options())
			refused(t, err, tt.want)
		})
	}
	_, err := Read(t.Context(), filepath.Join(t.TempDir(), "absent"), options())
	refused(t, err, "absent cannot be read: no such file")
}

func TestEmptyJarsAreRead(t *testing.T) {
	for _, text := range []string{`[]`, `{"cookies":[],"origins":[]}`, "# Netscape HTTP Cookie File\n"} {
		r, err := Parse([]byte(text), options())
		if err != nil || len(r.Cookies) != 0 || r.Report.Read != 0 || len(r.Report.Domains) != 1 {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}

// A pipe is a way to import without a file in the clear: clawjail cookies import <(decrypt …).
func TestPipesAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(protocol1)
			f.Close()
		}
		written <- err
	}()
	r, err := Read(t.Context(), path, options())
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err != nil || len(r.Cookies) != 1 {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestOptionsSayEverythingThatIsWrong(t *testing.T) {
	err := Options{Domains: []string{"www.example.test", "co.uk", "10.0.0.1"}}.Validate()
	e, ok := problem.As(err)
	if !ok || e.Code != problem.BadDomain {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"write example.test", "public suffix", "IP address", "now: is missing"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("%q does not say %q", e.Message, want)
		}
	}
	for _, f := range []func() error{
		func() error { _, err := Parse([]byte(`[]`), Options{Now: epoch}); return err },
		func() error { _, err := Read(t.Context(), "/dev/null", Options{Now: epoch}); return err },
	} {
		if problem.CodeOf(f()) != problem.BadDomain {
			t.Error("no domain at all is accepted")
		}
	}
}

// Cookies that are left out are wiped here: no other code does it.
func TestCookiesThatAreNotKeptAreWiped(t *testing.T) {
	f, err := parseJSON([]byte(playwright))
	if err != nil {
		t.Fatal(err)
	}
	all := append([]cookies.Cookie(nil), f.cookies...)
	sift(f, options())
	if text := string(cookies.Encode(all)); strings.Contains(text, "canary") || !strings.Contains(text, `"v1"`) {
		t.Errorf("left: %s", text)
	}
}

// fuzzed checks what must hold for whatever is read.
func fuzzed(t *testing.T, text []byte) {
	r, err := Parse(text, options())
	if err != nil {
		if problem.CodeOf(err) != problem.BadCookieFile {
			t.Fatal(err)
		}
		return
	}
	seen := map[cookies.ID]bool{}
	for _, c := range r.Cookies {
		if err := cookies.Validate(c); err != nil {
			t.Fatal(err)
		}
		if seen[c.ID()] || c.Expired(epoch) || !cookies.Matches(c, []string{"example.test"}) {
			t.Fatalf("kept %v", c)
		}
		seen[c.ID()] = true
	}
	total := len(r.Report.Invalid)
	for _, d := range r.Report.Domains {
		total += d.Cookies
	}
	if len(r.Cookies) != r.Report.Kept || r.Report.Kept > r.Report.Read || total < r.Report.Read {
		t.Fatalf("the report does not add up: %+v", r.Report)
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(playwright))
	f.Add([]byte(protocol1))
	f.Add([]byte(`{"cookies":[{"name":"\ud800","value":"","partitionKey":"x","domain":"example.test","path":"/","expires":1e999}]}`))
	f.Fuzz(func(t *testing.T, text []byte) { fuzzed(t, append([]byte("["), text...)); fuzzed(t, text) })
}

func FuzzNetscape(f *testing.F) {
	f.Add([]byte(".example.test\tTRUE\t/\tTRUE\t1830000000\tsid\tv=1\r\n#HttpOnly_example.test\tFALSE\t/\tTRUE\t0\tn\tv"))
	f.Add([]byte("example.test\tFALSE\t/\tTRUE\tNaN\tn\tv\nexample.test\tFALSE\t/\tTRUE\t+Inf\tn\tv"))
	f.Fuzz(func(t *testing.T, text []byte) { fuzzed(t, append([]byte("#\n"), text...)) })
}
