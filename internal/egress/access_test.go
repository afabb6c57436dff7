package egress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
)

func (w *fixture) ask(by identity.Principal, kind AccessKind, target string) AccessRequest {
	w.t.Helper()
	out, err := w.Ask(w.ctx, by, kind, target, "the task needs it", 0)
	w.must(err)
	return out
}

func (w *fixture) answer(id string, a AccessAnswer) AccessRequest {
	w.t.Helper()
	out, err := w.Answer(w.ctx, w.operator, id, a)
	w.must(err)
	return out
}

func TestApprovalOfAHostBecomesARule(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	for _, tt := range []struct {
		name   string
		answer AccessAnswer
	}{{"good", AccessAnswer{Approve: true}}, {"once", AccessAnswer{Approve: true, Once: true}}, {"time", AccessAnswer{Approve: true, For: "1h"}}, {"days", AccessAnswer{Approve: true, For: "30d"}}} {
		host := tt.name + ".example"
		asked := w.ask(w.bot, AccessHost, "https://"+strings.ToUpper(host)+"./path")
		if asked.Target != host+":443" || asked.State != AccessPending || asked.AgentName != "bot" {
			t.Errorf("asked for %+v", asked)
		}
		w.want(bot, host, false)
		out := w.answer(asked.ID, tt.answer)
		if out.State != AccessApproved || out.Made == "" || out.AnsweredBy != w.operator.Actor() || out.AnsweredAt.IsZero() {
			t.Errorf("answered %+v", out)
		}
		w.want(bot, host, true)
		w.want(agent(w.twin), host, false)
		rules, err := w.Rules(w.ctx, w.operator, "")
		w.must(err)
		if !slices.ContainsFunc(rules, func(r Rule) bool { return r.ID == out.Made && r.Host.String() == host }) {
			t.Errorf("the rule is not the one that was made: %+v", rules)
		}
	}
	if !w.Used(w.ctx, w.View(bot).Proxy().Decide(ask("once.example", 443)).Rule) {
		t.Error("the rule for one use cannot be used")
	}
	w.want(bot, "once.example", false)
	w.clock.Forward(time.Hour)
	w.want(bot, "time.example", false)
	w.want(bot, "days.example", true)
	w.clock.Forward(30 * 24 * time.Hour)
	w.want(bot, "days.example", false)
	w.want(bot, "good.example", true)
	for _, wrong := range []string{"soon", "367d", "0s", "-1h"} {
		asked := w.ask(w.bot, AccessHost, "https://wrong.example")
		if _, err := w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true, For: wrong}); problem.CodeOf(err) != problem.BadLimit {
			t.Errorf("for %s: %v", wrong, err)
		}
	}
}

func TestRefusalGivesNothing(t *testing.T) {
	w := newFixture(t)
	asked := w.ask(w.bot, AccessHost, "a.example")
	out := w.answer(asked.ID, AccessAnswer{Comment: "use the mirror"})
	if out.State != AccessRefused || out.Made != "" || out.Answer != "use the mirror" {
		t.Errorf("answered %+v", out)
	}
	w.want(agent(w.bot), "a.example", false)
	got, err := w.AccessRequest(w.ctx, w.bot, asked.ID, time.Minute)
	if err != nil || got.State != AccessRefused || got.Answer != "use the mirror" {
		t.Errorf("the agent sees %+v, %v", got, err)
	}
	for _, again := range []AccessAnswer{{Approve: true}, {}} {
		_, err := w.Answer(w.ctx, w.operator, asked.ID, again)
		w.wantCode("a second answer", err, problem.Conflict)
	}
	w.want(agent(w.bot), "a.example", false)
}

