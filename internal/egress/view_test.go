package egress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestNobodyReachesAnythingUntilSomebodyAllowsIt(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	w.want(bot, "a.example", false)
	if w.View(bot).Tool("github").Decide(get("a.example", "/")).Allowed {
		t.Error("a tool is allowed that nobody gave")
	}
	before := w.View(bot)
	r := w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	w.want(bot, "a.example", true)
	if before.Proxy().Decide(ask("a.example", 443)).Allowed {
		t.Error("a view changed after it was taken")
	}
	during := w.View(bot)
	w.must(w.RemoveRule(w.ctx, w.operator, r.ID))
	w.want(bot, "a.example", false)
	if !during.Proxy().Decide(ask("a.example", 443)).Allowed {
		t.Error("a view changed after it was taken")
	}
}

// TestABrowserThatAnAgentOpensHasTheRulesOfTheAgent walks what can be said about it, for its tenant and for all.
func TestABrowserThatAnAgentOpensHasTheRulesOfTheAgent(t *testing.T) {
	w := newFixture(t)
	own, persons := clean1("acme", "s_1", w.bot.ID), clean1("acme", "s_2", "")
	own.Base.Rules = append(own.Base.Rules, policy.Rule{Name: "wiki", Action: policy.Allow, Host: policy.MustParsePattern("wiki.test"), Ports: policy.Ports(8080)})
	own.Base.Advice = Advice("bot")
	set := func(of Meta, reach BrowserReach) {
		t.Helper()
		if _, err := w.PutSettings(w.ctx, w.admin, Settings{Meta: of, Browser: reach}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(open bool) {
		t.Helper()
		w.want(own, "any.example", open)
		if got := w.View(own).Proxy().Decide(ask("wiki.test", 8080)).Allowed; got != open {
			t.Errorf("a private destination of the configuration is allowed: %v, want %v", got, open)
		}
		w.want(persons, "any.example", true)
		w.want(agent(w.bot), "any.example", false)
	}
	is(false)
	d := w.View(own).Proxy().Decide(ask("any.example", 443))
	if !strings.Contains(d.Hint, "rules add allow HOST --agent bot") || !strings.Contains(d.Hint, "browser: open") {
		t.Errorf("the hint does not say how to open it: %s", d.Hint)
	}
	set(Meta{}, BrowserOpen)
	is(true)
	set(Meta{Tenant: "acme"}, BrowserRules)
	is(false)
	set(Meta{Tenant: "acme", Agent: w.bot.ID}, BrowserOpen)
	is(true)
	before := w.View(own)
	set(Meta{Tenant: "acme", Agent: w.bot.ID}, BrowserRules)
	is(false)
	if w.View(own) == before {
		t.Error("what was decided before is decided still")
	}
	// Nothing that it may by its rules is taken away, and nothing that is denied to it is given.
	w.add(rule(policy.Allow, "docs.example").of("acme", w.bot.ID))
	w.want(own, "docs.example", true)
	w.want(persons, "docs.example", true)
	w.want(agent(w.bot), "docs.example", true)
	w.add(rule(policy.Deny, "docs.example").of("acme", w.bot.ID))
	w.want(own, "docs.example", false)
	w.want(persons, "docs.example", true)
	if _, err := w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme"}, Browser: "all"}); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("another word: %v", err)
	}
}

func TestWhomARuleIsFor(t *testing.T) {
	w := newFixture(t)
	bot, twin, spy := agent(w.bot), agent(w.twin), agent(w.spy)
	free, own, foreign := clean1("acme", "s_1", ""), clean1("acme", "s_2", w.bot.ID), clean1("beta", "s_1", "")
	confined := Who{Tenant: "acme", Session: "s_3", Opener: w.bot.ID, Confined: true,
		Base: policy.Only(policy.Rule{Name: "grant", Action: policy.Allow, Host: policy.MustParsePattern("bank.example"), Ports: policy.Ports(443)})}
	everyone := map[string]Who{"bot": bot, "twin": twin, "spy": spy, "free": free, "own": own, "foreign": foreign, "confined": confined,
		"wide": clean1("acme", "s_4", w.twin.ID)}
	if _, err := w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme", Agent: w.twin.ID}, Browser: BrowserOpen}); err != nil {
		t.Fatal(err)
	}
	allow := func(tenant, agent, session string) Rule {
		r := rule(policy.Allow, "x.example").of(tenant, agent)
		r.Session, r.Ports = session, policy.Ports(8443)
		return r
	}
	deny := func(tenant, agent, session, host string) Rule {
		r := rule(policy.Deny, host).of(tenant, agent)
		r.Session = session
		return r
	}
	tests := []struct {
		name string
		rule Rule
		req  policy.Request
		want string // who passes; of a denial, who does not any more
	}{
		{"allow all", allow("", "", ""), ask("x.example", 8443), "bot foreign free own spy twin wide"},
		{"allow a tenant", allow("acme", "", ""), ask("x.example", 8443), "bot free own twin wide"},
		{"allow an agent", allow("acme", w.bot.ID, ""), ask("x.example", 8443), "bot own"},
		{"allow another agent", allow("acme", w.twin.ID, ""), ask("x.example", 8443), "twin wide"},
		{"allow a session", allow("acme", "", "s_1"), ask("x.example", 8443), "free"},
		{"deny all", deny("", "", "", "bank.example"), ask("bank.example", 443), "confined foreign free wide"},
		{"deny a tenant", deny("acme", "", "", "bank.example"), ask("bank.example", 443), "confined free wide"},
		{"deny an agent", deny("acme", w.bot.ID, "", "bank.example"), ask("bank.example", 443), "confined"},
		{"deny another agent", deny("acme", w.twin.ID, "", "bank.example"), ask("bank.example", 443), "wide"},
		{"deny a session", deny("acme", "", "s_3", "bank.example"), ask("bank.example", 443), "confined"},
	}
	// Callers that have rules of their own share nothing.
	w.add(deny("acme", w.bot.ID, "", "other.example"))
	if r := rule(policy.Allow, "x.example").of("beta", ""); r.appliesTo(bot) {
		t.Error("a rule of another tenant is for an agent")
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := map[string]bool{}
			for name, who := range everyone {
				before[name] = w.View(who).Proxy().Decide(tt.req).Allowed
			}
			r := w.add(tt.rule)
			var changed []string
			for name, who := range everyone {
				if w.View(who).Proxy().Decide(tt.req).Allowed != before[name] {
					changed = append(changed, name)
				}
			}
			slices.Sort(changed)
			if got := strings.Join(changed, " "); got != tt.want {
				t.Errorf("the rule is for %q, want %q", got, tt.want)
			}
			w.must(w.RemoveRule(w.ctx, w.admin, r.ID))
		})
	}
}

