package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestWhatIsSecretTravelsAndPrintsNowhere(t *testing.T) {
	for name, request := range map[string]any{
		"open":   session.OpenRequest{Grant: grant.ParseToken(canary), TTL: "1m"},
		"secret": SecretRequest{Value: secret.New([]byte(canary)), Agent: "ag_1"},
		"import": ImportRequest{Cookies: Jar{secret.Own(cookies.Encode(someCookies()))}, AccountRules: op.AccountRules{Scopes: []string{}, MaxSessions: new(2)}},
	} {
		text, err := Encode(request)
		if err != nil || !strings.Contains(string(text), canary) {
			t.Errorf("%s is sent as %s, %v", name, text, err)
		}
		shown, _ := json.Marshal(request)
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "request", request)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "request", request)
		for _, printed := range []string{fmt.Sprintf("%v %+v %#v %s", request, request, request, request), string(shown), log.String()} {
			if strings.Contains(printed, canary) || !strings.Contains(printed, "[redacted]") && strings.Contains(printed, "{") && !strings.Contains(printed, "0x") {
				t.Errorf("%s prints as %s", name, printed)
			}
		}
	}
	for name, answer := range map[string]any{
		"grant": op.IssuedGrant{Token: canary, Grant: op.Grant{ID: "g_1"}}, "operator": op.IssuedOperator{Key: canary, Operator: op.Operator{ID: "op_1"}},
		"agent": op.IssuedAgent{Key: canary, Agent: op.Agent{ID: "ag_1"}}, "token": op.IssuedToken{Key: canary, Token: op.Token{ID: "tk_1"}},
	} {
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "answer", answer)
		if printed := fmt.Sprintf("%v %+v %#v %s %q", answer, answer, answer, answer, answer) + log.String(); strings.Contains(printed, canary) || !strings.Contains(printed, "_1") {
			t.Errorf("%s prints as %s", name, printed)
		}
		if sent, err := json.Marshal(answer); err != nil || !strings.Contains(string(sent), canary) {
			t.Errorf("%s is answered as %s, %v", name, sent, err)
		}
	}
}

