package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// defaultRoom is what all records may take where nobody says.
const defaultRoom = 64 << 30

// room is how much of the database records take, and whose they are. A tenant that has used up its share begins nothing more, because it
// could not be recorded. Records that must be written all the same, such as outcomes and endings, are counted and never refused.
type room struct {
	gate  *quota.Gate
	store store.Audit
}

func newRoom(ctx context.Context, o Options) (*room, error) {
	r := &room{store: o.Store, gate: quota.NewGate(quota.GateOptions{
		Kind: quota.Records(), Whole: o.Room, Quotas: o.Quotas, Tenants: o.Tenants, Admins: true,
	})}
	return r, r.recount(ctx)
}

func holderOf(row store.AuditRow) quota.Holder {
	return quota.Holder{Tenant: row.Tenant, Agent: row.Agent()}
}

// recount takes over what the database says: rows have gone, or other nodes have written some.
func (r *room) recount(ctx context.Context) error {
	sizes, err := r.store.AuditSizes(ctx)
	if err != nil {
		return fmt.Errorf("read how large the audit log is: %w", err)
	}
	held := make(map[quota.Holder]int64, len(sizes))
	for _, s := range sizes {
		held[quota.Holder{Tenant: s.Tenant, Agent: s.Agent}] = s.Bytes
	}
	r.gate.Set(held)
	return nil
}

// admit is an error when there is no room for a record and its outcome. An act of the installation's admin for a tenant,
// and one that has to go on by itself, is counted and not refused; a request that leaves a jail is neither.
func (r *room) admit(row store.AuditRow) error {
	if (row.Actor == actorAdmin || row.Actor == actorSystem) && !strings.HasPrefix(row.Action, jailsActions) {
		return nil
	}
	return r.gate.TakeOf(holderOf(row), 0, 2*row.Bytes())
}

// add counts rows that were written.
func (r *room) add(rows []store.AuditRow) {
	for _, row := range rows {
		r.gate.Add(holderOf(row), row.Bytes())
	}
}

// Held is how much room records take, for whoever asks.
func (l *Log) Held(asks quota.Holder) []quota.Amount { return l.room.gate.Amounts(asks) }

// Recount reads how much room records take, of which other nodes write some.
func (l *Log) Recount(ctx context.Context) error { return l.room.recount(ctx) }