func TestOrderOfRules(t *testing.T) {
	fixed := rule(policy.Allow, "fixed.example")
	fixed.Name, fixed.Priority = "from-the-file", 100
	w := newFixture(t, func(o *Options) { o.Fixed = []Rule{fixed} })
	bot := agent(w.bot)
	first := func(host string) string { return w.View(bot).Proxy().Decide(ask(host, 443)).Rule }
	named := func(r Rule, name string, priority int) Rule {
		r.Name, r.Priority = name, priority
		return r
	}
	steps := []struct {
		rule Rule
		want string
	}{
		{named(rule(policy.Allow, "o.example"), "all", 100), "all"},
		{named(rule(policy.Allow, "o.example").of("acme", ""), "tenant", 100), "tenant"},
		{named(rule(policy.Allow, "o.example").of("acme", w.bot.ID), "agent", 100), "agent"},
		{named(rule(policy.Deny, "o.example"), "deny-all", 100), "deny-all"},
		{named(rule(policy.Deny, "o.example").of("acme", w.bot.ID), "deny-agent", 0), "deny-agent"},
		{named(rule(policy.Allow, "o.example"), "early", 99), "early"},
		{named(rule(policy.Deny, "o.example"), "late", 999), "early"},
	}
	for _, s := range steps {
		w.add(s.rule)
		if got := first("o.example"); got != s.want {
			t.Errorf("after %s the rule %q decides, want %q", s.rule.Name, got, s.want)
		}
	}
	w.add(named(rule(policy.Deny, "fixed.example").of("acme", w.bot.ID), "same-priority", 100))
	if got := first("fixed.example"); got != "from-the-file" {
		t.Errorf("%q decides, and not the configuration", got)
	}
	w.add(named(rule(policy.Deny, "fixed.example"), "before-it", 99))
	if got := first("fixed.example"); got != "before-it" {
		t.Errorf("%q decides, and not the rule with the lower priority", got)
	}
}

func TestTheBaseComesLast(t *testing.T) {
	w := newFixture(t)
	who := clean1("acme", "s_1", "")
	who.Base = policy.PublicWeb(policy.Rule{Name: "closed", Action: policy.Deny, Host: policy.MustParsePattern("a.example"), Ports: policy.Ports(443)})
	who.Base.Advice = "ask nicely"
	w.want(who, "a.example", false)
	late := rule(policy.Allow, "a.example").of("acme", "")
	late.Priority, late.Name = 999, "closed"
	w.add(late)
	w.want(who, "a.example", true)
	if d := w.View(who).Proxy().Decide(ask("b.example", 22)); d.Allowed || !strings.Contains(d.Hint, "ask nicely") {
		t.Errorf("the advice of the base is lost: %q", d.Hint)
	}
	if d := w.View(who).Proxy().Decide(ask("b.example", 443)); !d.Allowed || d.Rule != "public-web" {
		t.Errorf("the base does not decide: %+v", d)
	}
}

