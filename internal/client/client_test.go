package client

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a control plane of one handler, and a client of it.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := New(base, "cjop_key")
	t.Cleanup(c.CloseIdle)
	return c
}

func TestEveryCallIsTheRequestThatItShouldBe(t *testing.T) {
	var got, key string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing is seen below
		got = strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
		key = r.Header.Get("Authorization") + r.Header.Get(api.KeyHeader)
		_, _ = w.Write([]byte("{}")) // a client that has gone is seen there
	})
	ctx := t.Context()
	sid := []cookies.Cookie{{Name: "sid", Value: secret.New([]byte("v")), Domain: ".example.com", Path: "/", Expires: cookies.Session}}
	const sent = `"cookies":[{"name":"sid","value":"v","domain":".example.com","path":"/","expires":-1,"httpOnly":false,"secure":false,"session":false}]`
	agent := op.OneAgent{Name: "w", InTenant: op.InTenant{Tenant: "acme"}}
	account := op.AccountNamed{Domain: "example.com", InTenant: agent.InTenant}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	query := op.AuditQuery{AuditFilter: op.AuditFilter{Tenant: "acme", Action: "grant.", Actor: "admin", Session: "s", Jail: "j", Phase: "intent", Result: "ok", Ref: "r", Node: "n"},
		Since: at, Until: at, AfterSeq: 3, Limit: 4, Follow: true}
	for want, call := range map[string]func() error{
		"GET /v1/whoami":                          func() error { _, err := Call(ctx, c, op.WhoAmI(), op.None{}); return err },
		"GET /v1/cookies":                         func() error { _, err := Call(ctx, c, op.ListCookies(), op.OfTenant{}); return err },
		"GET /v1/cookies?tenant=acme":             func() error { _, err := Call(ctx, c, op.ListCookies(), op.OfTenant{Tenant: "acme"}); return err },
		"GET /v1/cookies/example.com?tenant=acme": func() error { _, err := Call(ctx, c, op.ShowCookies(), account); return err },
		"GET /v1/cookies/a%2Fb%3Fc":               func() error { _, err := Call(ctx, c, op.ShowCookies(), op.AccountNamed{Domain: "a/b?c"}); return err },
		"PUT /v1/cookies/example.com {" + sent + "}": func() error {
			_, err := c.ImportLogin(ctx, "", "example.com", weblogin.Login{Cookies: sid}, op.AccountRules{})
			return err
		},
		"PUT /v1/cookies/example.com {\"tenant\":\"acme\"," + sent + `,"scopes":[],"max_sessions":0}`: func() error {
			_, err := c.ImportLogin(ctx, "acme", "example.com", weblogin.Login{Cookies: sid}, op.AccountRules{Scopes: []string{}, MaxSessions: new(int)})
			return err
		},
		`PATCH /v1/cookies/example.com {"tenant":"acme","scopes":["cdp"],"max_sessions":2}`: func() error {
			change := op.RulesRequest{Tenant: "acme", AccountRules: op.AccountRules{Scopes: []string{"cdp"}, MaxSessions: new(2)}}
			_, err := Call(ctx, c, op.SetCookieRules(), op.RulesChanged{Domain: "example.com", Body: op.With(change)})
			return err
		},
		"DELETE /v1/cookies/example.com?tenant=acme": func() error { return Do(ctx, c, op.RemoveCookies(), account) },
		`POST /v1/sessions/s_1/capture {"domains":["example.com"],"scopes":[]}`: func() error {
			kept := op.CaptureRequest{Domains: []string{"example.com"}, AccountRules: op.AccountRules{Scopes: []string{}}}
			_, err := Call(ctx, c, op.CaptureCookies(), op.Captured{ID: "s_1", Body: op.With(kept)})
			return err
		},
		"GET /v1/secrets?tenant=acme": func() error {
			_, err := Call(ctx, c, op.ListSecrets(), op.SecretsListed{OfTenant: op.OfTenant{Tenant: "acme"}})
			return err
		},
		`PUT /v1/secrets/github {"tenant":"acme","agent":"ag_1","value":"v\"x"}`: func() error {
			return c.PutSecret(ctx, vault.SecretName{Tenant: "acme", Agent: "ag_1", Service: "github"}, secret.New([]byte(`v"x`)))
		},
		"DELETE /v1/secrets/github?agent=ag_1&tenant=acme": func() error {
			return Do(ctx, c, op.RemoveSecret(), op.SecretNamed{Service: "github", InTenant: op.InTenant{Tenant: "acme"}, Agent: "ag_1"})
		},
		`POST /v1/grants {"domains":["example.com"],"ttl":"5m"}`: func() error {
			_, err := Call(ctx, c, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{"example.com"}, TTL: "5m"})})
			return err
		},
		"GET /v1/grants?tenant=acme&usable=true": func() error {
			_, err := Call(ctx, c, op.ListGrants(), op.GrantsListed{OfTenant: op.OfTenant{Tenant: "acme"}, Usable: true})
			return err
		},
		"DELETE /v1/grants/g_1?tenant=acme": func() error {
			_, err := Call(ctx, c, op.RevokeGrant(), op.GrantNamed{ID: "g_1", Tenant: "acme"})
			return err
		},
		`POST /v1/account-permissions {"domain":"example.com","agent":"w","for":"30d"}`: func() error {
			_, err := Call(ctx, c, op.AllowAccount(), op.Allowing{Body: op.With(op.AllowRequest{Domain: "example.com", Agent: "w", For: "30d"})})
			return err
		},
		"GET /v1/account-permissions?tenant=acme": func() error {
			_, err := Call(ctx, c, op.ListPermissions(), op.PermissionsListed{OfTenant: op.OfTenant{Tenant: "acme"}})
			return err
		},
		"DELETE /v1/account-permissions/perm_1?tenant=acme": func() error {
			_, err := Call(ctx, c, op.DisallowAccount(), op.PermissionNamed{ID: "perm_1", Tenant: "acme"})
			return err
		},
		"GET /v1/vault":              func() error { _, err := Call(ctx, c, op.ShowVault(), op.None{}); return err },
		"POST /v1/vault/rotate":      func() error { _, err := Call(ctx, c, op.RotateVault(), op.None{}); return err },
		"GET /v1/grant-keys":         func() error { _, err := Call(ctx, c, op.ListGrantKeys(), op.None{}); return err },
		"POST /v1/grant-keys/rotate": func() error { _, err := Call(ctx, c, op.RotateGrantKeys(), op.None{}); return err },
		"GET /v1/audit?action=grant.&actor=admin&after_seq=3&follow=true&jail=j&limit=4&node=n&phase=intent&ref=r&result=ok&session=s" +
			"&since=2026-01-02T03%3A04%3A05.000006Z&tenant=acme&until=2026-01-02T03%3A04%3A05.000006Z": func() error { _, err := Call(ctx, c, op.ListAudit(), query); return err },
		"GET /v1/audit":               func() error { _, err := Call(ctx, c, op.ListAudit(), op.AuditQuery{}); return err },
		"POST /v1/audit/verify":       func() error { _, err := Call(ctx, c, op.VerifyAudit(), op.None{}); return err },
		"GET /v1/audit/export?node=n": func() error { return c.AuditExport(ctx, io.Discard, "n") },
		"GET /v1/audit/tail?limit=4": func() error {
			for _, err := range c.AuditTail(ctx, op.AuditQuery{Limit: 4}) {
				return err
			}
			return nil
		},
		"GET /v1/health":       func() error { _, err := c.Health(ctx); return err },
		"GET /v1/tenants/acme": func() error { _, err := Call(ctx, c, op.ShowTenant(), op.TenantNamed{ID: "acme"}); return err },
		"GET /v1/tenants":      func() error { _, err := Call(ctx, c, op.ListTenants(), op.None{}); return err },
		`POST /v1/tenants {"id":"acme","forbid_operator_mode":true}`: func() error {
			_, err := Call(ctx, c, op.CreateTenant(), op.NewTenant{Body: op.With(op.TenantRequest{ID: "acme", ForbidOperatorMode: true})})
			return err
		},
		`PATCH /v1/tenants/acme {"forbid_operator_mode":false}`: func() error {
			_, err := Call(ctx, c, op.SetTenant(), op.TenantChange{TenantNamed: op.TenantNamed{ID: "acme"}, Body: op.With(op.TenantPolicy{ForbidOperatorMode: new(bool)})})
			return err
		},
		"POST /v1/tenants/acme/disconnect": func() error { _, err := Call(ctx, c, op.DisconnectTenant(), op.TenantNamed{ID: "acme"}); return err },
		"GET /v1/operators?tenant=acme":    func() error { _, err := Call(ctx, c, op.ListOperators(), op.OfTenant{Tenant: "acme"}); return err },
		`POST /v1/operators {"name":"ada","role":"viewer"}`: func() error {
			_, err := Call(ctx, c, op.CreateOperator(), op.NewOperator{Body: op.With(op.OperatorRequest{Name: "ada", Role: "viewer"})})
			return err
		},
		`POST /v1/operators/op_1/rotate {"life":"1h"}`: func() error {
			_, err := Call(ctx, c, op.RotateOperator(), op.NewKey{OperatorNamed: op.OperatorNamed{ID: "op_1"}, Body: op.With(op.LifeRequest{Life: "1h"})})
			return err
		},
		"DELETE /v1/operators/op_1":  func() error { return Do(ctx, c, op.RevokeOperator(), op.OperatorNamed{ID: "op_1"}) },
		"GET /v1/agents?tenant=acme": func() error { _, err := Call(ctx, c, op.ListAgents(), op.OfTenant{Tenant: "acme"}); return err },
		`POST /v1/agents {"name":"w","tenant":"acme"}`: func() error {
			_, err := Call(ctx, c, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: "w", Tenant: "acme"})})
			return err
		},
		"POST /v1/agents/w/revoke?tenant=acme":  func() error { return Do(ctx, c, op.RevokeAgent(), agent) },
		"POST /v1/agents/w/restore?tenant=acme": func() error { return Do(ctx, c, op.RestoreAgent(), agent) },
		"DELETE /v1/agents/w?tenant=acme": func() error {
			return Do(ctx, c, op.RemoveAgent(), op.AgentRemoved{OneAgent: agent, KeepWorkspace: true})
		},
		"GET /v1/agents/w/tokens?tenant=acme": func() error { _, err := Call(ctx, c, op.ListTokens(), agent); return err },
		`POST /v1/agents/w/tokens?tenant=acme {"overlap":"0s"}`: func() error {
			_, err := Call(ctx, c, op.RotateToken(), op.NewToken{OneAgent: agent, Body: op.With(op.RotateRequest{Overlap: "0s"})})
			return err
		},
		"DELETE /v1/agents/w/tokens/tk_1?tenant=acme": func() error {
			return Do(ctx, c, op.RevokeToken(), op.TokenNamed{Name: "w", ID: "tk_1", InTenant: agent.InTenant})
		},
		`POST /v1/sessions/s_1/navigate {"url":"https://example.com/","timeoutMs":5000}`: func() error {
			_, err := c.Navigate(ctx, "s_1", browser.Navigate{URL: "https://example.com/", TimeoutMS: 5000})
			return err
		},
		"GET /v1/sessions/s_1/snapshot?mode=efficient": func() error {
			_, err := c.Drive(ctx, "s_1", &browser.Snapshot{Mode: "efficient"})
			return err
		},
		"DELETE /v1/sessions/s_1/files/a%2Fb%3Fc": func() error { _, err := c.Drive(ctx, "s_1", browser.DeleteFile{Name: "a/b?c"}); return err },
		`POST /v1/sessions/s_1/screenshot {"fullPage":true}`: func() error {
			_, err := c.Picture(ctx, "s_1", browser.Screenshot{FullPage: true})
			return err
		},
		`POST /v1/sessions/s_1/tokens {"scope":"cdp","ttl":"1h"}`: func() error {
			_, err := c.SessionToken(ctx, "s_1", api.TokenRequest{Scope: "cdp", TTL: "1h"})
			return err
		},
		"GET /v1/rules?tenant=acme": func() error { _, err := Call(ctx, c, op.ListRules(), op.OfTenant{Tenant: "acme"}); return err },
		`POST /v1/rules {"tenant":"acme","agent":"w","action":"deny","target":"a.test","once":true}`: func() error {
			_, err := Call(ctx, c, op.AddRule(), op.NewRule{Body: op.With(op.RuleRequest{Whose: op.Whose{Tenant: "acme", Agent: "w"}, Action: "deny", Target: "a.test", Once: true})})
			return err
		},
		"DELETE /v1/rules/a%2Fb": func() error { return Do(ctx, c, op.RemoveRule(), op.RuleNamed{ID: "a/b"}) },
		`POST /v1/rules/explain {"questions":[{"method":"GET","url":"https://a.test/"}]}`: func() error {
			_, err := Call(ctx, c, op.ExplainRules(), op.Questions{Body: op.With(op.ExplainRequest{Questions: []egress.Question{{Method: "GET", URL: "https://a.test/"}}})})
			return err
		},
		"GET /v1/services": func() error { _, err := Call(ctx, c, op.ListServices(), op.OfTenant{}); return err },
		`PUT /v1/services {"name":"a","base_url":"https://a.test","allow":[{"path":"/b"}],"inject":{"type":"bearer"}}`: func() error {
			_, err := Call(ctx, c, op.PutService(), op.NewService{Body: op.With(op.ServiceRequest{Name: "a", BaseURL: "https://a.test", Allow: []egress.Allowance{{Path: "/b"}},
				Inject: egress.Injection{Type: egress.InjectBearer}})})
			return err
		},
		"DELETE /v1/services/sv_1": func() error { return Do(ctx, c, op.RemoveService(), op.ServiceNamed{ID: "sv_1"}) },
		"GET /v1/providers":        func() error { _, err := Call(ctx, c, op.ListProviders(), op.OfTenant{}); return err },
		`PUT /v1/providers {"all_tenants":true,"name":"a","wire":"ollama","base_url":"https://a.test","models":["*"]}`: func() error {
			_, err := Call(ctx, c, op.PutProvider(), op.NewProvider{Body: op.With(op.ProviderRequest{Whose: op.Whose{AllTenants: true}, Name: "a", BaseURL: "https://a.test", Wire: "ollama", Models: []string{"*"}})})
			return err
		},
		"GET /v1/mcp-servers?tenant=acme": func() error {
			_, err := Call(ctx, c, op.ListMCPServers(), op.OfTenant{Tenant: "acme"})
			return err
		},
		`PUT /v1/mcp-servers {"name":"a","command":["/x"],"tools":[],"prompts":true,"shared":false}`: func() error {
			yes := true
			_, err := Call(ctx, c, op.PutMCPServer(), op.NewMCPServer{Body: op.With(op.MCPServerRequest{Name: "a", Command: []string{"/x"}, Tools: []string{}, Prompts: &yes})})
			return err
		},
		"DELETE /v1/providers/pr_1":             func() error { return Do(ctx, c, op.RemoveProvider(), op.ProviderNamed{ID: "pr_1"}) },
		"GET /v1/agents/w/settings?tenant=acme": func() error { _, err := c.Settings(ctx, op.Whose{Tenant: "acme", Agent: "w"}); return err },
		"GET /v1/settings?tenant=acme":          func() error { _, err := c.Settings(ctx, op.Whose{Tenant: "acme"}); return err },
		"GET /v1/settings?all_tenants=true":     func() error { _, err := c.Settings(ctx, op.Whose{AllTenants: true}); return err },
		`PUT /v1/settings {"tools":[]}`: func() error {
			_, err := c.PutSettings(ctx, op.Whose{}, op.SettingsRequest{Tools: []egress.Tool{}})
			return err
		},
		`PUT /v1/agents/w/settings {"version":3}`: func() error {
			_, err := c.PutSettings(ctx, op.Whose{Agent: "w"}, op.SettingsRequest{Version: 3})
			return err
		},
		"GET /v1/usage?from=2026-01-02": func() error { _, err := Call(ctx, c, op.ListUsage(), op.UsageSince{From: "2026-01-02"}); return err },
		`POST /v1/access-requests {"kind":"host","target":"a.test","reason":"x","wait":"1m"}`: func() error {
			_, err := Call(ctx, c, op.AskForAccess(), op.NewAccess{Body: op.With(op.AccessQuestion{Kind: "host", Target: "a.test", Reason: "x", Wait: "1m"})})
			return err
		},
		"GET /v1/access-requests?all=true&tenant=acme": func() error {
			_, err := Call(ctx, c, op.ListAccess(), op.AccessListed{OfTenant: op.OfTenant{Tenant: "acme"}, All: true})
			return err
		},
		"GET /v1/access-requests/ar_1?wait=30s": func() error {
			_, err := Call(ctx, c, op.ShowAccess(), op.AccessShown{AccessNamed: op.AccessNamed{ID: "ar_1"}, Wait: "30s"})
			return err
		},
		`POST /v1/access-requests/ar_1/answer {"approve":false,"comment":"no"}`: func() error {
			approve := false
			_, err := Call(ctx, c, op.AnswerAccess(), op.AccessAnswered{AccessNamed: op.AccessNamed{ID: "ar_1"}, Body: op.With(op.AccessAnswer{Approve: &approve, Comment: "no"})})
			return err
		},
		"DELETE /v1/sessions/s_1/recording": func() error { return Do(ctx, c, op.RemoveRecording(), op.RecordingNamed{ID: "s_1"}) },
		"GET /v1/recordings?tenant=acme":    func() error { _, err := Call(ctx, c, op.ListRecordings(), op.OfTenant{Tenant: "acme"}); return err },
		"GET /v1/sessions/s_1/recording":    func() error { return c.Recording(ctx, io.Discard, "s_1") },
		`POST /v1/sessions {"credential_mode":"operator","domains":["example.com"],"grant":"v4.public.x"}`: func() error {
			_, err := c.Open(ctx, session.OpenRequest{CredentialMode: "operator", Domains: []string{"example.com"}, Grant: grant.ParseToken("v4.public.x")})
			return err
		},
	} {
		if err := call(); err != nil || got != want || key != "Bearer cjop_key" {
			t.Errorf("%s with %q, %v; want %s", got, key, err, want)
		}
	}
}