// An agent that does not wait hears its answer when it asks the same again, and nobody else is asked once more.
func TestTheSameQuestionHearsItsAnswer(t *testing.T) {
	w := newFixture(t)
	open := func() int {
		list, err := w.AccessRequests(w.ctx, w.operator, "", false)
		w.must(err)
		return len(list)
	}
	const tool = "GET https://t.example/x s"
	w.must(func() error {
		s := service("github")
		s.Tenant, s.Agent = "acme", w.twin.ID
		_, err := w.PutService(w.ctx, w.admin, s)
		return err
	}())
	for _, q := range []struct {
		kind   AccessKind
		target string
	}{{AccessHost, "a.example"}, {AccessTool, tool}, {AccessService, "github"}} {
		for _, yes := range []bool{false, true} {
			first := w.ask(w.bot, q.kind, q.target)
			w.answer(first.ID, AccessAnswer{Approve: yes, Comment: "heard"})
			for range 2 {
				again := w.ask(w.bot, q.kind, q.target)
				if again.ID != first.ID || again.Answer != "heard" || (again.State == AccessApproved) != yes || open() != 0 {
					t.Errorf("%s %s, approved %t: asked again it is %+v, and %d wait", q.kind, q.target, yes, again, open())
				}
			}
			if other, err := w.Ask(w.ctx, w.twin, AccessHost, "a.example", "mine", 0); err != nil || other.ID == first.ID || other.State != AccessPending {
				t.Errorf("another agent hears the answer: %+v, %v", other, err)
			} else {
				w.answer(other.ID, AccessAnswer{})
				w.clock.Forward(askAgain)
			}
		}
		if later := w.ask(w.bot, q.kind, q.target); later.State != AccessPending {
			t.Errorf("%s: an answer of yesterday is still the answer: %+v", q.kind, later)
		} else {
			w.answer(later.ID, AccessAnswer{})
		}
	}
}

// An approval that is used up, over or taken back is asked for anew: "try again now" would be wrong.
func TestAnApprovalThatGivesNothingMoreIsNoAnswer(t *testing.T) {
	w := newFixture(t)
	const tool = "GET https://t.example/x s"
	for name, c := range map[string]struct {
		kind   AccessKind
		target string
		answer AccessAnswer
		end    func(AccessRequest)
	}{
		"a used rule":    {AccessHost, "once.example", AccessAnswer{Approve: true, Once: true}, func(a AccessRequest) { w.Used(w.ctx, prefixOnce+a.Made) }},
		"a removed rule": {AccessHost, "gone.example", AccessAnswer{Approve: true}, func(a AccessRequest) { w.must(w.RemoveRule(w.ctx, w.operator, a.Made)) }},
		"an old rule":    {AccessHost, "old.example", AccessAnswer{Approve: true, For: "1h"}, func(AccessRequest) { w.clock.Forward(time.Hour) }},
		"an old tool":    {AccessTool, tool, AccessAnswer{Approve: true, For: "1h"}, func(AccessRequest) { w.clock.Forward(time.Hour) }},
	} {
		first := w.ask(w.bot, c.kind, c.target)
		a := w.answer(first.ID, c.answer)
		if again := w.ask(w.bot, c.kind, c.target); again.ID != first.ID {
			t.Errorf("%s: before its end it is %+v", name, again)
		}
		c.end(a)
		if again := w.ask(w.bot, c.kind, c.target); again.ID == first.ID || again.State != AccessPending {
			t.Errorf("%s: it is %+v", name, again)
		}
	}
}

func TestApprovalOfAToolJoinsTheList(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	_, err := w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Tools: []Tool{{URL: "https://wide.example/**", Methods: []string{"GET"}}}})
	w.must(err)
	may := func(host string) policy.Decision { return w.View(bot).Tool("s").Decide(get(host, "/x")) }
	asked := w.ask(w.bot, AccessTool, "get https://T.example:443/x/ s")
	if asked.Target != "GET https://t.example/x s" {
		t.Errorf("asked for %q", asked.Target)
	}
	out := w.answer(asked.ID, AccessAnswer{Approve: true, Once: true})
	if d := may("t.example"); !d.Allowed || !w.Used(w.ctx, d.Rule) || w.Used(w.ctx, d.Rule) {
		t.Errorf("not for one use: %+v", d)
	}
	if may("t.example").Allowed || !may("wide.example").Allowed {
		t.Error("the tool stays, or took the wider ones away")
	}
	if w.View(agent(w.twin)).Tool("s").Decide(get("t.example", "/x")).Allowed {
		t.Error("others have the tool")
	}
	timed := w.answer(w.ask(w.bot, AccessTool, "GET https://u.example/x s").ID, AccessAnswer{Approve: true, For: "10m"})
	if timed.Made != out.Made || !may("u.example").Allowed {
		t.Errorf("made %s and %s", out.Made, timed.Made)
	}
	w.clock.Forward(10 * time.Minute)
	if may("u.example").Allowed || !may("wide.example").Allowed {
		t.Error("the tool does not expire, or all do")
	}
	// The list stays the agent's own, as whoever approves is told.
	_, err = w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Tools: []Tool{}})
	w.must(err)
	if !may("wide.example").Allowed || w.View(agent(w.twin)).Tool("s").Decide(get("wide.example", "/x")).Allowed {
		t.Error("the agent lost its own list, or others kept the tenant's")
	}
}