func TestWhatIsSentIsRead(t *testing.T) {
	sent := ImportRequest{Tenant: "acme", Cookies: Jar{secret.Own(cookies.Encode(someCookies()))}, AccountRules: op.AccountRules{Scopes: []string{}, MaxSessions: new(3)}}
	text, err := Encode(sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode[ImportRequest](text)
	if err != nil || got.Tenant != "acme" || !got.Cookies.Equal(sent.Cookies.Value) || got.Scopes == nil || len(got.Scopes) != 0 || *got.MaxSessions != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if got.Origins.Len() > 0 || strings.Contains(string(text), "origins") {
		t.Errorf("storage that was not said is sent: %s", text)
	}
	stored := []weblogin.Origin{{Origin: "https://example.com", Local: []weblogin.Item{{Name: "a", Value: secret.New([]byte("b"))}}}}
	if text, err = Encode(ImportRequest{Cookies: Jar{secret.Own([]byte("[]"))}, Origins: Origins{secret.Own(weblogin.EncodeOrigins(stored))}}); err != nil {
		t.Fatal(err)
	}
	if other, err := decode[ImportRequest](text); err != nil {
		t.Error(err)
	} else if back, err := other.Origins.origins(); err != nil || len(weblogin.Compare(stored, back)) > 0 {
		t.Errorf("storage is %v, %v", back, err)
	}
	if _, err := (Origins{secret.Own([]byte(`[{"origin":"canary"},{"localStorage":"canary"}]`))}).origins(); problem.CodeOf(err) != problem.BadStorage || strings.Contains(err.Error(), "canary") {
		t.Errorf("damaged storage: %v", err)
	}
	list, err := got.Cookies.cookies()
	if err != nil || len(list) != 1 || !list[0].Equal(someCookies()[0]) {
		t.Errorf("%v, %v", list, err)
	}
	if text, err = Encode(ImportRequest{Cookies: Jar{secret.Own([]byte("[]"))}}); err != nil || strings.Contains(string(text), "scopes") {
		t.Errorf("scopes that were not said are sent: %s, %v", text, err)
	}
	odd := "\x01\u2028\"\\ ü"
	if text, err = Encode(SecretRequest{Value: secret.New([]byte(odd))}); err != nil {
		t.Fatal(err)
	}
	if got, err := decode[SecretRequest](text); err != nil || string(got.Value.Append(nil)) != odd {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := Encode(SecretRequest{Value: secret.New([]byte("\xff" + canary))}); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("a secret that is no text: %v", err)
	}
}

// Every way in which a body with a secret can be wrong: what is answered and logged has names and places, and no value.
func TestBodiesWithSecretsAreNotToldInErrors(t *testing.T) {
	cookie := func(fields string) string {
		return `{"cookies":[{"name":"sid","value":"` + canary + `","domain":".example.com","path":"/","expires":-1` + fields + `}]}`
	}
	w := newFixture(t)
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"cut off":             {"PUT", "/v1/secrets/github", `{"value":"` + canary, 400, "not valid JSON"},
		"an odd escape":       {"PUT", "/v1/secrets/github", `{"value":"` + canary + `\x"}`, 400, "not valid JSON"},
		"not UTF-8":           {"PUT", "/v1/secrets/github", "{\"value\":\"" + canary + "\xff\"}", 400, "column"},
		"a list":              {"PUT", "/v1/secrets/github", `{"value":["` + canary + `"]}`, 400, `\"value\" has the wrong type`},
		"a number":            {"PUT", "/v1/secrets/github", `{"agent":"a","value":815}`, 400, `\"value\" has the wrong type`},
		"twice":               {"PUT", "/v1/secrets/github", `{"value":"` + canary + `","value":"` + canary + `"}`, 400, "is there twice"},
		"unknown key":         {"PUT", "/v1/secrets/github", `{"wert":"` + canary + `"}`, 400, `\"wert\" is not known`},
		"something follows":   {"PUT", "/v1/secrets/github", `{"value":"x"} "` + canary + `"`, 400, "column"},
		"not an object":       {"PUT", "/v1/secrets/github", `"` + canary + `"`, 400, "not an object"},
		"redacted":            {"PUT", "/v1/secrets/github", `{"value":"[redacted]"}`, 400, `\"value\" has the wrong type`},
		"nothing":             {"PUT", "/v1/secrets/github", `{}`, 400, "at least 8 bytes"},
		"too long":            {"PUT", "/v1/secrets/github", `{"value":"` + strings.Repeat(canary, 6000) + `"}`, 400, "1 to 65536 bytes"},
		"an agent that is no": {"PUT", "/v1/secrets/github", `{"agent":"a b","value":"` + canary + `"}`, 400, "agent"},
		"a grant as a number": {"POST", "/v1/sessions", `{"grant":5}`, 400, `\"grant\" has the wrong type`},
		"a redacted grant":    {"POST", "/v1/sessions", `{"grant":"[redacted]"}`, 400, `\"grant\" has the wrong type`},
		"a field of a cookie": {"PUT", "/v1/cookies/example.com", cookie(`,"secure":"` + canary + `"`), 400, "field secure is not"},
		"a cookie twice":      {"PUT", "/v1/cookies/example.com", cookie(`,"name":"` + canary + `"`), 400, ""},
		"half a cookie":       {"PUT", "/v1/cookies/example.com", `{"cookies":[{"value":"` + canary + `"}]}`, 400, "there is no field name"},
		"cookies as a text":   {"PUT", "/v1/cookies/example.com", `{"cookies":"` + canary + `"}`, 400, `\"cookies\" has the wrong type`},
		"a bad cookie":        {"PUT", "/v1/cookies/example.com", cookie(`,"sameSite":"None"`), 400, "SameSite=None"},
		"of another domain":   {"PUT", "/v1/cookies/example.net", cookie(""), 400, "another domain"},
		"no cookies":          {"PUT", "/v1/cookies/example.com", `{}`, 400, "none"},
		"no domain":           {"PUT", "/v1/cookies/com", cookie(""), 400, "registrable"},
		"an odd tenant":       {"PUT", "/v1/cookies/example.com", `{"tenant":"a\u0000b","cookies":[]}`, 400, "tenant"},
		"an odd scope":        {"PUT", "/v1/cookies/example.com", `{"scopes":["a\u0000b"],"cookies":[]}`, 400, "scopes[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			a := w.request("acme operator", test.method, test.path, test.body)
			if p := a.wantProblem(t, test.status, problemCode(a)); !strings.Contains(a.body, test.want) || p.Code == problem.Internal {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if strings.Contains(a.body, canary) {
				t.Errorf("a value is told: %s", a.body)
			}
		})
	}
	if strings.Contains(w.written.String(), canary) {
		t.Errorf("a value is logged: %s", w.written)
	}
	if err := w.log.Event(w.ctx, audit.Event{Action: "test.end"}); err != nil { // what was noted before is written by then
		t.Fatal(err)
	}
	for _, row := range w.rows("") {
		if strings.Contains(fmt.Sprintf("%+v %s", row, row.Detail), canary) {
			t.Errorf("a value is recorded: %+v", row)
		}
	}
}