// A base that changes under the same names is another base.
func TestAnotherBaseIsSeen(t *testing.T) {
	w := newFixture(t)
	who := clean1("acme", "s_1", "")
	w.want(who, "a.example", true)
	who.Base = policy.Only()
	w.want(who, "a.example", false)
	who.Base = policy.PublicWeb()
	w.want(who, "a.example", true)
}

func TestRulesExpireAtTheirTime(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	for i, d := range []time.Duration{time.Minute, time.Hour} {
		r := rule(policy.Allow, fmt.Sprintf("e%d.example", i)).of("acme", w.bot.ID)
		r.ExpiresAt = w.clock.Now().Add(d)
		w.add(r)
	}
	w.want(bot, "e0.example", true)
	w.clock.Forward(time.Minute - time.Microsecond)
	w.want(bot, "e0.example", true)
	w.clock.Forward(time.Microsecond)
	w.want(bot, "e0.example", false)
	w.want(bot, "e1.example", true)
	w.clock.Forward(59 * time.Minute)
	w.want(bot, "e1.example", false)
	if rules, err := w.Rules(w.ctx, w.operator, ""); err != nil || len(rules) != 0 {
		t.Errorf("what has expired is listed: %v, %v", rules, err)
	}
	w.clock.Forward(time.Second)
	// A permission is not the book's: sessions that were opened with it are open.
	permission := store.Entry{ID: "p1", Kind: grant.KindPermission, Body: []byte(`{}`), CreatedAt: w.clock.Now(), UpdatedAt: w.clock.Now(),
		ExpiresAt: w.clock.Now().Add(-time.Minute)}
	w.must(w.db.CreateEntry(w.ctx, permission))
	w.clock.Forward(keepExpired)
	w.must(w.Tidy(w.ctx))
	if entries, err := w.db.ListEntries(w.ctx, ""); err != nil || len(entries) != 1 || entries[0].ID != permission.ID {
		t.Errorf("left are %v: %v", entries, err)
	}
}

func TestTheSameRuleIsMadeOnce(t *testing.T) {
	w := newFixture(t)
	first := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
	first.Methods = []string{"get"}
	first = w.add(first)
	same := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
	same.Methods, same.Priority = []string{"GET"}, defaultPriority
	if same = w.add(same); same.ID != first.ID {
		t.Errorf("there is a second one, %s beside %s", same.ID, first.ID)
	}
	for what, change := range map[string]func(*Rule){
		"of another agent": func(r *Rule) { r.Agent = "" }, "that refuses": func(r *Rule) { r.Action = policy.Deny }, "with a note": func(r *Rule) { r.Note = "why" },
		"of another rank": func(r *Rule) { r.Priority = 7 }, "for once": func(r *Rule) { r.Once = true }, "with an end": func(r *Rule) { r.ExpiresAt = w.clock.Now().Add(time.Hour) },
		"with more methods": func(r *Rule) { r.Methods = []string{"GET", "POST"} }, "for all ports": func(r *Rule) { r.Ports = policy.AnyPort() },
	} {
		other := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
		other.Methods = []string{"GET"}
		change(&other)
		if other = w.add(other); other.ID == first.ID {
			t.Errorf("one %s is taken for the same", what)
		}
	}
	w.must(w.RemoveRule(w.ctx, w.operator, first.ID))
	if again := w.add(same); again.ID == first.ID {
		t.Error("one that was removed is there")
	}
}

// A machine may start with a clock that is days ahead, until NTP has set it.
func TestARefusalOutlivesAClockThatIsAheadForAWhile(t *testing.T) {
	w := newFixture(t)
	refusal := rule(policy.Deny, "a.example").of("acme", w.bot.ID)
	refusal.ExpiresAt = w.clock.Now().Add(72 * time.Hour)
	refusal = w.add(refusal)
	w.add(rule(policy.Allow, "*").of("acme", w.bot.ID))
	w.want(agent(w.bot), "b.example", true)
	w.want(agent(w.bot), "a.example", false)
	w.clock.Forward(4 * 24 * time.Hour)
	w.want(agent(w.bot), "a.example", true)
	w.must(w.Tidy(w.ctx))
	w.clock.Forward(-4 * 24 * time.Hour)
	w.want(agent(w.bot), "a.example", false)
}

func TestAnotherProcessSeesChanges(t *testing.T) {
	w := newFixture(t)
	other := w.another(func(o *Options) { o.Recheck = 5 * time.Millisecond })
	bot := agent(w.bot)
	r := w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	testenv.Eventually(t, 5*time.Second, func() bool { return w.passes(other, bot, "a.example") }, "the rule is not seen")
	w.must(w.RemoveRule(w.ctx, w.operator, r.ID))
	testenv.Eventually(t, 5*time.Second, func() bool { return !w.passes(other, bot, "a.example") }, "the removal is not seen")
	w.add(rule(policy.Allow, "b.example").of("acme", w.bot.ID))
	testenv.Eventually(t, 5*time.Second, func() bool { return w.passes(other, bot, "b.example") }, "the rule is not seen")
	w.must(w.who.DeleteAgent(w.ctx, w.admin, "acme", "bot"))
	testenv.Eventually(t, 5*time.Second, func() bool { return !w.passes(other, bot, "b.example") }, "the agent's rules outlive it")
}

