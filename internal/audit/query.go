package audit

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// Filter selects rows.
type Filter = store.AuditFilter

const (
	// MaxList is how many rows one listing has at most.
	MaxList = 1000
	// tailPoll is how often Tail looks for rows of other nodes.
	tailPoll = time.Second
)

// List returns rows in their order. A limit of zero or beyond MaxList is MaxList.
func (l *Log) List(ctx context.Context, f Filter) ([]Row, error) {
	if f.Limit <= 0 || f.Limit > MaxList {
		f.Limit = MaxList
	}
	return l.lists.list(ctx, l.options.Store, f)
}

// Tail yields the newest f.Limit rows that match, and with follow those that are written from then on, until ctx is
// done: that is its end, and no error. Rows of this node come at once, those of others within a second.
func (l *Log) Tail(ctx context.Context, f Filter, follow bool) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		err := l.tail(ctx, f, follow, func(r Row) bool { return yield(r, nil) })
		if err != nil && !errors.Is(err, errStopped) && ctx.Err() == nil {
			yield(Row{}, err)
		}
	}
}

var errStopped = errors.New("the reader has enough")

func (l *Log) tail(ctx context.Context, f Filter, follow bool, yield func(Row) bool) error {
	seen := map[string]int64{} // the newest row of each node that was looked at
	if err := l.newRows(ctx, f, func(node string, to int64) error { seen[node] = to; return nil }); err != nil {
		return err
	}
	latest := f
	latest.Newest = true
	rows, err := l.List(ctx, latest)
	if err != nil {
		return err
	}
	for _, r := range rows {
		seen[r.Node] = max(seen[r.Node], r.Seq)
		if !yield(r) {
			return errStopped
		}
	}
	if !follow {
		return nil
	}
	poll := time.NewTicker(tailPoll)
	defer poll.Stop()
	for {
		changed := l.changed.next()
		err := l.newRows(ctx, f, func(node string, to int64) error {
			step := f
			step.Node, step.Limit, step.Newest = node, MaxList, false
			for step.AfterSeq = seen[node]; step.AfterSeq < to; {
				rows, err := l.lists.list(ctx, l.options.Store, step)
				if err != nil {
					return err
				}
				for _, r := range rows {
					if !yield(r) {
						return errStopped
					}
					step.AfterSeq = r.Seq
				}
				if len(rows) < step.Limit {
					break
				}
			}
			seen[node] = max(to, step.AfterSeq)
			return nil
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-poll.C:
		}
	}
}

// newRows calls each with the nodes that match and the newest row of each.
func (l *Log) newRows(ctx context.Context, f Filter, each func(node string, to int64) error) error {
	nodes, err := l.options.Store.AuditNodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if f.Node != "" && f.Node != node {
			continue
		}
		last, err := l.options.Store.LastAudit(ctx, node)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := each(node, last.Seq); err != nil {
			return err
		}
	}
	return nil
}