func TestANameCannotMakeItTheRequestOfSomethingElse(t *testing.T) {
	asked := ""
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { asked = r.Method + " " + r.URL.Path })
	for name, call := range map[string]func() error{
		"revoke-token": func() error {
			return Do(t.Context(), c, op.RevokeToken(), op.TokenNamed{Name: "writer", ID: ".."})
		}, // DELETE /v1/agents/writer
		"agent": func() error {
			return Do(t.Context(), c, op.RemoveAgent(), op.AgentRemoved{OneAgent: op.OneAgent{Name: ".."}})
		},
		"dot":       func() error { return Do(t.Context(), c, op.RevokeAgent(), op.OneAgent{Name: "."}) },
		"operator":  func() error { return Do(t.Context(), c, op.RevokeOperator(), op.OperatorNamed{ID: ".."}) },
		"session":   func() error { return c.Close(t.Context(), "..", false) },
		"browser":   func() error { _, err := c.Drive(t.Context(), "..", browser.Tabs{}); return err },
		"file":      func() error { _, err := c.Drive(t.Context(), "s_1", browser.DeleteFile{Name: ".."}); return err },
		"recording": func() error { return c.Recording(t.Context(), io.Discard, "..") },
		"rule":      func() error { return Do(t.Context(), c, op.RemoveRule(), op.RuleNamed{ID: ".."}) },
		"answer": func() error {
			_, err := Call(t.Context(), c, op.AnswerAccess(), op.AccessAnswered{AccessNamed: op.AccessNamed{ID: ".."}})
			return err
		},
	} {
		if err := call(); problem.CodeOf(err) != problem.NotFound || asked != "" {
			t.Errorf("%s: %v, and %q was asked for", name, err, asked)
		}
	}
}