// A URL that somebody approves is not a place to which every credential of the tenant may be sent.
func TestAnApprovedToolIsForTheServiceThatWasShown(t *testing.T) {
	w := newFixture(t)
	may := func(service, host string) bool {
		return w.View(agent(w.bot)).Tool(service).Decide(get(host, "/x")).Allowed
	}
	w.answer(w.ask(w.bot, AccessTool, "GET https://named.example/x one").ID, AccessAnswer{Approve: true})
	if !may("one", "named.example") || may("github", "named.example") || may("", "named.example") {
		t.Error("a tool for one service is not for that one alone")
	}
	_, err := w.Ask(w.ctx, w.bot, AccessTool, "GET https://there.example/x", "x", 0)
	w.wantCode("a tool without a service, where none is", err, problem.BadRequest)
	for name, base := range map[string]string{"there": "https://there.example/v1", "port": "https://there.example:8443", "plain": "http://there.example", "github": "https://api.github.example"} {
		s := service(name)
		s.Tenant, s.BaseURL = "acme", base
		_, err := w.PutService(w.ctx, w.admin, s)
		w.must(err)
	}
	w.answer(w.ask(w.bot, AccessTool, "GET https://there.example/x").ID, AccessAnswer{Approve: true})
	for name, want := range map[string]bool{"there": true, "port": false, "plain": false, "github": false, "raw-secret": false, "": false} {
		if may(name, "there.example") != want {
			t.Errorf("with the credential of %q: %t", name, !want)
		}
	}
}

func TestApprovalOfAServiceCopiesIt(t *testing.T) {
	w := newFixture(t)
	has := func(p identity.Principal) bool { _, _, found := w.View(agent(p)).Service("github"); return found }
	asked := w.ask(w.bot, AccessService, "github")
	_, err := w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true})
	w.wantCode("a service that nobody has", err, problem.NotFound)
	foreign := service("github")
	foreign.Tenant, foreign.Agent = "beta", w.spy.ID
	_, err = w.PutService(w.ctx, w.admin, foreign)
	w.must(err)
	_, err = w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true})
	w.wantCode("a service of another tenant", err, problem.NotFound)
	own := service("github")
	own.Tenant, own.Agent, own.Address = "acme", w.twin.ID, netip.MustParseAddr("10.0.0.7")
	_, err = w.PutService(w.ctx, w.admin, own)
	w.must(err)
	_, err = w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true})
	w.wantCode("a service that leads inside, by an operator of the tenant", err, problem.Forbidden)
	_, err = w.Answer(w.ctx, w.admin, asked.ID, AccessAnswer{Approve: true, Once: true})
	w.wantCode("a service for one use", err, problem.BadRequest)
	if has(w.bot) {
		t.Error("it was given all the same")
	}
	out, err := w.Answer(w.ctx, w.admin, asked.ID, AccessAnswer{Approve: true, For: "1h"})
	w.must(err)
	if !has(w.bot) || !w.state.Load().has(out.Made) || out.Made == "" {
		t.Error("the agent does not have it")
	}
	w.clock.Forward(time.Hour)
	if has(w.bot) {
		t.Error("it does not expire")
	}
	// A service that has expired is still in the database, and hinders no new one.
	again, err := w.Answer(w.ctx, w.admin, w.ask(w.bot, AccessService, "github").ID, AccessAnswer{Approve: true})
	if err != nil || !has(w.bot) {
		t.Errorf("it cannot be given again: %+v, %v", again, err)
	}
}

