package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const twoBots = `clawbots:
  - name: dev-bot
  - name: archive-bot
    workspace: ./workspaces/archive
    workspace_mode: ro
    allow: [example.com, "deny: bad.example.com"]
    limits: {memory: 256MiB}
    rate: {execute: 7}
`

func TestSyncMakesTheMachineMatchAFileAndThenDoesNothing(t *testing.T) {
	l := newLand(t)
	p, err := l.sync(twoBots, dryRun)
	l.want("a dry run", p, err, "create dev-bot", "create archive-bot")
	if done := l.keeper.done(); len(done) > 0 {
		t.Errorf("a dry run did %v", done)
	}
	p, err = l.sync(twoBots)
	l.want("the first sync", p, err, "create dev-bot", "create archive-bot")
	k, kept := l.keeper.status("archive-bot")
	spec := k.Spec
	if !kept || spec.Template != "clawbot" || spec.Limits.Memory != 256<<20 || spec.Limits.Disk != 100<<20 || spec.Agent.State != 1<<30 || !spec.Agent.Token ||
		spec.Program.Argv[0] != clawbots.DefaultCommand || spec.Limits.WallClock != jail.MaxWallClock {
		t.Errorf("its jail is %+v", spec)
	}
	if m := spec.Mounts; len(m) != 1 || m[0].Source != "/srv/bots/team/workspaces/archive" || m[0].Target != "/workspace" || !m[0].ReadOnly || len(m[0].Make) > 0 {
		t.Errorf("it has %+v mounted", m)
	}
	env := spec.Program.Env
	if env["SHELL_URL"] != "http://gateway:3000" || env["AGENT_NAME"] != "archive-bot" || env["AGENT_HOME"] != "/workspace" || env["https_proxy"] == "" {
		t.Errorf("its environment is %v", env)
	}
	token := l.keeper.token("archive-bot")
	by, err := l.bearer(token)
	if err != nil || by.Name != "archive-bot" || by.Kind != identity.KindAgent {
		t.Errorf("the token that was delivered is %s's: %v", by.Name, err)
	}
	for name, value := range env {
		if strings.Contains(value, token) {
			t.Errorf("%s has the token", name)
		}
	}
	rules, err := l.book.Rules(l.ctx, l.admin, "default")
	l.must(err)
	if len(rules) != 2 || rules[0].Action != "allow" || rules[1].Action != "deny" || rules[0].Agent != by.ID || rules[0].Priority >= rules[1].Priority {
		t.Errorf("its rules are %+v", rules)
	}
	if _, effective, err := l.book.ShowSettings(l.ctx, l.admin, "default", "archive-bot"); err != nil || effective.Rates.Execute != 7 {
		t.Errorf("its settings are %+v: %v", effective, err)
	}
	l.keeper.done()
	p, err = l.sync(twoBots)
	l.want("the second sync", p, err, "unchanged dev-bot", "unchanged archive-bot")
	if done := l.keeper.done(); len(done) > 0 || p.Changes() {
		t.Errorf("the second sync did %v", done)
	}
	if l.keeper.token("archive-bot") != token {
		t.Error("the second sync made a new token")
	}
}

func TestSyncSaysWhatItDoesAndWhy(t *testing.T) {
	l := newLand(t)
	_, err := l.sync(twoBots)
	l.must(err)
	for _, c := range []struct {
		what, from, to string
		verb           Verb
		why            string
	}{
		{"more memory", "memory: 256MiB", "memory: 512MiB", Restart, "limits.memory: 256MiB → 512MiB"},
		{"another rule", "allow: [example.com,", "allow: [example.org,", Change, "allow: "},
		{"another rate", "rate: {execute: 7}", "rate: {execute: 8}", Change, "rate.execute: 7 → 8"},
		{"no rate", "    rate: {execute: 7}\n", "", Change, "rate.execute: 7 → default"},
		{"a server", "    rate:", "    mcp: [files]\n    rate:", Change, "mcp: none → files"},
		{"read and write", "workspace_mode: ro", "workspace_mode: rw", Restart, "workspace_mode: ro → rw"},
		{"a time", "    rate:", "    ttl: 2h\n    rate:", Restart, "ttl: none → 2h0m0s"},
		{"a restart policy", "    rate:", "    restart: never\n    rate:", Change, "restart: default → never"},
	} {
		p, err := l.sync(strings.Replace(twoBots, c.from, c.to, 1))
		l.want(c.what, p, err, "unchanged dev-bot", string(c.verb)+" archive-bot")
		if !strings.Contains(why(p, "archive-bot"), c.why) {
			t.Errorf("%s: the reasons are %q, want %q", c.what, why(p, "archive-bot"), c.why)
		}
		p, err = l.sync(strings.Replace(twoBots, c.from, c.to, 1))
		l.want(c.what+", again", p, err, "unchanged dev-bot", "unchanged archive-bot")
		_, err = l.sync(twoBots)
		l.must(err)
		if _, effective, err := l.book.ShowSettings(l.ctx, l.admin, "default", "archive-bot"); err != nil || effective.Rates.Execute != 7 {
			t.Errorf("%s: back again, its settings are %+v: %v", c.what, effective, err)
		}
	}
}

