package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// furnishAgents puts agents of all kinds into a fixture, and something into their settings.
func furnishAgents(w *fixture) {
	w.agentWith("acme", "writer")
	w.agentWith("acme", "reader")
	w.agents.all[1].Jail.Phase, w.agents.all[1].Jail.Problem, w.agents.all[1].Jail.Hint = "failed", "the template clawbot is not there", "build it: clawjail template build clawbot"
	w.agents.all[1].Jail.Usage = nil
	for _, name := range []string{"outside", "gone"} {
		if _, _, err := w.identity.CreateAgent(w.ctx, w.admin, "beta", name, identity.NeverExpires); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.identity.RevokeAgent(w.ctx, w.admin, "beta", "gone"); err != nil {
		w.t.Fatal(err)
	}
	rule, err := policy.ParseURL("docs.example.com")
	if err != nil {
		w.t.Fatal(err)
	}
	rule.Action = policy.Allow
	if _, err := w.book.AddRule(w.ctx, w.admin, egress.Rule{Meta: egress.Meta{Tenant: "acme", Note: "for " + hostile}, Rule: rule}); err != nil {
		w.t.Fatal(err)
	}
	w.agents.plan = agent.Plan{Warnings: []string{"the workspace of " + hostile + " has no bound"}, Steps: []agent.Step{
		{Name: "dev-bot", Verb: agent.Create, Why: []string{"it is new"}, Driver: "linux", Source: "clawbot", Exposes: []string{"/srv/" + hostile + " (rw)"}},
		{Name: "writer", Verb: agent.Restart, Why: []string{"limits.memory: 512MiB → 1GiB"}, Driver: "linux", Source: "clawbot"},
		{Name: "old", Verb: agent.Remove, Why: []string{"it is not in the file"}, Driver: "linux", Source: "clawbot"},
		{Name: "reader", Verb: agent.Unchanged, Driver: "linux", Source: "clawbot"}, {Name: "extra", Verb: agent.Extra}}}
	w.agents.steps = []agent.Step{{Name: "dev-bot", Verb: agent.Create}, {Name: "dev-bot", Verb: agent.Create, Done: true, Took: 312},
		{Name: "writer", Verb: agent.Restart}, {Name: "writer", Verb: agent.Restart, Problem: "the workspace " + hostile + " is not there", Code: "not_found", Hint: "make it"}}
}

// shows fails when a page is not what it must be, or has what was hostile as markup.
func shows(t *testing.T, p page, status int, texts ...string) {
	t.Helper()
	_, body, _ := strings.Cut(p.body, "<main")
	if p.status != status {
		t.Errorf("status %d, not %d (to %s)\n%s", p.status, status, p.location, body)
		return
	}
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Errorf("%q is not in\n%s", text, body)
		}
	}
	if strings.Contains(p.body, hostile) {
		t.Error("something hostile is markup")
	}
}

func hides(t *testing.T, p page, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			t.Errorf("%q is in\n%s", text, p.body)
		}
	}
}

func TestAgentsAreListedWithWhatIsKnownOfThem(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	all, err := w.identity.Agents(w.ctx, w.admin, "acme")
	if err != nil {
		t.Fatal(err)
	}
	w.sessions.all = append(w.sessions.all, session.Session{ID: "s_1", Tenant: "acme", OpenedBy: "agent:" + all[0].ID, State: session.StateReady})
	p := w.get("admin", "/console/agents")
	shows(t, p, http.StatusOK, "<h1>Agents</h1>", "4 agents", `href="/console/agents/acme/writer"`, `class="badge good">running`, `class="badge bad">revoked`, "no jail",
		"the template clawbot is not there", `data-label="Tenant">beta`, "in 2 days", "Add an agent", `data-label="Sessions" class="number-cell">1<`)
	shows(t, w.get("admin", "/console/agents?find=READ"), http.StatusOK, "1 of 4 agents", "acme/reader")
	hides(t, w.get("admin", "/console/agents?find=READ"), "acme/writer")
	shows(t, w.get("admin", "/console/agents?state=revoked"), http.StatusOK, "1 of 4 agents", "beta/gone")
	shows(t, w.get("admin", "/console/agents?find=%3Cimg"), http.StatusOK, "2 of 4 agents")
	// A viewer of a tenant sees that tenant's, and nothing to do.
	p = w.get("acme viewer", "/console/agents")
	shows(t, p, http.StatusOK, "2 agents")
	hides(t, p, "beta", "Add an agent", "Plan of clawbots.yml", ">Tenant<")
	// Without a host daemon nobody knows how they are, and none that has a jail is said to have none.
	w.agents.lost = problem.New(problem.HostdUnreachable, "start it", "the host daemon does not answer")
	p = w.get("acme viewer", "/console/agents?find=writer")
	shows(t, p, http.StatusOK, "The state of the jails is unknown now", `class="badge warn">not watched`)
	hides(t, p, "no jail", ">running<")
	p = w.get("acme viewer", "/console/")
	shows(t, p, http.StatusOK, "<dd>? <small>of ", `class="badge warn">not watched`)
	shows(t, newFixture(t).get("admin", "/console/agents"), http.StatusOK, "No agents yet", `href="/console/agents/add"`)
}

