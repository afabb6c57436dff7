package execute

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	w := newFixture(t, text("ok"))
	for code, bodies := range map[string][]string{
		problem.BadRequest: {
			`{"url":"http://api.example/","inject":{"type":"bearer"}}`, `{"service":"svc"}`, `{}`, ``, `{"service":"svc","url":"http://api.example/","method":"GE T"}`, `{"service":"svc","url":"http://api.example/","method":"GET\r\nX: y"}`,
			`{"service":"svc","url":"http://api.example/","inject":{"type":"cookie"}}`, `{"service":"svc","url":"http://api.example/","inject":{"type":"header"}}`, `{"service":"svc","url":"http://api.example/","authType":"queryparam"}`,
			`{"service":"svc","url":"http://api.example/","inject":{"type":"header","name":"Host"}}`, `{"service":"svc","url":"http://api.example/","inject":{"type":"bearer"},"authType":"bearer"}`,
			`{"service":"svc","url":"http://api.example/","inject":{"type":"header","name":"X\r\nY"}}`,
		},
		problem.BadJSON: {
			`{"service":"svc","url":"http://api.example/","extra":1}`, `{"service":"svc","service":"svc","url":"http://api.example/"}`, `{"Service":"svc","url":"http://api.example/"}`, `[]`, `{`, `"x"`,
			`{"service":"svc","url":"http://api.example/"} {}`, `{"service":1,"url":"http://api.example/"}`, `{"service":"svc","url":"http://api.example/","headers":{"A":"1","A":"2"}}`,
		},
		problem.BadName: {`{"service":"SVC","url":"http://api.example/"}`, `{"service":"../x","url":"http://api.example/"}`, `{"service":"a\n","url":"http://api.example/"}`},
		problem.BadURL: {
			`{"service":"svc","url":"api.example/x"}`, `{"service":"svc","url":"/x"}`, `{"service":"svc","url":"ftp://api.example/"}`, `{"service":"svc","url":"http://u:p@api.example/"}`, `{"service":"svc","url":"http:api.example/"}`,
			`{"service":"svc","url":"http://api.example/\r\nX: y"}`, `{"service":"svc","url":"http://api.example/` + strings.Repeat("x", longestURLForTests) + `"}`,
			`{"service":"svc","url":"ws://api.example/"}`, `{"service":"svc","url":"http://api.example/%zz"}`,
		},
		problem.BadHost: {
			`{"service":"svc","url":"http:///x"}`, `{"service":"svc","url":"http://0177.0.0.1/"}`, `{"service":"svc","url":"http://api.example:0/"}`, `{"service":"svc","url":"http://api.example:/"}`,
			`{"service":"svc","url":"http://[fe80::1%25eth0]/"}`, `{"service":"svc","url":"http://a..b/"}`,
		},
		problem.MethodDenied: {`{"service":"svc","url":"http://api.example/","method":"trace"}`, `{"service":"svc","url":"http://api.example/","method":"CONNECT"}`, `{"service":"svc","url":"http://api.example/","method":"Track"}`},
		problem.PathDenied: {
			`{"service":"svc","url":"http://api.example/a/../b"}`, `{"service":"svc","url":"http://api.example/a/%2e%2e/b"}`, `{"service":"svc","url":"http://api.example/a%2fb"}`, `{"service":"svc","url":"http://api.example/a%5cb"}`,
			`{"service":"svc","url":"http://api.example/a//b"}`, `{"service":"svc","url":"http://api.example//"}`, `{"service":"svc","url":"http://api.example/a%252fb"}`, `{"service":"svc","url":"http://api.example/a%00b"}`, `{"service":"svc","url":"http://api.example/./a"}`,
			`{"service":"svc","url":"http://api.example/a\\b"}`,
		},
	} {
		for _, body := range bodies {
			w.refused(code, body)
		}
	}
	w.refused(problem.BadJSON, plain, "Content-Type", "text/plain")
	w.refused(problem.BadJSON, plain, "Content-Type", "application/x-www-form-urlencoded")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.server.URL, strings.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("PUT: %s", resp.Status)
	}
	if n := len(w.seen.All()); n != 0 || len(w.Sent()) != 0 {
		t.Errorf("%d requests left", n)
	}
}