// A list of services leaves out those of the tenant that it does not name, until one is approved.
func TestApprovalOfAServiceThatAListLeavesOut(t *testing.T) {
	w := newFixture(t)
	has := func(p identity.Principal) bool { _, _, found := w.View(agent(p)).Service("github"); return found }
	shared := service("github")
	shared.Tenant = "acme"
	_, err := w.PutService(w.ctx, w.admin, shared)
	w.must(err)
	made := func() string {
		out, err := w.Answer(w.ctx, w.operator, w.ask(w.bot, AccessService, "github").ID, AccessAnswer{Approve: true, For: "1h"})
		w.must(err)
		return out.Made
	}
	if !has(w.bot) {
		t.Fatal("an agent without a list lacks a service of its tenant")
	}
	before := len(w.state.Load().services["acme"])
	made()
	if now := len(w.state.Load().services["acme"]); now != before {
		t.Error("what the agent has was copied to it")
	}
	w.clock.Forward(2 * time.Hour)
	_, err = w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Services: []string{}})
	w.must(err)
	if has(w.bot) {
		t.Fatal("the list leaves nothing out")
	}
	if id := made(); !has(w.bot) || !w.state.Load().has(id) {
		t.Error("the agent does not have what was approved")
	}
	if has(w.twin) != true {
		t.Error("the others have lost it")
	}
	w.clock.Forward(time.Hour)
	if has(w.bot) {
		t.Error("it does not expire")
	}
	inside := service("github")
	inside.Tenant, inside.Address = "beta", netip.MustParseAddr("10.0.0.7")
	_, err = w.PutService(w.ctx, w.admin, inside)
	w.must(err)
	_, err = w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "beta", Agent: w.spy.ID}, Services: []string{}})
	w.must(err)
	asked := w.ask(w.spy, AccessService, "github")
	other := w.operator
	other.Tenant = "beta"
	_, err = w.Answer(w.ctx, other, asked.ID, AccessAnswer{Approve: true})
	w.wantCode("a service of the tenant that leads inside, by an operator", err, problem.Forbidden)
	_, err = w.Answer(w.ctx, w.admin, asked.ID, AccessAnswer{Approve: true})
	w.must(err)
	if !has(w.spy) {
		t.Error("an admin cannot give it")
	}
}

func TestTheSameQuestionIsTheSameRequest(t *testing.T) {
	w := newFixture(t)
	other := w.another()
	first := w.ask(w.bot, AccessHost, "a.example")
	if again := w.ask(w.bot, AccessHost, "A.EXAMPLE."); again.ID != first.ID {
		t.Error("the same question is another request")
	}
	// Another process has not seen it yet.
	from, err := other.Ask(w.ctx, w.bot, AccessHost, "a.example", "x", 0)
	if err != nil || from.ID != first.ID {
		t.Errorf("in another process it is %s, not %s: %v", from.ID, first.ID, err)
	}
	if twin := w.ask(w.twin, AccessHost, "a.example"); twin.ID == first.ID {
		t.Error("another agent's question is the same request")
	}
	w.answer(first.ID, AccessAnswer{})
	w.clock.Forward(askAgain)
	second := w.ask(w.bot, AccessHost, "a.example")
	if second.ID == first.ID {
		t.Error("a request that was answered yesterday is asked again")
	}
	w.clock.Forward(askFor)
	third := w.ask(w.bot, AccessHost, "a.example")
	if third.ID == second.ID {
		t.Error("an expired request is asked again")
	}
	_, err = w.Answer(w.ctx, w.operator, second.ID, AccessAnswer{Approve: true})
	if code := problem.CodeOf(err); code != problem.Conflict && code != problem.NotFound {
		t.Errorf("an expired request is approved: %v", err)
	}
	w.want(agent(w.bot), "a.example", false)
}

func TestAnAgentHasSoManyOpenQuestions(t *testing.T) {
	w := newFixture(t)
	var first AccessRequest
	for i := range maxPending {
		if a := w.ask(w.bot, AccessHost, fmt.Sprintf("h%d.example", i)); i == 0 {
			first = a
		}
	}
	_, err := w.Ask(w.ctx, w.bot, AccessHost, "more.example", "x", 0)
	w.wantCode("one more", err, problem.RateLimited)
	w.ask(w.twin, AccessHost, "more.example")
	w.answer(first.ID, AccessAnswer{})
	w.ask(w.bot, AccessHost, "more.example")
}

