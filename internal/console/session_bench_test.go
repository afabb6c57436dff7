package console

import (
	"fmt"
	"net/http"
	"testing"
)

// BenchmarkSessionPages shows sessions beside ten thousand records and two hundred agents.
func BenchmarkSessionPages(b *testing.B) {
	w := newFixture(b)
	w.fill(b)
	for n := range manyAgents {
		w.sessions.all = append(w.sessions.all, aSession(fmt.Sprintf("s_%d", n), "acme"))
	}
	for _, page := range []struct{ name, at string }{
		{"list", "/console/sessions"}, {"busy", "/console/sessions/s_1"}, {"quiet", "/console/sessions/s_2"}, {"timeline", "/console/sessions/s_1/timeline"},
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
