package hostd

import (
	"context"
	"sync"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// bound counts the jails of an installation, of all drivers, and what those of each tenant declare.
type bound struct {
	limit int
	check func(s jail.Spec, held int64) error // held is what the tenant's jails declare already

	mu    sync.Mutex
	jails map[jail.Name]declared
}

// boundedJournal refuses the record of one jail too many. The journal is where to count: a jail's record is the
// first thing of it and the last, so the number is exact however many are made and ended at the same time.
type boundedJournal struct {
	jail.Journal
	*bound
}

// Load implements jail.Journal.
func (b *boundedJournal) Load(ctx context.Context) ([]jail.Record, []jail.Name, error) {
	records, damaged, err := b.Journal.Load(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range records {
		b.jails[r.Name] = declaredBy(r.Spec)
	}
	for _, n := range damaged {
		b.jails[n] = declared{}
	}
	return records, damaged, err
}

// Put implements jail.Journal.
func (b *boundedJournal) Put(ctx context.Context, r jail.Record) error {
	if r.State != jail.StateReserved {
		return b.Journal.Put(ctx, r)
	}
	if err := b.enter(r.Name, r.Spec); err != nil {
		return err
	}
	err := b.Journal.Put(ctx, r)
	if err != nil {
		b.leave(r.Name)
	}
	return err
}

// Delete implements jail.Journal.
func (b *boundedJournal) Delete(ctx context.Context, name jail.Name) error {
	err := b.Journal.Delete(ctx, name)
	if err == nil {
		b.leave(name)
	}
	return err
}

// room returns the error that a further jail would be refused with, so that nothing is begun in vain.
func (b *bound) room() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.full()
}

func (b *bound) full() error {
	if len(b.jails) >= b.limit {
		return problem.New(problem.PoolExhausted, "close sessions", "there are %d jails, the most that this installation may have", b.limit)
	}
	return nil
}

func (b *bound) enter(n jail.Name, s jail.Spec) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.full(); err != nil {
		return err
	}
	if err := b.check(s, b.sums()[s.Tenant()]); err != nil {
		return err
	}
	b.jails[n] = declaredBy(s)
	return nil
}

// memory is what the jails of each tenant may take by their limits.
func (b *bound) memory() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sums()
}

func (b *bound) sums() map[string]int64 {
	out := map[string]int64{}
	for _, d := range b.jails {
		out[d.tenant] += d.memory
	}
	return out
}

func (b *bound) leave(n jail.Name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.jails, n)
}