// One that does not look for an hour looks when it is told to, and only then.
func TestAnotherProcessSeesChangesWhenItIsToldToLook(t *testing.T) {
	w := newFixture(t)
	told, untold := w.another(), w.another()
	bot := agent(w.bot)
	r := w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	told.Look()
	testenv.Eventually(t, 5*time.Second, func() bool { return w.passes(told, bot, "a.example") }, "the rule is not seen")
	w.must(w.RemoveRule(w.ctx, w.operator, r.ID))
	told.Look()
	testenv.Eventually(t, 5*time.Second, func() bool { return !w.passes(told, bot, "a.example") }, "the removal is not seen")
	w.add(rule(policy.Allow, "b.example").of("acme", w.bot.ID))
	told.Look()
	testenv.Eventually(t, 5*time.Second, func() bool { return w.passes(told, bot, "b.example") }, "the rule is not seen")
	if w.passes(untold, bot, "b.example") {
		t.Error("one that was not told has seen the rule, so this shows nothing")
	}
}

// Lists have entries that this process has not heard of yet, and none that went with an agent.
func TestListsAreOfNow(t *testing.T) {
	w := newFixture(t)
	other, stale := w.another(), w.another()
	lists := map[string]func() (int, error){
		"rules":     func() (int, error) { l, err := other.Rules(w.ctx, w.operator, ""); return len(l), err },
		"services":  func() (int, error) { l, err := other.ListServices(w.ctx, w.operator, ""); return len(l), err },
		"providers": func() (int, error) { l, err := other.ListProviders(w.ctx, w.operator, ""); return len(l), err },
		"settings":  func() (int, error) { l, err := other.AllSettings(w.ctx, w.operator, "acme"); return len(l), err },
		"requests":  func() (int, error) { l, err := other.AccessRequests(w.ctx, w.operator, "", false); return len(l), err },
	}
	count := func(want int) {
		t.Helper()
		for name, list := range lists {
			if n, err := list(); err != nil || n != want {
				t.Errorf("%s: %d, want %d (%v)", name, n, want, err)
			}
		}
	}
	count(0)
	own := Meta{Tenant: "acme", Agent: w.bot.ID}
	w.add(rule(policy.Allow, "a.example").of(own.Tenant, own.Agent))
	s, p := service("forge"), provider("model", WireOpenAI, "*")
	s.Tenant, s.Agent, p.Tenant, p.Agent = own.Tenant, own.Agent, own.Tenant, own.Agent
	w.must(second2(w.PutService(w.ctx, w.operator, s)))
	w.must(second2(w.PutProvider(w.ctx, w.operator, p)))
	w.must(second2(w.PutSettings(w.ctx, w.operator, Settings{Meta: own, Hold: "1m"})))
	w.ask(w.bot, AccessHost, "b.example")
	count(1)
	set, effective, err := stale.ShowSettings(w.ctx, w.operator, "", "bot")
	if err != nil || set.Hold != "1m" || effective.Hold != "1m" {
		t.Errorf("the settings are not shown: %+v, %+v, %v", set, effective, err)
	}
	w.must(w.who.DeleteAgent(w.ctx, w.admin, "acme", "bot"))
	count(0)
}

func TestStoreThatDoesNotAnswerDeniesAfterTenTimes(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Recheck = 2 * time.Millisecond })
	bot := agent(w.bot)
	w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	taken := w.View(bot)
	w.store.set("", errDown)
	from := w.store.count()
	testenv.Eventually(t, 5*time.Second, func() bool { return !w.passes(w.Book, bot, "a.example") }, "it is still allowed")
	if asked := w.store.count() - from; asked < patience {
		t.Errorf("it is denied after %d times", asked)
	}
	v := w.View(bot)
	_, service, _ := v.Service("any")
	_, provider, _ := v.Provider(WireOpenAI, "any")
	for _, permit := range []*policy.Compiled{v.Proxy(), v.Tool("any"), service, provider} {
		if d := permit.Decide(ask("a.example", 443)); d.Rule != policy.RuleUnknown {
			t.Errorf("the refusal does not say why: %+v", d)
		}
	}
	if !taken.Proxy().Decide(ask("a.example", 443)).Allowed {
		t.Error("a view changed after it was taken")
	}
	w.store.set("", nil)
	testenv.Eventually(t, 5*time.Second, func() bool { return w.passes(w.Book, bot, "a.example") }, "it stays denied")
}

// The change may be the removal of a rule.
func TestChangeThatCannotBeReadBackDeniesAll(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	r := w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	w.store.set("EntriesRevision", errDown)
	w.must(w.RemoveRule(w.ctx, w.operator, r.ID))
	w.want(bot, "a.example", false)
}

