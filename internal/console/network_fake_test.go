package console

import (
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/vault"
)

// must ends the test with an error.
func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// agent makes an agent, and returns it as a principal.
func (w *fixture) agent(tenant, name string) identity.Principal {
	w.t.Helper()
	key, _, err := w.identity.CreateAgent(w.ctx, w.admin, tenant, name, identity.NeverExpires)
	w.must(err)
	by, err := w.identity.Authenticate(w.ctx, key.Reveal(), netip.Addr{})
	w.must(err)
	return by
}

// cookie is one of a site, with a value that must be seen nowhere.
func cookie(domain, name, value string, life time.Duration) cookies.Cookie {
	c := cookies.Cookie{Name: name, Value: secret.New([]byte(value)), Domain: "." + domain, Path: "/", HTTPOnly: true, Secure: true, SameSite: "Lax",
		SourceScheme: "Secure", SourcePort: 443, Priority: "Medium", Expires: cookies.Session}
	if life != 0 {
		c.Expires = float64(time.Now().Add(life).Unix())
	}
	return c
}

const cookieValue = "the-value-of-a-cookie"

// account keeps an account with two cookies.
func (w *fixture) account(tenant, domain string, life time.Duration) {
	w.t.Helper()
	_, err := w.accounts.Import(w.ctx, w.admin, credential.Import{Tenant: tenant, Domain: domain, Cookies: []cookies.Cookie{
		cookie(domain, "sid", cookieValue, life), cookie(domain, "theme", cookieValue, 0)}})
	w.must(err)
}

// oldAccount is an account that was logged in to long ago.
func (w *fixture) oldAccount(tenant, domain string, left time.Duration) {
	w.t.Helper()
	w.stored = 90 * 24 * time.Hour
	defer func() { w.stored = 0 }()
	w.account(tenant, domain, left)
}

// rule makes a rule.
func (w *fixture) rule(tenant, agent string, action policy.Action, target, note string) egress.Rule {
	w.t.Helper()
	plain, err := policy.ParseURL(target)
	w.must(err)
	plain.Action = action
	out, err := w.book.AddRule(w.ctx, w.admin, egress.Rule{Meta: egress.Meta{Tenant: tenant, Agent: agent, Note: note}, Rule: plain})
	w.must(err)
	return out
}

// ask is an agent's request for access.
func (w *fixture) ask(by identity.Principal, kind egress.AccessKind, target, reason string) egress.AccessRequest {
	w.t.Helper()
	out, err := w.book.Ask(w.ctx, by, kind, target, reason, 0)
	w.must(err)
	return out
}

func (w *fixture) service(tenant, agent, name string) egress.Service {
	w.t.Helper()
	out, err := w.book.PutService(w.ctx, w.admin, egress.Service{Meta: egress.Meta{Tenant: tenant, Agent: agent, Note: hostile}, Name: name,
		Upstream: egress.Upstream{BaseURL: "https://api.example.com/v1"}, Allow: []egress.Allowance{{Methods: []string{"GET"}, Path: "/issues/**"}},
		Inject: egress.Injection{Type: egress.InjectBearer}, Env: map[string]string{"API_URL": "{url}"}})
	w.must(err)
	return out
}

func (w *fixture) provider(tenant, name string) egress.Provider {
	w.t.Helper()
	out, err := w.book.PutProvider(w.ctx, w.admin, egress.Provider{Meta: egress.Meta{Tenant: tenant, Note: hostile}, Name: name,
		Upstream: egress.Upstream{BaseURL: "https://models.example.com"}, Wire: egress.WireOpenAI, Models: []string{"gpt-*"},
		Prices: []egress.Price{{Model: "gpt-*", Input: 2.5, Output: 10}}})
	w.must(err)
	return out
}

// furnishNetwork puts credentials, rules, services, requests and usage into a fixture.
func furnishNetwork(w *fixture) {
	w.account("acme", "example.com", 30*24*time.Hour)
	w.oldAccount("acme", "example.org", 24*time.Hour)
	w.account("beta", "example.net", 90*24*time.Hour)
	w.must(w.accounts.PutSecret(w.ctx, w.admin, vault.SecretName{Tenant: "acme", Service: "github"}, secret.New([]byte("ghp_secret"))))
	builder, writer := w.agent("acme", "packer"), w.agent("acme", "scribe")
	w.must(w.accounts.PutSecret(w.ctx, w.admin, vault.SecretName{Tenant: "acme", Agent: builder.ID, Service: "openai"}, secret.New([]byte("sk-secret"))))
	for _, domains := range [][]string{{"example.com"}, {"example.com", "example.org"}} {
		_, _, err := w.accounts.IssueGrant(w.ctx, w.who["acme operator"], grant.Request{Tenant: "acme", Domains: domains, EgressDomains: []string{"cdn.example.net"}})
		w.must(err)
	}
	_, err := w.accounts.AllowAccount(w.ctx, w.who["acme operator"], credential.Allow{Domain: "example.com", Agent: "scribe", Hours: "08-18"})
	w.must(err)
	record := audit.Intent{Action: "session.inject", Tenant: "acme", Actor: w.who["acme operator"].Actor(), Session: "s_1",
		Detail: audit.NewDetail(audit.Fields{"domains": []string{"example.com"}})}
	pending, err := w.log.Begin(w.ctx, record)
	w.must(err)
	pending.End(audit.Outcome{Result: audit.OK})
	w.rule("acme", "", policy.Allow, "*.example.com", "the company's own sites")
	w.rule("acme", builder.ID, policy.Allow, "registry.example.org:8443", "")
	w.rule("", "", policy.Deny, "tracker.example.net", hostile)
	w.service("acme", "", "github-api")
	w.service("acme", builder.ID, "tracker")
	w.provider("acme", "openai")
	w.ask(builder, egress.AccessHost, "api.example.org", "the build needs its packages "+hostile)
	w.ask(writer, egress.AccessHost, "news.example.com:8080", "to read what is new")
	asked := w.ask(writer, egress.AccessHost, "wiki.example.com", "to look something up")
	_, err = w.book.Answer(w.ctx, w.who["acme operator"], asked.ID, egress.AccessAnswer{Comment: "read the mirror instead"})
	w.must(err)
	for n := range 200 {
		model := []string{"gpt-4o", "gpt-4o-mini", hostile}[n%3]
		w.must(w.book.Charge(w.ctx, egress.Who{Tenant: "acme", Agent: []string{builder.ID, writer.ID}[n%2]}, "openai", model, 1,
			egress.Tokens{Input: int64(n * 13), Output: int64(n * 5), MicroCost: int64(n * 900)}))
	}
	_, err = w.book.PutSettings(w.ctx, w.admin, egress.Settings{Meta: egress.Meta{Tenant: "acme", Agent: builder.ID}, Budget: egress.Budget{TokensPerDay: 250_000, CostPerDay: 12}})
	w.must(err)
}