func TestARefusalKeepsWhatTheControlPlaneSaid(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		p := api.Problem{Code: problem.BadCookie, Detail: "two things", Hint: "look", Errors: []problem.Flaw{{Field: "a", Message: "is bad"}},
			Details: map[string]any{"n": 1.0}}
		_ = json.NewEncoder(w).Encode(p) // a client that has gone is seen there
	})
	check := func(err error) {
		t.Helper()
		p, ok := problem.As(err)
		if !ok || p.Code != problem.BadCookie || p.Message != "two things" || p.Hint != "look" || p.Details["n"] != 1.0 {
			t.Fatalf("%+v", err)
		}
		if flaws, ok := p.Details["errors"].([]problem.Flaw); !ok || len(flaws) != 1 || flaws[0].Field != "a" {
			t.Errorf("%+v", p.Details)
		}
	}
	_, err := Call(t.Context(), c, op.WhoAmI(), op.None{})
	check(err)
	_, err = c.Drive(t.Context(), "s_1", browser.Tabs{})
	check(err)
	_, err = c.Picture(t.Context(), "s_1", browser.PDF{})
	check(err)
	check(c.Recording(t.Context(), io.Discard, "s_1"))
	check(c.AuditExport(t.Context(), io.Discard, ""))
	for _, err := range c.AuditTail(t.Context(), op.AuditQuery{}) {
		check(err)
	}
}