func TestWhoIsNobodyReachesNothing(t *testing.T) {
	w := newFixture(t)
	w.add(rule(policy.Allow, "*"))
	open := policy.Policy{Default: policy.Allow}
	for name, who := range map[string]Who{
		"zero": {Base: open}, "no tenant": {Agent: w.bot.ID, Base: open}, "neither": {Tenant: "acme", Base: open},
		"both": {Tenant: "acme", Agent: w.bot.ID, Session: "s_1", Base: open},
	} {
		if w.passes(w.Book, who, "a.example") {
			t.Errorf("%s passes", name)
		}
	}
	w.want(agent(w.bot), "a.example", true)
}

func TestReportModeIsForTheProxyAndNotForConfinedSessions(t *testing.T) {
	w := newFixture(t)
	put := func(s Settings) {
		t.Helper()
		_, err := w.PutSettings(w.ctx, w.admin, s)
		w.must(err)
	}
	put(Settings{Meta: Meta{Tenant: "acme"}, Mode: policy.Report, Tools: []Tool{{URL: "https://t.example/**", Methods: []string{"get"}}}})
	bot := agent(w.bot)
	if d := w.View(bot).Proxy().Decide(ask("a.example", 443)); !d.Allowed || !d.Reported {
		t.Errorf("not reported: %+v", d)
	}
	if w.View(bot).Tool("x").Decide(get("a.example", "/")).Allowed {
		t.Error("report mode gives tools")
	}
	confined := Who{Tenant: "acme", Session: "s_1", Confined: true, Base: policy.Only()}
	w.want(confined, "a.example", false)
	session := clean1("acme", "s_2", w.bot.ID)
	session.Base = policy.Only()
	w.want(session, "a.example", true)
	put(Settings{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Mode: policy.Enforce})
	w.want(bot, "a.example", false)
	w.want(session, "a.example", false)
	w.want(agent(w.twin), "a.example", true)
	w.want(agent(w.spy), "a.example", false)
}

func TestRuleForOneUseGoesOnce(t *testing.T) {
	w := newFixture(t)
	other := w.another()
	bot := agent(w.bot)
	r := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
	r.Once = true
	w.add(r)
	w.must(other.load(w.ctx))
	d := w.View(bot).Proxy().Decide(ask("a.example", 443))
	if !d.Allowed {
		t.Fatal("not allowed")
	}
	var won atomic.Int32
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			if []*Book{w.Book, other}[i%2].Used(context.Background(), d.Rule) {
				won.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 requests used the rule", won.Load())
	}
	w.want(bot, "a.example", false)
	if w.Used(w.ctx, d.Rule) {
		t.Error("it can be used again")
	}
	reads := w.store.count()
	if !w.Used(w.ctx, "github") || !w.Used(w.ctx, "") || w.store.count() != reads {
		t.Error("other rules are not used at once")
	}
	lasting := w.add(rule(policy.Allow, "b.example").of("acme", w.bot.ID))
	if w.Used(w.ctx, prefixOnce+lasting.ID) {
		t.Error("a lasting rule was used up")
	}
	w.want(bot, "b.example", true)
}

// A name of an operator's cannot be that of a rule for one use.
func TestNamesOfRulesAreUniqueInAPolicy(t *testing.T) {
	w := newFixture(t)
	for _, of := range []scope{{}, {"acme", ""}, {"acme", w.bot.ID}} {
		for _, action := range []policy.Action{policy.Allow} {
			r := rule(action, "a.example").of(of.tenant, of.agent)
			r.Name = "same"
			w.add(r)
		}
	}
	base := policy.Only(
		policy.Rule{Name: "same", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.AnyPort()},
		policy.Rule{Name: "once-x", Action: policy.Allow, Host: policy.MustParsePattern("*.z.example"), Ports: policy.AnyPort()})
	who := agent(w.bot)
	who.Base = base
	p := w.View(who).Proxy().Policy()
	w.must(p.Validate())
	names := map[string]bool{}
	for _, r := range p.Rules {
		names[r.Name] = true
		if strings.HasPrefix(r.Name, prefixOnce) {
			t.Errorf("a rule is called %s", r.Name)
		}
	}
	if len(names) != 5 || !names["same"] {
		t.Errorf("names %v", names)
	}
	for _, name := range []string{policy.RuleUnknown, "once-x", "rule_x", "damaged-x", "a b", strings.Repeat("x", 65)} {
		r := rule(policy.Allow, "a.example").of("acme", "")
		r.Name = name
		_, err := w.AddRule(w.ctx, w.operator, r)
		w.wantCode(name, err, "bad_name")
	}
}

