package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/clawjail/clawjail/internal/store"
)

const usageColumns = `day, tenant, agent, provider, model, requests, input_tokens, output_tokens, micro_cost`

func scanUsage(row pgx.Row) (u store.Usage, err error) {
	err = row.Scan(&u.Day, &u.Tenant, &u.Agent, &u.Provider, &u.Model, &u.Requests, &u.InputTokens, &u.OutputTokens, &u.MicroCost)
	return u, err
}

// The parameters of a charge: the key, the four amounts, the two limits, and store.MaxUsage. The table is u, because
// the row that could not be inserted has columns of the same names.
const (
	usageKey = `u.day = $1 AND u.tenant = $2 AND u.agent = $3 AND u.provider = $4 AND u.model = $5`
	// usageSums is store.Usage.Plus, and usageAllowed is store.UsageLimit.Allows.
	usageSums = `requests = least(greatest(u.requests + $6, 0), $12), input_tokens = least(greatest(u.input_tokens + $7, 0), $12),
		output_tokens = least(greatest(u.output_tokens + $8, 0), $12), micro_cost = least(greatest(u.micro_cost + $9, 0), $12)`
	usageTokens  = `least(greatest(u.input_tokens + $7, 0), $12) + least(greatest(u.output_tokens + $8, 0), $12)`
	usageAllowed = `($10::bigint = 0 OR $7::bigint + $8::bigint < 0 AND ` + usageTokens + ` <= u.input_tokens + u.output_tokens
			OR u.input_tokens + u.output_tokens < $10 AND ` + usageTokens + ` <= $10)
		AND ($11::bigint = 0 OR $9::bigint < 0 OR u.micro_cost < $11 AND least(greatest(u.micro_cost + $9, 0), $12) <= $11)`
	usageRow = `u.day, u.tenant, u.agent, u.provider, u.model, u.requests, u.input_tokens, u.output_tokens, u.micro_cost`

	chargeUsage = `INSERT INTO usages AS u (` + usageColumns + `)
		VALUES ($1, $2, $3, $4, $5, greatest($6::bigint, 0), greatest($7::bigint, 0), greatest($8::bigint, 0), greatest($9::bigint, 0))
		ON CONFLICT (day, tenant, agent, provider, model) DO UPDATE SET ` + usageSums + ` WHERE ` + usageAllowed + `
		RETURNING ` + usageRow
	// chargeKnownUsage makes no row. It is for an amount that alone is beyond the limit.
	chargeKnownUsage = `UPDATE usages AS u SET ` + usageSums + ` WHERE ` + usageKey + ` AND (` + usageAllowed + `) RETURNING ` + usageRow
)

// ChargeUsage: of two charges at the same time the second waits for the first, and then looks at the
// row again.
func (db *DB) ChargeUsage(ctx context.Context, amount store.Usage, limit store.UsageLimit) (store.Usage, bool, error) {
	if err := errors.Join(amount.UsageKey.Validate(), limit.Validate()); err != nil {
		return store.Usage{}, false, err
	}
	amount, limit = amount.Clamped(), limit.Clamped()
	query := chargeKnownUsage
	if limit.Allows(store.Usage{}, amount) {
		query = chargeUsage
	}
	key := []any{amount.Day, amount.Tenant, amount.Agent, amount.Provider, amount.Model}
	now, err := db.usage(ctx, query, append(key[:len(key):len(key)], amount.Requests, amount.InputTokens, amount.OutputTokens,
		amount.MicroCost, limit.Tokens, limit.MicroCost, int64(store.MaxUsage))...)
	if !errors.Is(err, pgx.ErrNoRows) {
		return now, err == nil, failure(ctx, "charge usage", err)
	}
	now, err = db.usage(ctx, `SELECT `+usageRow+` FROM usages AS u WHERE `+usageKey, key...)
	if errors.Is(err, pgx.ErrNoRows) {
		return store.Usage{UsageKey: amount.UsageKey}, false, nil
	}
	return now, false, failure(ctx, "read usage", err)
}

// usage returns the error of the driver: that there is no row means something else than that something is missing.
func (db *DB) usage(ctx context.Context, query string, args ...any) (store.Usage, error) {
	u, err := scanUsage(db.pool.QueryRow(ctx, query, args...))
	if err != nil {
		return store.Usage{}, err
	}
	return u, nil
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