// A credential in the path would go where the request says.
func TestACredentialOfThePathIsForTheRouteOnly(t *testing.T) {
	w := newFixture(t, text("ok"))
	w.answered(plain)
	s := w.Services["svc"]
	s.BaseURL, s.Inject = "http://api.example/bot{secret}", egress.Injection{Type: egress.InjectPath}
	w.Services["svc"] = s
	for _, body := range []string{plain, `{"service":"svc","url":"http://api.example/bot{secret}/x"}`, `{"service":"svc","url":"http://api.example/bot{secret}/x","inject":{"type":"path"}}`,
		`{"url":"http://api.example/bot{secret}/x","inject":{"type":"path"}}`} {
		w.refused(problem.BadRequest, body)
	}
	if n := len(w.seen.All()); n != 1 {
		t.Errorf("%d requests left", n)
	}
}

const longestURLForTests = 9000

func TestHostsAreMadeCanonical(t *testing.T) {
	w := newFixture(t, text("ok"))
	for _, host := range []string{"API.EXAMPLE", "api.example.", "api.example:80", "ａｐｉ.example", "api。example"} {
		w.answered(`{"service":"svc","url":"http://` + host + `/x"}`)
		if got := w.seen.Last(t); got.Host != "api.example" {
			t.Errorf("%s: %s", host, got.Host)
		}
	}
	// Cyrillic а is another name, and no tool allows it.
	w.refused(problem.ToolDenied, `{"service":"svc","url":"http://аpi.example/x"}`)
}

func TestQueriesCannotBecomeAnotherRequest(t *testing.T) {
	w := newFixture(t, text("ok"))
	w.answered(`{"service":"svc","url":"http://api.example/x?q=a b HTTP/1.1&é=ü#frag?key=1"}`)
	if got := w.seen.Last(t); got.Target != "/x?q=a%20b%20HTTP/1.1&%C3%A9=%C3%BC" {
		t.Errorf("%q", got.Target)
	}
}