func problemCode(a asked) string {
	var p Problem
	_ = json.Unmarshal([]byte(a.body), &p) // wantProblem says what is wrong with it
	return p.Code
}

func TestOnlyWhoMayStoreCookiesMaySendMany(t *testing.T) {
	w := newFixture(t)
	jar := `{"tenant":"acme","cookies":[` + strings.Repeat(" ", 2*maxBody) + `{"name":"a","value":"b","domain":".example.com","path":"/","expires":-1}]}`
	for who, status := range map[string]int{"acme operator": 200, "acme admin": 200, "admin": 200, "acme viewer": 400, "acme agent": 400} {
		a := w.request(who, "PUT", "/v1/cookies/example.com", jar)
		if a.StatusCode != status {
			t.Errorf("%s gets %d %s", who, a.StatusCode, a.body)
		}
	}
	w.request("acme operator", "PATCH", "/v1/cookies/example.com", jar).wantProblem(t, 400, problem.BadRequest)
	w.request("acme operator", "PUT", "/v1/secrets/github", jar).wantProblem(t, 400, problem.BadRequest)
	large := `{"cookies":[` + strings.Repeat(" ", maxJar) + `]}`
	if a := w.request("acme operator", "PUT", "/v1/cookies/example.com", large); a.StatusCode != 400 || !strings.Contains(a.body, fmt.Sprint(maxJar)) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	d := &testAPI{API: w.API, key: w.keys["acme operator"]}
	d.ask(t, "PUT", "/v1/cookies/example.com", large, func(r *http.Request) { r.ContentLength = -1 }).
		wantProblem(t, http.StatusRequestEntityTooLarge, problem.BadRequest)
}