func TestDamagedRows(t *testing.T) {
	const odd = `{"allow":[],"unknown":1}`
	tests := []struct {
		name, kind, entry, body string
		denied                  bool
	}{
		{"rule that cannot be read", kindRule, "", odd, true},
		{"rule that denies and has an unknown field", kindRule, "", `{"action":"deny","host":"z.example","ports":["443"],"priority":1,"more":true}`, true},
		{"rule that allows and has an unknown field", kindRule, "", `{"action":"allow","host":"z.example","ports":["443"],"priority":1,"more":true}`, false},
		{"rule that says twice what it does", kindRule, "", `{"action":"allow","action":"deny","host":"z.example","ports":["443"],"priority":1}`, true},
		{"rule of another session", kindRule, "", `{"action":"deny","session":"s_9","more":true}`, false},
		{"rule that is no JSON", kindRule, "", `not JSON`, true},
		{"settings", kindSettings, theSettings, `{"tools":null,"mode":"other"}`, true},
		{"settings of an agent", kindSettings, theSettings, `[]`, true},
		{"service", kindService, "good", odd, false},
		{"provider", kindProvider, "good", odd, false},
		{"access", kindAccess, "pending-1", odd, false},
		{"unknown kind", "future", "", odd, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fixed := rule(policy.Allow, "f.example")
			fixed.Name, fixed.Priority = "from-the-file", 1
			w := newFixture(t, func(o *Options) { o.Fixed = []Rule{fixed} })
			bot := agent(w.bot)
			first := rule(policy.Allow, "a.example").of("acme", w.bot.ID)
			first.Priority = 1
			w.add(first)
			_, err := w.PutService(w.ctx, w.admin, service("good"))
			w.must(err)
			_, err = w.PutProvider(w.ctx, w.admin, provider("good", WireOpenAI, "*"))
			w.must(err)
			_, err = w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme"}, Mode: policy.Report,
				Tools: []Tool{{URL: "https://t.example/**", Methods: []string{"GET"}}}})
			w.must(err)
			w.want(bot, "a.example", true)
			e := store.Entry{ID: "bad_1", Kind: tt.kind, Tenant: "acme", Agent: w.bot.ID, Name: tt.entry, Body: []byte("{}"), CreatedAt: w.clock.Now()}
			w.store.alter = func(entries []store.Entry) []store.Entry {
				e.Version = 1
				e.Body = []byte(tt.body)
				return append(slices.DeleteFunc(entries, func(old store.Entry) bool { return old.ID == e.ID }), e)
			}
			w.must(w.db.CreateEntry(w.ctx, e))
			w.must(w.load(w.ctx))
			w.want(bot, "a.example", !tt.denied)
			w.want(bot, "f.example", !tt.denied)
			w.want(agent(w.twin), "a.example", true) // because of the mode
			v := w.View(bot)
			if got := v.Tool("x").Decide(get("t.example", "/")).Allowed; got == tt.denied {
				t.Errorf("the tool is allowed: %t", got)
			}
			_, permit, found := v.Service("good")
			if want := tt.kind != kindService; found != want || found && permit.Decide(get("api.example.com", "/v1/x")).Allowed == tt.denied {
				t.Errorf("the service is there: %t, want %t, and denied %t", found, want, tt.denied)
			}
			_, permit, found = v.Provider(WireOpenAI, "m")
			if want := tt.kind != kindProvider; found != want || found && permit.Decide(get("good.example.com", "/v1/x")).Allowed == tt.denied {
				t.Errorf("the provider is there: %t, want %t, and denied %t", found, want, tt.denied)
			}
			if err := w.Charge(w.ctx, bot, "good", "m", 1, Tokens{Input: 1}); (err != nil) != tt.denied {
				t.Errorf("charge: %v", err)
			}
			session := clean1("acme", "s_1", w.bot.ID)
			w.want(session, "b.example", !tt.denied)
			if !tt.denied {
				return
			}
			// It can be found and removed.
			rules, err := w.Rules(w.ctx, w.operator, "")
			w.must(err)
			if !slices.ContainsFunc(rules, func(r Rule) bool { return r.ID == e.ID && r.Name == prefixDamaged+e.ID }) {
				t.Errorf("it is not listed: %+v", rules)
			}
			w.must(w.RemoveRule(w.ctx, w.operator, e.ID))
			w.store.alter = nil
			w.must(w.load(w.ctx))
		})
	}
}