func TestAStreamIsReadLineByLine(t *testing.T) {
	release := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for n := range 3 {
			_, _ = fmt.Fprintf(w, "{\"seq\":%d}\n", n) // a client that has gone is seen there
			_ = http.NewResponseController(w).Flush()
			<-release
		}
	})
	n := int64(0)
	for row, err := range c.AuditTail(t.Context(), op.AuditQuery{}) {
		if err != nil || row.Seq != n {
			t.Fatalf("row %d is %+v, %v", n, row, err)
		}
		n++
		release <- struct{}{} // only now the next is sent
	}
	if n != 3 {
		t.Errorf("%d rows", n)
	}
}

func TestAStreamEndsWithItsContextAndItsReader(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("{}\n")) // a client that has gone is seen there
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var last error
	for _, err := range c.AuditTail(ctx, op.AuditQuery{Follow: true}) {
		cancel(why)
		last = err
	}
	if !errors.Is(last, why) {
		t.Errorf("it ends with %v", last)
	}
	for range c.AuditTail(t.Context(), op.AuditQuery{Follow: true}) {
		break // goleak and the server's end say whether something stays
	}
}

func TestAPartOfAStreamIsNotTheWhole(t *testing.T) {
	long := `{"x":"` + strings.Repeat("x", maxLine) + `"}`
	for name, test := range map[string]struct {
		body  string
		abort bool
		want  string // of the export
		code  string
	}{
		"whole":         {"{}\n{}\n", false, "{}\n{}\n", ""},
		"broken off":    {"{}\n{}\n", true, "{}\n{}\n", problem.ControlPlaneUnreachable},
		"a line beyond": {"{}\n" + long + "\n", false, "{}\n", problem.ControlPlaneUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(test.body)) // a client that has gone is seen there
				if test.abort {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			})
			var out bytes.Buffer
			if err := c.AuditExport(t.Context(), &out, ""); problem.CodeOf(err) != test.code || out.String() != test.want {
				t.Errorf("%.80q, %v", out.String(), err)
			}
		})
	}
}

