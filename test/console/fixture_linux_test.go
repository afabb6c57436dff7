//go:build linux

package console

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
	"github.com/clawjail/clawjail/test/testkit"
)

// hostileText is what others write into the names and texts that the console shows.
const hostileText = `<img src=x onerror="document.title='got'">`

// The name under which jails of a furnished instance reach its site.
const (
	furnishedHost   = "shop.example.org"
	furnishedDomain = "example.org"
)

// furnished is an instance that has something of everything that a page of the console shows. Agents, pages and models of it
// write [hostileText] wherever they can.
//
// For other tests of the console: newFurnished makes one, link is a link that signs in with a key, and operators are the keys
// of the roles.
type furnished struct {
	*testkit.Deployment
	site *httptest.Server
	// keys are those of an operator of each role, of the tenant default.
	keys map[string]string
	// open is a clean session at the site, and account one that is logged in there.
	open, account session.Session
}

// newFurnished starts the instance and fills it. more is added to its configuration.
func newFurnished(t *testing.T, more string) *furnished {
	t.Helper()
	f := &furnished{site: furnishedSite(t), keys: map[string]string{}}
	port := f.site.Listener.Addr().(*net.TCPAddr).Port
	f.Deployment = testkit.NewEstate(t, fmt.Sprintf("gateway:\n  private_destinations:\n    - {host: %s, address: 127.0.0.1, ports: [%d]}\n%s", furnishedHost, port, more))
	f.people()
	f.ways(port)
	f.accounts()
	f.agents()
	f.sessions()
	return f
}

// must fails the test when what was asked for did not happen.
func (f *furnished) must(what string, err error) {
	f.T.Helper()
	if err != nil {
		f.T.Fatalf("%s: %v\nlog of the instance:\n%.4000s", what, err, f.Log())
	}
}

// at is an address of the site, as jails have it.
func (f *furnished) at(path string) string {
	return fmt.Sprintf("http://%s:%d%s", furnishedHost, f.site.Listener.Addr().(*net.TCPAddr).Port, path)
}

// as is a client with somebody's key.
func (f *furnished) as(key string) *client.Client {
	f.T.Helper()
	base, err := url.Parse(f.URL())
	f.must("read the address", err)
	c := client.New(base, key)
	f.T.Cleanup(c.CloseIdle)
	return c
}

// people are a second tenant, and operators of every role.
func (f *furnished) people() {
	ctx := f.T.Context()
	_, err := client.Call(ctx, f.API, op.CreateTenant(), op.NewTenant{Body: op.With(op.TenantRequest{ID: "acme", ForbidOperatorMode: true})})
	f.must("create a tenant", err)
	for _, role := range []string{"viewer", "operator", "admin"} {
		f.keys[role] = f.operator(op.OperatorRequest{Name: "the-" + role, Tenant: "default", Role: role, Life: "720h"}).Key
	}
	left := f.operator(op.OperatorRequest{Name: "left", Tenant: "acme", Role: "operator"}).Operator
	f.must("revoke an operator", client.Do(ctx, f.API, op.RevokeOperator(), op.OperatorNamed{ID: left.ID}))
}

func (f *furnished) operator(r op.OperatorRequest) op.IssuedOperator {
	made, err := client.Call(f.T.Context(), f.API, op.CreateOperator(), op.NewOperator{Body: op.With(r)})
	f.must("create an operator", err)
	return made
}

