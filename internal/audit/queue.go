package audit

import (
	"sync"
	"sync/atomic"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/store"
)

// kind decides what becomes of a record that cannot be written.
type kind int

const (
	kindIntent  kind = iota // its caller is told, and does not act
	kindEvent               // its caller is told
	kindEnding              // it goes to the file, and its caller goes on
	kindOutcome             // it goes to the file
	kindNote                // it goes to the file while that is not half full
)

// waits says whether somebody waits for the record.
func (k kind) waits() bool { return k <= kindEnding }

// The states of an entry whose caller waits. By them the writer and a caller that leaves early agree which of the two has it.
const (
	queued int32 = iota
	taken        // the writer is writing it
	left         // its caller went away while it was being written
	gone         // its caller went away before that
	done
)

// entry is a record on its way.
type entry struct {
	row   store.AuditRow
	kind  kind
	state atomic.Int32
	done  chan error // one answer; nil when no call waits
}

func newEntry(row store.AuditRow, k kind) *entry {
	e := &entry{row: row, kind: k}
	if k.waits() {
		e.done = make(chan error, 1)
	}
	return e
}

// take is the writer's: false when the caller has gone and the record must not be written.
func (e *entry) take() bool { return e.state.CompareAndSwap(queued, taken) }

// finish is the writer's: it answers the caller, and says whether one was still there.
func (e *entry) finish(err error) bool {
	if !e.state.CompareAndSwap(taken, done) {
		return false
	}
	if e.done != nil {
		e.done <- err
	}
	return true
}

// leave is the caller's: false when the answer is there.
func (e *entry) leave() bool {
	return e.state.CompareAndSwap(queued, gone) || e.state.CompareAndSwap(taken, left)
}

type putResult int

const (
	putDone putResult = iota
	putFull
	putClosed
)

// queue is what waits for the writer. A record with a caller that waits always finds place: there are no more of those
// than callers.
type queue struct {
	wake wake.Signal

	mu       sync.Mutex
	entries  []*entry
	unwaited int
	limit    int
	closed   bool
}

func newQueue(limit int) *queue { return &queue{wake: wake.New(), limit: limit} }

func (q *queue) put(e *entry) putResult {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return putClosed
	case !e.kind.waits() && q.unwaited >= q.limit:
		return putFull
	case !e.kind.waits():
		q.unwaited++
	}
	q.entries = append(q.entries, e)
	q.poke()
	return putDone
}

// urgent says whether a caller waits for a record, or the records fill a transaction.
func (q *queue) urgent(many int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed || len(q.entries) > q.unwaited || len(q.entries) >= many
}

// poke wakes the writer.
func (q *queue) poke() { q.wake.Send() }

// next takes up to n entries in their order.
func (q *queue) next(n int) []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.entries))
	if n == 0 {
		return nil
	}
	out := make([]*entry, n)
	copy(out, q.entries)
	for _, e := range out {
		if !e.kind.waits() {
			q.unwaited--
		}
	}
	clear(q.entries[:n])
	if q.entries = q.entries[n:]; len(q.entries) == 0 {
		q.entries = nil
	}
	return out
}

// close lets nothing more in.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// broadcast tells all who wait that something changed.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// next is closed at the next change.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}
