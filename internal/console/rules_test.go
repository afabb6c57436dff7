package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy"
)

func TestRulesAreShownInTheirOrderWithWhoMadeThem(t *testing.T) {
	w := newFixture(t)
	builder := w.agent("acme", "builder")
	first := w.rule("acme", "", policy.Allow, "example.com", hostile)
	w.rule("acme", builder.ID, policy.Allow, "*.example.org:8443", "")
	w.rule("beta", "", policy.Allow, "other.example", "")
	everybodys := w.rule("", "", policy.Deny, "tracker.example", "")

	p := w.get("acme operator", "/console/network")
	p.holds(t, http.StatusOK, "<h1>Network</h1>", "example.com", "*.example.org:8443", "builder", "tracker.example", "Add a rule", "&lt;img src=x", first.ID)
	p.lacks(t, "<img", "other.example", "of beta", `value="`+everybodys.ID+`"`)
	if deny, allow := strings.Index(p.body, "tracker.example"), strings.Index(p.body, ">example.com<"); deny > allow {
		t.Error("a rule that denies comes after one that allows")
	}
	w.get("admin", "/console/network").holds(t, http.StatusOK, "other.example", "all of beta", "everybody", `value="`+everybodys.ID+`"`)
	viewer := w.get("acme viewer", "/console/network")
	viewer.holds(t, http.StatusOK, "example.com")
	viewer.lacks(t, "Add a rule", "Remove")
}

func TestRulesAreFoundAndShownInParts(t *testing.T) {
	w := newFixture(t)
	for n := range pageSize + 5 {
		w.rule("acme", "", policy.Allow, fmt.Sprintf("host-%03d.example", n), "")
	}
	first := w.get("acme viewer", "/console/network")
	first.holds(t, http.StatusOK, "1 to 100 of 105", `href="/console/network?page=2"`)
	last := w.get("acme viewer", "/console/network?page=2")
	last.holds(t, http.StatusOK, "101 to 105 of 105", `href="/console/network?page=1"`)
	if n := strings.Count(last.body, "host-"); n != 5 {
		t.Errorf("the last part has %d rules", n)
	}
	w.get("acme viewer", "/console/network?page=999").holds(t, http.StatusOK, "101 to 105 of 105")
	found := w.get("acme viewer", "/console/network?search=HOST-042")
	found.holds(t, http.StatusOK, "host-042.example", `value="HOST-042"`)
	found.lacks(t, "host-041", "of 105")
	w.get("acme viewer", "/console/network?search="+url.QueryEscape(hostile)).holds(t, http.StatusOK, "No rule fits", "&lt;img")
}

func TestARuleIsAdded(t *testing.T) {
	w := newFixture(t)
	builder := w.agent("acme", "builder")
	w.get("acme operator", "/console/network/rules/add?target=api.example.com&whose=acme/builder").
		holds(t, http.StatusOK, `value="api.example.com"`, `<option value="acme/builder" selected>`)
	p := w.post("acme operator", "/console/network/rules/add", "action", "allow", "target", "http://api.example.com/v1/**", "whose", "acme/builder",
		"methods", "get, post", "for", "1h", "note", "for the build", "priority", "7")
	if p.status != http.StatusSeeOther || p.location != "/console/network" {
		t.Fatalf("%d to %q\n%s", p.status, p.location, p.body)
	}
	w.follow("acme operator", p).holds(t, http.StatusOK, "Agents may reach http://api.example.com/v1/** now.")
	all, err := w.book.Rules(w.ctx, w.admin, "acme")
	w.must(err)
	if len(all) != 1 || all[0].Agent != builder.ID || all[0].Priority != 7 || strings.Join(all[0].Methods, " ") != "GET POST" || all[0].ExpiresAt.IsZero() || all[0].Note != "for the build" {
		t.Fatalf("the rule is %+v", all)
	}
	removed := w.post("acme operator", "/console/network/rules/remove", "id", all[0].ID)
	w.follow("acme operator", removed).holds(t, http.StatusOK, "The rule is removed.", "No rules yet")
}