func TestHeadersThatAnAgentMayNotSetAreLeftOut(t *testing.T) {
	w := newFixture(t, text("ok"))
	left := []string{
		"Host", "Content-Length", "Transfer-Encoding", "TE", "Trailer", "Connection", "Keep-Alive", "Upgrade", "Expect", "Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X_Forwarded_For",
		"X-Real-IP", "Proxy-Authorization", "Proxy-Connection", "Clawjail-Refusal", "X-HTTP-Method-Override", "X-Original-URL", "Authorization", "authorization", "X-Named",
	}
	fields := []string{`"Accept":"kept"`, `"connection ":"x"`}[:1]
	for _, name := range left {
		value := "evil"
		switch name {
		case "Connection":
			value = "close, X-Named, Authorization, Content-Type"
		case "authorization":
			continue // twice would be refused; see below
		}
		fields = append(fields, fmt.Sprintf("%q:%q", name, value))
	}
	w.answered(`{"service":"svc","url":"http://api.example/x","method":"POST","body":"b","headers":{` + strings.Join(fields, ",") + `}}`)
	got := w.seen.Last(t)
	for _, name := range left {
		if strings.Contains(strings.Join(got.Header.Values(name), " "), "evil") || name != "Authorization" && name != "authorization" && name != "Content-Length" && name != "Connection" && got.Header.Get(name) != "" ||
			strings.Contains(got.Header.Get("Connection"), "Named") {
			t.Errorf("%s: %q", name, got.Header.Values(name))
		}
	}
	if got.Header.Get("Authorization") != "Bearer "+token || got.Host != "api.example" || got.Header.Get("Accept") != "kept" || got.Body != "b" || got.Length != 1 || len(got.Encoding) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestHeadersThatWouldBeTwoAreRefused(t *testing.T) {
	w := newFixture(t, text("ok"))
	for _, headers := range []string{
		`{"X-A":"1\r\nX-B: 2"}`, `{"X-A":"1\n2"}`, `{"X-A":"1\u00002"}`, `{"X-A\r\nX-B":"1"}`, `{"X-A ":"1"}`, `{" X-A":"1"}`, `{"X-A:":"1"}`, `{"":"1"}`, `{"X-A":1}`, `{"X-A":null}`, `{"X-A":[1]}`, `{"X-A":{}}`,
		`{"X-A":"1","x-a":"2"}`, `{"Authorization":"a","authorization":"b"}`, `{"X-A":["1","2\r\n3"]}`, `{"X-Big":"` + strings.Repeat("x", largestHeader) + `"}`,
	} {
		w.refused(problem.BadRequest, `{"service":"svc","url":"http://api.example/","headers":`+headers+`}`)
	}
	many := make([]string, maxHeaders+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"X-%d":"v"`, i)
	}
	w.refused(problem.BadRequest, `{"service":"svc","url":"http://api.example/","headers":{`+strings.Join(many, ",")+`}}`)
	w.answered(`{"service":"svc","url":"http://api.example/","headers":{` + strings.Join(many[:maxHeaders], ",") + `}}`)
	if n := len(w.seen.All()); n != 1 {
		t.Errorf("%d requests left", n)
	}
}

func TestTheCredentialGoesWhereTheServiceSays(t *testing.T) {
	w := newFixture(t, text("ok"))
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("operator1:"+token))
	for _, test := range []struct {
		how           egress.Injection
		said          string // by the agent, which may repeat what the service says
		header, value string
	}{
		{egress.Injection{Type: egress.InjectBearer}, ``, "Authorization", "Bearer " + token},
		{egress.Injection{Type: egress.InjectBearer}, `,"inject":{"type":"bearer"}`, "Authorization", "Bearer " + token},
		{egress.Injection{Type: egress.InjectBearer}, `,"authType":"bearer"`, "Authorization", "Bearer " + token},
		{egress.Injection{Type: egress.InjectBasic}, `,"inject":{"type":"basic"}`, "Authorization", basic},
		{egress.Injection{Type: egress.InjectBasic}, `,"authType":"basic"`, "Authorization", basic},
		{egress.Injection{Type: egress.InjectHeader, Name: "X-Api-Key"}, `,"inject":{"type":"header","name":"X-Api-Key"}`, "X-Api-Key", token},
		{egress.Injection{Type: egress.InjectHeader, Name: "X-Api-Key"}, `,"authType":"header","authParamName":"X-Api-Key"`, "X-Api-Key", token},
		{egress.Injection{Type: egress.InjectQuery, Name: "key"}, `,"inject":{"type":"query","name":"key"}`, "", "key=" + url.QueryEscape(token)},
		{egress.Injection{Type: egress.InjectQuery, Name: "key"}, `,"authType":"queryparam","authParamName":"key"`, "", "key=" + url.QueryEscape(token)},
		{egress.Injection{Type: egress.InjectNone}, `,"inject":{"type":"none"}`, "Authorization", ""},
	} {
		w.Secret("svc", token)
		if test.how.Type == egress.InjectBasic {
			w.Secret("svc", "operator1:"+token)
		}
		w.Services["svc"] = service("svc", test.how)
		w.answered(`{"service":"svc","url":"http://api.example/x?a=1&b=2;c","headers":{"X-API-KEY":"mine","Authorization":"mine"}` + test.said + `}`)
		got := w.seen.Last(t)
		if test.header == "" {
			if got.Target != "/x?a=1&b=2;c&"+test.value || got.Header.Get("Authorization") != "" {
				t.Errorf("%s: %s %q", test.said, got.Target, got.Header)
			}
		} else if values := got.Header.Values(test.header); len(values) > 1 || got.Header.Get(test.header) != test.value || got.Target != "/x?a=1&b=2;c" {
			t.Errorf("%s: %q %s", test.said, got.Header, got.Target)
		}
	}
	if sent := w.Sent(); sent[len(sent)-1].Credential || sent[len(sent)-1].Inject != nil {
		t.Error("a request without a credential says that it has one")
	}
}

// The secret of a service is in no request that another host gets, that no service is named for, or that only a tool
// without a service allows: whatever the tools of the agent allow.
func TestACredentialGoesToTheOriginOfItsServiceOnly(t *testing.T) {
	w := newFixture(t, text("ok"))
	echo := &accesstest.Seen{}
	w.Upstream("echo.example:80", echo.Handler(text("ok")))
	w.Secret("openai", "a-secret-of-no-service")
	w.Tools["svc"] = w.Allow(w.Tool("http://*.example"))
	w.Tools[""], w.Tools["openai"] = w.Tools["svc"], w.Tools["svc"]
	w.answered(plain)
	if got := w.seen.Last(t); got.Header.Get("Authorization") != "Bearer "+token {
		t.Fatalf("the service itself gets %q: what follows shows nothing", got.Header)
	}
	w.answered(`{"service":"svc","url":"http://echo.example/x"}`)
	w.answered(`{"url":"http://echo.example/x"}`)
	w.answered(`{"service":"openai","url":"http://echo.example/x","inject":{"type":"none"}}`)
	w.refused(problem.ServiceUnknown, `{"service":"openai","url":"http://echo.example/x"}`)
	w.refused(problem.ServiceUnknown, `{"service":"openai","url":"http://echo.example/x","inject":{"type":"query","name":"text"}}`)
	w.Named["svc"] = nil
	w.answered(plain)
	if got := w.seen.Last(t); got.Header.Get("Authorization") != "" {
		t.Errorf("a tool that names no service carries its credential: %q", got.Header)
	}
	if all := echo.All(); len(all) != 3 {
		t.Fatalf("another host saw %d requests", len(all))
	}
	for _, got := range echo.All() {
		if text := fmt.Sprint(got); strings.Contains(text, token) || strings.Contains(text, "a-secret") || got.Header.Get("Authorization") != "" {
			t.Errorf("another host got %s", text)
		}
	}
}

func TestWhatTheOperatorDecidedForAServiceIsNotTheAgentsToChange(t *testing.T) {
	w := newFixture(t, text("ok"))
	w.Services["svc"] = egress.Service{Name: "svc", Upstream: egress.Upstream{BaseURL: "http://api.example", Secret: "key-of-svc"}, Inject: egress.Injection{Type: egress.InjectHeader, Name: "X-Key"}}
	w.Secret("key-of-svc", "another-secret-value")
	w.answered(plain)
	if got := w.seen.Last(t); got.Header.Get("X-Key") != "another-secret-value" || got.Header.Get("Authorization") != "" {
		t.Errorf("%q", got.Header)
	}
	w.answered(`{"service":"svc","url":"http://api.example/x","inject":{"type":"header","name":"x-key"}}`)
	for _, how := range []string{`"inject":{"type":"query","name":"text"}`, `"inject":{"type":"header","name":"X-Other"}`, `"authType":"bearer"`, `"inject":{"type":"none"}`} {
		w.refused(problem.BadRequest, `{"service":"svc","url":"http://api.example/x",`+how+`}`)
	}
	w.Services["svc"] = egress.Service{Name: "svc"}
	w.refused(problem.BadRequest, plain)
	if n := len(w.seen.All()); n != 2 {
		t.Errorf("%d requests left", n)
	}
}

func TestAnAgentsOwnSecretComesBeforeItsTenants(t *testing.T) {
	w := newFixture(t, text("ok"))
	w.Secrets[vault.SecretName{Tenant: "tenant", Agent: "agent-1", Service: "svc"}] = "the-agents-own-secret"
	w.Secrets[vault.SecretName{Tenant: "tenant", Agent: "agent-2", Service: "svc"}] = "the-secret-of-another"
	w.answered(plain)
	if got := w.seen.Last(t).Header.Get("Authorization"); got != "Bearer the-agents-own-secret" {
		t.Error(got)
	}
	w.Caller.Tenant = "elsewhere"
	w.refused(problem.CredentialMissing, plain)
}

func TestAnswersLoseTheCredential(t *testing.T) {
	echo := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		rw.Header().Set("Set-Cookie", "session=as-good-as-the-credential")
		_, _ = fmt.Fprintf(rw, "you sent %s, that is %s", r.Header.Get("Authorization"), url.QueryEscape(token))
	}
	w := newFixture(t, echo)
	out := w.answered(plain)
	h, _ := out["headers"].(map[string]any)
	if out["body"] != "you sent Bearer [redacted], that is [redacted]" || h["X-Echo"] != "Bearer [redacted]" || h["Set-Cookie"] != nil {
		t.Errorf("%v", out)
	}
	_, raw := w.raw(`{"service":"svc","url":"http://api.example/x","stream":true}`)
	if string(raw) != "you sent Bearer [redacted], that is [redacted]" {
		t.Errorf("%s", raw)
	}
	// A service may block; it cannot switch this off here.
	for scrub, want := range map[egress.Scrub]string{egress.ScrubOff: "", egress.ScrubBlock: problem.ResponseBlocked} {
		w.Services["svc"] = egress.Service{Name: "svc", Upstream: egress.Upstream{BaseURL: "http://api.example"}, Scrub: scrub, Inject: egress.Injection{Type: egress.InjectBearer}}
		if want == "" {
			w.answered(plain)
		} else {
			w.refused(want, plain)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, body := range []string{
		plain, `{}`, ``, `{"service":"svc","url":"http://api.example/a?b=c d#e","method":"patch","headers":{"A":["b"]},"body":[1],"timeout":"1s","inject":{"type":"query","name":"k"}}`,
		`{"service":"svc","url":"http://[::1]:8/","authType":"header","authParamName":"X-K","headers":{"Connection":"A","A":"b"},"timeout":1.5,"follow":false,"stream":true}`,
		`{"service":"svc","url":"http://аpi.example/%2e","body":null}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, refusal := parse(raw)
		if refusal != nil {
			if refusal.Code == "" || refusal.Message == "" || problem.Status(refusal.Code) >= 500 {
				t.Fatalf("%+v", refusal)
			}
			return
		}
		to, err := hostport.FromURL(got.url)
		if err != nil || got.url.Host != to.HostHeader(got.url.Scheme) || got.url.User != nil || got.url.Fragment != "" || policy.Ambiguous(got.url.EscapedPath()) {
			t.Fatalf("%s: %v", got.url, err)
		}
		again, err := url.Parse(got.url.String())
		if err != nil || again.EscapedPath() != got.url.EscapedPath() || again.RawQuery != got.url.RawQuery || again.Host != got.url.Host {
			t.Fatalf("%s is read back as %v", got.url, again)
		}
		if strings.ContainsFunc(got.url.RequestURI(), func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			t.Fatalf("%q may not stand in a request line", got.url.RequestURI())
		}
		if !httpguts.ValidHeaderFieldName(got.method) || got.method != strings.ToUpper(got.method) || got.timeout <= 0 || got.timeout > longestTime {
			t.Fatalf("%q %s", got.method, got.timeout)
		}
		for name, values := range got.header {
			for _, value := range values {
				if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
					t.Fatalf("%q: %q", name, value)
				}
			}
		}
		if got.header.Get("Host") != "" || got.header.Get("Content-Length") != "" || got.header.Get("Transfer-Encoding") != "" {
			t.Fatalf("%q", got.header)
		}
	})
}