func TestSyncRepairsWhatOthersBroke(t *testing.T) {
	l := newLand(t)
	_, err := l.sync(twoBots)
	l.must(err)
	ruleOf := func() egress.Rule {
		rules, err := l.book.Rules(l.ctx, l.admin, "default")
		l.must(err)
		return rules[0]
	}
	for _, c := range []struct {
		what  string
		spoil func()
		verb  Verb
		why   string
	}{
		{"a missing token", func() { delete(l.keeper.tokens, "archive-bot") }, Change, "its token is missing"},
		{"a jail that is gone", func() { l.must(l.keeper.Drop(l.ctx, "default", "archive-bot", jail.DropOptions{KeepState: true})) }, Restart, "its jail is gone"},
		{"a jail that was stopped", func() { l.keeper.edit("archive-bot", func(k *jail.KeptStatus) { k.Stopped = true }) }, Restart, "its jail was stopped"},
		{"a jail of another kind", func() {
			l.keeper.edit("archive-bot", func(k *jail.KeptStatus) { k.Revision, k.Spec.Limits.Tasks = "r0", 7 })
		}, Restart, "default limits"},
		{"a jail that failed", func() {
			l.keeper.edit("archive-bot", func(k *jail.KeptStatus) { k.Phase, k.Problem = jail.PhaseFailed, "no room" })
		}, Restart, "no room"},
		{"a rule that is gone", func() { l.must(l.book.RemoveRule(l.ctx, l.admin, ruleOf().ID)) }, Change, "its rules are not"},
		{"other settings", func() {
			_, err := l.book.PutSettings(l.ctx, l.admin, egress.Settings{Meta: egress.Meta{Tenant: "default", Agent: ruleOf().Agent}})
			l.must(err)
		}, Change, "its settings are not"},
		{"an identity that is gone", func() { l.must(l.who.DeleteAgent(l.ctx, l.admin, "default", "archive-bot")) }, Create, "its identity is gone"},
		{"another agent of its name", func() {
			l.must(l.who.DeleteAgent(l.ctx, l.admin, "default", "archive-bot"))
			_, _, err := l.who.CreateAgent(l.ctx, l.admin, "default", "archive-bot", time.Hour)
			l.must(err)
		}, Change, "another agent of its name"},
		{"a declaration that cannot be read", func() {
			d, err := l.declarations(l.ctx, "default")
			l.must(err)
			e := d["archive-bot"].entry
			e.Body = []byte(`[]`)
			l.must(l.db.UpdateEntry(l.ctx, e))
		}, Change, "cannot be read"},
		{"a declaration that is gone", func() {
			d, err := l.declarations(l.ctx, "default")
			l.must(err)
			l.must(l.forget(l.ctx, d["archive-bot"]))
		}, Change, "was not declared before"},
	} {
		c.spoil()
		p, err := l.sync(twoBots)
		l.want(c.what, p, err, "unchanged dev-bot", string(c.verb)+" archive-bot")
		if !strings.Contains(why(p, "archive-bot"), c.why) {
			t.Errorf("%s: the reasons are %q, want %q", c.what, why(p, "archive-bot"), c.why)
		}
		p, err = l.sync(twoBots)
		l.want(c.what+", again", p, err, "unchanged dev-bot", "unchanged archive-bot")
		if by, err := l.bearer(l.keeper.token("archive-bot")); err != nil || by.Name != "archive-bot" {
			t.Errorf("%s: the jail's token is not the agent's: %v", c.what, err)
		}
	}
}

