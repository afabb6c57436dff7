package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// The names under which a record says when it was made, where its place in the chain does not let its time say so: one that waited in
// the file, and one that was made while the clock was behind the newest row.
const (
	spilledAt = "spilled_at"
	clockAt   = "clock_at"
)

// transaction are rows that belong together at the end of the chain.
type transaction struct {
	rows []store.AuditRow
	live []*entry // whose rows are among them
	lost int64    // how many lost records they speak of
	next head
	sent int // how often
}

func (w *writer) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.ctx, w.options.CommitTimeout)
}

// commit appends rows to the chain.
func (w *writer) commit(t transaction) error {
	if err := w.failure(); problem.CodeOf(err) == problem.AuditBroken {
		return err
	}
	if err := w.settle(); err != nil {
		return err
	}
	if len(t.rows) == 0 {
		return nil
	}
	t.next = w.seal(t.rows)
	over, err := w.put(&t)
	if !over {
		t.rows = slices.Clone(t.rows)
		w.unsure = &t
	}
	return err
}

// settle finishes a transaction whose end is not known, before there is another. Rows that are not in the database now may
// still come: it may be at them for as long as its disk or its standby takes. So the same rows are sent again until the
// database has them: other rows with their numbers would make a second chain. The callers of the rows were told that nothing
// was done.
func (w *writer) settle() error {
	t := w.unsure
	if t == nil {
		return nil
	}
	there, err := w.has(t)
	if err != nil {
		return err
	}
	if there {
		w.took(t)
	} else if _, err := w.put(t); err != nil {
		return err
	}
	w.unsure = nil
	for _, e := range t.live {
		if e.kind == kindIntent {
			w.nothingDone(e, "the database did not say that it had the record")
		}
	}
	return nil
}

// put appends a transaction, and looks for it when that does not end well. It is over when it is in the database, or
// when the database has refused it and can be seen not to have it.
func (w *writer) put(t *transaction) (over bool, err error) {
	// A transaction that timed out is sent again, the same rows, with a longer limit.
	t.sent++
	ctx, cancel := context.WithTimeout(w.ctx, w.options.CommitTimeout*time.Duration(min(t.sent, 12)))
	err = w.options.Store.AppendAudit(ctx, t.rows)
	cancel()
	if err == nil {
		w.took(t)
		return true, nil
	}
	there, unread := w.has(t)
	switch {
	case there:
		w.took(t)
		return true, nil
	case unread != nil:
		return false, fmt.Errorf("%w; %w", unread, err)
	}
	return refused(err), err
}

// refused says whether the database has answered that it wrote nothing. Without an answer the rows may still be written.
func refused(err error) bool {
	return problem.CodeOf(err) == problem.DiskFull ||
		!errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// has says whether the database ends with a transaction. A chain that ends neither with it nor before it is broken.
func (w *writer) has(t *transaction) (bool, error) {
	ctx, cancel := w.deadline()
	defer cancel()
	var at head
	last, err := w.options.Store.LastAudit(ctx, w.options.Node)
	if err == nil {
		at, err = headOf(last)
	} else if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	switch {
	case err != nil:
		return false, err
	case at.is(t.next):
		return true, nil
	case at.is(w.end):
		return false, nil
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
			if h.time.Sub(r.Time) > skewTolerance && !bytes.Contains(r.Detail, []byte(`"`+spilledAt+`":`)) {
				r.Detail = withOriginalTime(*r, clockAt)
			}
			r.Time = h.time
		}
		h.seq, h.time = r.Seq, r.Time
		h.hash, w.scratch = rowHash(r, w.scratch)
		r.Hash = bytes.Clone(h.hash[:])
	}
	return h
}

// took makes what the database has taken the end of the chain, and tells the others.
func (w *writer) took(t *transaction) {
	w.quota.count(t.rows)
	w.lost.Add(-t.lost)
	w.end = t.next
	w.mu.Lock()
	w.head = t.next
	w.mu.Unlock()
	w.notes.show(t.next)
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

// join finishes what is not known to have ended, since that decides what is lost and what is newest. Then it brings what the
// file holds into the chain, in its order and with its own times, and empties the file.
func (w *writer) join() error {
	if err := w.failure(); problem.CodeOf(err) == problem.AuditBroken {
		return err
	}
	if err := w.settle(); err != nil {
		return err
	}
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
				rows[i].Detail = withOriginalTime(rows[i], spilledAt)
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
	return w.commit(transaction{rows: rows})
}

// withOriginalTime adds to a record when it was made, which its place in the chain may not let its time say.
func withOriginalTime(row store.AuditRow, name string) []byte {
	if detail, ok := withField(row.Detail, name, row.Time.UTC().Format(timeFormat)); ok {
		return detail
	}
	return row.Detail
}