func TestWhatCannotBeAskedFor(t *testing.T) {
	w := newFixture(t)
	for _, tt := range []struct {
		kind           AccessKind
		target, reason string
		wait           time.Duration
	}{
		{AccessHost, "", "x", 0}, {AccessHost, "*", "x", 0}, {AccessHost, "*.example", "x", 0}, {AccessHost, "a.example:1-9", "x", 0},
		{AccessHost, "a.example:*", "x", 0}, {AccessHost, "user@a.example", "x", 0}, {AccessHost, "a.example\n", "x", 0},
		{AccessTool, "https://a.example/", "x", 0}, {AccessTool, "GET a.example", "x", 0}, {AccessTool, "CONNECT https://a.example/", "x", 0},
		{AccessTool, "GET https://*.example/", "x", 0}, {AccessTool, "GET https://*/", "x", 0}, {AccessService, "../x", "x", 0}, {"other", "a.example", "x", 0},
		{AccessHost, "a.example", "", 0}, {AccessHost, "a.example", "x\x1b[2J", 0}, {AccessHost, "a.example", strings.Repeat("x", maxText+1), 0},
		{AccessHost, "a.example", "x", maxWait + 1}, {AccessHost, "a.example", "x", -1},
	} {
		_, err := w.Ask(w.ctx, w.bot, tt.kind, tt.target, tt.reason, tt.wait)
		w.wantCode(fmt.Sprintf("%s %q %.10q %s", tt.kind, tt.target, tt.reason, tt.wait), err, problem.BadRequest)
	}
	if list, err := w.AccessRequests(w.ctx, w.bot, "", true); err != nil || len(list) != 0 {
		t.Errorf("something was asked: %v, %v", list, err)
	}
}

// An agent chooses the text that is recorded with the operator's answer.
func TestLongReasonsCanBeAnswered(t *testing.T) {
	w := newFixture(t)
	long := strings.Repeat(`"`, maxText)
	asked, err := w.Ask(w.ctx, w.bot, AccessTool, "GET https://a.example/"+strings.Repeat("x", 900)+" s", long, 0)
	w.must(err)
	_, err = w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true, Comment: long})
	w.must(err)
}

func TestEveryStepIsAnEvent(t *testing.T) {
	w := newFixture(t)
	asked, err := w.Ask(w.ctx, w.bot, AccessHost, "a.example", "for the report", 0)
	w.must(err)
	w.answer(asked.ID, AccessAnswer{Approve: true, For: "1h"})
	for action, want := range map[string][]string{
		"access.ask":    {"agent:" + w.bot.ID, "a.example", "for the report", asked.ID},
		"access.answer": {w.operator.Actor(), "a.example", "for the report", "approved", `"lasts":"1h"`},
	} {
		trail := strings.Join(w.trail(action), "\n")
		for _, text := range want {
			if !strings.Contains(trail, text) {
				t.Errorf("%s is recorded without %q: %s", action, text, trail)
			}
		}
	}
	w.log.fail = errDown
	if _, err := w.Ask(w.ctx, w.bot, AccessHost, "b.example", "x", 0); err == nil {
		t.Error("asked without a record")
	}
	second := w.state.Load().asked
	if len(second) != 1 {
		t.Errorf("%d requests", len(second))
	}
}