func TestSyncLeavesAloneWhatPeopleDecided(t *testing.T) {
	l := newLand(t)
	file := "clawbots:\n  - name: bot\n    allow: [example.com]\n    tools: [{url: 'https://api.example.com/**', methods: [GET]}]\n"
	_, err := l.sync(file)
	l.must(err)
	a, err := l.db.Agent(l.ctx, "default", "bot")
	l.must(err)
	rules, err := l.book.Rules(l.ctx, l.admin, "default")
	l.must(err)
	own := rules[0]
	own.ID, own.Name, own.Note = "", "mine", "clawbots: by hand"
	_, err = l.book.AddRule(l.ctx, l.admin, own)
	l.must(err)
	by := identity.Principal{Kind: identity.KindAgent, ID: a.ID, Name: a.Name, Tenant: a.Tenant}
	asked, err := l.book.Ask(l.ctx, by, egress.AccessTool, "GET https://other.example.com/ x", "why not", 0)
	l.must(err)
	_, err = l.book.Answer(l.ctx, l.admin, asked.ID, egress.AccessAnswer{Approve: true})
	l.must(err)
	set, _, err := l.book.ShowSettings(l.ctx, l.admin, "default", "bot")
	l.must(err)
	set.Hold = "10s"
	_, err = l.book.PutSettings(l.ctx, l.admin, set)
	l.must(err)

	p, err := l.sync(file)
	l.want("after people decided", p, err, "unchanged bot")
	_, err = l.sync("clawbots:\n  - name: bot\n")
	l.must(err)
	rules, err = l.book.Rules(l.ctx, l.admin, "default")
	l.must(err)
	if len(rules) != 1 || rules[0].Name != "mine" {
		t.Errorf("the rules that are left are %+v", rules)
	}
	set, _, err = l.book.ShowSettings(l.ctx, l.admin, "default", "bot")
	l.must(err)
	if len(set.Tools) != 1 || !strings.Contains(set.Tools[0].URL, "other") || set.Hold != "10s" {
		t.Errorf("the settings that are left are %+v", set)
	}
}

func TestNothingIsChangedWhenSomethingIsMissing(t *testing.T) {
	l := newLand(t)
	l.keeper.missing["gone"] = problem.New(problem.TemplateMissing, "build it", "there is no template gone")
	for _, c := range []struct{ what, file, code, text string }{
		{"a template", "clawbots:\n  - name: a\n  - name: b\n    template: gone\n", problem.TemplateMissing, "clawbots.yml:4:15: b.template: there is no template gone (build it)"},
		{"a service", "clawbots:\n  - name: a\n    services: [nope]\n", problem.BadRequest, "clawbots.yml:3:16: a.services[0]: there is no service nope"},
		{"a server", "clawbots:\n  - name: a\n    mcp: [nope]\n", problem.BadRequest, "clawbots.yml:3:11: a.mcp[0]: there is no MCP server nope"},
		{"two things", "clawbots:\n  - name: a\n    mcp: [nope]\n  - name: b\n    template: gone\n", problem.BadRequest, "clawbots.yml:5:15: b.template: there is no template gone"},
		{"one template of several", "clawbots:\n  - name: a\n    template: gone\n  - name: b\n    template: gone\n  - name: c\n    template: gone\n", problem.TemplateMissing,
			"clawbots.yml:3:15: a.template: there is no template gone; 2 more agents of the file are made of it (build it)"},
		{"the file itself", "clawbots:\n  - name: a\n    colour: blue\n", problem.BadRequest, "colour"},
	} {
		_, err := l.sync(c.file)
		l.wantCode(c.what, err, c.code)
		if err == nil || !strings.Contains(err.Error(), c.text) || strings.Count(err.Error(), "there is no template") > 1 {
			t.Errorf("%s: %v, want %q", c.what, err, c.text)
		}
		agents, listErr := l.db.ListAgents(l.ctx, "default")
		l.must(listErr)
		if done := l.keeper.done(); len(done)+len(agents) > 0 {
			t.Errorf("%s: it was missing, and yet: %v %v", c.what, done, agents)
		}
	}
}

