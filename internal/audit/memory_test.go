package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// memory is a store.Audit that can be told to go wrong.
type memory struct {
	mu      sync.Mutex
	rows    []store.AuditRow
	groups  []int // the size of every transaction
	full    bool  // nothing can be written
	hang    bool  // writing waits until its context ends
	silent  bool  // the next rows are written, and an error comes back
	stall   bool  // the server takes rows and is not done with them when the context ends; others wait for it
	stalled []store.AuditRow
	// beforeAppend happens once rows are about to be written, when it is not nil.
	beforeAppend func()
	mute         bool // nothing can be read
	entered      chan struct{}
	release      chan struct{} // when not nil, writing says so on entered, and waits for this
}

var _ store.Audit = (*memory)(nil)

func (m *memory) set(change func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *memory) all() []store.AuditRow {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rows)
}

func (m *memory) AppendAudit(ctx context.Context, rows []store.AuditRow) error {
	m.mu.Lock()
	release := m.release
	m.mu.Unlock()
	if release != nil {
		m.entered <- struct{}{}
		<-release
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stall && m.stalled == nil {
		m.stalled = slices.Clone(rows)
	}
	if m.hang || m.stall {
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		return store.Unavailable(ctx.Err())
	}
	if m.full {
		return store.Full(errors.New("no space"))
	}
	first, err := store.Batch(rows)
	if err != nil {
		return err
	}
	if m.beforeAppend != nil {
		m.beforeAppend()
	}
	for node, seq := range first {
		if err := store.Follows(node, m.newest(node), seq); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if slices.ContainsFunc(m.rows, func(old store.AuditRow) bool { return old.ID == r.ID }) {
			return fmt.Errorf("%s: %w", r.ID, store.ErrExists)
		}
	}
	m.groups = append(m.groups, len(rows))
	m.rows = append(m.rows, rows...)
	if m.silent {
		m.silent = false
		return store.Unavailable(errors.New("the connection was lost"))
	}
	return nil
}

func (m *memory) newest(node string) (seq int64) {
	for _, r := range m.rows {
		if r.Node == node {
			seq = max(seq, r.Seq)
		}
	}
	return seq
}

func (m *memory) LastAudit(_ context.Context, node string) (store.AuditRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mute {
		return store.AuditRow{}, store.Unavailable(errors.New("no answer"))
	}
	seq := m.newest(node)
	for _, r := range m.rows {
		if r.Node == node && r.Seq == seq {
			return r, nil
		}
	}
	return store.AuditRow{}, store.ErrNotFound
}

func (m *memory) FindAudit(_ context.Context, id string) (store.AuditRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rows {
		if r.ID == id {
			return r, nil
		}
	}
	return store.AuditRow{}, store.ErrNotFound
}

func (m *memory) ListAudit(_ context.Context, f store.AuditFilter) ([]store.AuditRow, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []store.AuditRow
	for _, r := range m.rows {
		if is(f.Node, r.Node) && is(f.Tenant, r.Tenant) && is(f.Actor, r.Actor) && is(f.Action, r.Action) && is(f.Session, r.Session) &&
			is(f.Jail, r.Jail) && is(f.Phase, r.Phase) && is(f.Result, r.Result) && is(f.Ref, r.Ref) &&
			strings.HasPrefix(r.Action, f.ActionPrefix) && r.Seq > f.AfterSeq &&
			(f.Since.IsZero() || !r.Time.Before(f.Since)) && (f.Until.IsZero() || r.Time.Before(f.Until)) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b store.AuditRow) int {
		if f.Node != "" {
			return int(a.Seq - b.Seq)
		}
		if c := a.Time.Compare(b.Time); c != 0 {
			return c
		}
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		return int(a.Seq - b.Seq)
	})
	if f.Newest {
		return out[max(0, len(out)-f.Limit):], nil
	}
	return out[:min(len(out), f.Limit)], nil
}

func is(want, got string) bool { return want == "" || want == got }

func (m *memory) WalkAudit(_ context.Context, node string, from int64) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		rows := m.all()
		slices.SortStableFunc(rows, func(a, b store.AuditRow) int { return int(a.Seq - b.Seq) })
		for _, r := range rows {
			if r.Node == node && r.Seq >= from && !yield(r, nil) {
				return
			}
		}
	}
}

func (m *memory) AuditNodes(context.Context) ([]string, error) {
	nodes := map[string]bool{}
	for _, r := range m.all() {
		nodes[r.Node] = true
	}
	return slices.Sorted(maps.Keys(nodes)), nil
}

func (m *memory) OpenIntents(_ context.Context, node string) ([]store.AuditRow, error) {
	closed := map[string]bool{}
	rows := m.all()
	for _, r := range rows {
		if r.Phase == PhaseOutcome {
			closed[r.Ref] = true
		}
	}
	return slices.DeleteFunc(rows, func(r store.AuditRow) bool { return r.Node != node || r.Phase != PhaseIntent || closed[r.ID] }), nil
}

func (m *memory) AuditSizes(context.Context) ([]store.AuditSize, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return store.SizesOf(m.rows), nil
}

func (m *memory) TrimAudit(_ context.Context, node string, upTo int64, _ store.Duty) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.rows)
	m.rows = slices.DeleteFunc(m.rows, func(r store.AuditRow) bool { return r.Node == node && r.Seq <= upTo })
	return before - len(m.rows), nil
}

// slowLists answers no listing of one tenant.
type slowLists struct {
	*memory
	slow string
	now  atomic.Int64
}

func (s *slowLists) ListAudit(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, error) {
	if f.Tenant != s.slow {
		return s.memory.ListAudit(ctx, f)
	}
	s.now.Add(1)
	defer s.now.Add(-1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// keeper keeps checkpoints in memory.
type keeper struct {
	mu    sync.Mutex
	lines bytes.Buffer
	fail  bool
	got   chan struct{} // when not nil, told of each note
}

func (k *keeper) Append(_ context.Context, note []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail {
		return errors.New("the host daemon does not answer")
	}
	k.lines.Write(append(note, '\n'))
	if k.got != nil {
		k.got <- struct{}{}
	}
	return nil
}

func (k *keeper) set(fail bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = fail
}

func (k *keeper) notes() Notes {
	k.mu.Lock()
	defer k.mu.Unlock()
	data := bytes.Clone(k.lines.Bytes())
	return func(yield func(checkpoint.Note, error) bool) { checkpoint.Read(bytes.NewReader(data))(yield) }
}
