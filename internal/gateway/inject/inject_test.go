package inject

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "tok-12345/+=&x"

func request(target string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://api.example"+target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header[header[i]] = append(r.Header[header[i]], header[i+1])
	}
	return r
}

func TestACredentialGoesWhereItBelongs(t *testing.T) {
	for name, test := range map[string]struct {
		how    egress.Injection
		secret string
		at     string // the header, or "" for the query
		want   string
		scrub  []string
	}{
		"bearer":          {egress.Injection{Type: egress.InjectBearer}, token, "Authorization", "Bearer " + token, []string{token}},
		"basic with user": {egress.Injection{Type: egress.InjectBasic, User: "x-access-token"}, token, "Authorization", "Basic " + b64("x-access-token:"+token), []string{token, b64("x-access-token:" + token)}},
		"basic as pair":   {egress.Injection{Type: egress.InjectBasic}, "operator1:" + token, "Authorization", "Basic " + b64("operator1:"+token), []string{"operator1:" + token, "operator1", token, b64("operator1:" + token)}},
		"basic key only":  {egress.Injection{Type: egress.InjectBasic}, token + ":", "Authorization", "Basic " + b64(token+":"), []string{token + ":", token, b64(token + ":")}},
		"header":          {egress.Injection{Type: egress.InjectHeader, Name: "X-Api-Key"}, token, "X-Api-Key", token, []string{token}},
		"query":           {egress.Injection{Type: egress.InjectQuery, Name: "key"}, token, "", "a=1&b=%20x&key=" + url.QueryEscape(token), []string{token}},
		"none":            {egress.Injection{Type: egress.InjectNone}, token, "", "a=1&b=%20x", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := request("/p?a=1&b=%20x", "Authorization", "Bearer mine", "Proxy-Authorization", "Basic mine")
			before, target := r.Header, r.URL
			scrub, err := Into(r, test.how, secret.New([]byte(test.secret)))
			if err != nil {
				t.Fatal(err)
			}
			got := r.URL.RawQuery
			if test.at != "" {
				got = r.Header.Get(test.at)
				if len(r.Header.Values(test.at)) != 1 || r.URL.RawQuery != "a=1&b=%20x" {
					t.Errorf("header %q, query %q", r.Header, r.URL.RawQuery)
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if v := r.Header.Get("Authorization"); strings.Contains(v, "mine") || r.Header.Get("Proxy-Authorization") != "" {
				t.Errorf("the client's own is still there: %q", r.Header)
			}
			texts := make([]string, len(scrub))
			for i, b := range scrub {
				texts[i] = string(b)
			}
			slices.Sort(texts)
			slices.Sort(test.scrub)
			if !slices.Equal(texts, test.scrub) {
				t.Errorf("to scrub %q, want %q", texts, test.scrub)
			}
			if before.Get("Authorization") != "Bearer mine" || strings.Contains(target.RawQuery, "key=") {
				t.Error("what others share with the request was changed")
			}
		})
	}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestValuesThatCannotBeSentOrScrubbedAreRefused(t *testing.T) {
	ways := []egress.Injection{
		{Type: egress.InjectBearer}, {Type: egress.InjectBasic, User: "u"}, {Type: egress.InjectHeader, Name: "X-Key"}, {Type: egress.InjectQuery, Name: "key"},
	}
	for _, value := range []string{
		"", "short", "1234567", "12345678\r\nX-Evil: 1", "12345678\n", "1234\x005678", "1234\t5678", "1234567\x7f8", " 12345678", "12345678 ",
		strings.Repeat("x", 16<<10+1),
	} {
		for _, how := range ways {
			r := request("/", "Authorization", "mine")
			_, err := Into(r, how, secret.New([]byte(value)))
			if problem.CodeOf(err) != problem.BadSecret {
				t.Errorf("%s with %.20q: %v", how.Type, value, err)
			}
			if len(r.Header) != 0 || r.URL.RawQuery != "" {
				t.Errorf("%s with %.20q: something was put in: %q %q", how.Type, value, r.Header, r.URL.RawQuery)
			}
			if err != nil && len(value) >= 8 && len(value) < 100 && strings.Contains(err.Error(), "1234") {
				t.Errorf("the error has the value: %v", err)
			}
		}
	}
	for _, pair := range []string{"no-colon-in-it", "someone:hunter2", "ab:", "ab:x", ":x1234567"[:3] + "456"} {
		if _, err := Into(request("/"), egress.Injection{Type: egress.InjectBasic}, secret.New([]byte(pair))); problem.CodeOf(err) != problem.BadSecret {
			t.Errorf("pair %q: %v", pair, err)
		}
	}
}

func TestInjectionsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, how := range []egress.Injection{
		{}, {Type: "cookie"}, {Type: egress.InjectHeader}, {Type: egress.InjectQuery}, {Type: egress.InjectHeader, Name: "Host"},
		{Type: egress.InjectHeader, Name: "content-length"}, {Type: egress.InjectHeader, Name: "Transfer_Encoding"}, {Type: egress.InjectHeader, Name: "Connection"},
		{Type: egress.InjectHeader, Name: "Proxy-Authorization"}, {Type: egress.InjectHeader, Name: "X Key"}, {Type: egress.InjectHeader, Name: "X-Key:"},
		{Type: egress.InjectHeader, Name: "X\r\nY"}, {Type: egress.InjectHeader, Name: "User-Agent"}, {Type: egress.InjectQuery, Name: "a&b"}, {Type: egress.InjectQuery, Name: "a=b"},
		{Type: egress.InjectQuery, Name: "a b"}, {Type: egress.InjectQuery, Name: "k[]"}, {Type: egress.InjectBasic, User: "a:b"}, {Type: egress.InjectBasic, User: "a\nb"},
		{Type: egress.InjectHeader, Name: strings.Repeat("x", 200)},
	} {
		r := request("/", "Authorization", "mine")
		if _, err := Into(r, how, secret.New([]byte(token))); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%+v: %v", how, err)
		}
		if len(r.Header) != 0 {
			t.Errorf("%+v: %q", how, r.Header)
		}
	}
}