func TestWhatIsNotDeclaredAnyMoreStaysUntilItIsPruned(t *testing.T) {
	l := newLand(t)
	_, err := l.sync(twoBots)
	l.must(err)
	_, _, err = l.who.CreateAgent(l.ctx, l.admin, "default", "by-hand", time.Hour)
	l.must(err)
	const one = "clawbots:\n  - name: dev-bot\n    workspace: ./workspaces/archive\n"
	p, err := l.sync(one)
	l.want("without --prune", p, err, "restart dev-bot", "extra archive-bot")
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "archive-bot") {
		t.Errorf("the warnings are %v", p.Warnings)
	}
	p, err = l.sync(one, func(r *SyncRequest) { r.Only = []string{"dev-bot"}; r.Prune = true })
	l.want("some of the file", p, err, "unchanged dev-bot")
	_, err = l.sync(one, prune, func(r *SyncRequest) { r.Removes = []string{"another-bot"} })
	if _, kept := l.keeper.status("archive-bot"); problem.CodeOf(err) != problem.Conflict || !strings.Contains(err.Error(), "archive-bot") || !kept {
		t.Errorf("one that nobody has agreed to: %v, and it is kept: %t", err, kept)
	}
	p, err = l.sync(one, prune, func(r *SyncRequest) { r.KeepState, r.Removes = true, []string{"archive-bot"} })
	l.want("with --prune", p, err, "unchanged dev-bot", "remove archive-bot")
	if _, kept := l.keeper.status("archive-bot"); kept || !l.keeper.states["archive-bot"] {
		t.Errorf("it is kept: %t, with its state: %t", kept, l.keeper.states["archive-bot"])
	}
	p, err = l.sync(one, prune)
	l.want("again", p, err, "unchanged dev-bot")
	if _, err := l.db.Agent(l.ctx, "default", "by-hand"); err != nil {
		t.Errorf("an agent that no file declared: %v", err)
	}
	p, err = l.sync(twoBots)
	l.want("and back", p, err, "restart dev-bot", "create archive-bot")
}

func TestAnAgentOfAnotherTenantIsNotTouched(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n  - name: another\n")
	l.must(err)
	acme := l.operator("acme", identity.RoleOperator)
	r := SyncRequest{Source: "f", Dir: "/srv/bots/acme", Text: "clawbots:\n  - name: bot\n", Prune: true}
	p, err := l.Sync(l.ctx, acme, r, nil)
	l.want("the same name in another tenant", p, err, "create bot")
	if _, kept := l.keeper.status("acme.bot"); !kept {
		t.Error("it is not kept")
	}
	r.Text = "clawbots: []\n"
	p, err = l.Sync(l.ctx, acme, r, nil)
	l.want("prune", p, err, "remove bot")
	if _, kept := l.keeper.status("bot"); !kept {
		t.Error("pruning one tenant removed an agent of another")
	}
	r.Tenant = "default"
	_, err = l.Sync(l.ctx, acme, r, nil)
	if err == nil {
		t.Error("an operator of acme syncs the tenant default")
	}
	if _, err := l.Sync(l.ctx, l.operator("acme", identity.RoleViewer), SyncRequest{Source: "f", Dir: "/", Text: r.Text}, nil); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("a viewer syncs: %v", err)
	}
}

func TestWhoWorksForOneTenantHasNoFoldersOfOthers(t *testing.T) {
	l := newLand(t)
	acme := l.operator("acme", identity.RoleOperator)
	sync := func(by identity.Principal, path string) error {
		_, err := l.Sync(l.ctx, by, SyncRequest{Tenant: "acme", Source: "f", Dir: "/srv/bots/acme", Text: "clawbots:\n  - name: bot\n    workspace: " + path + "\n"}, nil)
		return err
	}
	l.must(sync(acme, "./project"))
	for _, path := range []string{"/srv/bots/beta", "/srv/bots", "/srv/bots/acme-too", "../beta"} {
		if err := sync(acme, path); err == nil || !strings.Contains(err.Error(), "acme may not have") {
			t.Errorf("%s: %v", path, err)
		}
		if err := sync(l.admin, path); err == nil || !strings.Contains(err.Error(), "acme may not have") {
			t.Errorf("%s for acme, by an admin: %v", path, err)
		}
	}
}

