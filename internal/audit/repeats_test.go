package audit

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// number is what the details of rows have under a name, together.
func number(t *testing.T, rows []store.AuditRow, name string) (sum int64) {
	t.Helper()
	for _, r := range rows {
		var fields map[string]any
		if err := json.Unmarshal(r.Detail, &fields); err != nil {
			t.Fatal(err)
		}
		n, _ := fields[name].(float64)
		sum += int64(n)
	}
	return sum
}

func of(rows []store.AuditRow, tenant string) (out []store.AuditRow) {
	for _, r := range rows {
		if r.Tenant == tenant {
			out = append(out, r)
		}
	}
	return out
}

func refusal(tenant, agent, target string) Event {
	return Event{Action: "gateway.forward", Result: Refused, Tenant: tenant, Actor: "agent:" + agent, Target: target,
		Detail: NewDetail(Fields{"code": "host_denied"})}
}

// One refusal three thousand times a minute is two records of the first minute and one of each that follows, and the numbers
// in them are right. A refusal of another tenant meanwhile has its own record.
func TestARefusalThatRepeatsIsOneRecordWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		const minutes, each = 5, 3000
		for range minutes * 60 {
			for range each / 60 {
				l.Note(refusal("acme", "bot", "denied.example:443"))
			}
			time.Sleep(time.Second) // of the bubble's clock
		}
		l.Note(refusal("other", "bot", "denied.example:443"))
		w.close(l)
		rows := of(w.store.all(), "acme")
		if len(rows) < 2 || len(rows) > minutes+2 {
			t.Errorf("%d records of %d refusals", len(rows), minutes*each)
		}
		if n := number(t, rows, fieldRepeated) + 1; n != minutes*each {
			t.Errorf("the records say %d refusals, and there were %d", n, minutes*each)
		}
		if rows := of(w.store.all(), "other"); len(rows) != 1 || number(t, rows, fieldRepeated) != 0 {
			t.Errorf("of another tenant there is %+v", rows)
		}
		w.sound()
	})
}

// An agent that is refused something else each time does not fill the log either.
func TestWhoIsRefusedAllTheTimeDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		const each, seconds = 500, 100
		for n := range seconds {
			for i := range each {
				l.Note(refusal("acme", "bot", fmt.Sprintf("host-%d-%d.example:443", n, i)))
			}
			l.Note(refusal("acme", "twin", fmt.Sprintf("host-%d.example:443", n)))
			time.Sleep(time.Second)
		}
		w.close(l)
		var bots, twins []store.AuditRow
		for _, r := range w.store.all() {
			switch r.Actor {
			case "agent:bot":
				bots = append(bots, r)
			case "agent:twin":
				twins = append(twins, r)
			}
		}
		if limit := refusalsAtOnce + seconds*refusalsPerSecond + 5; len(bots) > limit || len(bots) < refusalsAtOnce {
			t.Errorf("%d records of %d refusals of one agent", len(bots), each*seconds)
		}
		counts := 0
		for _, r := range bots {
			if r.Action == actionLeftOut {
				counts++
			}
		}
		if n := number(t, bots, fieldLeftOut) + int64(len(bots)-counts); n != each*seconds {
			t.Errorf("the records say %d refusals, and there were %d", n, each*seconds)
		}
		if len(twins) != seconds {
			t.Errorf("%d of %d refusals of another agent of the tenant are written", len(twins), seconds)
		}
	})
}

// The number of refusals that are remembered is bounded, and one that is not remembered is written.
func TestRepeatsAreRememberedUpToABound(t *testing.T) {
	r := newRepeats(time.Minute)
	for n := range 2 * maxRepeats {
		row, err := eventRow(refusal("acme", fmt.Sprint(n), "x"))
		if err != nil {
			t.Fatal(err)
		}
		if want := n <= maxRepeats+refusalsAtOnce; r.refused(row, false, day) != want && n != maxRepeats+refusalsAtOnce {
			t.Fatalf("the refusal of actor %d is written: %v", n, !want)
		}
	}
	if len(r.rows) > maxRepeats || len(r.by) > maxRepeats+1 {
		t.Errorf("%d records and %d actors are remembered", len(r.rows), len(r.by))
	}
	for range 3 {
		r.due(day.Add(24*time.Hour), false)
	}
	if len(r.rows)+len(r.by) != 0 {
		t.Errorf("a day later %d records and %d actors are remembered", len(r.rows), len(r.by))
	}
}

