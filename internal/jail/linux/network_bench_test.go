//go:build linux

package linux

import (
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// quantiles measures one part of a benchmark's loop by itself. Stopping and starting the benchmark's own clock
// around it would cost more than most of these parts.
type quantiles []time.Duration

func (q *quantiles) time(f func() error) error {
	start := time.Now()
	err := f()
	*q = append(*q, time.Since(start))
	return err
}

func (q *quantiles) report(b *testing.B) {
	b.Helper()
	slices.Sort(*q)
	at := func(share float64) float64 {
		return float64((*q)[int(share*float64(len(*q)-1))].Nanoseconds()) / 1e3
	}
	b.ReportMetric(at(0.5), "p50-µs")
	b.ReportMetric(at(0.95), "p95-µs")
	b.ReportMetric(0, "ns/op") // would count what is around it
}

// The slot of a jail when none is ready, when some are, and its end.
func BenchmarkReserveCold(b *testing.B)  { benchmarkSlot(b, 0, "reserve") }
func BenchmarkReserveReady(b *testing.B) { benchmarkSlot(b, 8, "reserve") }
func BenchmarkAttach(b *testing.B)       { benchmarkSlot(b, 8, "attach") }
func BenchmarkDetach(b *testing.B)       { benchmarkSlot(b, 0, "detach") }

func benchmarkSlot(b *testing.B, ready int, what string) {
	if !onOwnHost(b) {
		return
	}
	i := install(b, "test", "10.213.0.0/20", ready)
	i.jail(b) // the first one wakes the bridge
	times := map[string]*quantiles{"reserve": {}, "attach": {}, "detach": {}}
	for b.Loop() {
		testenv.Eventually(b, 10*time.Second, func() bool { return i.network.Prepared() == ready }, "the slots filled")
		var l jail.Lease
		noError(b, times["reserve"].time(func() (err error) { l, err = i.network.Reserve(b.Context()); return err }))
		name, _ := jail.NewName(jail.KindBrowser, i.id, l.Index)
		noError(b, times["attach"].time(func() error { _, err := i.network.Attach(b.Context(), name, l); return err }))
		noError(b, times["detach"].time(func() error { return i.network.Detach(b.Context(), name, l) }))
		i.network.Release(l)
	}
	times[what].report(b)
}

func BenchmarkFirewallAdd(b *testing.B)    { benchmarkMember(b, "add", false) }
func BenchmarkFirewallRemove(b *testing.B) { benchmarkMember(b, "remove", false) }

// BenchmarkFirewallAddAfterAForeignChange is what it costs to read and compare the rules.
func BenchmarkFirewallAddAfterAForeignChange(b *testing.B) { benchmarkMember(b, "add", true) }

func benchmarkMember(b *testing.B, what string, foreign bool) {
	if !onOwnHost(b) {
		return
	}
	i := install(b, "test", "10.213.0.0/20", 0)
	for index := range 200 { // a host with many jails
		l, err := i.pool.Lease(index + 1)
		noError(b, err)
		noError(b, i.firewall.Add(b.Context(), jail.TableAgents, l))
		defer func() { noError(b, i.firewall.Remove(b.Context(), jail.TableAgents, l)) }()
	}
	l, err := i.pool.Lease(0)
	noError(b, err)
	times := map[string]*quantiles{"add": {}, "remove": {}}
	for b.Loop() {
		if foreign {
			i.firewall.known = 0
		}
		noError(b, times["add"].time(func() error { return i.firewall.Add(b.Context(), jail.TableBrowsers, l) }))
		noError(b, times["remove"].time(func() error { return i.firewall.Remove(b.Context(), jail.TableBrowsers, l) }))
	}
	times[what].report(b)
}

// BenchmarkFirewallEnsure compares everything, as on a timer after somebody changed the host's ruleset.
func BenchmarkFirewallEnsure(b *testing.B) {
	if !onOwnHost(b) {
		return
	}
	i := install(b, "test", "10.213.0.0/20", 0)
	for b.Loop() {
		i.firewall.known = 0
		noError(b, i.firewall.Ensure(b.Context()))
	}
}

// BenchmarkFirewallFirst is the first start on a host: both tables are written.
func BenchmarkFirewallFirst(b *testing.B) {
	if !onOwnHost(b) {
		return
	}
	i := install(b, "test", "10.213.0.0/20", 0)
	var times quantiles
	for b.Loop() {
		noError(b, i.firewall.Uninstall(b.Context()))
		noError(b, times.time(func() error { return i.firewall.Ensure(b.Context()) }))
	}
	times.report(b)
}
