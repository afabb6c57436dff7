package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/clawjail/clawjail/internal/store"
)

const usageColumns = `day, tenant, agent, provider, model, requests, input_tokens, output_tokens, micro_cost`

func scanUsage(row scanner) (u store.Usage, err error) {
	err = row.Scan(&u.Day, &u.Tenant, &u.Agent, &u.Provider, &u.Model, &u.Requests, &u.InputTokens, &u.OutputTokens, &u.MicroCost)
	return u, err
}

// The parameters of a charge: the key, the four amounts, the two limits, and store.MaxUsage.
const (
	usageKey = `day = $1 AND tenant = $2 AND agent = $3 AND provider = $4 AND model = $5`
	// usageSums is store.Usage.Plus, and usageAllowed is store.UsageLimit.Allows.
	usageSums = `requests = min(max(requests + $6, 0), $12), input_tokens = min(max(input_tokens + $7, 0), $12),
		output_tokens = min(max(output_tokens + $8, 0), $12), micro_cost = min(max(micro_cost + $9, 0), $12)`
	usageTokens  = `min(max(input_tokens + $7, 0), $12) + min(max(output_tokens + $8, 0), $12)`
	usageAllowed = `($10 = 0 OR $7 + $8 < 0 AND ` + usageTokens + ` <= input_tokens + output_tokens
			OR input_tokens + output_tokens < $10 AND ` + usageTokens + ` <= $10)
		AND ($11 = 0 OR $9 < 0 OR micro_cost < $11 AND min(max(micro_cost + $9, 0), $12) <= $11)`

	chargeUsage = `INSERT INTO usages (` + usageColumns + `)
		VALUES ($1, $2, $3, $4, $5, max($6, 0), max($7, 0), max($8, 0), max($9, 0))
		ON CONFLICT (day, tenant, agent, provider, model) DO UPDATE SET ` + usageSums + ` WHERE ` + usageAllowed + `
		RETURNING ` + usageColumns
	// chargeKnownUsage makes no row. It is for an amount that alone is beyond the limit.
	chargeKnownUsage = `UPDATE usages SET ` + usageSums + ` WHERE ` + usageKey + ` AND (` + usageAllowed + `) RETURNING ` + usageColumns
)

func (db *DB) ChargeUsage(ctx context.Context, amount store.Usage, limit store.UsageLimit) (now store.Usage, charged bool, err error) {
	if err := errors.Join(amount.UsageKey.Validate(), limit.Validate()); err != nil {
		return store.Usage{}, false, err
	}
	amount, limit = amount.Clamped(), limit.Clamped()
	key := []any{amount.Day, amount.Tenant, amount.Agent, amount.Provider, amount.Model}
	args := append(key[:len(key):len(key)], amount.Requests, amount.InputTokens, amount.OutputTokens, amount.MicroCost,
		limit.Tokens, limit.MicroCost, int64(store.MaxUsage))
	err = db.change(ctx, "charge usage", func(ctx context.Context, tx *sql.Tx) error {
		if limit.Allows(store.Usage{}, amount) {
			now, err = scanUsage(tx.StmtContext(ctx, db.chargeUsage).QueryRowContext(ctx, args...))
		} else {
			now, err = scanUsage(tx.QueryRowContext(ctx, chargeKnownUsage, args...))
		}
		if charged = err == nil; charged || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		now, err = scanUsage(tx.QueryRowContext(ctx, `SELECT `+usageColumns+` FROM usages WHERE `+usageKey, key...))
		if errors.Is(err, sql.ErrNoRows) {
			now, err = store.Usage{UsageKey: amount.UsageKey}, nil
		}
		return err
	})
	if err != nil {
		return store.Usage{}, false, err
	}
	return now, charged, nil
}

func (db *DB) ListUsage(ctx context.Context, tenant, fromDay string) ([]store.Usage, error) {
	if err := errors.Join(store.Text(tenant), store.Day(fromDay)); err != nil {
		return nil, err
	}
	return list(ctx, db, "list usage", scanUsage, `SELECT `+usageColumns+` FROM usages
		WHERE day >= $2 AND ($1 = '' OR tenant = $1) ORDER BY day, agent, provider, model, tenant`, tenant, fromDay)
}

func (db *DB) DeleteUsageBefore(ctx context.Context, day string) (int, error) {
	if err := store.Day(day); err != nil {
		return 0, err
	}
	return db.remove(ctx, "delete old usage", `DELETE FROM usages WHERE day < $1`, day)
}