// A service says where its credential goes in. When it cannot be read, its name is not that of a mere secret, which agents put
// where they say.
func TestTheCredentialOfAServiceThatCannotBeReadIsNotUsed(t *testing.T) {
	w := newFixture(t)
	_, err := w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme"}, Tools: []Tool{{URL: "https://t.example/**", Methods: []string{"GET"}}}})
	w.must(err)
	e := store.Entry{ID: "bad_1", Kind: kindService, Tenant: "acme", Agent: w.bot.ID, Name: "bad", Body: []byte(`{"more":1}`), CreatedAt: w.clock.Now()}
	w.must(w.db.CreateEntry(w.ctx, e))
	w.must(w.load(w.ctx))
	for name, want := range map[string]bool{"bad": false, "other": true} {
		if got := w.View(agent(w.bot)).Tool(name).Decide(get("t.example", "/")).Allowed; got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !w.View(agent(w.twin)).Tool("bad").Decide(get("t.example", "/")).Allowed {
		t.Error("another agent has lost the name")
	}
}

// An operator who repairs a row by hand does not count its version up.
func TestBodyThatChangesUnderItsVersionIsSeen(t *testing.T) {
	w := newFixture(t)
	r := w.add(rule(policy.Allow, "a.example").of("acme", w.bot.ID))
	w.want(agent(w.bot), "a.example", true)
	w.store.alter = func(entries []store.Entry) []store.Entry {
		for i := range entries {
			if entries[i].ID == r.ID {
				entries[i].Body = []byte(strings.Replace(string(entries[i].Body), "allow", "deny", 1))
			}
		}
		return entries
	}
	w.add(rule(policy.Allow, "b.example").of("acme", w.bot.ID)) // another revision
	w.want(agent(w.bot), "a.example", false)
	w.want(agent(w.bot), "b.example", true)
}

func TestServicesAndProvidersOfTheNarrowestScope(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	base := func(who Who) string {
		s, _, _ := w.View(who).Service("github")
		return s.BaseURL
	}
	var ids []string
	for i, of := range []scope{{}, {"acme", ""}, {"acme", w.bot.ID}} {
		s := service("github")
		s.Tenant, s.Agent, s.BaseURL = of.tenant, of.agent, fmt.Sprintf("https://API%d.example.com./x/", i)
		made, err := w.PutService(w.ctx, w.admin, s)
		w.must(err)
		ids = append(ids, made.ID)
		if got, want := base(bot), fmt.Sprintf("https://api%d.example.com/x", i); got != want {
			t.Errorf("the service is %q, want %q", got, want)
		}
	}
	if base(agent(w.twin)) != "https://api1.example.com/x" || base(agent(w.spy)) != "https://api0.example.com/x" {
		t.Error("others do not have the service of their scope")
	}
	if _, _, found := w.View(clean1("acme", "s_1", w.bot.ID)).Service("github"); found {
		t.Error("a session has services")
	}
	w.must(w.RemoveService(w.ctx, w.operator, ids[2]))
	if base(bot) != "https://api1.example.com/x" {
		t.Error("the wider service does not come back")
	}
	for i, p := range []Provider{
		{Meta: Meta{}, Priority: 1}, {Meta: Meta{Tenant: "acme"}, Priority: 5}, {Meta: Meta{Tenant: "acme"}, Priority: 4},
		{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Priority: 900},
	} {
		full := provider(fmt.Sprintf("p%d", i), WireOpenAI, "gpt-*")
		full.Meta, full.Priority = p.Meta, p.Priority
		w.clock.Forward(time.Second)
		_, err := w.PutProvider(w.ctx, w.admin, full)
		w.must(err)
	}
	var order []string
	for _, p := range w.View(bot).Providers() {
		order = append(order, p.Name)
	}
	if got := strings.Join(order, " "); got != "p3 p2 p1 p0" {
		t.Errorf("providers are asked in the order %q", got)
	}
	p, permit, found := w.View(bot).Provider(WireOpenAI, "gpt-5")
	if !found || p.Name != "p3" || !permit.Decide(get("p3.example.com", "/v1/chat")).Allowed || permit.Decide(get("p3.example.com", "/v2")).Allowed ||
		permit.Decide(get("p2.example.com", "/v1/chat")).Allowed {
		t.Errorf("provider %q, found %t", p.Name, found)
	}
	for _, none := range []struct {
		wire  Wire
		model string
	}{{WireAnthropic, "gpt-5"}, {WireOpenAI, "claude"}, {WireOpenAI, ""}, {WireOpenAI, "gpt-\n"}} {
		if _, _, found := w.View(bot).Provider(none.wire, none.model); found {
			t.Errorf("%v has a provider", none)
		}
	}
}

func TestServiceAllowsNoMoreThanItSays(t *testing.T) {
	w := newFixture(t)
	s := service("github")
	s.Allow = []Allowance{{Methods: []string{"get"}, Path: "/repos/**"}, {Methods: []string{"POST"}, Path: "/graphql"}}
	s.Address = netip.MustParseAddr("10.1.2.3")
	_, err := w.PutService(w.ctx, w.admin, s)
	w.must(err)
	permit := func() *policy.Compiled {
		_, permit, _ := w.View(agent(w.bot)).Service("github")
		return permit
	}
	change := func(f func(*policy.Request)) policy.Request {
		r := get("api.example.com", "/v1/repos/a")
		f(&r)
		return r
	}
	for name, tt := range map[string]struct {
		req  policy.Request
		want bool
	}{
		"plain":        {change(func(*policy.Request) {}), true},
		"graphql":      {change(func(r *policy.Request) { r.Method, r.Path = "POST", "/v1/graphql" }), true},
		"method":       {change(func(r *policy.Request) { r.Method = "DELETE" }), false},
		"path":         {change(func(r *policy.Request) { r.Path = "/v1/user" }), false},
		"outside":      {change(func(r *policy.Request) { r.Path = "/repos/a" }), false},
		"dots":         {change(func(r *policy.Request) { r.Path = "/v1/repos/../user" }), false},
		"encoded dots": {change(func(r *policy.Request) { r.Path = "/v1/repos/%2e%2e/user" }), false},
		"scheme":       {change(func(r *policy.Request) { r.Scheme = policy.HTTP }), false},
		"port":         {change(func(r *policy.Request) { r.Port = 8443 }), false},
		"host":         {change(func(r *policy.Request) { r.Host = ask("evil.example.com", 1).Host }), false},
		"tunnel":       {change(func(r *policy.Request) { r.Method, r.Path = policy.Connect, "" }), false},
	} {
		d := permit().Decide(tt.req)
		if d.Allowed != tt.want || d.Allowed && d.Address != s.Address {
			t.Errorf("%s: %+v", name, d)
		}
	}
	w.add(rule(policy.Deny, "api.example.com").of("acme", w.bot.ID))
	if permit().Decide(get("api.example.com", "/v1/repos/a")).Allowed {
		t.Error("a rule that denies does not hold for services")
	}
	s.Allow = nil
	s.Version = 0
	_, err = w.PutService(w.ctx, w.admin, s)
	w.must(err)
	w.must(w.RemoveRule(w.ctx, w.admin, w.ruleID("api.example.com")))
	if permit().Decide(get("api.example.com", "/v1/repos/a")).Allowed {
		t.Error("a service that allows nothing allows")
	}
}

func (w *fixture) ruleID(host string) string {
	w.t.Helper()
	rules, err := w.Rules(w.ctx, w.admin, "")
	w.must(err)
	for _, r := range rules {
		if r.Host.String() == host {
			return r.ID
		}
	}
	w.t.Fatalf("no rule is about %s", host)
	return ""
}

func TestToolsOfTheNarrowestSettings(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	may := func(service, method, path string) bool {
		req := get("t.example", path)
		req.Method = method
		return w.View(bot).Tool(service).Decide(req).Allowed
	}
	put := func(agent string, tools []Tool) {
		t.Helper()
		_, err := w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme", Agent: agent}, Tools: tools})
		w.must(err)
	}
	put("", []Tool{{URL: "https://t.example/a/**", Methods: []string{"GET"}}, {URL: "https://t.example/b", Methods: []string{"GET", "post"}, Services: []string{"one"}}})
	for _, tt := range []struct {
		service, method, path string
		want                  bool
	}{
		{"any", "GET", "/a/x", true}, {"any", "POST", "/a/x", false}, {"any", "GET", "/b", false}, {"one", "POST", "/b", true}, {"one", "GET", "/a/x", true},
		{"", "GET", "/b", false}, {"one", "GET", "/c", false},
	} {
		if got := may(tt.service, tt.method, tt.path); got != tt.want {
			t.Errorf("%v: %t", tt, got)
		}
	}
	put(w.bot.ID, nil)
	if !may("any", "GET", "/a/x") {
		t.Error("settings without a list take the wider one away")
	}
	put(w.bot.ID, []Tool{})
	if may("any", "GET", "/a/x") {
		t.Error("an empty list is no list")
	}
	put(w.bot.ID, nil)
	based := bot
	based.Base = policy.Only(policy.Rule{Name: "tool-1", Action: policy.Deny, Host: policy.MustParsePattern("t.example"), Ports: policy.Ports(443)})
	if w.View(based).Tool("any").Decide(get("t.example", "/a/x")).Allowed {
		t.Error("a base that denies does not hold for tools")
	}
	w.add(rule(policy.Deny, "t.example").of("acme", ""))
	if may("any", "GET", "/a/x") {
		t.Error("a rule that denies does not hold for tools")
	}
	if w.View(clean1("acme", "s_1", w.bot.ID)).Tool("one").Decide(get("t.example", "/b")).Allowed {
		t.Error("a session has tools")
	}
}

func TestViewsAreBoundedAndShared(t *testing.T) {
	w := newFixture(t)
	w.add(rule(policy.Allow, "a.example").of("acme", ""))
	d := w.state.Load().decisions
	one, two := w.View(agent(w.bot)), w.View(agent(w.twin))
	if one.Proxy() != two.Proxy() {
		t.Error("agents without rules of their own do not share what is compiled")
	}
	if one != w.View(agent(w.bot)) {
		t.Error("a view is made twice")
	}
	for i := range maxViews + 10 {
		w.View(clean1("acme", fmt.Sprintf("s_%d", i), ""))
	}
	if len(d.views) > maxViews {
		t.Errorf("%d views are kept", len(d.views))
	}
	// A question takes nobody's policy away.
	_, err := w.Ask(w.ctx, w.bot, AccessHost, "b.example", "why not", 0)
	w.must(err)
	if w.state.Load().decisions != d {
		t.Error("policies are made again because somebody asked")
	}
}
