package sqldb

import (
	"context"
	"database/sql"
	"errors"

	"github.com/clawjail/clawjail/internal/store"
)

const usageColumns = `day, tenant, agent, provider, model, requests, input_tokens, output_tokens, micro_cost`

func scanUsage(row Scanner) (u store.Usage, err error) {
	err = row.Scan(&u.Day, &u.Tenant, &u.Agent, &u.Provider, &u.Model, &u.Requests, &u.InputTokens, &u.OutputTokens, &u.MicroCost)
	return u, err
}

// The parameters of a charge: the key, the four amounts, the two limits, and store.MaxUsage.
const (
	usageKey = `day = $1 AND tenant = $2 AND agent = $3 AND provider = $4 AND model = $5`
	// usageSums is store.Usage.Plus, and usageAllowed is store.UsageLimit.Allows. The columns are qualified, because the row that
	// could not be inserted has columns of the same names.
	usageInput  = `CASE WHEN usages.input_tokens + $7 < 0 THEN 0 WHEN usages.input_tokens + $7 > $12 THEN $12 ELSE usages.input_tokens + $7 END`
	usageOutput = `CASE WHEN usages.output_tokens + $8 < 0 THEN 0 WHEN usages.output_tokens + $8 > $12 THEN $12 ELSE usages.output_tokens + $8 END`
	usageCost   = `CASE WHEN usages.micro_cost + $9 < 0 THEN 0 WHEN usages.micro_cost + $9 > $12 THEN $12 ELSE usages.micro_cost + $9 END`
	usageSums   = `requests = CASE WHEN usages.requests + $6 < 0 THEN 0 WHEN usages.requests + $6 > $12 THEN $12 ELSE usages.requests + $6 END,
		input_tokens = ` + usageInput + `, output_tokens = ` + usageOutput + `, micro_cost = ` + usageCost
	usageTokens  = usageInput + ` + ` + usageOutput
	usageAllowed = `(CAST($10 AS bigint) = 0 OR CAST($7 AS bigint) + CAST($8 AS bigint) < 0 AND ` + usageTokens + ` <= usages.input_tokens + usages.output_tokens
			OR usages.input_tokens + usages.output_tokens < $10 AND ` + usageTokens + ` <= $10)
		AND (CAST($11 AS bigint) = 0 OR CAST($9 AS bigint) < 0 OR usages.micro_cost < $11 AND ` + usageCost + ` <= $11)`

	chargeUsage = `INSERT INTO usages (` + usageColumns + `)
		VALUES ($1, $2, $3, $4, $5, CASE WHEN CAST($6 AS bigint) < 0 THEN 0 ELSE $6 END, CASE WHEN CAST($7 AS bigint) < 0 THEN 0 ELSE $7 END,
			CASE WHEN CAST($8 AS bigint) < 0 THEN 0 ELSE $8 END, CASE WHEN CAST($9 AS bigint) < 0 THEN 0 ELSE $9 END)
		ON CONFLICT (day, tenant, agent, provider, model) DO UPDATE SET ` + usageSums + ` WHERE ` + usageAllowed + `
		RETURNING ` + usageColumns
	// chargeKnownUsage makes no row. It is for an amount that alone is beyond the limit.
	chargeKnownUsage = `UPDATE usages SET ` + usageSums + ` WHERE ` + usageKey + ` AND (` + usageAllowed + `) RETURNING ` + usageColumns
)

func (db *Tables) ChargeUsage(ctx context.Context, amount store.Usage, limit store.UsageLimit) (now store.Usage, charged bool, err error) {
	if err := errors.Join(amount.UsageKey.Validate(), limit.Validate()); err != nil {
		return store.Usage{}, false, err
	}
	amount, limit = amount.Clamped(), limit.Clamped()
	key := []any{amount.Day, amount.Tenant, amount.Agent, amount.Provider, amount.Model}
	args := append(key[:len(key):len(key)], amount.Requests, amount.InputTokens, amount.OutputTokens, amount.MicroCost,
		limit.Tokens, limit.MicroCost, int64(store.MaxUsage))
	query := chargeKnownUsage
	if limit.Allows(store.Usage{}, amount) {
		query = chargeUsage
	}
	err = db.dialect.Change(ctx, "charge usage", func(ctx context.Context, q Querier) (err error) {
		now, err = scanUsage(q.QueryRowContext(ctx, query, args...))
		if charged = err == nil; charged || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		now, err = scanUsage(q.QueryRowContext(ctx, `SELECT `+usageColumns+` FROM usages WHERE `+usageKey, key...))
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

func (db *Tables) ListUsage(ctx context.Context, tenant, fromDay string) ([]store.Usage, error) {
	if err := errors.Join(store.Text(tenant), store.Day(fromDay)); err != nil {
		return nil, err
	}
	return list(ctx, db, "list usage", scanUsage, `SELECT `+usageColumns+` FROM usages
		WHERE day >= $2 AND ($1 = '' OR tenant = $1) ORDER BY day, agent, provider, model, tenant`, tenant, fromDay)
}

func (db *Tables) DeleteUsageBefore(ctx context.Context, day string) (int, error) {
	if err := store.Day(day); err != nil {
		return 0, err
	}
	return db.remove(ctx, "delete old usage", `DELETE FROM usages WHERE day < $1`, day)
}
