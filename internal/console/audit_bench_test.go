package console

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
)

// bad is what verifying a log finds that was changed.
func bad(context.Context) (audit.Report, error) {
	return audit.Report{Nodes: []audit.NodeReport{{Node: "n1", Rows: 9, Bad: &audit.Finding{Kind: "changed", Node: "n1", Seq: 7, ID: "id7", Why: hostile}}}}, nil
}

// many is how many records, and agents how many agents the console must show at once.
const (
	many       = 10_000
	manyAgents = 200
)

func TestTheAuditLogIsShownWithTenThousandRecordsAndTwoHundredAgents(t *testing.T) {
	w := newFixture(t)
	w.fill(t)
	if p := w.get("admin", "/console/audit"); p.status != http.StatusOK || len(targetsOf(p)) < 40 {
		t.Errorf("%d, %d records", p.status, len(targetsOf(p)))
	}
	if p := w.get("admin", "/console/"); p.status != http.StatusOK {
		t.Errorf("%d", p.status)
	}
}

func (w *fixture) fill(t testing.TB) {
	t.Helper()
	for n := range manyAgents {
		w.lasting("acme", "agent-"+string(rune('a'+n%26))+string(rune('a'+n/26)), 30*24*time.Hour)
	}
	for range many / 500 {
		w.events(499, audit.Event{Action: "gateway.connect", Tenant: "acme", Actor: "agent:a_1", Session: "s_1", Target: "api.example.com:443",
			Detail: audit.NewDetail(audit.Fields{"method": "GET", "path": "/v1/things", "rule": "r_1", "allowed": true})})
	}
}

func BenchmarkAuditPage(b *testing.B) {
	w := newFixture(b)
	w.fill(b)
	for _, page := range []struct{ name, at string }{
		{"newest", "/console/audit"}, {"found", "/console/audit?action=session"}, {"overview", "/console/"},
	} {
		b.Run(page.name, func(b *testing.B) {
			for b.Loop() {
				if p := w.get("admin", page.at); p.status != http.StatusOK {
					b.Fatal(p.status)
				}
			}
		})
	}
}
