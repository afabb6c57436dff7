// Package audit writes down what happens, before it happens.
//
// An action that matters has two rows: an intent, which is in the database when [Log.Begin] returns, and an outcome,
// which no call waits for. If the intent cannot be written, the action must not be done. Ending things is exempt:
// [Log.BeginEnding] always lets the caller go on, and its records go to a file that was allocated beforehand when the
// database cannot take them; they join the log later, in their order.
//
// The rows of a node form a chain: each has a number without gaps and the hash of the row before it. One goroutine
// writes them, so the chain never forks; it takes all that is waiting into one transaction.
// Every second, or thousand rows, it hands a signed note of the newest row to the host daemon, which appends it to a
// file that the control plane cannot change. [Verify] finds a row that was changed, removed, added or moved behind
// such a note, also when every hash after it was calculated again. It cannot see rows that were forged
// behind the last note; it says how many rows that could be.
//
// A record says who did what to whom, and never holds the value of a credential; see [Detail].
package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Phases of a row.
const (
	PhaseIntent    = "intent"
	PhaseOutcome   = "outcome"
	PhaseEvent     = "event"
	PhaseTombstone = "tombstone"
)

// Result is how something went.
type Result string

// The results.
const (
	OK      Result = "ok"
	Refused Result = "refused"
	Failed  Result = "failed"
	// Unknown is the outcome of what was under way when the process died.
	Unknown Result = "unknown"
)

// Intent is something that is about to be done.
type Intent struct {
	Action  string // session.open, grant.issue, …: a-z, 0-9, _ and dots
	Tenant  string
	Actor   string // operator:ID, agent:ID, admin, system
	Session string
	Jail    string
	Target  string // what it is done to; of a URL, the credentials, the query and the fragment are left out
	Detail  Detail
}

// Outcome is what came of an intent. The rest of its row is as in the intent.
type Outcome struct {
	Result Result
	// Session and Jail are for what had no name yet when the intent was written.
	Session, Jail string
	Detail        Detail
}

// OutcomeOf is what came of an intent by its error, which says the code of one that failed.
func OutcomeOf(err error, fields Fields) Outcome {
	if err == nil {
		return Outcome{Result: OK, Detail: NewDetail(fields)}
	}
	all := Fields{"code": problem.CodeOf(err)}
	maps.Copy(all, fields)
	return Outcome{Result: Failed, Detail: NewDetail(all)}
}

// Event is something that happened, in one row.
type Event struct {
	Action  string
	Result  Result // empty is OK
	Tenant  string
	Actor   string
	Session string
	Jail    string
	Target  string
	Detail  Detail
}

// Records is the part of an audit log that records are written through. A [Log] is one, and says what its methods do.
type Records interface {
	Begin(ctx context.Context, i Intent) (Pending, error)
	BeginEnding(i Intent) Pending
	Event(ctx context.Context, e Event) error
	Note(e Event)
}

// Pending is something that is being done.
type Pending interface {
	// End records the outcome, and never waits for the database. Only the first call counts, so that an early
	// `defer p.End(Outcome{Result: Failed})` stands for every way out that says nothing better.
	End(o Outcome)
}

// Do records the intent, runs do, and records the outcome. When the intent cannot be recorded, do does not run.
func Do(ctx context.Context, r Records, i Intent, do func() error) error {
	p, err := r.Begin(ctx, i)
	if err != nil {
		return fmt.Errorf("record %s: %w", i.Action, err)
	}
	return finish(p, do)
}

// Ending is [Do] for what must happen also when it cannot be written down in time.
func Ending(r Records, i Intent, do func() error) error { return finish(r.BeginEnding(i), do) }

func finish(p Pending, do func() error) error {
	defer p.End(Outcome{Result: Failed}) // of what panics
	err := do()
	p.End(OutcomeOf(err, nil))
	return err
}

// Checkpointer keeps signed notes where the writer of the log cannot change them; [checkpoint.File] is one. It may be
// given a note twice.
type Checkpointer interface {
	Append(ctx context.Context, note []byte) error
}