func TestWhatTheClientSentInTheSamePlaceGoesInEverySpelling(t *testing.T) {
	r := request("/", "x-api-key", "1", "X_API_KEY", "2", "X-Api_Key", "3", "X-Api-Keys", "kept")
	if _, err := Into(r, egress.Injection{Type: egress.InjectHeader, Name: "X-API-Key"}, secret.New([]byte(token))); err != nil {
		t.Fatal(err)
	}
	if len(r.Header) != 2 || r.Header.Get("X-Api-Key") != token || r.Header.Get("X-Api-Keys") != "kept" {
		t.Errorf("%q", r.Header)
	}
	r = request("/?a=1&KEY=mine&b=2")
	if _, err := Into(r, egress.Injection{Type: egress.InjectQuery, Name: "key"}, secret.New([]byte(token))); err != nil || r.URL.RawQuery != "a=1&b=2&key="+url.QueryEscape(token) {
		t.Errorf("%q %v", r.URL.RawQuery, err)
	}
	for _, test := range [][2]string{
		{"key=1", ""}, {"a=1&key=2&b=3", "a=1&b=3"}, {"KEY=1&b", "b"}, {"%6bey=1&b=%zz", "b=%zz"}, {"%6Bey=1;x=2&c", "x=2&c"}, {"k%65%79", ""},
		{"a;key=1", "a"}, {"a=1;key=1;b=2&c=3", "a=1;b=2&c=3"}, {"key[]=1&key[a]=2&key%5B%5D=3&keys=4", "keys=4"}, {"+key=1&key+=2", ""},
		{"a=key=1", "a=key=1"}, {"mykey=1", "mykey=1"}, {"", ""}, {"&&a", "&&a"}, {"%256bey=1", "%256bey=1"}, {"a=b+c%20d", "a=b+c%20d"},
	} {
		if got := WithoutParameter(test[0], "key"); got != test[1] {
			t.Errorf("%q: %q, want %q", test[0], got, test[1])
		}
	}
}