// ways are secrets, services, a provider of models and rules.
func (f *furnished) ways(port int) {
	ctx := f.T.Context()
	for _, name := range []string{"forge", "models"} {
		f.must("put a secret", f.API.PutSecret(ctx, vault.SecretName{Tenant: "default", Service: name}, secret.New([]byte("value-of-"+name))))
	}
	site, loopback := fmt.Sprintf("http://%s:%d", furnishedHost, port), netip.MustParseAddr("127.0.0.1")
	_, err := client.Call(ctx, f.API, op.PutService(), op.NewService{Body: op.With(op.ServiceRequest{Whose: op.Whose{Tenant: "default"}, Name: "forge", BaseURL: site, Address: loopback,
		Allow: []egress.Allowance{{Methods: []string{"GET"}, Path: "/repos/**"}}, Inject: egress.Injection{Type: "bearer"}, Note: hostileText})})
	f.must("put a service", err)
	_, err = client.Call(ctx, f.API, op.PutProvider(), op.NewProvider{Body: op.With(op.ProviderRequest{Whose: op.Whose{Tenant: "default"}, Name: "models", BaseURL: site, Address: loopback, Wire: "openai",
		Models: []string{"gpt-*"}, Prices: []egress.Price{{Model: "gpt-*", Input: 2.5, Output: 10}}, Note: hostileText})})
	f.must("put a provider", err)
	for _, r := range []op.RuleRequest{
		{Whose: op.Whose{Tenant: "default"}, Action: policy.Allow, Target: "*.example.org:443", Name: "shops", Note: hostileText},
		{Whose: op.Whose{Tenant: "default"}, Action: policy.Deny, Target: "tracker.example.net", Priority: 10},
		{Whose: op.Whose{AllTenants: true}, Action: policy.Allow, Target: "docs.example.com", Methods: []string{"GET", "HEAD"}, For: "72h"},
		{Whose: op.Whose{Tenant: "acme"}, Action: policy.Allow, Target: "api.example.com", Once: true},
	} {
		_, err := client.Call(ctx, f.API, op.AddRule(), op.NewRule{Body: op.With(r)})
		f.must("add a rule", err)
	}
}

// accounts are of every age, and one is bound to a machine that is not this one.
func (f *furnished) accounts() {
	ctx, now := f.T.Context(), time.Now()
	one := func(name, domain string, expires float64) cookies.Cookie {
		return cookies.Cookie{Name: name, Value: secret.New([]byte("v")), Domain: domain, Path: "/", Expires: expires, Session: expires == cookies.Session, HTTPOnly: true, SourcePort: -1}
	}
	for domain, list := range map[string][]cookies.Cookie{
		furnishedDomain: {one("shop_session", furnishedHost, float64(now.Add(60*24*time.Hour).Unix()))},
		"example.net":   {one("sid", ".example.net", float64(now.Add(20*time.Hour).Unix()))},
		"google.com":    {one("__Secure-1PSIDTS", ".google.com", float64(now.Add(90*24*time.Hour).Unix()))},
	} {
		for n := range list {
			list[n].Secure = strings.HasPrefix(list[n].Name, "__Secure-")
		}
		_, err := f.API.ImportLogin(ctx, "default", domain, weblogin.Login{Cookies: list}, op.AccountRules{Scopes: []string{"tools", "cdp"}, MaxSessions: new(2)})
		f.must("import an account", err)
	}
	issued, err := client.Call(ctx, f.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Tenant: "default", Domains: []string{"example.net"}, TTL: "10m"})})
	f.must("issue a grant", err)
	_, err = client.Call(ctx, f.API, op.RevokeGrant(), op.GrantNamed{ID: issued.Grant.ID, Tenant: "default"})
	f.must("revoke a grant", err)
	_, err = client.Call(ctx, f.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Tenant: "default", Domains: []string{"example.net"}, EgressDomains: []string{"cdn.example.com"}})})
	f.must("issue a grant", err)
}

