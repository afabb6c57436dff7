package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// An actor that is refused all the time fills no log: the same refusal again is counted, and the count is one record a while later.
// Different refusals of one actor are limited: refusalsAtOnce, then refusalsPerSecond; the ones left out are counted, too.
const (
	refusalsAtOnce    = 1000
	refusalsPerSecond = 2
	// maxRepeats is how many different records are remembered, and of how many actors the rate is known. Records on top
	// of the first number are written down each time; actors on top of the second share one rate.
	maxRepeats = 4096
	// forgetActor is how long the rate of an actor is kept that is not refused. It is full again by then.
	forgetActor = 10 * time.Minute
)

// The names of counts in a detail.
const (
	fieldRepeated = "repeated" // how often the same came after the record before
	fieldLeftOut  = "left_out" // how many different ones were left out
)

// repeats knows which records were written a short while ago.
type repeats struct {
	every time.Duration

	mu   sync.Mutex
	rows map[[sha256.Size]byte]*repeat
	by   map[whom]*refuser
}

// repeat is one record that may come again.
type repeat struct {
	row   store.AuditRow
	count int64
	until time.Time
}

type whom struct{ tenant, actor string }

type refuser struct {
	limit       *rate.Limiter
	leftOut     int64
	since, last time.Time
}

func newRepeats(every time.Duration) *repeats {
	return &repeats{every: every, rows: map[[sha256.Size]byte]*repeat{}, by: map[whom]*refuser{}}
}

// refused says whether a refusal is written down. When its tenant has no room for records, refusals are only counted.
func (r *repeats) refused(row store.AuditRow, full bool, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if full {
		r.leaveOut(r.of(whom{tenant: row.Tenant}, now), 1, now)
		return false
	}
	if r.count(row) {
		return false
	}
	one := r.of(whom{row.Tenant, row.Actor}, now)
	if !one.limit.AllowN(now, 1) {
		r.leaveOut(one, 1, now)
		return false
	}
	r.remember(row, now)
	return true
}

// again says whether the same record was written a short while ago, and counts it then.
func (r *repeats) again(row store.AuditRow, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count(row) {
		return true
	}
	r.remember(row, now)
	return false
}

func (r *repeats) count(row store.AuditRow) bool {
	known := r.rows[sameAs(row)]
	if known != nil {
		known.count++
	}
	return known != nil
}

func (r *repeats) remember(row store.AuditRow, now time.Time) {
	if len(r.rows) < maxRepeats {
		r.rows[sameAs(row)] = &repeat{row: row, until: now.Add(r.every)}
	}
}

func (r *repeats) of(who whom, now time.Time) *refuser {
	if r.by[who] == nil {
		if len(r.by) >= maxRepeats {
			who = whom{}
		}
		if r.by[who] == nil {
			r.by[who] = &refuser{limit: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce)}
		}
	}
	r.by[who].last = now
	return r.by[who]
}

func (r *repeats) leaveOut(one *refuser, n int64, now time.Time) {
	if one.leftOut == 0 {
		one.since = now
	}
	one.leftOut += n
}

// due are the records that say how much was counted for long enough, or with all, for any time.
func (r *repeats) due(now time.Time, all bool) (rows []store.AuditRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, known := range r.rows {
		if !all && now.Before(known.until) {
			continue
		}
		if known.count == 0 || all {
			delete(r.rows, key)
		}
		if known.count == 0 {
			continue
		}
		n := known.count
		known.count, known.until = 0, now.Add(r.every)
		row := known.row
		if row.Phase != PhaseEvent { // an intent: what it says happened again, and has no outcome of its own
			row.Phase, row.Result = PhaseEvent, string(Unknown)
		} else if one := r.of(whom{row.Tenant, row.Actor}, now); !all && !one.limit.AllowN(now, 1) {
			r.leaveOut(one, n, now)
			continue
		}
		detail, fits := withField(row.Detail, fieldRepeated, n)
		if !fits {
			detail = NewDetail(Fields{fieldRepeated: n}).bytes()
		}
		row.Detail = detail
		rows = append(rows, row)
	}
	for who, one := range r.by {
		switch {
		case one.leftOut > 0 && (all || now.Sub(one.since) >= r.every):
			actor := who.actor
			if actor == "" {
				actor = actorSystem
			}
			row := mend(eventRow(Event{Action: actionLeftOut, Result: Refused, Tenant: who.tenant, Actor: actor,
				Detail: NewDetail(Fields{fieldLeftOut: one.leftOut})}))
			one.leftOut = 0
			rows = append(rows, row)
		case one.leftOut == 0 && now.Sub(one.last) > forgetActor:
			delete(r.by, who)
		}
	}
	return rows
}

// sameAs is one value for records that say the same.
func sameAs(row store.AuditRow) [sha256.Size]byte {
	return sha256.Sum256(checkpoint.Encode(nil, []byte(row.Phase), []byte(row.Action), []byte(row.Result), []byte(row.Tenant), []byte(row.Actor),
		[]byte(row.Session), []byte(row.Jail), []byte(row.Target), row.Detail))
}

// withField is a detail with a field more, if there is room for it.
func withField(detail []byte, name string, value any) ([]byte, bool) {
	fields := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(detail))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, false
	}
	fields[name] = value
	d := encodeDetail(fields)
	return d.bytes(), d.err == nil
}

// tell writes down what was counted, until the log is closed.
func (l *Log) tell() {
	defer close(l.told)
	tick := time.NewTicker(max(l.options.RepeatEvery/60, time.Millisecond))
	defer tick.Stop()
	for all := false; !all; {
		select {
		case <-tick.C:
		case <-l.telling:
			all = true
		}
		now := l.options.Now()
		for _, row := range l.repeats.due(now, all) {
			stamp(&row, now)
			l.later(newEntry(row, kindNote))
		}
	}
}
