package console

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/session"
)

// lasting makes an agent whose token lasts so long.
func (w *fixture) lasting(tenant, name string, life time.Duration) identity.Agent {
	w.t.Helper()
	_, a, err := w.identity.CreateAgent(w.ctx, w.admin, tenant, name, life)
	w.must(err)
	return a
}

func has(t *testing.T, p page, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Errorf("%d, without %q\n%s", p.status, text, p.body)
			return
		}
	}
}

func hasNot(t *testing.T, p page, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			t.Errorf("%d, with %q\n%s", p.status, text, p.body)
			return
		}
	}
}

func TestANewInstallationIsToldTheFirstSteps(t *testing.T) {
	w := newFixture(t)
	p := w.get("admin", "/console/")
	has(t, p, "<h2 id=\"first-steps\">", `<li class="done">`, "clawjail session open", "clawjail agent add")
	w.machine.Templates = nil
	has(t, w.get("admin", "/console/"), "clawjail template build browser", "There is no template")
	hasNot(t, w.get("admin", "/console/"), `<li class="done">`)
	w.lasting("default", "builder", time.Hour)
	hasNot(t, w.get("admin", "/console/"), "first-steps")
}

func TestOverviewShowsSessionsWithPicturesAndWhoHasThem(t *testing.T) {
	w := newFixture(t)
	w.sessions.all = []session.Session{
		{ID: "s_open", Label: hostile, State: session.StateReady, Tenant: "acme", OpenedBy: "admin", CredentialMode: "clean", Created: time.Now()},
		{ID: "s_held", State: session.StateReady, Tenant: "acme", OpenedBy: "admin", CredentialMode: "clean", Created: time.Now(),
			Control: &session.Control{By: "operator:o_1", Name: "Ada " + hostile, Since: time.Now()}},
		{ID: "s_login", State: session.StateReady, Tenant: "beta", OpenedBy: "admin", CredentialMode: "refresh", Created: time.Now()},
	}
	p := w.get("acme operator", "/console/")
	// htmx looks for what it leaves in its place by a selector of the id.
	has(t, p, `id="picture-s_open" hx-preserve src="/console/sessions/s_open/thumbnail"`, "Ada &lt;img", "has it in hand", `data-every="5"`)
	hasNot(t, p, hostile, "s_held/thumbnail", "s_login")
	has(t, w.get("admin", "/console/"), `href="/console/refresh/s_login"`, "beta")
	hasNot(t, w.get("admin", "/console/"), "s_login/thumbnail")
	// A viewer may not look into browsers.
	hasNot(t, w.get("acme viewer", "/console/"), "/thumbnail")
}

func TestOverviewOfOneTenantHasNothingOfOthersOrOfTheMachine(t *testing.T) {
	w := newFixture(t)
	w.machine.Orphans = []string{"clone of nobody"}
	w.sessions.all = []session.Session{{ID: "s_theirs", State: session.StateReady, Tenant: "beta", OpenedBy: "admin", Created: time.Now()}}
	w.lasting("beta", "theirs", time.Hour)
	w.oldAccount("beta", "theirs.example", time.Hour)
	for _, who := range []string{"acme admin", "acme operator", "acme viewer"} {
		p := w.get(who, "/console/")
		if p.status != http.StatusOK {
			t.Errorf("%s: %d", who, p.status)
		}
		hasNot(t, p, "theirs", "Memory free", "clone of nobody", "of 20")
	}
	has(t, w.get("admin", "/console/"), "s_theirs", "theirs.example", "Memory free", "clone of nobody", "clawjail reap")
}

