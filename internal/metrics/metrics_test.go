package metrics

import (
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

func metrics() *Metrics {
	return New(Options{
		Version:  "1.2",
		Sessions: func() session.Status { return session.Status{MaxSessions: 64, WarmSize: 2, WarmReady: 1} },
		States:   func() map[session.State]int { return map[session.State]int{session.StateReady: 3} },
		Audit:    func() audit.Status { return audit.Status{Head: 10, Noted: 7, Spilled: 4} },
	})
}

func TestAScrapeHasWhatHappened(t *testing.T) {
	m := metrics()
	d := gateway.Decision{Surface: gateway.SurfaceConnect, Allowed: true}
	m.Decided(d, 3*time.Millisecond)
	m.Ended(d, gateway.Outcome{BytesOut: 10, BytesIn: 20, Took: time.Second, Reused: true})
	m.Ended(gateway.Decision{Surface: gateway.SurfaceLLM, Allowed: true}, gateway.Outcome{Status: 503})
	m.Decided(gateway.Decision{Surface: gateway.SurfaceForward, Code: problem.HostDenied}, time.Millisecond)
	m.Decided(gateway.Decision{Surface: gateway.SurfaceForward, Allowed: true, Reported: true, Code: problem.PortDenied}, time.Millisecond)
	m.Tunnels(1)
	m.Opened("", true, session.Timing{Ready: 3, Total: 4})
	m.Opened(problem.TooManySessions, false, session.Timing{})
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`clawjail_gateway_decisions_total{code="",decision="allowed",surface="connect"} 1`,
		`clawjail_gateway_decisions_total{code="host_denied",decision="refused",surface="forward"} 1`,
		`clawjail_gateway_decisions_total{code="port_denied",decision="reported",surface="forward"} 1`,
		`clawjail_gateway_requests_total{outcome="none",surface="connect"} 1`,
		`clawjail_gateway_requests_total{outcome="5xx",surface="llm"} 1`,
		`clawjail_gateway_bytes_total{direction="in",surface="connect"} 20`,
		`clawjail_gateway_tunnels 1`,
		`clawjail_gateway_connections_reused_total 1`,
		`clawjail_sessions{state="ready"} 3`,
		`clawjail_pool_browsers{which="ready"} 1`,
		`clawjail_audit_lag 3`,
		`clawjail_audit_spilled{which="spilled"} 4`,
		`clawjail_session_open_seconds_count{stage="total",warm="true"} 1`,
		`clawjail_sessions_opened_total{result="too_many_sessions"} 1`,
		`clawjail_build_info{version="1.2"} 1`,
	} {
		if !strings.Contains(string(body), want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
}

// A program in a jail must not be able to make series without end.
func TestNoLabelIsChosenByACaller(t *testing.T) {
	m := metrics()
	for n := range 1000 {
		text := fmt.Sprintf("hostile-%d", n)
		m.Decided(gateway.Decision{Surface: gateway.SurfaceForward, Code: text, Method: text, Path: text, Rule: text, Agent: text, Tenant: text}, 0)
		m.Ended(gateway.Decision{Surface: gateway.SurfaceForward, Allowed: true, Service: text}, gateway.Outcome{Code: text, Status: n})
		m.Opened(text, false, session.Timing{})
	}
	if n := testutil.CollectAndCount(m.decisions); n != 1 {
		t.Errorf("%d series of decisions", n)
	}
	if n := testutil.CollectAndCount(m.requests); n > 6 {
		t.Errorf("%d series of requests", n)
	}
	if n := testutil.CollectAndCount(m.opened); n != 1 {
		t.Errorf("%d series of sessions", n)
	}
}

func TestNamesAndHelpAreAsPrometheusWantsThem(t *testing.T) {
	m := metrics()
	m.Decided(gateway.Decision{}, 0)
	m.Ended(gateway.Decision{}, gateway.Outcome{})
	m.Opened("", true, session.Timing{Total: 1})
	found, err := testutil.GatherAndLint(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Errorf("%s: %s", f.Metric, f.Text)
	}
}
