package execute

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/problem"
)

// moves redirects by path, and answers other paths.
func moves(places map[string]string, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if to, ok := places[r.URL.Path]; ok {
			w.Header().Set("Location", to)
			w.WriteHeader(status)
			return
		}
		w.WriteHeader(http.StatusTeapot)
	}
}

func TestRedirectsKeepTheCredentialOnTheirOriginOnly(t *testing.T) {
	for name, test := range map[string]struct {
		place string // where api.example/x leads
		kept  bool
		at    string // the upstream that sees the second request: api, other or port
	}{
		"path":                       {"/y", true, "api"},
		"relative":                   {"y?z=1", true, "api"},
		"absolute":                   {"http://api.example/y", true, "api"},
		"upper case and default":     {"HTTP://API.EXAMPLE:80/y", true, "api"},
		"no scheme":                  {"//api.example/y", true, "api"},
		"another host":               {"http://other.example/y", false, "other"},
		"another port":               {"http://api.example:8080/y", false, "port"},
		"a name below":               {"http://api.example.other.example/y", false, "other"},
		"full-width letters":         {"http://ａpi.example/y", true, "api"},
		"a look-alike (Cyrillic а)":  {"http://аpi.example/y", false, "idna"},
		"trailing dot is that host":  {"http://api.example./y", true, "api"},
		"with a user name is no URL": {"http://api.example@other.example/y", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, moves(map[string]string{"/x": test.place}, 307))
			others := map[string]*accesstest.Seen{"other": {}, "port": {}, "idna": {}, "api": w.seen}
			w.Upstream("other.example:80", others["other"].Handler(nil))
			w.Upstream("api.example.other.example:80", others["other"].Handler(nil))
			w.Upstream("api.example:8080", others["port"].Handler(nil))
			w.Upstream("xn--pi-6kc.example:80", others["idna"].Handler(nil))
			w.Tools["svc"] = w.Allow(w.Tool("http://*.example"), w.Tool("http://*.other.example"), w.Tool("http://api.example:8080"))
			body := `{"service":"svc","url":"http://api.example/x","method":"PUT","headers":{"Cookie":"c=1","X-Api-Key":"mine"},"body":"b"}`
			if test.at == "" {
				if _, out := w.call(body); out["code"] != problem.UpstreamFailed {
					t.Errorf("%v", out)
				}
				return
			}
			out := w.answered(body)
			if out["redirects"] != 1.0 {
				t.Errorf("%v", out)
			}
			got := others[test.at].Last(t)
			if has := got.Header.Get("Authorization") == "Bearer "+token; has != test.kept {
				t.Errorf("the credential was sent: %v", has)
			}
			if got.Header.Get("Authorization") != "" && !test.kept || (got.Header.Get("Cookie") != "") != test.kept || (got.Header.Get("X-Api-Key") != "") != test.kept {
				t.Errorf("%q", got.Header)
			}
			if got.Method != "PUT" || got.Body != "b" {
				t.Errorf("307 made %s %q", got.Method, got.Body)
			}
		})
	}
}

func TestACredentialThatStayedBehindStaysBehind(t *testing.T) {
	w := newFixture(t, moves(map[string]string{"/x": "http://other.example/back"}, 302))
	w.Upstream("other.example:80", moves(map[string]string{"/back": "http://api.example/y"}, 302))
	w.Tools["svc"] = w.Allow(w.Tool("http://*.example"))
	w.answered(plain)
	all := w.seen.All()
	if len(all) != 2 || all[0].Header.Get("Authorization") == "" || all[1].Header.Get("Authorization") != "" {
		t.Errorf("%+v", all)
	}
}

