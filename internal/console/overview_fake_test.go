package console

import (
	"time"

	"github.com/clawjail/clawjail/internal/audit"
)

// furnishOverview gives the overview something to tell, and the audit log something of everything.
func furnishOverview(w *fixture) {
	w.oldAccount("acme", "mail.example", 50*time.Hour)
	w.account("acme", "shop.example", 30*24*time.Hour)
	w.signedOut("acme", "shop.example")
	w.lasting("acme", "scraper", time.Hour)
	w.machine.Orphans = []string{"clone cj-x7k2-9 (clone of a jail that is not in the journal)"}
	for _, e := range []audit.Event{
		{Action: "gateway.connect", Tenant: "acme", Actor: "agent:a_1", Session: "s_1", Result: audit.Refused, Target: "tracker.test:443",
			Detail: audit.NewDetail(audit.Fields{"method": "CONNECT", "scheme": "https", "code": "host_denied", "rule": "default"})},
		{Action: "session.needs_refresh", Tenant: "acme", Actor: "system", Session: "s_1", Target: "shop.example"},
		{Action: "session.open", Tenant: "acme", Actor: "agent:a_1", Session: "s_1", Result: audit.Failed, Detail: audit.NewDetail(audit.Fields{"code": "timeout", "label": hostile})},
	} {
		w.must(w.log.Event(w.ctx, e))
	}
}