// Options of a log. Times that are zero have the default that stands beside them.
type Options struct {
	Store store.Audit
	// Node names this process among those that share the database. No two may have the same at the same time.
	Node string
	// SpillPath is the file for what the database cannot take. It belongs to the node, and is made with mode 0600.
	SpillPath string
	SpillSize int64 // 4 MiB; for a file that exists, its size decides

	Key         *checkpoint.Key
	Checkpoints Checkpointer

	// Settle is asked at the start about every intent that has no outcome, which was under way when the process
	// died: what came of it, if that can be seen. Without it, or when it does not know, the outcome is Unknown.
	Settle func(ctx context.Context, intent Row) (Outcome, bool)

	// Room is how many bytes all records may take, and Quotas and Tenants divide it; see [quota.GateOptions]. Rows count as
	// [store.AuditRow.Bytes] says.
	Room    int64 // 64 GiB
	Quotas  config.Quotas
	Tenants func() int

	Now func() time.Time // time.Now
	Log *slog.Logger

	// RepeatEvery is how long refusals that repeat one that was written are counted, before the count is a record.
	RepeatEvery time.Duration // 1 min

	// CommitTimeout is how long the database may take for one transaction.
	CommitTimeout time.Duration // 5 s
	// EndingPatience is how long an ending waits for the database before its record goes to the file.
	EndingPatience time.Duration // 500 ms
	// RetryEvery is how often the database is tried while it cannot be written to.
	RetryEvery time.Duration // 1 s
	// CheckpointEvery and CheckpointRows are how far the log may be ahead of its last note.
	CheckpointEvery time.Duration // 1 s
	CheckpointRows  int64         // 1000
	// QueueRows is how many rows that no call waits for may be queued. Beyond it, outcomes go to the file, and notes
	// are counted as lost.
	QueueRows int // 16384
}

func (o Options) withDefaults() Options {
	setDefault(&o.SpillSize, 4<<20)
	setDefault(&o.CommitTimeout, 5*time.Second)
	setDefault(&o.EndingPatience, 500*time.Millisecond)
	setDefault(&o.RetryEvery, time.Second)
	setDefault(&o.CheckpointEvery, time.Second)
	setDefault(&o.CheckpointRows, 1000)
	setDefault(&o.QueueRows, 16384)
	setDefault(&o.RepeatEvery, time.Minute)
	setDefault(&o.Room, defaultRoom)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T ~int | ~int64](value *T, usual T) {
	if *value == 0 {
		*value = usual
	}
}

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	var errs []error
	add := func(bad bool, text string) {
		if bad {
			errs = append(errs, errors.New(text))
		}
	}
	add(o.Store == nil, "the audit log has no database")
	add(checkText("node", o.Node, maxName) != nil || o.Node == "", "the audit log's node has no proper name")
	add(o.SpillPath == "", "the audit log has no file for what the database cannot take")
	add(o.Key == nil || o.Checkpoints == nil, "the audit log has no key, or nobody who keeps its checkpoints")
	add(o.SpillSize < minSpill || o.SpillSize > maxSpill, fmt.Sprintf("the audit log's spill file must have %d bytes to %d", minSpill, maxSpill))
	add(o.CommitTimeout < 0 || o.EndingPatience < 0 || o.RetryEvery < 0 || o.CheckpointEvery < 0 || o.CheckpointRows < 0 || o.QueueRows < 0 || o.RepeatEvery < 0 || o.Room < 0,
		"a limit of the audit log is negative")
	return errors.Join(errs...)
}

// Log is the audit log of this node. All methods may be called concurrently.
type Log struct {
	options Options
	queue   *queue
	spill   *spill
	writer  *writer
	notes   *noter
	changed *broadcast
	quota   *recordQuota
	lists   *lists
	repeats *repeats
	telling chan struct{} // closed: tell what is left, and end
	told    chan struct{}
	trim    sync.Mutex // one at a time
	closing sync.Once
	closed  error
}

// Status is how the log is doing.
type Status struct {
	Node string
	// Head is the newest row, Noted the newest that a checkpoint covers.
	Head, Noted int64
	// Down says that the last attempt to write failed: nothing new is begun. Err is why, in Broken for good.
	Down   bool
	Broken bool
	Err    error
	// Spilled are the records in the file, Lost those that found no place anywhere and are not yet recorded as such.
	Spilled, Lost int64
}

// Open starts the log of a node: it looks at the end of the chain, takes over what the file holds, closes the intents
// that a process before it left open, and starts writing. It refuses with the code audit_broken when the newest rows
// do not hold together, and with conflict when another process has the node. Close ends it.
func Open(ctx context.Context, options Options) (_ *Log, err error) {
	o := options.withDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	sp, err := openSpill(o.SpillPath, o.SpillSize, o.Node)
	if err != nil {
		return nil, fmt.Errorf("open the audit log's spill file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sp.close())
		}
	}()
	h, err := readHead(ctx, o.Store, o.Node)
	if err != nil {
		return nil, err
	}
	records, err := newRecordQuota(ctx, o)
	if err != nil {
		return nil, err
	}
	l := &Log{options: o, queue: newQueue(o.QueueRows), spill: sp, changed: newBroadcast(), quota: records, lists: newLists(),
		repeats: newRepeats(o.RepeatEvery), telling: make(chan struct{}), told: make(chan struct{})}
	l.notes = newNoter(o)
	l.writer = newWriter(o, h, l.queue, sp, l.notes, l.changed, records)
	if err := l.recover(ctx); err != nil {
		l.writer.cancel()
		l.notes.cancel()
		return nil, err
	}
	l.writer.start()
	l.notes.start()
	go l.tell()
	return l, nil
}