func TestWhatAnOperationReturnsHasItsType(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/files/a"):
			w.Header().Set("Content-Disposition", "attachment; filename=a")
			_, _ = w.Write([]byte("\x00\xff")) // a client that has gone is seen there
		case strings.HasSuffix(r.URL.Path, "/files/large"):
			for range maxAnswer>>20 + 1 {
				_, _ = w.Write(make([]byte, 1<<20)) // as above
			}
		case strings.HasPrefix(r.Header.Get("Accept"), "image/"):
			_, _ = w.Write([]byte("picture")) // as above
		default:
			_, _ = w.Write([]byte(`{"running":true,"tabs":[]}`)) // as above
		}
	})
	tabs, err := As[browser.TabsResult](c.Drive(t.Context(), "s_1", browser.Tabs{}))
	if err != nil || !tabs.Running {
		t.Errorf("%+v, %v", tabs, err)
	}
	file, err := As[browser.FileContent](c.Drive(t.Context(), "s_1", browser.GetFile{Name: "a"}))
	if err != nil || file.Name != "a" || string(file.Data) != "\x00\xff" {
		t.Errorf("%+v, %v", file, err)
	}
	file, err = As[browser.FileContent](c.Drive(t.Context(), "s_1", browser.GetFile{Name: "large"}))
	if err != nil || len(file.Data) != maxAnswer+1<<20 {
		t.Errorf("a large file: %d bytes, %v", len(file.Data), err)
	}
	if data, err := c.Picture(t.Context(), "s_1", browser.Screenshot{}); err != nil || string(data) != "picture" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := As[browser.FileContent](c.Drive(t.Context(), "s_1", browser.Tabs{})); err == nil {
		t.Error("tabs are taken for a file")
	}
}

