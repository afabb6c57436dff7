package audit

import (
	"context"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// recover brings the log of a process that died in order, before this one writes anything: first what its file
// holds, then an outcome for every intent that has none. It runs before the writer starts, so it writes itself.
func (l *Log) recover(ctx context.Context) (err error) {
	w := l.writer
	stop := context.AfterFunc(ctx, w.cancel)
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err() // the writer has been told to give up
		}
	}()
	if err := w.join(); err != nil {
		return startError(err)
	}
	open, err := l.options.Store.OpenIntents(ctx, l.options.Node)
	if err != nil {
		return startError(err)
	}
	outcomes := make([]store.AuditRow, 0, len(open))
	for _, intent := range open {
		if err := ctx.Err(); err != nil {
			return err
		}
		outcome, known := Outcome{}, false
		if l.options.Settle != nil {
			outcome, known = l.options.Settle(ctx, intent)
		}
		if !known {
			outcome = neverTold()
		}
		row := mend(outcomeRow(intent, outcome))
		stamp(&row, l.options.Now())
		outcomes = append(outcomes, row)
	}
	for group := range slices.Chunk(outcomes, groupRows) {
		if err := w.commit(transaction{rows: group}); err != nil {
			return startError(err)
		}
	}
	if len(open) > 0 {
		l.options.Log.Warn("intents of a process that ended were closed", "count", len(open))
	}
	return nil
}

// neverTold is the outcome of an intent whose process ended before it recorded one.
func neverTold() Outcome {
	return Outcome{Result: Unknown, Detail: NewDetail(Fields{"reason": "the process ended before the outcome was recorded"})}
}

// CloseIntents writes an outcome for every intent of another node that has none, because that one is gone. When it is not, and
// writes an outcome later, there are two.
func (l *Log) CloseIntents(ctx context.Context, node string) (closed int, err error) {
	open, err := l.options.Store.OpenIntents(ctx, node)
	if err != nil {
		return 0, err
	}
	for _, intent := range open {
		row := mend(outcomeRow(intent, neverTold()))
		stamp(&row, l.options.Now())
		if err := l.await(ctx, newEntry(row, kindEvent)); err != nil {
			return closed, err
		}
		closed++
	}
	return closed, nil
}

func startError(err error) error {
	if problem.CodeOf(err) != problem.AuditBroken {
		err = unavailable(err)
	}
	return fmt.Errorf("take over the audit log: %w", err)
}
