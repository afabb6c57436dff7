package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// defaultRoom is the quota of all records together where the configuration names none, in bytes.
const defaultRoom = 64 << 30

// recordQuota is the quota of audit records, by tenant and agent. A tenant that has used it up begins nothing more, because it could not be
// recorded. Records that must be written all the same, such as outcomes and endings, are counted and never refused.
type recordQuota struct {
	gate  *quota.Gate
	store store.Audit
}

func newRecordQuota(ctx context.Context, o Options) (*recordQuota, error) {
	q := &recordQuota{store: o.Store, gate: quota.NewGate(quota.GateOptions{
		Kind: quota.Records(), Whole: o.Room, Quotas: o.Quotas, Tenants: o.Tenants, Admins: true,
	})}
	return q, q.recount(ctx)
}

func holderOf(row store.AuditRow) quota.Holder {
	return quota.Holder{Tenant: row.Tenant, Agent: row.Agent()}
}

// recount replaces the counters with the database's, which also reflect deletions and other nodes.
func (q *recordQuota) recount(ctx context.Context) error {
	sizes, err := q.store.AuditSizes(ctx)
	if err != nil {
		return fmt.Errorf("read how large the audit log is: %w", err)
	}
	held := make(map[quota.Holder]int64, len(sizes))
	for _, s := range sizes {
		held[quota.Holder{Tenant: s.Tenant, Agent: s.Agent}] = s.Bytes
	}
	q.gate.Set(held)
	return nil
}

// check refuses a record when there is no room for it and for an outcome that is as large. It takes no room. The admin and
// the system are never refused, except requests that leave a jail.
func (q *recordQuota) check(row store.AuditRow) error {
	if (row.Actor == actorAdmin || row.Actor == actorSystem) && !strings.HasPrefix(row.Action, jailsActions) {
		return nil
	}
	return q.gate.TakeOf(holderOf(row), 0, 2*row.Bytes())
}

// count counts rows that were written.
func (q *recordQuota) count(rows []store.AuditRow) {
	for _, row := range rows {
		q.gate.Add(holderOf(row), row.Bytes())
	}
}

// Held is how much room the records of a tenant and its agents take.
func (l *Log) Held(asks quota.Holder) []quota.Amount { return l.quota.gate.Amounts(asks) }

// Recount reads from the database how much room records take.
func (l *Log) Recount(ctx context.Context) error { return l.quota.recount(ctx) }
