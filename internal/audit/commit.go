package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// spilledAt is the name under which a record that waited in the file says when it was made.
const spilledAt = "spilled_at"

// uncertain is a transaction whose answer did not come, or was an error.
type uncertain struct {
	next head
	// told are the intents in it whose callers were told that nothing was written.
	told []*entry
}

func (w *writer) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.ctx, w.options.CommitTimeout)
}

// commit appends rows to the chain in one transaction. live are the entries among them, for the case that the
// database has taken them and cannot say so.
func (w *writer) commit(rows []store.AuditRow, live []*entry) error {
	if err := w.failure(); problem.CodeOf(err) == problem.AuditBroken {
		return err
	}
	if _, err := w.settle(); err != nil {
		return err
	}
	if len(rows) == 0 {
		return nil
	}
	next := w.seal(rows)
	ctx, cancel := w.deadline()
	err := w.options.Store.AppendAudit(ctx, rows)
	cancel()
	if err == nil {
		w.quota.count(rows)
		w.advance(next)
		return nil
	}
	w.unsure = &uncertain{next: next}
	written, unsettled := w.settle()
	switch {
	case written:
		w.quota.count(rows)
		return nil
	case unsettled == nil:
		return err
	}
	if w.unsure != nil {
		for _, e := range live {
			if e.kind == kindIntent {
				w.unsure.told = append(w.unsure.told, e)
			}
		}
	}
	return fmt.Errorf("%w; %w", unsettled, err)
}

// settle finds out what became of a transaction that did not end well: an error does not say that nothing was
// written, and to write the rows again under other numbers would be a second truth.
func (w *writer) settle() (written bool, err error) {
	if w.unsure == nil {
		return false, nil
	}
	ctx, cancel := w.deadline()
	defer cancel()
	var at head
	last, err := w.options.Store.LastAudit(ctx, w.options.Node)
	if err == nil {
		at, err = headOf(last)
	} else if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return false, err
	}
	unsure := w.unsure
	switch {
	case at.is(w.end):
		w.unsure = nil
		return false, nil
	case at.is(unsure.next):
		w.unsure = nil
		w.advance(unsure.next)
		for _, e := range unsure.told {
			w.nothingDone(e, "the database did not say that it had the record")
		}
		return true, nil
	}
	return false, broken("the newest row of %s is %d, and was not written by this process, whose newest is %d", w.options.Node, at.seq, w.end.seq)
}

// seal makes rows the next ones of the chain. Their time is the one that they have, unless the row before is younger.
func (w *writer) seal(rows []store.AuditRow) head {
	h := w.end
	for i := range rows {
		r := &rows[i]
		r.Node, r.Seq, r.PrevHash = w.options.Node, h.seq+1, bytes.Clone(h.hash[:])
		if r.Time.Before(h.time) {
			r.Time = h.time
		}
		h.seq, h.time = r.Seq, r.Time
		h.hash, w.scratch = rowHash(r, w.scratch)
		r.Hash = bytes.Clone(h.hash[:])
	}
	return h
}

// advance makes what is in the database the end of the chain, and tells the others.
func (w *writer) advance(to head) {
	w.end = to
	w.mu.Lock()
	w.head = to
	w.mu.Unlock()
	w.notes.show(to)
	w.changed.send()
}

// clock adds a record when the clock has gone back behind the newest row: the times of the rows that follow are those
// of that row until the clock has caught up.
func (w *writer) clock(rows []store.AuditRow) []store.AuditRow {
	now := w.options.Now()
	behind := w.end.time.Sub(now)
	switch {
	case w.end.seq == 0 || behind <= 0:
		w.skewed = false
	case behind > skewTolerance && !w.skewed:
		w.skewed = true
		row := mend(eventRow(Event{Action: actionClock, Actor: actorSystem, Detail: NewDetail(Fields{"behind_ms": behind.Milliseconds()})}))
		stamp(&row, now)
		rows = append(rows, row)
	}
	return rows
}

// lostRow says how many records found no place.
func (w *writer) lostRow(lost int64) store.AuditRow {
	row := mend(eventRow(Event{Action: actionLost, Result: Failed, Actor: actorSystem, Detail: NewDetail(Fields{"count": lost})}))
	stamp(&row, w.options.Now())
	return row
}

// join brings what the file holds into the chain, in its order and with its own times, then empties the file.
func (w *writer) join() error {
	for {
		records, lost, generation := w.spill.numbers()
		if records == 0 && lost == 0 {
			return nil
		}
		rows, next, err := w.spill.read(w.joined, groupRows)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			for i := range rows {
				rows[i].Detail = withOriginalTime(rows[i])
			}
			if err := w.joinRows(rows); err != nil {
				return err
			}
			w.joined = next
			continue
		}
		if lost > w.joinedLost {
			row := w.lostRow(int64(lost - w.joinedLost))
			// The number is recorded once, also when the process dies before the file is emptied.
			sum := sha256.Sum256(checkpoint.Encode(nil, []byte(actionLost), []byte(w.options.Node),
				checkpoint.Number(int64(generation)), checkpoint.Number(int64(lost))))
			row.ID = hex.EncodeToString(sum[:13])
			if err := w.joinRows([]store.AuditRow{row}); err != nil {
				return err
			}
			w.joinedLost = lost
		}
		emptied, err := w.spill.empty(w.joined, lost)
		if err != nil {
			return err
		}
		if emptied {
			w.joined, w.joinedLost = 0, 0
		}
	}
}

// joinRows appends those rows that are not there already: the database may have taken one without saying so, the
// process may have died before the file was emptied, and an ending may stand in the file twice when its caller lost
// patience just when the database did.
func (w *writer) joinRows(rows []store.AuditRow) error {
	if _, err := w.settle(); err != nil {
		return err
	}
	var failed error
	seen := make(map[string]bool, len(rows))
	rows = slices.DeleteFunc(rows, func(row store.AuditRow) bool {
		if failed != nil {
			return false
		}
		if seen[row.ID] {
			return true
		}
		seen[row.ID] = true
		ctx, cancel := w.deadline()
		defer cancel()
		_, err := w.options.Store.FindAudit(ctx, row.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			failed = err
		}
		return err == nil
	})
	if failed != nil {
		return failed
	}
	return w.commit(rows, nil)
}

// withOriginalTime adds to a record when it was made, which its place in the chain may not let its time say.
func withOriginalTime(row store.AuditRow) []byte {
	if detail, ok := withField(row.Detail, spilledAt, row.Time.UTC().Format(timeFormat)); ok {
		return detail
	}
	return row.Detail
}