func TestWhatNeedsAttentionSaysWhatToDo(t *testing.T) {
	w := newFixture(t)
	w.oldAccount("acme", "soon.example", 48*time.Hour)
	w.account("acme", "asked.example", 30*24*time.Hour)
	w.signedOut("acme", "asked.example")
	ending := w.lasting("acme", "ending", time.Hour)
	lasting := w.lasting("acme", "lasting", 30*24*time.Hour)
	_, _, err := w.identity.CreateOperator(w.ctx, w.admin, identity.NewOperator{Name: "bob", Tenant: "acme", Role: identity.RoleOperator, Life: time.Hour})
	w.must(err)
	_, err = w.book.Ask(w.ctx, identity.Principal{Kind: identity.KindAgent, ID: ending.ID, Tenant: "acme", Name: "ending", TokenID: "t"}, egress.AccessHost, "api.example.com:443", hostile, 0)
	w.must(err)
	w.agents.all = []agent.Status{{ID: ending.ID, Tenant: "acme", Name: "ending",
		Jail: &jail.KeptStatus{Phase: jail.PhaseFailed, Problem: "no disk " + hostile, Restarts: 3}},
		{ID: lasting.ID, Tenant: "acme", Name: "lasting", Jail: &jail.KeptStatus{Phase: jail.PhaseRunning, Since: time.Now(), Restarts: 9, Crashes: 7,
			Exit: &jail.Exit{Code: 3, Cause: jail.CauseExited}}}}

	p := w.get("acme admin", "/console/")
	has(t, p, "asked.example asked an agent to log in", "A cookie of soon.example expires soon", `action="/console/refresh"`, `name="domain" value="asked.example"`,
		"The token of ending ends soon", "/console/agents/acme/ending/tokens", "The key of the operator bob", "ending asks for host api.example.com:443",
		`href="/console/network/requests"`, "does not run: no disk", "3 restarts",
		"lasting is in a crash loop: its program has ended 7 times in a row, last: status 3", `class="badge bad">crash loop`)
	hasNot(t, p, hostile, "The token of lasting")

	viewer := w.get("acme viewer", "/console/")
	has(t, viewer, "asked.example asked an agent to log in")
	hasNot(t, viewer, `action="/console/refresh"`, "The key of the operator")
	hasNot(t, w.get("beta admin", "/console/"), "soon.example", "asked.example", "ending")
	rows, err := w.log.List(w.ctx, auditOfRefusals())
	if err != nil || len(rows) > 0 {
		t.Errorf("looking at the overview is refused something, in the log: %+v, %v", rows, err)
	}
}

func TestManyOfAKindAreCounted(t *testing.T) {
	w := newFixture(t)
	for _, domain := range []string{"a.example", "b.example", "c.example", "d.example", "e.example", "f.example", "g.example"} {
		w.oldAccount("acme", domain, time.Hour)
	}
	p := w.get("acme admin", "/console/")
	has(t, p, "and 2 accounts of this kind")
	if n := strings.Count(p.body, "expires soon"); n != 5 {
		t.Errorf("%d are listed", n)
	}
}

func TestTheMachineIsToldWhenItIsNotWell(t *testing.T) {
	w := newFixture(t)
	w.lasting("default", "builder", identity.NeverExpires)
	has(t, w.get("admin", "/console/"), "Nothing needs you.")
	w.machine.Templates[0].Problem = "/bin/sh was changed"
	has(t, w.get("admin", "/console/"), "The template browser cannot be used: /bin/sh was changed")
	w.machine.Reachable = false
	has(t, w.get("admin", "/console/"), "The host daemon does not answer", "clawjail doctor")
	w.burning = errors.New("it is on fire")
	p := w.get("admin", "/console/")
	if p.status != http.StatusOK {
		t.Errorf("%d", p.status)
	}
	hasNot(t, p, "on fire")
}

func TestThePartOfTheOverviewIsItselfWithoutTheRest(t *testing.T) {
	w := newFixture(t)
	p := w.send("admin", http.MethodGet, "/console/overview", nil, func(r *http.Request) { r.Header.Set("HX-Request", "true") })
	if p.status != http.StatusOK || !strings.HasPrefix(strings.TrimSpace(p.body), `<div id="overview"`) {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	if p := w.get("admin", "/console/overview"); p.status != http.StatusSeeOther || p.location != "/console/" {
		t.Errorf("%d to %q", p.status, p.location)
	}
}

func TestAThumbnailIsForWhoMayLook(t *testing.T) {
	w := newFixture(t)
	w.sessions.all = []session.Session{{ID: "s_open", State: session.StateReady, Tenant: "acme", OpenedBy: "admin"}}
	p := w.get("acme operator", "/console/sessions/s_open/thumbnail?t=1")
	if p.status != http.StatusOK || p.header.Get("Content-Type") != "image/jpeg" || p.header.Get("Cache-Control") != "private, max-age=2" || p.body == "" {
		t.Errorf("%d %v", p.status, p.header)
	}
	for who, status := range map[string]int{"acme viewer": http.StatusForbidden, "beta admin": http.StatusNotFound, "": http.StatusSeeOther} {
		if p := w.get(who, "/console/sessions/s_open/thumbnail"); p.status != status || p.header.Get("Content-Type") == "image/jpeg" {
			t.Errorf("%q: %d", who, p.status)
		}
	}
}