func TestWaitersAreWokenByTheAnswer(t *testing.T) {
	w := newFixture(t)
	other := w.another(func(o *Options) { o.Recheck = 5 * time.Millisecond })
	asked := w.ask(w.bot, AccessHost, "a.example")
	results := make(chan AccessRequest, 3)
	wait := func(b *Book, by identity.Principal) {
		out, err := b.AccessRequest(w.ctx, by, asked.ID, maxWait)
		if err != nil {
			t.Error(err)
		}
		results <- out
	}
	var all sync.WaitGroup
	all.Go(func() { wait(w.Book, w.bot) })
	all.Go(func() { wait(other, w.operator) })
	all.Go(func() {
		out, err := w.Ask(w.ctx, w.bot, AccessHost, "a.example", "x", maxWait)
		if err != nil {
			t.Error(err)
		}
		results <- out
	})
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.waiting.mu.Lock()
		defer w.waiting.mu.Unlock()
		return w.waiting.of[w.bot.Actor()] == 2
	}, "nobody waits")
	w.answer(asked.ID, AccessAnswer{Approve: true})
	all.Wait()
	for range 3 {
		if out := <-results; out.State != AccessApproved {
			t.Errorf("a waiter got %+v", out)
		}
	}
	if !w.passes(other, agent(w.bot), "a.example") {
		t.Error("the other process woke somebody before the rule was there")
	}
	if len(w.waiting.of) != 0 {
		t.Errorf("somebody waits still: %v", w.waiting.of)
	}
}

// An agent that is told of an approval finds the rule there, also when another process answered.
func TestNobodyIsWokenBeforeTheRuleIsThere(t *testing.T) {
	w := newFixture(t)
	other, hidden := w.another(), &shaky{Store: w.db}
	hidden.alter = func(entries []store.Entry) []store.Entry {
		return slices.DeleteFunc(entries, func(e store.Entry) bool { return e.Kind == kindRule })
	}
	slow := w.another(func(o *Options) { o.Store = hidden })
	asked := w.ask(w.bot, AccessHost, "a.example")
	w.answer(asked.ID, AccessAnswer{Approve: true})
	w.must(other.load(w.ctx))
	w.must(slow.load(w.ctx))
	gone, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := other.answered(gone, w.bot.Actor(), asked, maxWait); err != nil {
		t.Errorf("the answer is there: %v", err)
	}
	if _, err := slow.answered(gone, w.bot.Actor(), asked, maxWait); err == nil {
		t.Error("woken without the rule")
	}
}

func TestCloseEndsWaits(t *testing.T) {
	w := newFixture(t)
	asked := w.ask(w.bot, AccessHost, "a.example")
	b := w.another()
	done := make(chan AccessRequest)
	go func() {
		out, _ := b.AccessRequest(w.ctx, w.bot, asked.ID, maxWait)
		done <- out
	}()
	b.Close()
	if out := <-done; out.State != AccessPending {
		t.Errorf("%+v", out)
	}
	gone, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := w.answered(gone, w.bot.Actor(), asked, maxWait); err == nil {
		t.Error("somebody who left is waited for")
	}
}

func TestRefusedRequestIsHeld(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	hold := func(target string) bool { return w.Hold(w.ctx, bot, target) }
	pending := func() []AccessRequest {
		list, err := w.AccessRequests(w.ctx, w.operator, "", false)
		w.must(err)
		return list
	}
	if hold("a.example:443") || len(pending()) != 0 {
		t.Error("somebody was asked without a setting")
	}
	_, err := w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Hold: "5m"})
	w.must(err)
	answers := func(a AccessAnswer) bool {
		t.Helper()
		done := make(chan bool)
		go func() { done <- hold("a.example:443") }()
		testenv.Eventually(t, 5*time.Second, func() bool { return len(pending()) == 1 }, "nobody was asked")
		if p := pending()[0]; p.Reason != heldReason || p.Agent != w.bot.ID || p.CreatedBy != w.bot.Actor() {
			t.Errorf("asked %+v", p)
		}
		w.answer(pending()[0].ID, a)
		return <-done
	}
	if answers(AccessAnswer{}) {
		t.Error("decide again after a refusal")
	}
	if hold("a.example:443") || len(pending()) != 0 {
		t.Error("the operator is asked again at once")
	}
	w.clock.Forward(askAgain)
	if !answers(AccessAnswer{Approve: true}) {
		t.Error("nothing happens after an approval")
	}
	w.want(bot, "a.example", true)
	// What was refused as the agent spelt it is not asked again at its ports, and at others it is.
	asked, err := w.Ask(w.ctx, w.bot, AccessHost, "whole.example", "for docs", 0)
	w.must(err)
	w.answer(asked.ID, AccessAnswer{})
	for _, port := range []string{"80", "443"} {
		if hold("whole.example:"+port) || len(pending()) != 0 {
			t.Errorf("the operator is asked again for port %s", port)
		}
	}
	other := make(chan bool)
	go func() { other <- hold("whole.example:8443") }()
	testenv.Eventually(t, 5*time.Second, func() bool { return len(pending()) == 1 }, "nobody was asked for another port")
	w.answer(pending()[0].ID, AccessAnswer{})
	<-other
	session := clean1("acme", "s_1", w.bot.ID)
	if w.View(session).Hold() != 0 || w.View(bot).Hold() != 5*time.Minute {
		t.Error("a session waits for an answer, or the agent does not")
	}
	if w.Hold(w.ctx, session, "b.example:443") || hold("*.example") || len(pending()) != 0 {
		t.Error("somebody was asked for a session, or for a pattern")
	}
}