// A tenant without room for records begins nothing, and fills nothing with being refused and with ending things; another one
// works on. Endings are on record. When there is room again, it begins again.
func TestNoTenantTakesTheRoomForRecordsOfOthers(t *testing.T) {
	w := newFixture(t)
	w.options.Room, w.options.Tenants, w.options.Quotas = 100_000, func() int { return 2 }, config.Quotas{Tenant: 60, Agent: 50}
	l := w.open()
	act := func(tenant, actor string) error {
		p, err := l.Begin(t.Context(), Intent{Action: "gateway.forward", Tenant: tenant, Actor: actor, Target: "x"})
		if err == nil {
			p.End(Outcome{Result: OK})
		}
		return err
	}
	fill := func(tenant, actor string) (n int) {
		for ; n < 1000; n++ {
			if err := act(tenant, actor); err != nil {
				wantCode(t, err, problem.AuditUnavailable)
				return n
			}
			w.settled(l, 2*(n+1))
		}
		t.Fatalf("%s fills the log", actor)
		return n
	}
	agent := fill("acme", "agent:bot")
	w.counted = len(w.store.all())
	person := fill("acme", "operator:ann")
	if agent == 0 || person == 0 {
		t.Fatalf("an agent did %d things and then its operator %d", agent, person)
	}
	full := len(w.store.all())
	wantCode(t, l.Event(t.Context(), Event{Action: "agent.create", Tenant: "acme", Actor: "operator:ann"}), problem.AuditUnavailable)
	for n := range 3000 {
		l.Note(refusal("acme", "bot", fmt.Sprint(n)))
		l.BeginEnding(Intent{Action: "token.revoke", Tenant: "acme", Actor: "operator:ann", Target: "one"}).End(Outcome{Result: OK})
	}
	for range 10 {
		if err := act("other", "agent:bot"); err != nil {
			t.Fatalf("another tenant: %v", err)
		}
		if err := act("", "admin"); err != nil {
			t.Fatalf("an admin of the installation: %v", err)
		}
	}
	// The admin helps the tenant out; a browser that the admin has opened for it is no help.
	if p, err := l.Begin(t.Context(), Intent{Action: "recording.remove", Tenant: "acme", Actor: "admin"}); err != nil {
		t.Errorf("an admin of the installation, for the tenant: %v", err)
	} else {
		p.End(Outcome{Result: OK})
	}
	wantCode(t, act("acme", "admin"), problem.AuditUnavailable)
	w.close(l)
	if more := len(w.store.all()) - full; more > 2+4*10+2+4 {
		t.Errorf("%d records more, of a tenant without room", more)
	}
	if n := number(t, of(w.store.all(), "acme"), fieldLeftOut); n != 3000 {
		t.Errorf("of 3000 refusals %d are counted", n)
	}
	w.sound()

	// The next process knows it, until there is more room.
	l = w.open()
	wantCode(t, act("acme", "agent:bot"), problem.AuditUnavailable)
	w.close(l)
	w.options.Room *= 10
	l = w.open()
	if err := act("acme", "agent:bot"); err != nil {
		t.Error(err)
	}
}

// A listing that no index answers ends, and who asks for many keeps nobody else waiting.
func TestListingsOfOneTenantKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		slow := &slowLists{memory: w.store, slow: "acme"}
		w.options.Store = slow
		l := w.open()
		const asked = 20
		ends := make(chan error, asked)
		for range asked {
			go func() {
				_, err := l.List(t.Context(), Filter{Tenant: "acme", Jail: "x"})
				ends <- err
			}()
		}
		synctest.Wait()
		if n := slow.now.Load(); n != listsOfTenant {
			t.Errorf("%d listings of one tenant read at once", n)
		}
		if _, err := l.List(t.Context(), Filter{Tenant: "other"}); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		for range asked {
			wantCode(t, <-ends, problem.Timeout)
		}
		w.close(l)
	})
}
