package console

import (
	"net/http"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/session"
)

// The page says what an approval cannot change, before it is given.
func TestAnApprovalSaysThatASessionWithAccountsStaysAsItIs(t *testing.T) {
	w := newFixture(t)
	const said = "An approval changes nothing for its session with accounts"
	for _, c := range []struct {
		name, mode string
		kind       egress.AccessKind
		target     string
		want       bool
	}{
		{"has", session.ModeOperator, egress.AccessHost, "one.example:443", true},
		{"clean", session.ModeClean, egress.AccessHost, "one.example:443", false},
		{"none", "", egress.AccessHost, "one.example:443", false},
		{"calls", session.ModeOperator, egress.AccessTool, "GET https://api.example.com/v1/x github", false},
	} {
		by := w.agent("acme", c.name)
		if c.mode != "" {
			s := aSession("s_"+c.name, "acme")
			s.OpenedBy, s.CredentialMode = by.Actor(), c.mode
			w.sessions.all = []session.Session{s}
		}
		asked := w.ask(by, c.kind, c.target, "a reason")
		p := w.get("acme operator", "/console/network/requests")
		if strings.Contains(p.body, said) != c.want || !strings.Contains(p.body, ">"+c.name+"<") || c.want && !strings.Contains(p.body, "/console/sessions/s_"+c.name) {
			t.Errorf("%s: it says so: %v\n%s", c.name, !c.want, p.body)
		}
		w.post("acme operator", "/console/network/requests/answer", "id", asked.ID, "answer", "no")
		w.sessions.all = nil
	}
}

func TestRequestsThatWaitAreANumberOnEveryPage(t *testing.T) {
	w := newFixture(t)
	const one, two = `<span class="waiting">1<`, `<span class="waiting">2<`
	page := w.get("acme operator", "/console/sessions")
	page.holds(t, http.StatusOK, "<title>Sessions", `data-waiting="0"`)
	page.lacks(t, `class="waiting"`)

	by := w.agent("acme", "asks")
	asked := w.ask(by, egress.AccessHost, "one.example:443", "a reason")
	w.ask(by, egress.AccessHost, "two.example:443", "a reason")
	w.get("acme operator", "/console/sessions").holds(t, http.StatusOK, "<title>(2) Sessions", two)
	w.get("admin", "/console/").holds(t, http.StatusOK, "<title>(2) Overview", two)
	// Of another tenant there are none, and who may not answer is not called.
	w.get("beta admin", "/console/").lacks(t, `class="waiting"`)
	w.get("acme viewer", "/console/").lacks(t, `class="waiting"`)

	w.post("acme operator", "/console/network/requests/answer", "id", asked.ID, "answer", "no")
	menu := w.send("acme operator", http.MethodGet, "/console/menu", nil, func(r *http.Request) {
		r.Header.Set("HX-Request", "true")
		r.Header.Set("HX-Current-URL", "http://"+r.Host+"/console/sessions/s_one")
	})
	menu.holds(t, http.StatusOK, one, `data-waiting="1"`, `<a href="/console/sessions" aria-current="page">`)
	menu.lacks(t, "<title>", `<a href="/console/" aria-current`)
}
