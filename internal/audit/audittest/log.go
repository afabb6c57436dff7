// Package audittest has an audit log in memory, for tests.
package audittest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
)

// Log keeps what is written to it.
type Log struct {
	OnEnding func() // is called before an ending is begun; nil for nothing

	mu     sync.Mutex
	events []Event
	begun  []audit.Intent
	fails  error
}

var _ audit.Records = (*Log)(nil)

// Event is what has happened, or was begun and has ended.
type Event struct {
	audit.Event
	Outcome audit.Detail // of what was begun
}

// Fail has the log refuse what must be written before it is done, with an error; nil ends that.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails = err
}

// All are the events so far.
func (l *Log) All() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// Begun are the intents so far.
func (l *Log) Begun() []audit.Intent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.begun)
}

// Last is the newest event.
func (l *Log) Last(t testing.TB) Event {
	t.Helper()
	all := l.All()
	if len(all) == 0 {
		t.Fatal("nothing was recorded")
	}
	return all[len(all)-1]
}

// add keeps an event. It panics for a detail that the real log would leave out: the code under test is wrong.
func (l *Log) add(e Event) {
	if err := errors.Join(e.Detail.Err(), e.Outcome.Err()); err != nil {
		panic(err)
	}
	e.Result = cmp.Or(e.Result, audit.OK)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *Log) refusal(ctx context.Context, detail audit.Detail) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(ctx.Err(), l.fails, detail.Err())
}

// Begin implements [audit.Records].
func (l *Log) Begin(ctx context.Context, i audit.Intent) (audit.Pending, error) {
	if err := l.refusal(ctx, i.Detail); err != nil {
		return nil, err
	}
	return l.begin(i), nil
}

// BeginEnding implements [audit.Records].
func (l *Log) BeginEnding(i audit.Intent) audit.Pending {
	if l.OnEnding != nil {
		l.OnEnding()
	}
	return l.begin(i)
}

func (l *Log) begin(i audit.Intent) audit.Pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = append(l.begun, i)
	return &pending{log: l, intent: i}
}

// Event implements [audit.Records].
func (l *Log) Event(ctx context.Context, e audit.Event) error {
	if err := l.refusal(ctx, e.Detail); err != nil {
		return err
	}
	l.add(Event{Event: e})
	return nil
}

// Note implements [audit.Records].
func (l *Log) Note(e audit.Event) { l.add(Event{Event: e}) }

// Has says whether an event has fields with these texts, when it was begun or at its end.
func Has(e Event, fields map[string]string) bool {
	all := map[string]any{}
	for _, detail := range []audit.Detail{e.Detail, e.Outcome} {
		if json.Unmarshal([]byte(detail.String()), &all) != nil {
			return false
		}
	}
	for name, value := range fields {
		if all[name] != value {
			return false
		}
	}
	return true
}

type pending struct {
	log    *Log
	intent audit.Intent
	once   sync.Once
}

// End implements [audit.Pending].
func (p *pending) End(o audit.Outcome) {
	p.once.Do(func() {
		i := p.intent
		e := audit.Event{Action: i.Action, Result: o.Result, Tenant: i.Tenant, Actor: i.Actor, Target: i.Target, Detail: i.Detail,
			Session: cmp.Or(o.Session, i.Session), Jail: cmp.Or(o.Jail, i.Jail)}
		p.log.add(Event{e, o.Detail})
	})
}
