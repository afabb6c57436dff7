package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// fakeServers are MCP servers that do not run.
type fakeServers struct {
	authority *identity.Service
	all       []mcpserver.Status
	added     config.MCPServer
	removed   string
	tested    string
}

func (f *fakeServers) List(ctx context.Context, by identity.Principal, tenant string) ([]mcpserver.Status, error) {
	return f.all, f.authority.Authorize(ctx, by, identity.ServerList, by.TenantOr(tenant))
}

func (f *fakeServers) Add(ctx context.Context, by identity.Principal, s config.MCPServer) (mcpserver.Status, error) {
	if err := f.authority.Authorize(ctx, by, identity.ServerChange, ""); err != nil {
		return mcpserver.Status{}, err
	}
	var many *problem.ValidationError
	if errors.As(s.Validate(), &many) {
		return mcpserver.Status{}, &problem.ValidationError{Code: problem.BadRequest, Flaws: many.Flaws}
	}
	f.added = s
	return mcpserver.Status{MCPServer: s}, nil
}

func (f *fakeServers) Remove(ctx context.Context, by identity.Principal, name string) error {
	if err := f.authority.Authorize(ctx, by, identity.ServerChange, ""); err != nil {
		return err
	}
	f.removed = name
	return nil
}

func (f *fakeServers) Test(ctx context.Context, by identity.Principal, _, name string) (mcpserver.Report, error) {
	if err := f.authority.Authorize(ctx, by, identity.ServerChange, ""); err != nil {
		return mcpserver.Report{}, err
	}
	f.tested = name
	if name == "broken" {
		return mcpserver.Report{}, problem.New(problem.NotFound, "list them", "there is no server %q", name)
	}
	return mcpserver.Report{Name: name, Title: hostile, Offers: mcpserver.Offers{Tools: []*sdk.Tool{{Name: "read", Description: "reads " + hostile}}}, Left: 2, Stderr: "started " + hostile}, nil
}

// withServers is a fixture with MCP servers.
func withServers(t testing.TB, change ...func(*Options)) (*fixture, *fakeServers) {
	servers := &fakeServers{all: []mcpserver.Status{
		{MCPServer: config.MCPServer{Name: "files", Command: []string{"/usr/bin/files", hostile}, Tenants: []string{"*"}, Env: map[string]string{"MODE": "the value of a variable"},
			Secrets: []config.ServerSecret{{Name: "KEY", Secret: "files-key"}}}, Source: mcpserver.SourceFile, State: mcpserver.StateRunning, Tools: 7,
			Instances: []mcpserver.Instance{{Tenant: "acme", Owner: "agent:a_1", Name: "writer", State: mcpserver.StateRunning}, {Tenant: "acme", State: mcpserver.StateRunning}}},
		{MCPServer: config.MCPServer{Name: "search", Command: []string{"/usr/bin/search"}, Tenants: []string{"acme"}, Allow: []string{"example.com"}},
			Source: mcpserver.SourceAdded, State: mcpserver.StatePaused, Tools: -1, Problem: "it ended: " + hostile},
	}}
	w := newFixture(t, append(change, func(o *Options) { o.Servers = servers })...)
	servers.authority = w.identity
	return w, servers
}

