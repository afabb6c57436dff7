package audit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// groupRows is how many records one transaction takes.
	groupRows = 256
	// skewTolerance is how far the clock may go back without a word: callers' times differ a little, because they
	// take them before they queue.
	skewTolerance = time.Second
	// linger is how long records that no call waits for may wait for others. An outcome that is written at once would be
	// a transaction of its own, which the next intent has to wait for.
	linger = 10 * time.Millisecond
)

// writer is the one goroutine that writes the chain of a node. Its own fields need no lock.
type writer struct {
	options Options
	queue   *queue
	spill   *spill
	notes   *noter
	changed *broadcast
	quota   *recordQuota
	lost    atomic.Int64 // notes that found no place in the queue, not yet recorded

	end        head
	joined     int64        // how far the spill file has joined the chain
	joinedLost uint64       // how many of the records that it lost have been recorded as such
	unsure     *transaction // one whose end is not known; its rows come before any others
	skewed     bool         // the clock is behind the newest row, which has been recorded
	retry      bool         // the time to try again has come
	scratch    []byte
	rows       []store.AuditRow

	ctx      context.Context // ends when Close has waited long enough
	cancel   context.CancelFunc
	stopping chan struct{}
	ended    chan struct{}

	mu     sync.Mutex
	head   head  // end, for others
	failed error // of the last attempt to write
}

func newWriter(o Options, end head, q *queue, s *spill, n *noter, c *broadcast, records *recordQuota) *writer {
	w := &writer{
		options: o, queue: q, spill: s, notes: n, changed: c, quota: records, end: end, head: end,
		stopping: make(chan struct{}), ended: make(chan struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	n.show(end)
	return w
}

func (w *writer) start() { go w.run() }

// stop writes what is queued and ends; the database is no longer waited for when ctx is done.
func (w *writer) stop(ctx context.Context) {
	close(w.stopping)
	select {
	case <-w.ended:
	case <-ctx.Done():
		w.cancel()
		<-w.ended
	}
	w.cancel()
}

func (w *writer) run() {
	defer close(w.ended)
	retry := time.NewTimer(w.options.RetryEvery)
	defer retry.Stop()
	var company <-chan time.Time // nil while nothing lingers
	for {
		select {
		case <-w.queue.wake:
			if !w.queue.urgent(groupRows) {
				if company == nil {
					company = time.After(linger)
				}
				continue
			}
			company = nil
			w.drain()
		case <-company:
			company = nil
			w.drain()
		case <-retry.C:
			w.retry = w.waiting()
			w.drain()
		case <-w.stopping:
			w.retry = w.waiting()
			w.drain()
			return
		}
		if w.waiting() {
			retry.Reset(w.options.RetryEvery)
		}
	}
}

// waiting says whether there is something to write that is not in the queue.
func (w *writer) waiting() bool { return w.unsure != nil || w.lost.Load() > 0 || w.spill.waiting() }

// drain writes what is queued, and what somebody waits for meanwhile.
func (w *writer) drain() {
	for more := true; more; more = w.queue.urgent(groupRows) {
		batch := w.queue.next(groupRows)
		if len(batch) == 0 {
			break
		}
		w.write(batch)
	}
	if w.retry || w.waiting() && w.failure() == nil {
		w.write(w.queue.next(groupRows)) // with what is queued, so that the number of lost records comes behind it
	}
}

// write brings a batch into the chain, behind what waits in the file. While the database is known to be down, only a
// caller who must not act without a record, or the time to try again, makes it try.
func (w *writer) write(batch []*entry) {
	live := make([]*entry, 0, len(batch))
	try := w.retry || w.failure() == nil
	for _, e := range batch {
		if e.take() {
			live = append(live, e)
			try = try || e.kind == kindIntent || e.kind == kindEvent
		}
	}
	w.retry = false
	if !try {
		w.keep(live)
		return
	}
	if len(live) == 0 && !w.waiting() {
		return
	}
	err := w.join()
	if err == nil {
		rows := w.clock(w.rows[:0])
		for _, e := range live {
			rows = append(rows, e.row)
		}
		lost := w.lost.Load()
		if lost > 0 {
			rows = append(rows, w.lostRow(lost))
		}
		err = w.commit(transaction{rows: rows, live: live, lost: lost})
		clear(rows)
		w.rows = rows // its room, for the next batch
	}
	w.setFailure(err)
	if err != nil {
		w.refuse(live, err)
		return
	}
	for _, e := range live {
		if !e.finish(nil) && e.kind == kindIntent {
			w.nothingDone(e, "the caller left before the record was written")
		}
	}
}

// refuse answers the callers of a batch that could not be written.
func (w *writer) refuse(live []*entry, err error) {
	answer := err
	if problem.CodeOf(err) != problem.AuditBroken {
		answer = unavailable(err)
	}
	var rest []*entry
	for _, e := range live {
		if e.kind == kindIntent || e.kind == kindEvent {
			e.finish(answer)
			continue
		}
		rest = append(rest, e)
	}
	w.keep(rest)
}

// keep puts what must not be lost into the file.
func (w *writer) keep(entries []*entry) {
	if len(entries) == 0 {
		return
	}
	if err := w.spill.addAll(entries); err != nil {
		w.options.Log.Error("audit records are lost", "of", len(entries), "error", err)
	}
	for _, e := range entries {
		e.finish(nil)
	}
}

// nothingDone closes an intent that was written although its caller does not act.
func (w *writer) nothingDone(e *entry, why string) {
	row := mend(outcomeRow(e.row, Outcome{Result: Failed, Detail: NewDetail(Fields{"reason": why})}))
	stamp(&row, w.options.Now())
	out := newEntry(row, kindOutcome)
	if w.queue.put(out) != putDone {
		w.keep([]*entry{out})
	}
}

// failure is why the last attempt to write failed.
func (w *writer) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

func (w *writer) setFailure(err error) {
	w.mu.Lock()
	before := w.failed
	w.failed = err
	w.mu.Unlock()
	switch {
	case err != nil && before == nil:
		w.options.Log.Error("the audit log cannot be written: no action is begun", "error", err)
	case err == nil && before != nil:
		w.options.Log.Info("the audit log can be written again")
	}
}

func (w *writer) status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Status{
		Head: w.head.seq, Err: w.failed, Down: w.failed != nil,
		Broken: w.failed != nil && problem.CodeOf(w.failed) == problem.AuditBroken,
	}
}