func TestAPartOfARecordingIsNotTheWhole(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>")) // a client that has gone is seen there
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	var out bytes.Buffer
	if err := c.Recording(t.Context(), &out, "s_1"); problem.CodeOf(err) != problem.ControlPlaneUnreachable || out.String() != "<html>" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// The control plane of this machine is known by its certificate, and nobody else is taken for it.
func TestTheOwnControlPlaneIsKnownByItsCertificate(t *testing.T) {
	var keys []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Authorization"))
		io.WriteString(w, `{"status":"ok"}`)
	}))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	other := bytes.Clone(server.Certificate().Raw)
	other[len(other)-1] ^= 1
	file := filepath.Join(t.TempDir(), "tls.crt")
	for what, text := range map[string][]byte{"it": append([]byte("# a comment\n"), own...), "another one": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other}), "no certificate": []byte("none"), "no file": nil} {
		keys = nil
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if text != nil {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := NewOwn(base, "key", file)
		_, err := c.Health(t.Context())
		c.CloseIdle()
		if good := what == "it"; (err == nil) != good || (len(keys) == 1) != good {
			t.Errorf("with a file that has %s: %v, and it got %q", what, err, keys)
		}
		if what != "it" && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("with a file that has %s: %v", what, err)
		}
	}
}