func TestWhatIsWrongWithARuleIsSaidBesideItsField(t *testing.T) {
	w := newFixture(t)
	for name, c := range map[string]struct {
		fields  []string
		field   string
		message string
	}{
		"no target":     {[]string{"action", "allow", "target", ""}, "target", "missing"},
		"a bad target":  {[]string{"action", "allow", "target", "exa mple"}, "target", "cannot be read"},
		"a bad time":    {[]string{"action", "allow", "target", "example.com", "for", "soon"}, "for", "not a positive duration"},
		"a bad number":  {[]string{"action", "allow", "target", "example.com", "priority", "first"}, "priority", "not a number from 1 to 999"},
		"beyond it":     {[]string{"action", "allow", "target", "example.com", "priority", "1000"}, "priority", "1000"},
		"a bad address": {[]string{"action", "allow", "target", "example.com", "address", "near"}, "address", "not an address"},
		"a path in TLS": {[]string{"action", "allow", "target", "https://example.com/x"}, "target", "in a tunnel nobody sees"},
		"a bad name":    {[]string{"action", "allow", "target", "example.com", "name", "rule_x"}, "name", "is not a name for a rule"},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.post("admin", "/console/network/rules/add", append(c.fields, "whose", "acme", "note", "kept "+hostile)...)
			p.holds(t, http.StatusUnprocessableEntity, `id="f-`+c.field+`-wrong"`, c.message, "kept &lt;img")
			p.lacks(t, "<img")
		})
	}
	if all, err := w.book.Rules(w.ctx, w.admin, ""); err != nil || len(all) > 0 {
		t.Errorf("rules were made: %v, %v", all, err)
	}
}

func TestOnlyWhoMayChangesRules(t *testing.T) {
	w := newFixture(t)
	theirs := w.rule("beta", "", policy.Allow, "example.com", "")
	everybodys := w.rule("", "", policy.Allow, "example.org", "")
	fields := []string{"action", "allow", "target", "example.com"}
	w.get("acme viewer", "/console/network/rules/add").holds(t, http.StatusForbidden)
	w.post("acme viewer", "/console/network/rules/add", append(fields, "whose", "acme")...).holds(t, http.StatusForbidden)
	w.post("acme viewer", "/console/network/rules/remove", "id", everybodys.ID).holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/network/rules/add", append(fields, "whose", "beta")...).holds(t, http.StatusNotFound)
	w.post("acme operator", "/console/network/rules/remove", "id", theirs.ID).holds(t, http.StatusNotFound)
	w.post("acme admin", "/console/network/rules/remove", "id", everybodys.ID).holds(t, http.StatusForbidden)
	w.post("acme admin", "/console/network/rules/add", append(fields, "whose", "*")...).holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/network/rules/add", append(fields, "whose", "acme", "address", "10.0.0.1")...).holds(t, http.StatusForbidden)
	if all, err := w.book.Rules(w.ctx, w.admin, ""); err != nil || len(all) != 2 {
		t.Errorf("the rules are %v, %v", all, err)
	}
}

func TestWhyARequestIsDeniedIsExplained(t *testing.T) {
	w := newFixture(t)
	builder := w.agent("acme", "builder")
	deny := w.rule("acme", "", policy.Deny, "tracker.example.com", "")
	ask := func(who string, pairs ...string) page {
		return w.get(who, "/console/network/explain?"+blank(pairs...).Values.Encode())
	}
	p := ask("acme operator", "whose", "acme/builder", "url", "https://api.example.com/v1")
	p.holds(t, http.StatusOK, `class="badge bad">denied`, "no rule", "Make a rule of it",
		"/console/network/rules/add?action=allow&amp;target=api.example.com&amp;whose=acme%2Fbuilder")
	ask("acme operator", "whose", "acme", "url", "https://tracker.example.com/").holds(t, http.StatusOK, "denied", deny.ID, "/console/network?search="+deny.ID)
	ask("acme operator", "whose", "acme", "url", "https://api.example.com/").holds(t, http.StatusOK, `class="badge good">allowed`, "The name was not looked up")
	// A record of a session leads here with it. Of one with accounts that has ended nobody knows what it might reach; any other is as a new one.
	session := []string{"tenant", "acme", "session", "s_1", "surface", "proxy", "url", "https://api.example.com/"}
	ended := ask("acme operator", append(session, "confined", "true")...)
	ended.holds(t, http.StatusOK, "The session is not open", `<option value="session:s_1" selected>`)
	ended.lacks(t, `class="badge`)
	ask("acme operator", session...).holds(t, http.StatusOK, `class="badge good">allowed`, `<option value="acme" selected>`)
	ask("acme operator", "whose", "session:s_1", "url", "https://api.example.com/").holds(t, http.StatusOK, "The session is not open")
	viewer := ask("acme viewer", "whose", "acme/builder", "url", "https://api.example.com/")
	viewer.holds(t, http.StatusOK, "denied")
	viewer.lacks(t, "Make a rule")
	// As refused requests in the audit log lead here: with the id of the agent.
	ask("admin", "tenant", "acme", "agent", builder.ID, "surface", "proxy", "url", "https://api.example.com:443").
		holds(t, http.StatusOK, `<option value="acme/builder" selected>`, "denied")
	ask("acme operator", "url", "").holds(t, http.StatusUnprocessableEntity, `id="f-url-wrong"`)
	ask("acme operator", "whose", "acme/builder", "url", hostile).holds(t, http.StatusOK, "is not", "&lt;img")
	ask("acme operator", "whose", "acme/builder", "surface", "llm", "url", "https://models.example.com").holds(t, http.StatusOK, "Rules do not decide about requests for models")
	ask("acme operator", "whose", "beta", "url", "https://example.com").holds(t, http.StatusNotFound)
	w.get("acme viewer", "/console/network/explain").holds(t, http.StatusOK, "Ask about a request")
}