func TestSettingsOfATenantAreChangedAndSayByWhom(t *testing.T) {
	w := newFixture(t)
	p := w.get("admin", "/console/settings")
	shows(t, p, http.StatusOK, "<h1>Settings</h1>", "Nobody has changed them.", `value="*"`, "beta", "Forbid accounts", "Add a tenant")
	viewer := w.get("acme viewer", "/console/settings")
	shows(t, viewer, http.StatusOK, "Your tenant", "web 3000")
	hides(t, viewer, `method="post" action="/console/settings`, "beta")
	shows(t, w.get("acme admin", "/console/settings?tenant=*"), http.StatusForbidden)
	shows(t, w.get("acme admin", "/console/settings?tenant=beta"), http.StatusNotFound)
	shows(t, w.post("acme viewer", "/console/settings", "scope", "acme", "mode", "report"), http.StatusForbidden)
	shows(t, w.post("acme admin", "/console/settings", "scope", "*", "mode", "report"), http.StatusForbidden)
	shows(t, w.post("acme admin", "/console/settings", "scope", "beta", "mode", "report"), http.StatusNotFound)
	shows(t, w.post("acme operator", "/console/settings", "scope", "acme", "proxy", "many", "note", "kept"), http.StatusUnprocessableEntity, `id="f-proxy-wrong"`, `value="kept"`, `value="many"`)
	if _, err := w.book.PutSettings(w.ctx, w.admin, egress.Settings{Meta: egress.Meta{Tenant: "acme"}, MCP: []string{"files"}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if set, _, err := w.book.ShowSettings(w.ctx, w.admin, "acme", ""); err != nil || !slices.Equal(set.MCP, []string{"files"}) {
			t.Errorf("the form has changed what it does not show: %v, %v", set.MCP, err)
		}
	}()
	p = w.post("acme operator", "/console/settings", "scope", "acme", "proxy", "700", "mode", "report")
	shows(t, w.follow("acme operator", p), http.StatusOK, "apply at once", `value="700"`, "Changed by operator operator,")
	w.post("admin", "/console/settings", "scope", "*", "llm", "33")
	shows(t, w.get("admin", "/console/settings?tenant=*"), http.StatusOK, "Settings of all tenants", `value="33"`, "Changed by admin,")
	if _, effective, err := w.book.ShowSettings(w.ctx, w.admin, "acme", ""); err != nil || effective.Rates.LLM != 33 || effective.Rates.Proxy != 700 {
		t.Errorf("%+v %v", effective, err)
	}
}

func TestPolicyOfATenantIsForAdminsOfAll(t *testing.T) {
	w := newFixture(t)
	for _, path := range []string{"tenants", "tenants/acme/policy", "tenants/acme/disconnect"} {
		p := w.post("acme admin", "/console/settings/"+path, "id", "new", "accounts", "forbidden")
		if p.status != http.StatusForbidden {
			shows(t, w.follow("acme admin", p), http.StatusOK, `class="told bad" role="alert"`)
		}
	}
	if w.identity.OperatorMode(w.ctx, "acme") != nil {
		t.Fatal("the policy was changed by who may not")
	}
	p := w.post("admin", "/console/settings/tenants/acme/policy", "accounts", "forbidden")
	w.events(0, audit.Event{}) // the record of it is written
	shows(t, w.follow("admin", p), http.StatusOK, "can no longer open sessions with accounts", `badge bad">forbidden`, `data-label="Changed">admin, `)
	if w.identity.OperatorMode(w.ctx, "acme") == nil {
		t.Error("the policy was not changed")
	}
	shows(t, w.follow("admin", w.post("admin", "/console/settings/tenants/acme/policy", "accounts", "allowed")), http.StatusOK, "may have sessions with accounts")
	if p := w.post("acme admin", "/console/settings/tenants/acme/policy", "permissions", "forbidden"); w.identity.AccountPermissions(w.ctx, "acme") != nil {
		t.Fatalf("permissions were forbidden by who may not: %d", p.status)
	}
	shows(t, w.follow("admin", w.post("admin", "/console/settings/tenants/acme/policy", "permissions", "forbidden")), http.StatusOK, "need a grant for each session", "Allow permissions")
	if w.identity.AccountPermissions(w.ctx, "acme") == nil || w.identity.OperatorMode(w.ctx, "acme") != nil {
		t.Error("permissions are not forbidden, or accounts are")
	}
	shows(t, w.follow("admin", w.post("admin", "/console/settings/tenants/acme/policy", "permissions", "allowed")), http.StatusOK, "may be permitted accounts")
	shows(t, w.follow("admin", w.post("admin", "/console/settings/tenants/acme/disconnect")), http.StatusOK, "of acme ended")
	shows(t, w.post("admin", "/console/settings/tenants", "id", hostile), http.StatusUnprocessableEntity, `id="f-id-wrong"`, "&lt;img")
	shows(t, w.follow("admin", w.post("admin", "/console/settings/tenants", "id", "gamma", "forbid", "yes")), http.StatusOK, "The tenant gamma is made")
}

func TestOperatorsAreMadeAndRevoked(t *testing.T) {
	w := newFixture(t)
	p := w.get("acme admin", "/console/settings/people")
	shows(t, p, http.StatusOK, "Add an operator", "Your passkeys", "this one", `class="chip">you`)
	hides(t, p, "beta", `name="tenant"`)
	viewer := w.get("acme viewer", "/console/settings/people")
	shows(t, viewer, http.StatusOK, "Signed in", "Your passkeys")
	hides(t, viewer, "Add an operator", "/settings/people/")
	shows(t, w.post("acme operator", "/console/settings/people", "name", "x", "role", "viewer"), http.StatusForbidden)
	for name, pairs := range map[string][]string{"a role": {"name", "kept", "role", "king"}, "a life": {"name", "kept", "role", "viewer", "life", "soon"}, "all tenants": {"name", "kept", "role", "viewer", "tenant", ""}} {
		shows(t, w.post("admin", "/console/settings/people", pairs...), http.StatusUnprocessableEntity, `value="kept"`)
		_ = name
	}
	p = w.post("acme admin", "/console/settings/people", "name", "ann", "role", "viewer", "life", "24h")
	shows(t, p, http.StatusOK, identity.PrefixOperator, "The key of ann", "in 23 h")
	hides(t, p, "mcpServers")
	all, err := w.identity.Operators(w.ctx, w.admin, "acme")
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	for _, o := range all {
		if strings.HasPrefix(o.Name, "ann") {
			id = o.ID
		}
	}
	shows(t, w.post("beta admin", "/console/settings/people/"+id+"/revoke"), http.StatusNotFound)
	shows(t, w.post("acme admin", "/console/settings/people/"+id+"/rotate"), http.StatusOK, identity.PrefixOperator, "The new key of")
	all, _ = w.identity.Operators(w.ctx, w.admin, "acme")
	for _, o := range all {
		if strings.HasPrefix(o.Name, "ann") && o.RevokedAt.IsZero() {
			id = o.ID
		}
	}
	shows(t, w.follow("acme admin", w.post("acme admin", "/console/settings/people/"+id+"/revoke")), http.StatusOK, "The key is revoked.", `badge bad">revoked`)
}

func TestKeysAreForAdminsOfTheInstallation(t *testing.T) {
	w := newFixture(t)
	shows(t, w.get("admin", "/console/settings/keys"), http.StatusOK, "vault.key", "the old keys are destroyed", "signs")
	tenant := w.get("acme admin", "/console/settings/keys")
	shows(t, tenant, http.StatusOK, "Not for you to see")
	hides(t, tenant, "vault.key", `method="post" action="/console/settings`)
	for path, want := range map[string]string{"vault": "The vault has a new key.", "grants": "New grants are signed with"} {
		shows(t, w.post("acme admin", "/console/settings/keys/"+path), http.StatusForbidden)
		shows(t, w.follow("admin", w.post("admin", "/console/settings/keys/"+path)), http.StatusOK, want)
	}
	if all, err := w.accounts.GrantKeys(w.ctx, w.admin); err != nil || len(all) != 2 {
		t.Errorf("%v %v", all, err)
	}
}

func TestMachineShowsTheConfigurationWithoutSecrets(t *testing.T) {
	w := newFixture(t, func(o *Options) {
		o.Config.Database = "postgres://clawjail:opensesame@db.example.com/clawjail"
		o.Config.HostBrowser.Color, o.Config.HostBrowser.AttachOnly = "#00FF00", true
	})
	w.machine.Templates[0].Problem, w.machine.Orphans = "bad "+hostile, []string{"cj " + hostile}
	p := w.get("acme viewer", "/console/settings/machine")
	shows(t, p, http.StatusOK, "v1.2.3", "PostgreSQL", "bad &lt;img", "clawjail reap", "20 GiB free of 24 GiB")
	hides(t, p, "opensesame", "db.example.com")
	shows(t, w.get("acme viewer", "/console/settings/host-browser"), http.StatusOK, "#00FF00", "it only attaches")
	if theme := string(themeOf("#C2410C", "#00FF00")); !strings.Contains(theme, "--host-browser:#00ff00;--on-host-browser:#000000;") || !strings.Contains(theme, "--accent:#c2410c;--on-accent:#ffffff;") {
		t.Error(theme)
	}
	for _, text := range []string{"#00FF00", "#FFFFFF", "#000000", "nothing"} {
		for _, ground := range []string{lightGround, darkGround} {
			c, ok := parseColor(text)
			g, _ := parseColor(ground)
			if ok && contrast(toward(c, g), g) < readable {
				t.Errorf("%s cannot be read on %s", text, ground)
			}
		}
	}
}

func TestServersAreAddedTestedAndRemoved(t *testing.T) {
	w, servers := withServers(t)
	const path = "/console/settings/servers"
	p := w.get("admin", path)
	shows(t, p, http.StatusOK, "of the configuration", "not known yet", "it ended: &lt;img", "secrets: files-key", "for writer, all of acme", path+"/search/remove", "Add a server")
	hides(t, p, "the value of a variable", path+"/files/remove")
	viewer := w.get("acme viewer", path)
	shows(t, viewer, http.StatusOK, "files")
	hides(t, viewer, `method="post" action="`+path)
	shows(t, w.post("acme admin", path, "name", "x", "command", "/bin/x"), http.StatusForbidden)
	shows(t, w.post("acme admin", path+"/search/remove"), http.StatusForbidden)
	if servers.removed != "" {
		t.Error("it was removed by who may not")
	}
	shows(t, w.post("admin", path, "name", "good", "command", "relative"), http.StatusUnprocessableEntity, `id="f-command-wrong"`)
	shows(t, w.post("admin", path, "name", "BAD", "command", "relative", "allow", "kept"), http.StatusUnprocessableEntity, `id="f-name-wrong"`, `value="BAD"`, `value="kept"`, "relative</textarea>")
	p = w.post("admin", path, "name", "fresh", "command", "/usr/bin/fresh\r\n--fast\r\n", "tenants", "acme beta", "allow", "example.com", "tools", "read*", "resources", "yes", "prompts", "")
	if p.location != path || len(servers.added.Command) != 2 || len(servers.added.Tenants) != 2 || servers.added.Network != "gateway" || len(servers.added.Tools) != 1 || !servers.added.OffersResources() || servers.added.OffersPrompts() {
		t.Errorf("to %s: %+v\n%s", p.location, servers.added, p.body)
	}
	shows(t, w.post("admin", path+"/files/test"), http.StatusOK, "Test of files", "reads &lt;img", "2 tools of it not offered", "started &lt;img")
	shows(t, w.post("admin", path+"/broken/test"), http.StatusNotFound, "there is no server")
	shows(t, w.follow("admin", w.post("admin", path+"/search/remove")), http.StatusOK, "search is removed.")
	shows(t, newFixture(t).get("admin", path), http.StatusNotFound)
}

func TestPageOfManyAgentsIsSmall(t *testing.T) {
	w := newFixture(t)
	for n := range 200 {
		if _, _, err := w.identity.CreateAgent(w.ctx, w.admin, "acme", "bot-"+strings.Repeat("x", n%30)+string(rune('a'+n%26))+string(rune('a'+n/26)), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	p := w.get("admin", "/console/agents")
	shows(t, p, http.StatusOK, "200 agents")
	if len(p.body) > 100<<10 {
		t.Errorf("the page has %d bytes", len(p.body))
	}
}

func BenchmarkAgentsPage(b *testing.B) {
	w := newFixture(b)
	for n := range 200 {
		if _, _, err := w.identity.CreateAgent(w.ctx, w.admin, "acme", "bot-"+strings.Repeat("x", n%30)+string(rune('a'+n%26))+string(rune('a'+n/26)), time.Hour); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if p := w.get("admin", "/console/agents"); p.status != http.StatusOK {
			b.Fatal(p.body)
		}
	}
}
