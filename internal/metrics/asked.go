package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/clawjail/clawjail/internal/session"
)

// asked are the numbers that somebody else has: they are asked for when they are read.
type asked struct {
	Options
	sessions, limit, pool, waiting, unnoted, down, build *prometheus.Desc
}

func newAsked(o Options) asked {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return asked{
		Options:  o,
		sessions: desc("clawjail_sessions", "Sessions by state.", "state"),
		limit:    desc("clawjail_sessions_max", "How many sessions may be open at once."),
		pool:     desc("clawjail_pool_browsers", "Browsers that wait for a session: how many are wanted, and how many are ready.", "which"),
		waiting:  desc("clawjail_audit_spilled", "Records that wait in the file for what the database cannot take, and records that found no place.", "which"),
		unnoted:  desc("clawjail_audit_lag", "Records that no signed checkpoint speaks of yet."),
		down:     desc("clawjail_audit_down", "1 while the audit log cannot be written, and nothing is therefore begun."),
		build:    desc("clawjail_build_info", "Always 1.", "version"),
	}
}

// Describe implements prometheus.Collector.
func (a asked) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.sessions, a.limit, a.pool, a.waiting, a.unnoted, a.down, a.build} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (a asked) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	states := a.States()
	for _, state := range []session.State{session.StateOpening, session.StateReady, session.StateClosing} {
		gauge(a.sessions, float64(states[state]), string(state))
	}
	s := a.Sessions()
	gauge(a.limit, float64(s.MaxSessions))
	gauge(a.pool, float64(s.WarmSize), "wanted")
	gauge(a.pool, float64(s.WarmReady), "ready")
	log := a.Audit()
	gauge(a.waiting, float64(log.Spilled), "spilled")
	gauge(a.waiting, float64(log.Lost), "lost")
	gauge(a.unnoted, float64(max(0, log.Head-log.Noted)))
	down := 0.0
	if log.Down || log.Broken {
		down = 1
	}
	gauge(a.down, down)
	gauge(a.build, 1, a.Version)
}
