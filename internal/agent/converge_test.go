package agent

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// aFile draws a file of some of three agents.
func aFile(t *rapid.T) string {
	var b strings.Builder
	b.WriteString("clawbots: [")
	for _, name := range []string{"a", "b", "c"} {
		if rapid.IntRange(0, 3).Draw(t, name) == 0 {
			continue
		}
		fields := []string{"name: " + name}
		some := func(of ...string) {
			if one := rapid.SampledFrom(append(of, "", "")).Draw(t, "field"); one != "" {
				fields = append(fields, one)
			}
		}
		some("template: other", "image: 'x/y:1'")
		if one := rapid.SampledFrom([]string{"", "workspace: ./shared", "workspace: ./own-" + name}).Draw(t, "workspace"); one != "" {
			fields = append(fields, one)
			some("workspace_mode: ro")
		}
		some("limits: {memory: 64MiB}", "limits: {tasks: 9}")
		some("allow: [example.com]", "allow: ['deny: example.com', example.org]", "allow: [example.org, 'deny: example.com']")
		some("services: []", "services: [hub]")
		some("tools: []", "tools: [{url: 'https://api.example.com/**', methods: [GET]}]")
		some("rate: {llm: 5}", "rate: {proxy: 9}")
		some("llm: {tokens_per_day: 1000}")
		some("ttl: 100h", "ttl: 200h")
		some("mcp: [files]")
		some("restart: never")
		b.WriteString("{" + strings.Join(fields, ", ") + "},\n")
	}
	return b.String() + "]\n"
}

// A sync that is killed anywhere, and any others after it that are killed as well, leave what one that is not killed makes
// right; and then there is nothing to be done.
func TestWhereverSyncsAreKilledTheNextOneConverges(t *testing.T) {
	l := newLand(t)
	_, err := l.book.PutService(l.ctx, l.admin, egress.Service{Name: "hub", Upstream: egress.Upstream{BaseURL: "https://api.example.com"},
		Allow: []egress.Allowance{{}}, Inject: egress.Injection{Type: egress.InjectBearer}, Env: map[string]string{"HUB_URL": "{url}"}})
	l.must(err)
	tenants := 0
	property.Check(t, func(t *rapid.T) {
		tenants++
		tenant := fmt.Sprintf("t%d", tenants)
		l.begin()
		_, err := l.who.CreateTenant(l.ctx, l.admin, tenant, identity.Policy{})
		check(t, err)
		request := func(text string) SyncRequest {
			return SyncRequest{Tenant: tenant, Source: "f", Dir: "/srv/bots/" + tenant, Text: text, Prune: rapid.Bool().Draw(t, "prune")}
		}
		text := ""
		for range rapid.IntRange(1, 4).Draw(t, "syncs") {
			text = aFile(t)
			l.kill(rapid.IntRange(0, 40).Draw(t, "kill"))
			_, err := l.Sync(l.ctx, l.admin, request(text), nil)
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatalf("it was not killed: %v", err)
			}
			l.begin()
		}
		if rapid.Bool().Draw(t, "another file") {
			text = aFile(t)
		}
		r := request(text)
		r.Prune = true
		p, err := l.Sync(l.ctx, l.admin, r, nil)
		if err != nil {
			t.Fatalf("the sync that is not killed: %v\n%+v", err, p)
		}
		l.converged(t, tenant, text)
		l.keeper.done()
		before := l.steps
		p, err = l.Sync(l.ctx, l.admin, r, nil)
		check(t, err)
		if done := l.keeper.done(); p.Changes() || len(done) > 0 || l.steps != before {
			t.Fatalf("the second sync did %d things: %v\n%+v", l.steps-before, done, p.Steps)
		}
	})
}

func check(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// converged compares the land with a file.
func (l *land) converged(t *rapid.T, tenant, text string) {
	file, err := clawbots.Parse("f", []byte(text), "/srv/bots/"+tenant)
	check(t, err)
	agents, err := l.db.ListAgents(l.ctx, tenant)
	check(t, err)
	declared, err := l.declarations(l.ctx, tenant)
	check(t, err)
	kept, err := l.keptOf(l.ctx, tenant)
	check(t, err)
	if len(agents) != len(file.Agents) || len(declared) != len(file.Agents) || len(kept) != len(file.Agents) {
		t.Fatalf("%d agents are declared, and there are %d identities, %d declarations and %d jails", len(file.Agents), len(agents), len(declared), len(kept))
	}
	rules, err := l.book.Rules(l.ctx, l.admin, tenant)
	check(t, err)
	for _, a := range file.Agents {
		at := slices.IndexFunc(agents, func(other store.Agent) bool { return other.Name == a.Name })
		if at < 0 {
			t.Fatalf("%s has no identity", a.Name)
		}
		id := agents[at].ID
		if d := declared[a.Name]; d == nil || !d.Done || d.ID != id || !bytes.Equal(clawbots.Canonical(d.Agent), clawbots.Canonical(a)) {
			t.Fatalf("%s is declared as %+v", a.Name, d)
		}
		k := kept[a.Name]
		if k.Stopped || k.Phase != jail.PhaseRunning || (a.Limits.Memory != 0) != (k.Spec.Limits.Memory == 64<<20) || (a.Image != "") != (k.Spec.Image != "") ||
			len(k.Spec.Mounts) != min(len(a.Workspace), 1) || (k.Restart == jail.RestartNever) != (a.Restart == jail.RestartNever) {
			t.Fatalf("the jail of %s is %+v", a.Name, k)
		}
		if _, hub := k.Spec.Program.Env["HUB_URL"]; hub != (a.Services == nil || len(a.Services) > 0) {
			t.Fatalf("the environment of %s, which has the services %v: %v", a.Name, a.Services, k.Spec.Program.Env)
		}
		by, err := l.bearer(l.keeper.token(k.Spec.Agent.Key()))
		if err != nil || by.ID != id {
			t.Fatalf("the token of %s is %s's: %v", a.Name, by.Name, err)
		}
		if want := agents[at].CreatedAt.Add(a.TTL); a.TTL == 0 != by.ExpiresAt.IsZero() || a.TTL != 0 && by.ExpiresAt.After(want.Add(time.Second)) {
			t.Fatalf("the token of %s is good until %s", a.Name, by.ExpiresAt)
		}
		var are []string
		for _, r := range rules {
			if r.Agent == id {
				are = append(are, string(r.Action)+" "+r.Host.String())
			}
		}
		var want []string
		for _, r := range a.Allow {
			p, err := r.Policy()
			check(t, err)
			want = append(want, string(p.Action)+" "+p.Host.String())
		}
		if !slices.Equal(are, want) {
			t.Fatalf("the rules of %s are %v, not %v", a.Name, are, want)
		}
		set, _, err := l.book.ShowSettings(l.ctx, l.admin, tenant, a.Name)
		check(t, err)
		if set.Rates.LLM != a.Rate.LLM || set.Rates.Proxy != a.Rate.Proxy || set.Budget.TokensPerDay != a.LLM.TokensPerDay || (set.Tools == nil) != (a.Tools == nil) ||
			len(set.Tools) != len(a.Tools) || (set.Services == nil) != (a.Services == nil) || len(set.Services) != len(a.Services) {
			t.Fatalf("the settings of %s are %+v", a.Name, set)
		}
	}
}
