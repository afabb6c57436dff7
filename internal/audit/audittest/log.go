// Package audittest has an audit log in memory, for tests.
package audittest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
)

// Log keeps what is written to it. What was begun is one event when it ends.
type Log struct {
	mu     sync.Mutex
	events []audit.Event
	begun  []audit.Intent
	fails  error
}

var _ audit.Records = (*Log)(nil)

// Fail has the log refuse what must be written before it is done, with an error; nil ends that.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails = err
}

// All are the events so far.
func (l *Log) All() []audit.Event {
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
func (l *Log) Last(t testing.TB) audit.Event {
	t.Helper()
	all := l.All()
	if len(all) == 0 {
		t.Fatal("nothing was recorded")
	}
	return all[len(all)-1]
}

func (l *Log) add(e audit.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *Log) refusal(detail audit.Detail) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails != nil {
		return l.fails
	}
	return detail.Err()
}

// Begin implements [audit.Records].
func (l *Log) Begin(_ context.Context, i audit.Intent) (audit.Pending, error) {
	if err := l.refusal(i.Detail); err != nil {
		return nil, err
	}
	return l.BeginEnding(i), nil
}

// BeginEnding implements [audit.Records].
func (l *Log) BeginEnding(i audit.Intent) audit.Pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = append(l.begun, i)
	return &pending{log: l, intent: i}
}

// Event implements [audit.Records].
func (l *Log) Event(_ context.Context, e audit.Event) error {
	if err := l.refusal(e.Detail); err != nil {
		return err
	}
	l.add(e)
	return nil
}

// Note implements [audit.Records].
func (l *Log) Note(e audit.Event) { l.add(e) }

// Has says whether an event has fields with these texts.
func Has(e audit.Event, fields map[string]string) bool {
	var all map[string]any
	if json.Unmarshal([]byte(e.Detail.String()), &all) != nil {
		return false
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
		p.log.add(audit.Event{Action: i.Action, Result: o.Result, Tenant: i.Tenant, Actor: i.Actor, Session: i.Session, Jail: i.Jail, Target: i.Target, Detail: i.Detail})
	})
}