func TestEveryHopIsDecidedAbout(t *testing.T) {
	for _, place := range []string{
		"http://other.example/", "http://127.0.0.1/", "http://169.254.169.254/latest", "http://[::1]/", "http://localhost/", "https://api.example/x", "http://api.example:81/", "http://api.example/denied",
	} {
		w := newFixture(t, moves(map[string]string{"/x": place}, 302))
		w.Tools["svc"] = w.Allow(w.Tool("http://api.example/x"))
		if out := w.refused(problem.ToolDenied, plain); out["redirects"] != 1.0 {
			t.Errorf("%s: %v", place, out)
		}
		resolved := 0
		for _, step := range w.Steps() {
			if strings.HasPrefix(step, "resolve") {
				resolved++
			}
		}
		if resolved != 1 {
			t.Errorf("%s: %q", place, w.Steps())
		}
	}
	for place, code := range map[string]string{
		"/a/../b": problem.ToolDenied, "http://api.example/a%2fb": problem.PathDenied, "/a//b": problem.PathDenied, "ftp://api.example/": problem.UpstreamFailed, "https://user:pw@api.example/": problem.UpstreamFailed, "javascript:alert(1)": problem.UpstreamFailed,
		"file:///etc/passwd": problem.UpstreamFailed, "http://2130706433/": problem.UpstreamFailed, "http://0x7f.1/": problem.UpstreamFailed, "http://%zz/": problem.UpstreamFailed, "http://api.example:0/": problem.UpstreamFailed,
	} {
		w := newFixture(t, moves(map[string]string{"/x": place}, 302))
		w.Tools["svc"] = w.Allow(w.Tool("http://api.example/x"))
		if out := w.refused(code, plain); (code == problem.UpstreamFailed) != strings.Contains(fmt.Sprint(out["hint"]), `"follow": false`) {
			t.Errorf("%s: %v", place, out)
		}
		if n := len(w.seen.All()); n != 1 {
			t.Errorf("%s: %d requests", place, n)
		}
	}
}

func TestABaseURLThatCannotBeUsedIsNotTheAgentsMistake(t *testing.T) {
	for base, code := range map[string]string{"http://api.example": "", "ftp://api.example": problem.UpstreamFailed} {
		w := newFixture(t, moves(nil, 302))
		w.Tools["svc"] = w.Allow(w.Tool("http://api.example/x"))
		s := w.Services["svc"]
		s.BaseURL = base
		w.Services["svc"] = s
		if code == "" {
			w.answered(plain)
		} else {
			w.refused(code, plain)
		}
	}
}

func TestMethodsAndBodiesOfRedirects(t *testing.T) {
	for _, test := range []struct {
		status       int
		method, then string
		body         bool
	}{
		{301, "GET", "GET", false}, {301, "POST", "GET", false}, {302, "POST", "GET", false}, {303, "POST", "GET", false}, {307, "POST", "POST", true}, {308, "POST", "POST", true},
		{302, "PUT", "PUT", true}, {301, "DELETE", "DELETE", true}, {303, "PUT", "GET", false}, {303, "HEAD", "HEAD", false}, {302, "HEAD", "HEAD", false}, {307, "GET", "GET", false},
	} {
		w := newFixture(t, moves(map[string]string{"/x": "/y"}, test.status))
		body := ""
		if test.method != "GET" && test.method != "HEAD" {
			body = `,"body":{"a":1}`
		}
		w.answered(fmt.Sprintf(`{"service":"svc","url":"http://api.example/x","method":%q%s}`, test.method, body))
		got := w.seen.Last(t)
		if got.Target != "/y" || got.Method != test.then || (got.Body != "") != test.body || (got.Header.Get("Content-Type") != "") != test.body {
			t.Errorf("%d %s: %+v", test.status, test.method, got)
		}
	}
}

