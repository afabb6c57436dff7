package console

import (
	"net/http"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
)

func TestRequestsThatWaitAreANumberOnEveryPage(t *testing.T) {
	w := newWorld(t)
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
