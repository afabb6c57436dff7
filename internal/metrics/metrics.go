// Package metrics counts what clawjail does, for Prometheus.
//
// Names begin with clawjail_, units are seconds and bytes. No label has a value that somebody outside chooses: no host, no
// path, no agent, no tenant. So there are never more than a few hundred series, and they do not tell a reader what a single
// tenant does.
package metrics

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// Options are where numbers come from that are asked for when somebody reads them. All are required.
type Options struct {
	Version  string
	Sessions func() session.Status
	// States counts sessions by state.
	States func() map[session.State]int
	Audit  func() audit.Status
}

// Metrics is what is counted. It observes a gateway and the opening of sessions; its methods may be called at the same
// time.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	codes    map[string]bool // those that a label may have

	decisions *prometheus.CounterVec
	deciding  *prometheus.HistogramVec
	requests  *prometheus.CounterVec
	took      *prometheus.HistogramVec
	bytes     *prometheus.CounterVec
	tunnels   prometheus.Gauge
	reused    prometheus.Counter
	stages    *prometheus.HistogramVec
	opened    *prometheus.CounterVec

	asked, refused atomic.Uint64
}

// New makes the metrics with their registry.
func New(o Options) *Metrics {
	fast := []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 10}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		codes:    map[string]bool{"": true},
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "clawjail_gateway_decisions_total",
			Help: "Requests that the gateway decided about, by surface, decision (allowed, reported, refused) and code of the refusal."},
			[]string{"surface", "decision", "code"}),
		deciding: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "clawjail_gateway_decision_seconds",
			Help: "From the arrival of a request to its decision: policy, rate, name look-up, address checks and record.", Buckets: fast}, []string{"surface"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "clawjail_gateway_requests_total",
			Help: "Requests and tunnels that were allowed and are over, by surface and outcome (1xx to 5xx, none, or the code of what went wrong)."},
			[]string{"surface", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "clawjail_gateway_request_seconds",
			Help: "How long requests and tunnels lasted that were allowed.", Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 30, 120, 600}}, []string{"surface"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "clawjail_gateway_bytes_total",
			Help: "Bytes that passed, seen from the jail: out is what it sent."}, []string{"surface", "direction"}),
		tunnels: prometheus.NewGauge(prometheus.GaugeOpts{Name: "clawjail_gateway_tunnels", Help: "Tunnels that are open."}),
		reused: prometheus.NewCounter(prometheus.CounterOpts{Name: "clawjail_gateway_connections_reused_total",
			Help: "Requests that used a connection that an earlier one of the same caller had opened."}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "clawjail_session_open_seconds",
			Help: "Stages of opening a session: clone, attach, start, verify, ready, inject, total.", Buckets: []float64{.001, .005, .01, .025, .05, .1, .2, .4, .8, 2, 10}},
			[]string{"stage", "warm"}),
		opened: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "clawjail_sessions_opened_total",
			Help: "Sessions that were asked for, by result: ok, or the code of why not."}, []string{"result"}),
	}
	for _, i := range problem.Codes() {
		m.codes[i.Code] = true
	}
	for _, code := range gateway.OwnCodes() {
		m.codes[code] = true
	}
	m.registry.MustRegister(m.decisions, m.deciding, m.requests, m.took, m.bytes, m.tunnels, m.reused, m.stages, m.opened,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newAsked(o))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 2, Timeout: 10 * time.Second})
	return m
}

// ServeHTTP answers a scrape.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// Decided implements gateway.Observer.
func (m *Metrics) Decided(d gateway.Decision, took time.Duration) {
	m.asked.Add(1)
	if !d.Allowed && !d.Reported {
		m.refused.Add(1)
	}
	decision := "refused"
	switch {
	case d.Reported:
		decision = "reported"
	case d.Allowed:
		decision = "allowed"
	}
	m.decisions.WithLabelValues(string(d.Surface), decision, m.known(d.Code)).Inc()
	m.deciding.WithLabelValues(string(d.Surface)).Observe(took.Seconds())
}

// Gateway is how many requests were decided since the start, and how many of them were refused.
func (m *Metrics) Gateway() (requests, refusals uint64) { return m.asked.Load(), m.refused.Load() }

// Ended implements gateway.Observer.
func (m *Metrics) Ended(d gateway.Decision, o gateway.Outcome) {
	outcome := "none"
	switch {
	case o.Code != "":
		outcome = m.known(o.Code)
	case o.Status >= 100 && o.Status < 600:
		outcome = strconv.Itoa(o.Status/100) + "xx"
	}
	surface := string(d.Surface)
	m.requests.WithLabelValues(surface, outcome).Inc()
	m.took.WithLabelValues(surface).Observe(o.Took.Seconds())
	m.bytes.WithLabelValues(surface, "out").Add(float64(o.BytesOut))
	m.bytes.WithLabelValues(surface, "in").Add(float64(o.BytesIn))
	if o.Reused {
		m.reused.Inc()
	}
}

// Tunnels implements gateway.Observer.
func (m *Metrics) Tunnels(change int) { m.tunnels.Add(float64(change)) }

// Opened counts a session that was asked for. The code is empty when it was opened.
func (m *Metrics) Opened(code string, warm bool, t session.Timing) {
	if code != "" {
		m.opened.WithLabelValues(m.known(code)).Inc()
		return
	}
	m.opened.WithLabelValues("ok").Inc()
	for stage, ms := range map[string]float64{
		"clone": t.Clone, "attach": t.Attach, "start": t.Start, "verify": t.Verify, "ready": t.Ready, "inject": t.Inject, "total": t.Total,
	} {
		if ms > 0 {
			m.stages.WithLabelValues(stage, strconv.FormatBool(warm)).Observe(ms / 1000)
		}
	}
}

// known is a code of the table, or "other", so that the number of series is bounded.
func (m *Metrics) known(code string) string {
	if m.codes[code] {
		return code
	}
	return "other"
}