func TestTimeThatIsOverStopsAnAgent(t *testing.T) {
	l := newLand(t)
	const file = "clawbots:\n  - name: bot\n    ttl: 1h\n"
	_, err := l.sync(file)
	l.must(err)
	if k, _ := l.keeper.status("bot"); k.Spec.Limits.WallClock != time.Hour {
		t.Errorf("its jail lives for %s", k.Spec.Limits.WallClock)
	}
	l.forward(30 * time.Minute)
	delete(l.keeper.tokens, "bot")
	_, err = l.sync(file)
	l.must(err)
	tokens, err := l.who.Tokens(l.ctx, l.admin, "default", "bot")
	l.must(err)
	for _, tk := range tokens {
		if tk.ExpiresAt.IsZero() || tk.ExpiresAt.After(l.clock().Add(30*time.Minute)) {
			t.Errorf("a token is good until %s", tk.ExpiresAt)
		}
	}
	l.forward(time.Hour)
	l.must(l.stand(l.ctx, map[agentKey]time.Time{}))
	if k, _ := l.keeper.status("bot"); !k.Stopped {
		t.Error("its time is over, and it runs")
	}
	p, err := l.sync(file)
	l.want("a sync afterwards", p, err, "unchanged bot")
	if !strings.Contains(why(p, "bot"), "is over") || !strings.Contains(why(p, "bot"), MoreTime("default", "bot")) {
		t.Errorf("the reasons are %q", why(p, "bot"))
	}
	for what, err := range map[string]error{"restart": l.RestartAgent(l.ctx, l.admin, "", "bot"), "rotate": l.RotateToken(l.ctx, l.admin, "", "bot", 0)} {
		if said, ok := problem.As(err); !ok || said.Code != problem.Conflict || !strings.Contains(said.Message, "time") || said.Hint != MoreTime("default", "bot") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if st, err := l.Get(l.ctx, l.admin, "", "bot"); err != nil || !st.Over {
		t.Errorf("%+v, %v", st, err)
	}
	p, err = l.sync(strings.Replace(file, "1h", "9h", 1))
	l.want("more time", p, err, "restart bot")
	if st, err := l.Get(l.ctx, l.admin, "", "bot"); err != nil || st.Over {
		t.Errorf("with more time: %+v, %v", st, err)
	}
	if by, err := l.bearer(l.keeper.token("bot")); err != nil || by.Name != "bot" {
		t.Errorf("its token is of no use: %v", err)
	}
}

func TestDeclareAddsOneAgentToWhatIsDeclared(t *testing.T) {
	l := newLand(t)
	one := clawbots.Agent{Name: "one", Workspace: "/srv/bots/team", Env: map[string]string{"A": "b \uffff\ufffe\u0085"}, Limits: clawbots.Limits{CPU: 0.25, Memory: 64 << 20},
		Allow: []clawbots.Rule{{Target: "example.com"}, {Target: "http://a.example/", Methods: []string{"PURGE"}}}, Tools: []clawbots.Tool{{URL: "https://api.example.com/**", Methods: []string{"GET"}}},
		Services: []string{}, TTL: time.Hour, Restart: jail.RestartNever, Rate: clawbots.Rate{LLM: 3}, LLM: clawbots.LLM{CostPerDay: 1.5}, Webhook: true, MCP: []string{"files"}}
	p, err := l.declare(one, false)
	l.want("the first", p, err, "create one")
	st, err := l.Get(l.ctx, l.admin, "", "one")
	l.must(err)
	one.Sharing, one.WorkspaceMode = clawbots.Dedicated, clawbots.ReadWrite
	if got, want := string(clawbots.Canonical(*st.Declared)), string(clawbots.Canonical(one)); got != want {
		t.Errorf("it is declared as\n%s\nnot as\n%s", got, want)
	}
	// The same again changes nothing; something else under its name takes more than that.
	p, err = l.declare(one, false)
	l.want("the same again", p, err, "unchanged one")
	other := one
	other.Limits.Memory = 128 << 20
	l.keeper.done()
	_, err = l.declare(other, false)
	l.wantCode("another of its name", err, problem.Conflict)
	if done := l.keeper.done(); len(done) > 0 {
		t.Errorf("another of its name: %v", done)
	}
	p, err = l.declare(other, true)
	l.want("in its place", p, err, "restart one")
	p, err = l.declare(one, true)
	l.want("and back", p, err, "restart one")
	p, err = l.declare(clawbots.Agent{Name: "two", Workspace: "/srv/bots/team"}, false)
	l.want("one that shares its folder", p, err, "create two", "restart one")
	if k, _ := l.keeper.status("one"); !slices.Equal(k.Spec.Mounts[0].Make, []string{"one"}) || k.Spec.Program.Env["AGENT_HOME"] != "/workspace/one" {
		t.Errorf("the first one sees %+v", k.Spec.Mounts)
	}
	for what, bad := range map[string]clawbots.Agent{
		"a folder inside another's": {Name: "three", Workspace: "/srv/bots/team/inner"}, "a name": {Name: "Three"},
		"a secret": {Name: "three", Env: map[string]string{"API_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345"}},
	} {
		l.keeper.done()
		if _, err := l.declare(bad, false); err == nil {
			t.Errorf("%s: it is declared", what)
		}
		if done := l.keeper.done(); len(done) > 0 {
			t.Errorf("%s: %v", what, done)
		}
	}
	l.must(l.RemoveAgent(l.ctx, l.admin, "", "two", RemoveOptions{}))
	l.wantCode("removed again", l.RemoveAgent(l.ctx, l.admin, "", "two", RemoveOptions{}), problem.NotFound)
	p, err = l.declare(clawbots.Agent{Name: "two", Image: "x/y:1"}, false)
	l.want("a name that is free again", p, err, "create two", "restart one")
}

func TestContainersGetNoFilesAndNothingThatPointsToThem(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: here\n  - name: there\n    image: x/y:1\n")
	l.must(err)
	linux, _ := l.keeper.status("here")
	docker, _ := l.keeper.status("there")
	if !strings.Contains(linux.Spec.Program.Env["NODE_OPTIONS"], "/state/.clawjail/provision/proxy.cjs") {
		t.Errorf("NODE_OPTIONS is %q", linux.Spec.Program.Env["NODE_OPTIONS"])
	}
	if _, set := docker.Spec.Program.Env["NODE_OPTIONS"]; set || docker.Spec.Image != "x/y:1" || len(docker.Spec.Program.Argv) > 0 {
		t.Errorf("the container is %+v", docker.Spec)
	}
	p, err := l.sync("clawbots:\n  - name: here\n  - name: there\n    image: x/y:1\n", func(r *SyncRequest) { r.Driver = DriverDocker })
	l.want("another driver", p, err, "restart here", "unchanged there")
	if k, _ := l.keeper.status("here"); k.Spec.Image != "clawjail/clawbot:latest" {
		t.Errorf("it is made of %s", k.Spec.Image)
	}
}

func TestNullTakesAVariableAway(t *testing.T) {
	l := newLand(t)
	const file = "clawbots:\n  - name: a\n    env: {NODE_OPTIONS: null, TZ: Europe/Berlin, LANG: ~}\n"
	_, err := l.sync(file)
	l.must(err)
	k, _ := l.keeper.status("a")
	program := k.Spec.Program
	if _, set := program.Env["NODE_OPTIONS"]; set || program.Env["NODE_USE_ENV_PROXY"] != "1" || !slices.Equal(program.Without, []string{"LANG", "NODE_OPTIONS"}) {
		t.Errorf("the program is %+v", program)
	}
	env := program.Environment(nil)
	if _, set := env["LANG"]; set || env["TZ"] != "Europe/Berlin" {
		t.Errorf("its variables are %v", env)
	}
	// A program that is started there with such a variable of its own has it.
	own := jail.Program{Env: map[string]string{"LANG": "C"}}
	own.Inherit(program.Env, program.Without)
	if env := own.Environment(nil); env["LANG"] != "C" || env["TZ"] != "Europe/Berlin" || slices.Contains(own.Without, "LANG") {
		t.Errorf("another program in it has %v without %v", env, own.Without)
	}
	// It is declared as it was written, and an empty value is no null.
	st, err := l.Get(l.ctx, l.admin, "", "a")
	l.must(err)
	p, err := l.declare(*st.Declared, false)
	l.want("as it is", p, err, "unchanged a")
	for what, env := range map[string]string{"no value": "{A: }", "the gateway": "{AGENT_GATEWAY: null}", "home": "{HOME: null}", "no name": "{1A: null}"} {
		if _, err := l.sync("clawbots:\n  - name: a\n    env: " + env + "\n"); err == nil {
			t.Errorf("%s: it is taken", what)
		}
	}
}

func TestServicesShapeAJail(t *testing.T) {
	l := newLand(t)
	const file = "clawbots:\n  - name: all\n  - name: none\n    services: []\n"
	_, err := l.sync(file)
	l.must(err)
	_, err = l.book.PutService(l.ctx, l.admin, egress.Service{Meta: egress.Meta{Tenant: "default"}, Name: "hub", Upstream: egress.Upstream{BaseURL: "https://api.example.com"},
		Allow: []egress.Allowance{{}}, Inject: egress.Injection{Type: egress.InjectBearer}, Env: map[string]string{"HUB_URL": "{url}"}})
	l.must(err)
	p, err := l.sync(file)
	l.want("a new service", p, err, "restart all", "unchanged none")
	if !strings.Contains(why(p, "all"), "HUB_URL") {
		t.Errorf("the reasons are %q", why(p, "all"))
	}
	k, _ := l.keeper.status("all")
	if k.Spec.Program.Env["HUB_URL"] != "http://gateway:3000/svc/hub" {
		t.Errorf("its environment is %v", k.Spec.Program.Env)
	}
}

func TestEveryChangeIsRecordedBeforeItIsDone(t *testing.T) {
	l := newLand(t)
	_, err := l.sync("clawbots:\n  - name: bot\n")
	l.must(err)
	l.must(l.RestartAgent(l.ctx, l.admin, "", "bot"))
	bot, err := l.db.Agent(l.ctx, store.DefaultTenant, "bot")
	l.must(err)
	l.must(l.RemoveAgent(l.ctx, l.admin, "", "bot", RemoveOptions{}))
	l.must(l.log.Close(l.ctx))
	rows, err := l.db.ListAudit(l.ctx, store.AuditFilter{ActionPrefix: "agent.", Limit: 100})
	l.must(err)
	var trail []string
	for _, r := range rows {
		if r.Phase == "intent" {
			trail = append(trail, r.Action+" "+r.Target)
		}
		if r.Actor != "admin" {
			t.Errorf("%s is of %s", r.Action, r.Actor)
		}
	}
	if want := []string{"agent.sync bot", "agent.create " + bot.ID, "agent.restart bot", "agent.sync bot", "agent.delete " + bot.ID}; !slices.Equal(trail, want) {
		t.Errorf("the intents are %v, want %v", trail, want)
	}
	// And without a record nothing is done.
	if _, err := l.sync("clawbots:\n  - name: other\n"); err == nil {
		t.Error("it was not recorded and was done")
	}
	if _, kept := l.keeper.status("other"); kept {
		t.Error("a jail is there that no record tells of")
	}
}

func TestProgressTellsOfEachStepWhenItBeginsAndWhenItIsDone(t *testing.T) {
	l := newLand(t)
	var told []string
	_, err := l.Sync(l.ctx, l.admin, SyncRequest{Source: "f", Dir: "/srv", Text: twoBots}, func(s Step) {
		state := "begins"
		if s.Done {
			state = "done"
		}
		told = append(told, s.Name+" "+state)
	})
	l.must(err)
	slices.Sort(told)
	if want := []string{"archive-bot begins", "archive-bot done", "dev-bot begins", "dev-bot done"}; !slices.Equal(told, want) {
		t.Errorf("told %v", told)
	}
	l.kill(0)
	p, err := l.sync(strings.Replace(twoBots, "256MiB", "128MiB", 1))
	if err == nil || p.Steps[1].Done || p.Steps[1].Problem == "" {
		t.Errorf("a step that failed: %+v, %v", p.Steps, err)
	}
	l.kill(-1)
}

func TestABudgetThatNoUsualRequestFitsIntoIsWarnedAbout(t *testing.T) {
	l := newLand(t)
	for budget, warns := range map[string]bool{"1000": true, "500000": false} {
		p, err := l.sync("clawbots:\n  - name: bot\n    llm: {tokens_per_day: " + budget + "}\n")
		l.must(err)
		if (len(p.Warnings) > 0) != warns || warns && !strings.Contains(p.Warnings[0], "bot: 1000 tokens a day") {
			t.Errorf("%s: %q", budget, p.Warnings)
		}
	}
}
