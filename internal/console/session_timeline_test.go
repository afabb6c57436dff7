package console

import (
	"net/http"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
)

// How many there were is known only when it was done: the record from before does not say it.
func TestCookiesThatWerePutInAreCounted(t *testing.T) {
	w := withSessions(t)
	pending, err := w.log.Begin(w.ctx, audit.Intent{Action: "session.inject", Tenant: "acme", Actor: w.who["acme operator"].Actor(), Session: "s_one"})
	if err != nil {
		t.Fatal(err)
	}
	w.get("admin", "/console/sessions/s_one/timeline").holds(t, http.StatusOK, "put cookies in")
	pending.End(audit.Outcome{Result: audit.OK, Detail: audit.NewDetail(audit.Fields{"cookie_count": 12})})
	w.must(w.log.Event(w.ctx, audit.Event{Action: "session.use", Result: audit.OK, Tenant: "acme", Actor: "admin"})) // is written after it
	w.get("admin", "/console/sessions/s_one/timeline").holds(t, http.StatusOK, "put 12 cookies in")
}