func TestAgentsAreListedAHundredAPage(t *testing.T) {
	w := newFixture(t)
	for n := range 102 {
		if _, _, err := w.identity.CreateAgent(w.ctx, w.admin, "acme", fmt.Sprintf("bot-%03d", n), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	first := w.get("admin", "/console/agents?find=bot")
	shows(t, first, http.StatusOK, "bot-099", `href="/console/agents?find=bot&amp;from=100"`)
	hides(t, first, "bot-100", "Previous")
	second := w.get("admin", "/console/agents?find=bot&from=100")
	shows(t, second, http.StatusOK, "bot-101", "101 to 102", "Previous")
	hides(t, second, "bot-099", ">Next<")
}

func TestAgentIsShownWithItsJail(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	p := w.get("acme operator", "/console/agents/acme/writer")
	shows(t, p, http.StatusOK, "<h1>writer", "10.86.0.7", "470 MiB of 512 MiB", "has hit it", "9 of 64", "dedicated", "What it exposes", "/console/agents/acme/writer/restart",
		"/state and the workspace stay", "is deleted for good", "1 good token")
	hides(t, p, "the value of a variable")
	if p := w.send("acme operator", http.MethodGet, "/console/agents/acme/writer", nil, func(r *http.Request) { r.Header.Set("HX-Request", "true") }); strings.Contains(p.body, "<html") ||
		!strings.Contains(p.body, `id="agent-state"`) {
		t.Error("its state is not renewed by itself:\n" + p.body)
	}
	viewer := w.get("acme viewer", "/console/agents/acme/writer")
	shows(t, viewer, http.StatusOK, "<h1>writer")
	hides(t, viewer, `method="post" action="/console/agents`, "/writer/log")
	for _, path := range []string{"", "/log", "/programs", "/programs/pr_a", "/tokens", "/network", "/events"} {
		shows(t, w.get("beta admin", "/console/agents/acme/writer"+path), http.StatusNotFound)
		shows(t, w.get("admin", "/console/agents/acme/nobody"+path), http.StatusNotFound)
	}
	shows(t, w.get("admin", "/console/agents/beta/outside"), http.StatusOK, "that you run elsewhere", "for good")
	shows(t, w.get("admin", "/console/agents/beta/outside/log"), http.StatusNotFound)
}

func TestAgentIsStoppedOnlyByWhoMay(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	for _, do := range []string{"restart", "revoke", "restore", "remove", "tokens/t_1/revoke", "type", "programs/pr_a/end", "programs/pr_a/type"} {
		shows(t, w.post("acme viewer", "/console/agents/acme/writer/"+do, "text", "x"), http.StatusForbidden)
	}
	if len(w.agents.calls) > 0 {
		t.Errorf("a viewer did %q", w.agents.calls)
	}
	for do, want := range map[string]string{"restart": "writer has a new jail.", "revoke": "writer is revoked.", "restore": "writer may work again."} {
		shows(t, w.follow("acme operator", w.post("acme operator", "/console/agents/acme/writer/"+do)), http.StatusOK, want)
	}
	if !w.agents.has("agent.restart acme/writer") {
		t.Error("nothing was restarted")
	}
	p := w.post("acme operator", "/console/agents/acme/writer/remove", "keep_state", "yes")
	if p.location != "/console/agents" || !w.agents.removed.KeepState || w.agents.removed.RemoveWorkspace {
		t.Errorf("to %s, %+v", p.location, w.agents.removed)
	}
	w.post("acme operator", "/console/agents/acme/reader/remove")
	if w.agents.removed.KeepState {
		t.Error("state is kept that nobody wanted to keep")
	}
}

func TestAgentIsAddedAndItsTokenShownOnce(t *testing.T) {
	w := newFixture(t)
	shows(t, w.get("acme operator", "/console/agents/add"), http.StatusOK, `name="name"`, "Managed by clawjail")
	hides(t, w.get("acme operator", "/console/agents/add"), `name="tenant"`)
	shows(t, w.get("acme viewer", "/console/agents/add"), http.StatusForbidden)
	shows(t, w.post("acme viewer", "/console/agents/add", "name", "bot"), http.StatusForbidden)
	p := w.post("acme operator", "/console/agents/add", "name", "bot", "life", "720h", "where", "elsewhere")
	shows(t, p, http.StatusOK, identity.PrefixAgent, "mcpServers", "connectOverCDP", "CLAWJAIL_KEY", "openclaw.json", "docker run", "http://localhost:18780", "in 29 days")
	if p.header.Get("Cache-Control") != "no-store" || p.location != "" {
		t.Errorf("a token may be kept: %v", p.header)
	}
	key := p.body[strings.Index(p.body, identity.PrefixAgent):]
	key = key[:strings.IndexAny(key, "< ")]
	for _, path := range []string{"/console/agents", "/console/agents/acme/bot", "/console/agents/acme/bot/tokens"} {
		hides(t, w.get("acme operator", path), key)
	}
	if strings.Contains(w.written.String(), key) {
		t.Error("the token is in the log")
	}
	for name, c := range map[string]struct {
		pairs []string
		wants []string
	}{
		"no name":             {[]string{"life", "5h"}, []string{`id="f-name-wrong"`, `value="5h"`}},
		"a bad name":          {[]string{"name", hostile}, []string{`id="f-name-wrong"`, "&lt;img"}},
		"a name twice":        {[]string{"name", "bot"}, []string{`role="alert"`, `value="bot"`}},
		"a bad life":          {[]string{"name", "x", "life", "soon"}, []string{`id="f-life-wrong"`, "such as 720h"}},
		"a bad size":          {[]string{"name", "x", "where", "jail", "memory", "12 potatoes"}, []string{`id="f-memory-wrong"`, `value="12 potatoes"`}},
		"no number":           {[]string{"name", "x", "where", "jail", "cpu", "half", "tasks", "many"}, []string{`id="f-cpu-wrong"`, `id="f-tasks-wrong"`}},
		"a bad variable":      {[]string{"name", "x", "where", "jail", "env", "A=1\nB"}, []string{`id="f-env-wrong"`}},
		"a relative folder":   {[]string{"name", "x", "where", "jail", "workspace", "here"}, []string{`role="alert"`, "absolute"}},
		"both of them":        {[]string{"name", "x", "where", "jail", "template", "a", "image", "b"}, []string{`role="alert"`}},
		"nothing to reach":    {[]string{"name", "x", "where", "jail", "allow", "ftp://x"}, []string{`role="alert"`}},
		"another's tenant":    {[]string{"name", "x", "tenant", "beta"}, []string{`role="alert"`}},
		"a jail of another's": {[]string{"name", "x", "tenant", "beta", "where", "jail"}, []string{`role="alert"`}},
	} {
		t.Run(name, func(t *testing.T) {
			shows(t, w.post("acme operator", "/console/agents/add", c.pairs...), http.StatusUnprocessableEntity, c.wants...)
		})
	}
}

func TestAgentIsDeclaredWithAJail(t *testing.T) {
	w := newFixture(t)
	p := w.post("admin", "/console/agents/add", "tenant", "beta", "name", "kept", "where", "jail", "life", "24h", "template", "clawbot", "command", "/bin/agent --fast",
		"workspace", "/srv/agents/kept", "workspace_mode", "ro", "memory", "256MiB", "cpu", "0.25", "tasks", "32", "allow", "example.com\r\ndeny: example.net\r\n", "env", "LANG=C.UTF-8\r\nMODE=a=b",
		"webhook", "yes", "unix_sockets", "yes", "exec_tmp", "yes", "restart", "never")
	if p.location != "/console/agents/beta/kept" {
		t.Fatalf("%d\n%s", p.status, p.body)
	}
	hides(t, w.follow("admin", p), identity.PrefixAgent+"0")
	a := w.agents.declared
	if a.Name != "kept" || a.TTL != 24*time.Hour || len(a.Command) != 2 || a.WorkspaceMode != clawbots.ReadOnly || a.Limits.Memory != 256<<20 || a.Limits.CPU != 0.25 ||
		a.Limits.Tasks != 32 || len(a.Allow) != 2 || !a.Allow[1].Deny || a.Env["MODE"] != "a=b" || !a.Webhook || !a.UnixSockets || a.Tmp != "exec" || a.Restart != "never" {
		t.Errorf("%+v", a)
	}
}

func TestTokensAreRotatedAndRevoked(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	shows(t, w.get("acme viewer", "/console/agents/acme/writer/tokens"), http.StatusOK, "<h1>writer", "expiring", "in 2 days")
	hides(t, w.get("acme viewer", "/console/agents/acme/writer/tokens"), `method="post" action="/console/agents`)
	shows(t, w.post("acme viewer", "/console/agents/acme/writer/tokens", "overlap", "1m"), http.StatusForbidden)
	for overlap, want := range map[string]string{"": `id="f-overlap-wrong"`, "soon": `id="f-overlap-wrong"`, "-1h": `role="alert"`, "2000h": `role="alert"`} {
		shows(t, w.post("acme operator", "/console/agents/acme/writer/tokens", "overlap", overlap), http.StatusUnprocessableEntity, want, `value="`+overlap+`"`)
	}
	// Into the jail: nobody is shown it.
	p := w.post("acme operator", "/console/agents/acme/writer/tokens", "overlap", "10m")
	told := w.follow("acme operator", p)
	shows(t, told, http.StatusOK, "new token in its jail", "in 9 min")
	hides(t, told, "the-key")
	shows(t, w.post("beta operator", "/console/agents/beta/outside/tokens", "overlap", "0s", "life", "soon"), http.StatusUnprocessableEntity, `id="f-life-wrong"`)
	shows(t, w.post("beta operator", "/console/agents/beta/outside/tokens", "overlap", "0s", "life", "48h"), http.StatusOK, identity.PrefixAgent, "mcpServers")
	tokens, err := w.identity.Tokens(w.ctx, w.admin, "beta", "outside")
	if err != nil || len(tokens) != 2 {
		t.Fatal(tokens, err)
	}
	p = w.post("beta operator", "/console/agents/beta/outside/tokens/"+tokens[1].ID+"/revoke")
	shows(t, w.follow("beta operator", p), http.StatusOK, "The token is revoked.", `badge bad">revoked`)
}

func TestSettingsOfAnAgentAreChanged(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	const path = "/console/agents/acme/writer/network"
	p := w.get("acme operator", path)
	shows(t, p, http.StatusOK, "docs.example.com", "all agents of acme", "0, no limit", `placeholder="as its tenant has it"`, "It has asked no model today")
	viewer := w.get("acme viewer", path)
	shows(t, viewer, http.StatusOK, "docs.example.com")
	hides(t, viewer, `method="post" action="/console/agents`)
	shows(t, w.post("acme viewer", path, "mode", "report"), http.StatusForbidden)
	for name, c := range map[string]struct{ field, value string }{
		"a rate that is no number": {"proxy", "fast"}, "a rate of zero": {"llm", "0"}, "a rate below zero": {"execute", "-1"}, "tokens": {"tokens", "1.5"}, "cost": {"cost", "free"},
		"hold": {"hold", "forever"}, "mode": {"mode", "sometimes"},
	} {
		t.Run(name, func(t *testing.T) {
			shows(t, w.post("acme operator", path, c.field, c.value, "note", "kept "+hostile), http.StatusUnprocessableEntity, `id="f-`+c.field+`-wrong"`, "kept &lt;img")
		})
	}
	shows(t, w.post("acme operator", path, "own_tools", "yes", "tools", "something"), http.StatusUnprocessableEntity, `id="f-tools-wrong"`)
	shows(t, w.post("acme operator", path, "version", "99"), http.StatusUnprocessableEntity, "somebody else changed the entry meanwhile")
	p = w.post("acme operator", path, "mode", "report", "proxy", "600", "tokens", "2000000", "cost", "5.5", "hold", "30s", "own_tools", "yes",
		"tools", "get,post https://api.example.com/v1/** github", "own_services", "yes", "services", "github, gitlab")
	shows(t, w.follow("acme operator", p), http.StatusOK, "apply at once", "of 2000000", "GET,POST https://api.example.com/v1/** github", "github, gitlab")
	set, _, err := w.book.ShowSettings(w.ctx, w.admin, "acme", "writer")
	if err != nil || set.Mode != policy.Report || set.Rates.Proxy != 600 || set.Budget.CostPerDay != 5.5 || len(set.Tools) != 1 || len(set.Services) != 2 {
		t.Errorf("%+v %v", set, err)
	}
	// What is not ticked is the wider setting's again.
	w.post("acme operator", path, "version", fmt.Sprint(set.Version))
	if set, _, _ = w.book.ShowSettings(w.ctx, w.admin, "acme", "writer"); set.Tools != nil || set.Services != nil || set.Mode != "" {
		t.Errorf("%+v", set)
	}
}