// agents are one in a jail that talks, one whose program ends, and one elsewhere that asks for access.
func (f *furnished) agents() {
	ctx := f.T.Context()
	ask := `curl -s -H "Content-Type: application/json" -d "{\"model\":\"gpt-small\",\"messages\":[]}" http://gateway:3000/v1/chat/completions >/dev/null; curl -s http://tracker.example.net/ >/dev/null`
	talk := `echo "reading the list of orders"; echo '` + strings.ReplaceAll(hostileText, `'`, `'\''`) + `'; echo "{\"level\":\"info\",\"text\":\"42 orders, 3 of them new\"}"; echo "a warning" >&2; ` + ask + `; exec sleep infinity`
	f.Sync(fmt.Sprintf("clawbots:\n  - name: buyer\n    workspace: ./workspaces/orders\n    command: [/bin/sh, -c, %q]\n    allow: [%s, \"deny: tracker.example.net\"]\n"+
		"  - name: restless\n    command: [/bin/sh, -c, \"exit 3\"]\n", talk, furnishedHost))
	f.Running("buyer")
	_, err := client.Call(ctx, f.API, op.StartProcess(), op.NewProcess{Name: "buyer", Body: op.With(op.ProcessRequest{Tenant: "default", Argv: []string{"/bin/sleep", "1000"}, Jail: &op.ProcessJail{Name: "buyer"}})})
	f.must("start a program", err)
	made, err := client.Call(ctx, f.API, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: "clerk", Tenant: "default", Life: "720h"})})
	f.must("create an agent", err)
	clerk := f.as(made.Key)
	_, err = client.Call(ctx, clerk, op.AskForAccess(), op.NewAccess{Body: op.With(op.AccessQuestion{Kind: egress.AccessHost, Target: "prices.example.com", Reason: "The list of prices is there. " + hostileText})})
	f.must("ask for access", err)
	revoked, err := client.Call(ctx, f.API, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: "gone", Tenant: "acme"})})
	f.must("create an agent", err)
	f.must("revoke an agent", client.Do(ctx, f.API, op.RevokeAgent(), op.OneAgent{Name: revoked.Agent.Name, InTenant: op.InTenant{Tenant: "acme"}}))
	testenv.Eventually(f.T, 30*time.Second, func() bool {
		used, err := client.Call(ctx, f.API, op.ListUsage(), op.UsageSince{})
		return err == nil && len(used.Usage) > 0
	}, "what the agent has used of models is not written down")
	testenv.Eventually(f.T, 30*time.Second, func() bool {
		s := f.Show("restless")
		return s.Jail != nil && s.Jail.Restarts > 0
	}, "the agent whose program ends is not started again")
}

// sessions are a clean one at a page with a hostile title, one with an account, and one that has ended.
func (f *furnished) sessions() {
	ctx := f.T.Context()
	begin := func(r session.OpenRequest, path string) session.Session {
		s, err := f.API.Open(ctx, r)
		f.must("open a session", err)
		f.T.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			f.must("close a session", f.API.Close(ctx, s.ID, true))
		})
		_, err = f.API.Navigate(ctx, s.ID, browser.Navigate{URL: f.at(path)})
		f.must("go to a page", err)
		_, err = f.API.Picture(ctx, s.ID, browser.Screenshot{})
		f.must("take a picture", err)
		return s
	}
	f.open = begin(session.OpenRequest{Tenant: "default", Label: hostileText, Record: session.RecordAudit}, "/?q="+url.QueryEscape(hostileText)+"#"+hostileText)
	issued, err := client.Call(ctx, f.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Tenant: "default", Domains: []string{furnishedDomain}})})
	f.must("issue a grant", err)
	f.account = begin(session.OpenRequest{Tenant: "default", Label: "orders of the week", CredentialMode: session.ModeOperator, Domains: []string{furnishedDomain},
		Grant: grant.ParseToken(issued.Token)}, "/orders")
	ended, err := f.API.Open(ctx, session.OpenRequest{Tenant: "default", Label: "done for today"})
	f.must("open a session", err)
	f.must("close a session", f.API.Close(ctx, ended.ID, true))
	_, err = f.API.SessionToken(ctx, f.open.ID, api.TokenRequest{Scope: "view"})
	f.must("share a session", err)
}

// furnishedSite is a shop whose title is hostile, and a provider of models.
func furnishedSite(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"1","object":"chat.completion","model":"gpt-small","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":18340,"completion_tokens":912,"total_tokens":19252}}`)
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		title := "Orders"
		if r.URL.Path == "/" {
			title = strings.ReplaceAll(hostileText, "<", "&lt;")
		}
		fmt.Fprintf(w, `<!doctype html><title>%s</title><style>body{font:16px sans-serif;margin:0;color:#223}header{background:#1f4d7a;color:#fff;padding:20px 32px;font-size:22px}main{padding:24px 32px;display:grid;grid-template-columns:repeat(3,1fr);gap:20px}section{border:1px solid #cdd6e0;border-radius:8px;padding:18px}b{display:block;font-size:20px;margin-bottom:6px}</style>`+
			`<header>The paper shop</header><main><section><b>42 orders</b>this week</section><section><b>3 new</b>since this morning</section><section><b>1 late</b>by two days</section></main>`, title)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}
