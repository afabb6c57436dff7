package audit

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// listsOfTenant is how many listings of one tenant read the database at the same time; more wait. All callers of no tenant
	// count as one tenant more.
	listsOfTenant = 2
	// listLimit is how long one may read. A question that no index answers reads the whole log.
	listLimit = 10 * time.Second
)

// lists lets each tenant read the log a little at a time, so that a tenant that asks for much does not keep others waiting.
type lists struct {
	limit time.Duration
	turns *quota.Turns
}

func newLists() *lists { return &lists{limit: listLimit, turns: quota.TurnsOfTenants(listsOfTenant)} }

var errTooLong = errors.New("the listing took too long")

// list reads rows from the database, when it is the turn of the tenant that they are asked of.
func (l *lists) list(ctx context.Context, from store.Audit, f Filter) ([]Row, error) {
	leave, err := l.turns.Enter(ctx, f.Tenant)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, l.limit, errTooLong)
	defer cancel()
	rows, err := from.ListAudit(ctx, f)
	if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
		return nil, problem.Wrap(err, problem.Timeout, "ask for a shorter time, or for one session, action or actor",
			"the search of the audit log found no answer within %s", l.limit)
	}
	return rows, err
}