func TestRequestsForAccessAreAnswered(t *testing.T) {
	w := newFixture(t)
	builder, other := w.agent("acme", "builder"), w.agent("beta", "other")
	first := w.ask(builder, egress.AccessHost, "api.example.com", hostile)
	second := w.ask(builder, egress.AccessHost, "wiki.example.com", "to look something up")
	third := w.ask(builder, egress.AccessHost, "news.example.com", "to read")
	theirs := w.ask(other, egress.AccessHost, "their.example.com", "for beta")

	p := w.get("acme operator", "/console/network/requests")
	p.holds(t, http.StatusOK, "api.example.com", "&lt;img", "Approve once", "Refuse", `hx-get="/console/network/requests/list"`, `data-every="5"`, `class="count">3<`)
	p.lacks(t, "<img", "their.example.com")
	part := w.get("acme operator", "/console/network/requests/list")
	part.holds(t, http.StatusOK, `<section id="pending"`, "wiki.example.com")
	part.lacks(t, "<html")
	viewer := w.get("acme viewer", "/console/network/requests")
	viewer.holds(t, http.StatusOK, "api.example.com")
	viewer.lacks(t, "Approve", "Refuse")

	w.follow("acme operator", w.post("acme operator", "/console/network/requests/answer", "id", first.ID, "answer", "once")).
		holds(t, http.StatusOK, "builder may use api.example.com now.", "approved")
	w.follow("acme operator", w.post("acme operator", "/console/network/requests/answer", "id", second.ID, "answer", "refuse", "comment", "use the mirror "+hostile)).
		holds(t, http.StatusOK, "builder is told that wiki.example.com was refused.", "use the mirror &lt;img", "refused")
	w.post("acme operator", "/console/network/requests/answer", "id", third.ID, "answer", "hour").holds(t, http.StatusSeeOther)
	w.follow("acme operator", w.post("acme operator", "/console/network/requests/answer", "id", third.ID, "answer", "always")).
		holds(t, http.StatusOK, "answered already")
	rules, err := w.book.Rules(w.ctx, w.admin, "acme")
	w.must(err)
	if len(rules) != 2 {
		t.Fatalf("the answers have made %+v", rules)
	}
	for _, r := range rules {
		if r.Once == r.ExpiresAt.After(r.CreatedAt) || r.Agent != builder.ID {
			t.Errorf("an answer has made %+v", r)
		}
	}
	// A button that says nothing, and one that is none, refuse.
	fourth := w.ask(builder, egress.AccessHost, "fourth.example.com", "again")
	w.post("acme operator", "/console/network/requests/answer", "id", fourth.ID, "answer", "everything").holds(t, http.StatusSeeOther)
	if got, err := w.book.AccessRequest(w.ctx, w.admin, fourth.ID, 0); err != nil || got.State != egress.AccessRefused {
		t.Errorf("%+v, %v", got, err)
	}
	w.post("acme viewer", "/console/network/requests/answer", "id", theirs.ID, "answer", "always").holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/network/requests/answer", "id", theirs.ID, "answer", "always").holds(t, http.StatusNotFound)
}