// Close writes what is queued, the last checkpoint, and ends. When ctx is done it stops waiting for the database: what
// it has not taken goes to the file.
func (l *Log) Close(ctx context.Context) error {
	l.closing.Do(func() {
		close(l.telling)
		<-l.told
		l.queue.close()
		l.writer.stop(ctx)
		l.closed = errors.Join(l.notes.stop(ctx), l.spill.close())
	})
	return l.closed
}

// Status returns how the log is doing.
func (l *Log) Status() Status {
	s := l.writer.status()
	records, lost, _ := l.spill.numbers()
	s.Node, s.Noted, s.Spilled, s.Lost = l.options.Node, l.notes.noted.Load(), records, int64(lost)+l.writer.lost.Load()
	return s
}

// Begin writes the intent, and returns when it survives the loss of power. On error the action must not be done: with
// the code audit_unavailable the record could not be written, or its tenant or agent has no room for records left; with canceled or timeout the caller's context ended
// first. The caller gives the outcome to [Pending.End].
func (l *Log) Begin(ctx context.Context, i Intent) (Pending, error) {
	row, err := intentRow(i)
	if err != nil {
		return nil, fmt.Errorf("audit %s: %w", i.Action, err)
	}
	if err := l.quota.check(row); err != nil {
		return nil, err
	}
	stamp(&row, l.options.Now())
	if err := l.await(ctx, newEntry(row, kindIntent)); err != nil {
		return nil, err
	}
	return &pending{log: l, intent: row}, nil
}

// Event writes one record, and returns when it survives the loss of power; errors are those of Begin.
func (l *Log) Event(ctx context.Context, e Event) error {
	row, err := eventRow(e)
	if err != nil {
		return fmt.Errorf("audit %s: %w", e.Action, err)
	}
	if err := l.quota.check(row); err != nil {
		return err
	}
	stamp(&row, l.options.Now())
	return l.await(ctx, newEntry(row, kindEvent))
}

// Note writes one record that no call waits for: a refusal, or what has happened anyway. While the database cannot be
// written to it is kept in the file, up to half of it; what finds no place is counted, and the count is recorded. A
// field that is not fit to be recorded is left out, and the record says which. A refusal that was recorded less than
// RepeatEvery ago is only counted, and so are those of an actor who is refused all the time.
func (l *Log) Note(e Event) {
	row := mend(eventRow(e))
	now := l.options.Now()
	if e.Result == Refused && !l.repeats.refused(row, l.quota.check(row) != nil, now) {
		return
	}
	stamp(&row, now)
	l.later(newEntry(row, kindNote))
}

// BeginEnding is Begin for what must happen even when it cannot be recorded in time: closing, revoking, killing,
// reaping. It never fails, and waits only for a moment. It takes no context, because nothing may stop it. When a tenant
// has no room for records, the same ending again is only counted.
func (l *Log) BeginEnding(i Intent) Pending {
	row := mend(intentRow(i))
	now := l.options.Now()
	counted := l.quota.check(row) != nil && l.repeats.again(row, now)
	stamp(&row, now)
	e := newEntry(row, kindEnding)
	p := &pending{log: l, intent: row}
	if counted {
		p.ended.Store(true)
		return p
	}
	if l.queue.put(e) != putDone {
		l.toSpill(e)
		return p
	}
	patience := time.NewTimer(l.options.EndingPatience)
	defer patience.Stop()
	select {
	case <-e.done:
	case <-patience.C:
		if e.leave() {
			l.toSpill(e)
		}
	}
	return p
}

// pending is something that is being done.
type pending struct {
	log    *Log
	intent store.AuditRow
	ended  atomic.Bool
}

// End implements [Pending].
func (p *pending) End(o Outcome) {
	if !p.ended.CompareAndSwap(false, true) {
		return
	}
	row := mend(outcomeRow(p.intent, o))
	stamp(&row, p.log.options.Now())
	p.log.later(newEntry(row, kindOutcome))
}

// await queues a record and waits until it is written.
func (l *Log) await(ctx context.Context, e *entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.queue.put(e) != putDone {
		return errClosed()
	}
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		if e.leave() {
			return ctx.Err()
		}
		return <-e.done
	}
}

// later queues a record that no call waits for.
func (l *Log) later(e *entry) {
	switch l.queue.put(e) {
	case putFull:
		if e.kind == kindNote {
			l.writer.lost.Add(1)
			return
		}
		l.toSpill(e)
	case putClosed:
		l.toSpill(e)
	}
}

// toSpill keeps a record in the file without the writer, which is busy, or gone.
func (l *Log) toSpill(e *entry) {
	if err := l.spill.add(e.row, e.kind); err != nil {
		l.options.Log.Error("an audit record is lost", "action", e.row.Action, "phase", e.row.Phase, "id", e.row.ID, "error", err)
	}
	l.queue.poke()
}

func errClosed() error {
	return problem.New(problem.ShuttingDown, "try again when it is running", "clawjail is being stopped")
}