func TestTheMethodOfARedirectNeedsATool(t *testing.T) {
	w := newFixture(t, moves(map[string]string{"/x": "/y"}, 303))
	w.Tools["svc"] = w.Allow(w.Tool("http://api.example", "POST"))
	w.refused(problem.ToolDenied, `{"service":"svc","url":"http://api.example/x","method":"POST"}`)
	if n := len(w.seen.All()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestRedirectsHaveAnEnd(t *testing.T) {
	places := map[string]string{}
	for i := range 10 {
		places[fmt.Sprintf("/%d", i)] = fmt.Sprintf("/%d", i+1)
	}
	w := newFixture(t, moves(places, 302))
	if out := w.answered(`{"service":"svc","url":"http://api.example/5"}`); out["redirects"] != float64(maxRedirects) || out["url"] != "http://api.example/10" || out["status"] != 418.0 {
		t.Errorf("%v", out)
	}
	w.refused(problem.UpstreamFailed, `{"service":"svc","url":"http://api.example/4"}`)
	if n := len(w.seen.All()); n != 2*(maxRedirects+1) {
		t.Errorf("%d requests", n)
	}
}

func TestARedirectCanBeTheAnswer(t *testing.T) {
	w := newFixture(t, moves(map[string]string{"/x": "http://other.example/"}, 302))
	out := w.answered(`{"service":"svc","url":"http://api.example/x","follow":false}`)
	if h, _ := out["headers"].(map[string]any); out["status"] != 302.0 || h["Location"] != "http://other.example/" || out["redirects"] != 0.0 {
		t.Errorf("%v", out)
	}
	// Two places are none.
	w = newFixture(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["Location"] = []string{"/y", "http://other.example/"}
		rw.WriteHeader(302)
	})
	if out := w.answered(plain); out["status"] != 302.0 {
		t.Errorf("%v", out)
	}
}

func TestTheCredentialOfAQueryIsInNoAddress(t *testing.T) {
	w := newFixture(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/x":
			http.Redirect(rw, r, "/y?"+r.URL.RawQuery, http.StatusFound)
		case "/y":
			http.Redirect(rw, r, "http://other.example/z?"+r.URL.RawQuery, http.StatusFound)
		}
	})
	other := &accesstest.Seen{}
	w.Upstream("other.example:80", other.Handler(nil))
	w.Services["svc"] = service("svc", egress.Injection{Type: egress.InjectQuery, Name: "key"})
	w.Tools["svc"] = w.Allow(w.Tool("http://*.example"))
	out := w.answered(`{"service":"svc","url":"http://api.example/x?a=1&KEY=mine&b=%20","inject":{"type":"query","name":"key"}}`)
	for i, got := range w.seen.All() {
		if q := got.Query(t); q.Get("key") != token || q.Get("KEY") != "" || q.Get("a") != "1" || q.Get("b") != " " || !strings.HasPrefix(got.Target[2:], "?a=1&b=%20&key=") {
			t.Errorf("hop %d: %s", i, got.Target)
		}
	}
	if got := other.Last(t); got.Target != "/z?a=1&b=%20" || strings.Contains(fmt.Sprint(got.Header), "tok-") {
		t.Errorf("%+v", got)
	}
	if out["url"] != "http://other.example/z?a=1&b=%20" {
		t.Errorf("%v", out["url"])
	}
	for _, step := range w.Steps() {
		if strings.Contains(step, "tok-") {
			t.Error(step)
		}
	}
}

func TestAnswersOfOtherOriginsAreScrubbedToo(t *testing.T) {
	w := newFixture(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Location", "http://other.example/?from="+r.Header.Get("X-Key"))
		rw.WriteHeader(302)
	})
	w.Upstream("other.example:80", http.HandlerFunc(text("leaked elsewhere: "+token)))
	w.Services["svc"] = service("svc", egress.Injection{Type: egress.InjectHeader, Name: "X-Key"})
	w.Tools["svc"] = w.Allow(w.Tool("http://*.example"))
	if out := w.answered(plain); out["body"] != "leaked elsewhere: [redacted]" {
		t.Errorf("%v", out)
	}
}

func TestAnOriginIsSchemeHostAndPort(t *testing.T) {
	for _, test := range []struct {
		from, to string
		kept     bool
	}{
		{"https://api.example/", "https://api.example:443/x", true}, {"https://api.example/", "http://api.example/", false}, {"http://api.example/", "https://api.example/", false},
		{"http://api.example/", "http://api.example:443/", false}, {"http://api.example/", "http://www.api.example/", false}, {"http://www.api.example/", "http://api.example/", false},
	} {
		from, refusal := access.Target(test.from)
		to, refusal2 := access.Target(test.to)
		if refusal != nil || refusal2 != nil {
			t.Fatal(refusal, refusal2)
		}
		e := &outbound{inject: true, method: "GET", url: from, header: http.Header{"Cookie": {"a"}}}
		e.turn(http.StatusFound, to)
		if e.inject != test.kept || (e.header.Get("Cookie") != "") != test.kept {
			t.Errorf("%s to %s: the credential stays: %v", test.from, test.to, e.inject)
		}
	}
}