func TestHeldRequestsAreBounded(t *testing.T) {
	w := newFixture(t)
	_, err := w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Hold: "5m"})
	w.must(err)
	ctx, cancel := context.WithCancel(w.ctx)
	var all sync.WaitGroup
	for i := range maxWaitsOfAgent {
		all.Go(func() { w.Hold(ctx, agent(w.bot), fmt.Sprintf("h%d.example:443", i)) })
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.waiting.mu.Lock()
		defer w.waiting.mu.Unlock()
		return w.waiting.of[w.bot.Actor()] == maxWaitsOfAgent
	}, "nobody waits")
	if w.Hold(w.ctx, agent(w.bot), "more.example:443") { // returns at once
		t.Error("held without an answer")
	}
	cancel()
	all.Wait()
}

// An approval that cannot be carried out leaves the question open, and nothing given.
func TestApprovalThatFailsIsNone(t *testing.T) {
	w := newFixture(t)
	asked := w.ask(w.bot, AccessHost, "a.example")
	w.store.set("CreateEntry", errDown)
	if _, err := w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true}); err == nil {
		t.Fatal("no error")
	}
	w.store.set("", nil)
	got, err := w.AccessRequest(w.ctx, w.bot, asked.ID, 0)
	if err != nil || got.State != AccessPending {
		t.Errorf("it is %+v, %v", got, err)
	}
	w.want(agent(w.bot), "a.example", false)
	w.answer(asked.ID, AccessAnswer{Approve: true})
	w.want(agent(w.bot), "a.example", true)
}

func TestOfTwoAnswersOneCounts(t *testing.T) {
	w := newFixture(t)
	other := w.another()
	for i := range 10 {
		host := fmt.Sprintf("h%d.example", i)
		asked := w.ask(w.bot, AccessHost, host)
		errs := make([]error, 2)
		var all sync.WaitGroup
		all.Go(func() { _, errs[0] = w.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{Approve: true}) })
		all.Go(func() { _, errs[1] = other.Answer(w.ctx, w.operator, asked.ID, AccessAnswer{}) })
		all.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("approve: %v, refuse: %v", errs[0], errs[1])
		}
		w.must(w.load(w.ctx))
		w.want(agent(w.bot), host, errs[0] == nil)
	}
}

// A question whose one form is longer than what was asked would be kept, be unreadable, and count for nothing: an agent could
// fill the database with them.
func TestAQuestionIsMeasuredInTheFormInWhichItIsKept(t *testing.T) {
	w := newFixture(t)
	for _, letter := range []string{"é", "x"} {
		for n := range maxPending + 5 {
			target := fmt.Sprintf("GET https://a.example/%d%s s", n, strings.Repeat(letter, 200))
			_, err := w.Ask(w.ctx, w.bot, AccessTool, target, "x", 0)
			if letter == "é" || n < maxPending {
				want := ""
				if letter == "é" {
					want = problem.BadRequest
				}
				if problem.CodeOf(err) != want && (err != nil || want != "") {
					t.Fatalf("%d of %s: %v", n, letter, err)
				}
			} else {
				w.wantCode("one too many", err, problem.RateLimited)
			}
		}
	}
	entries, err := w.o.Store.ListEntries(w.ctx, kindAccess)
	w.must(err)
	for _, e := range entries {
		if i := read(e, w.reader.seed); i.damaged != nil {
			t.Fatalf("an entry that cannot be read was kept: %v", i.damaged)
		}
	}
}