func TestQueriesKeepEverythingElse(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		query := rapid.StringMatching(`([a-eA-EkKyY%0-9=+\[\]._-]{0,8}[&;]?){0,6}`).Draw(t, "query")
		value := rapid.StringN(8, 40, -1).Draw(t, "value")
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f }) || strings.TrimSpace(value) != value {
			t.Skip()
		}
		u := &url.URL{Scheme: "http", Host: "h", RawQuery: query}
		r := &http.Request{URL: u, Header: http.Header{}}
		if _, err := Into(r, egress.Injection{Type: egress.InjectQuery, Name: "key"}, secret.New([]byte(value))); err != nil {
			t.Skip(err)
		}
		out := r.URL.RawQuery
		// A lenient reader finds the value once, and nobody else's.
		found := 0
		for part := range strings.FieldsFuncSeq(out, func(c rune) bool { return c == '&' || c == ';' }) {
			name, v, _ := strings.Cut(part, "=")
			if strings.EqualFold(unescaped(name), "key") {
				found++
				if got, err := url.QueryUnescape(v); err != nil || got != value {
					t.Fatalf("%q has another value", out)
				}
			}
		}
		if found != 1 {
			t.Fatalf("%q: %d times in %q", query, found, out)
		}
		if rest := WithoutParameter(out, "key"); rest != WithoutParameter(query, "key") {
			t.Fatalf("%q became %q", query, rest)
		}
	})
}

func FuzzPlainQuery(f *testing.F) {
	for _, q := range []string{"", "a=b c", "a=\r\nX: y", "é", "%zz", "#", "a&b;c", "\x00"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q string) {
		out := PlainQuery(q)
		for i := range len(out) {
			if out[i] <= ' ' || out[i] >= 0x7f || out[i] == '#' {
				t.Fatalf("%q has %q", out, out[i])
			}
		}
		if PlainQuery(out) != out {
			t.Fatalf("%q changes again", out)
		}
		if unescaped(out) != unescaped(q) {
			t.Fatalf("%q means something else than %q", out, q)
		}
	})
}

func TestHeadersOfTheConnectionStayHere(t *testing.T) {
	h := http.Header{
		"Connection": {"close, X-Named", "x_also"}, "X-Named": {"1"}, "X-Also": {"1"}, "Te": {"trailers"}, "Transfer-Encoding": {"chunked"}, "Host": {"evil"},
		"Content-Length": {"5"}, "X-Forwarded-For": {"1.2.3.4"}, "X_Forwarded_Host": {"evil"}, "Forwarded": {"for=1"}, "Proxy-Connection": {"x"}, "Proxy-Foo": {"x"},
		"Upgrade": {"h2c"}, "Via": {"x"}, "Expect": {"100-continue"}, "Clawjail-Refusal": {"x"}, "X-Http-Method-Override": {"DELETE"}, "X-Original-Url": {"/admin"},
		"Accept": {"kept"}, "X-Custom": {"kept"},
	}
	Hop(h)
	if len(h) != 2 || h.Get("Accept") != "kept" || h.Get("X-Custom") != "kept" {
		t.Errorf("%q", h)
	}
}

func TestCredentialsOfClientsAreDropped(t *testing.T) {
	h := http.Header{"Authorization": {"a"}, "Cookie": {"a"}, "x-api-key": {"a"}, "X_API_KEY": {"a"}, "Private-Token": {"a"}, "X-Goog-Api-Key": {"a"}, "Accept": {"kept"}}
	DropCredentials(h)
	if len(h) != 1 || h.Get("Accept") != "kept" {
		t.Errorf("%q", h)
	}
}