func TestRulesThatAreLeftOutStay(t *testing.T) {
	const one = `"cookies":[{"name":"a","value":"b","domain":".example.com","path":"/","expires":-1}]`
	stored := vault.CookieSet{Domain: "example.com", Scopes: []string{"cdp"}, MaxLeases: 7}
	for name, test := range map[string]struct {
		set  vault.CookieSet
		body string
		want *vault.Rules
	}{
		"nothing is said":                {stored, ``, nil},
		"scopes of what is stored":       {stored, `"scopes":["tools"],`, &vault.Rules{Scopes: []string{"tools"}, MaxLeases: 7}},
		"sessions of what is stored":     {stored, `"max_sessions":2,`, &vault.Rules{Scopes: []string{"cdp"}, MaxLeases: 2}},
		"no scopes of what is stored":    {stored, `"scopes":[],`, &vault.Rules{Scopes: []string{}, MaxLeases: 7}},
		"scopes of what is new":          {vault.CookieSet{}, `"scopes":["cdp"],`, &vault.Rules{Scopes: []string{"cdp"}, MaxLeases: 1}},
		"sessions of what is new":        {vault.CookieSet{}, `"max_sessions":2,`, &vault.Rules{Scopes: []string{"tools"}, MaxLeases: 2}},
		"both":                           {stored, `"scopes":["tools"],"max_sessions":3,`, &vault.Rules{Scopes: []string{"tools"}, MaxLeases: 3}},
		"no sessions, which is an error": {stored, `"max_sessions":0,`, &vault.Rules{Scopes: []string{"cdp"}, MaxLeases: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t)
			d.credentials.set = test.set
			if a := d.ask(t, "PUT", "/v1/cookies/example.com", "{"+test.body+one+"}"); a.StatusCode != 200 {
				t.Fatalf("%d %s", a.StatusCode, a.body)
			}
			same := func(got *vault.Rules) bool {
				return (got == nil) == (test.want == nil) && (got == nil || got.MaxLeases == test.want.MaxLeases && slices.Equal(got.Scopes, test.want.Scopes))
			}
			if got := d.credentials.imported; !same(got.Rules) || len(got.Cookies) != 1 || got.Domain != "example.com" {
				t.Errorf("the import has %+v", got.Rules)
			}
			if test.want == nil {
				d.ask(t, "PATCH", "/v1/cookies/example.com", "{}").wantProblem(t, 400, problem.BadRequest)
			} else if d.ask(t, "PATCH", "/v1/cookies/example.com", "{"+strings.TrimSuffix(test.body, ",")+"}"); !same(&d.credentials.rules) {
				t.Errorf("the change has %+v", d.credentials.rules)
			}
		})
	}
	d := newTestAPI(t)
	d.ask(t, "POST", "/v1/sessions/"+someID+"/capture", `{"domains":["example.com"]}`)
	if d.credentials.captured != nil {
		t.Errorf("the capture has %+v", d.credentials.captured)
	}
	d.ask(t, "POST", "/v1/sessions/"+someID+"/capture", `{"domains":["example.com"],"max_sessions":2}`)
	if r := d.credentials.captured; r == nil || r.MaxLeases != 2 || !slices.Equal(r.Scopes, []string{"tools"}) {
		t.Errorf("the capture has %+v", r)
	}
}

func TestTimesThatAreNone(t *testing.T) {
	w := newFixture(t)
	for _, test := range [][3]string{
		{"POST", "/v1/operators", `{"name":"x","tenant":"acme","role":"viewer","life":"-1ns"}`}, // which is the number of never
		{"POST", "/v1/operators", `{"name":"x","tenant":"acme","role":"viewer","life":"0s"}`},
		{"POST", "/v1/operators", `{"name":"x","tenant":"acme","role":"viewer","life":"soon"}`},
		{"POST", "/v1/operators/" + w.operator + "/rotate", `{"life":"-1ns"}`},
		{"POST", "/v1/agents", `{"name":"x","tenant":"acme","life":"-1ns"}`},
		{"POST", "/v1/agents/writer2/tokens?tenant=acme", `{"life":"-1ns"}`},
		{"POST", "/v1/agents/writer2/tokens?tenant=acme", `{"overlap":"-1s"}`},
		{"POST", "/v1/agents/writer2/tokens?tenant=acme", `{"overlap":"later"}`},
		{"POST", "/v1/grants", `{"tenant":"acme","domains":["example.com"],"ttl":"0s"}`},
		{"POST", "/v1/grants", `{"tenant":"acme","domains":["example.com"],"ttl":"-1s"}`},
		{"POST", "/v1/grants", `{"tenant":"acme","domains":["example.com"],"ttl":"1"}`},
	} {
		w.request("admin", test[0], test[1], test[2]).wantProblem(t, 400, problem.BadLimit)
	}
	w.request("admin", "PATCH", "/v1/tenants/acme", `{}`).wantProblem(t, 400, problem.BadRequest)
	for _, text := range []string{"", "never"} {
		var issued op.IssuedOperator
		a := w.request("admin", "POST", "/v1/operators", `{"name":"x","tenant":"acme","role":"viewer","life":"`+text+`"}`)
		if err := json.Unmarshal([]byte(a.body), &issued); err != nil || !issued.Operator.ExpiresAt.IsZero() || issued.Key == "" {
			t.Errorf("%q: %s", text, a.body)
		}
	}
}
