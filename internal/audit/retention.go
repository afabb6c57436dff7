package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// trimRows is how many rows one transaction removes: while it runs, nothing can be recorded.
const trimRows = 2000

// Retention is what [Log.Trim] is asked for.
type Retention struct {
	// OlderThan is the time before which rows go.
	OlderThan time.Time
	// Actor asks for it, and Why is the reason; both stand in the tombstone.
	Actor, Why string
	// Node is another node's, which no longer runs; empty is this one. Duty is what allows to trim it, and may be lost.
	Node string
	Duty store.Duty
	// Keys are those of others that have removed rows before.
	Keys checkpoint.Keys
}

// Trimmed is what [Log.Trim] did.
type Trimmed struct {
	Node     string
	From, To int64 // the rows that are gone; zero when none is
	Rows     int64
}

// Trim removes old rows, and first records in a signed tombstone which, who and why, so that [Verify] can tell
// retention from removal. Rows are removed from the oldest on and without gaps, up to the first that is too young or
// is an intent without an outcome; the newest row of a node stays. Trim refuses when rows have gone before without a
// tombstone: it would hide that.
func (l *Log) Trim(ctx context.Context, r Retention) (Trimmed, error) {
	l.trim.Lock()
	defer l.trim.Unlock()
	if r.Node == "" {
		r.Node = l.options.Node
	}
	out := Trimmed{Node: r.Node}
	if err := errors.Join(checkText("reason", r.Why, 500), checkText("actor", r.Actor, maxName)); err != nil {
		return out, fmt.Errorf("trim the audit log: %w", err)
	}
	rows := l.options.Store
	first, err := rows.ListAudit(ctx, store.AuditFilter{Node: r.Node, Limit: 1})
	if err != nil || len(first) == 0 {
		return out, err
	}
	last, err := l.lastToTrim(ctx, r)
	if err != nil || last == nil || last.Seq < first[0].Seq {
		return out, err
	}
	grave := tombstone{Node: r.Node, From: first[0].Seq, To: last.Seq, Hash: hexHash(last.Hash), Why: r.Why}
	if grave.From, err = l.goneFrom(ctx, r, first[0]); err != nil {
		return out, err
	}
	detail := grave.signed(l.options.Key, r.Actor).detail()
	row, err := fit(store.AuditRow{Phase: PhaseTombstone, Action: actionTrim, Result: string(OK), Actor: r.Actor, Target: r.Node}, detail)
	if err != nil {
		return out, fmt.Errorf("trim the audit log: %w", err)
	}
	stamp(&row, l.options.Now())
	if err := l.await(ctx, newEntry(row, kindEvent)); err != nil {
		return out, err
	}
	out.From = first[0].Seq
	for out.To < last.Seq {
		upTo := min(max(out.To, first[0].Seq-1)+trimRows, last.Seq)
		n, err := rows.TrimAudit(ctx, r.Node, upTo, r.Duty)
		if err != nil {
			return out, fmt.Errorf("remove rows of the audit log: %w", err)
		}
		out.To = upTo
		out.Rows += int64(n)
	}
	if err := l.quota.recount(ctx); err != nil {
		return out, err
	}
	if want := out.To - out.From + 1; out.Rows != want {
		return out, broken("%d rows of %s were removed where there should have been %d", out.Rows, r.Node, want)
	}
	return out, nil
}

// lastToTrim is the youngest row that may go; nil for none.
func (l *Log) lastToTrim(ctx context.Context, r Retention) (*store.AuditRow, error) {
	rows := l.options.Store
	old, err := rows.ListAudit(ctx, store.AuditFilter{Node: r.Node, Until: r.OlderThan, Newest: true, Limit: 1})
	if err != nil || len(old) == 0 {
		return nil, err
	}
	newest, err := rows.LastAudit(ctx, r.Node)
	if err != nil {
		return nil, err
	}
	upTo := min(old[0].Seq, newest.Seq-1)
	open, err := rows.OpenIntents(ctx, r.Node)
	if err != nil {
		return nil, err
	}
	for _, intent := range open {
		upTo = min(upTo, intent.Seq-1)
	}
	if upTo == old[0].Seq {
		return &old[0], nil
	}
	if upTo < 1 {
		return nil, nil
	}
	found, err := rows.ListAudit(ctx, store.AuditFilter{Node: r.Node, AfterSeq: upTo - 1, Limit: 1})
	if err != nil || len(found) == 0 || found[0].Seq != upTo {
		return nil, err
	}
	return &found[0], nil
}

// goneFrom is the first row that is gone when the rows from first on go as well: 1, or where the tombstone of those
// that have gone already starts.
func (l *Log) goneFrom(ctx context.Context, r Retention, first store.AuditRow) (int64, error) {
	if first.Seq == 1 {
		return 1, nil
	}
	graves, err := l.options.Store.ListAudit(ctx, store.AuditFilter{Phase: PhaseTombstone, Newest: true, Limit: 10_000})
	if err != nil {
		return 0, err
	}
	keys := l.options.Key.Keys()
	maps.Copy(keys, r.Keys)
	for _, row := range graves {
		t, err := readTombstone(row, keys)
		if t.Node == r.Node && t.excuses(gap{from: 1, to: first.Seq - 1, hash: first.PrevHash}) && err == nil {
			return t.From, nil
		}
	}
	return 0, problem.New(problem.AuditBroken, "run `clawjail audit verify` and find out what happened before more is removed",
		"rows of the audit log before number %d of %s are missing, and no tombstone of a known key says why", first.Seq, r.Node)
}
