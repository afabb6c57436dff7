package egress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	dayForm   = "2006-01-02"
	keepUsage = 400 // days
	// keepExpired is how long rules and settings are kept that have expired.
	keepExpired = 30 * 24 * time.Hour
	// maxModelsOfDay bounds the rows of an agent on one day: names of models come from agents.
	maxModelsOfDay = 200
	otherModel     = "other"
)

// Tokens is an amount of tokens with its price.
type Tokens struct {
	Input, Output int64
	MicroCost     int64
	// Unpriced is the missing part of a price, as people write it, such as MODEL=INPUT/OUTPUT or call=AMOUNT. With
	// a budget in money such a request is refused.
	Unpriced string
	// Day is that of the charge that this corrects, as [Book.Day] said then; empty for today. Without it a correction
	// after midnight is one of the wrong day.
	Day string
}

// Day is the day on which what is charged now counts.
func (b *Book) Day() string { return b.o.Now().UTC().Format(dayForm) }

// Charge is the one function of budgets: it checks an agent's budget of the day and debits it. Before a request it is
// called with an estimate, and refuses with the code budget_exceeded when the budget does not allow that; afterwards with
// the difference to what was used (requests 0), which is never refused.
func (b *Book) Charge(ctx context.Context, w Who, provider, model string, requests int64, t Tokens) error {
	amount := store.Usage{Requests: requests, InputTokens: t.Input, OutputTokens: t.Output, MicroCost: t.MicroCost}
	if err := b.chargeable(w, provider, requests, t); err != nil {
		return err
	}
	amount.UsageKey = store.UsageKey{Tenant: w.Tenant, Agent: w.Agent, Day: t.Day}
	if amount.Day == "" {
		amount.Day = b.Day()
	}
	var limit store.UsageLimit
	if requests != 0 {
		budget, err := b.View(w).budget()
		if err != nil {
			return err
		}
		if budget.CostPerDay > 0 && t.Unpriced != "" {
			return problem.New(problem.PriceUnknown,
				"Ask for something with a price. An operator can set it: clawjail provider add NAME --price 'MODEL=INPUT/OUTPUT', followed by "+
					"prices of what costs otherwise.",
				"the budget of this agent is in money, and the price of the model %q lacks %s", clip(model), t.Unpriced)
		}
		limit = store.UsageLimit{Tokens: budget.TokensPerDay, MicroCost: microCost(budget.CostPerDay)}
	}
	// The charge is written also when the caller has left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	now, charged, err := b.o.Store.ChargeUsage(ctx, amount, limit)
	if err != nil {
		return err
	}
	if !charged {
		return b.exceeded(now, limit, amount)
	}
	back := store.Usage{UsageKey: amount.UsageKey, Requests: -requests, InputTokens: -t.Input, OutputTokens: -t.Output, MicroCost: -t.MicroCost}
	amount.Provider, amount.Model = provider, b.models.name(amount.UsageKey, model)
	_, _, err = b.o.Store.ChargeUsage(ctx, amount, store.UsageLimit{})
	if err != nil && requests != 0 { // the request is refused, so no later call corrects the charge
		_, _, undo := b.o.Store.ChargeUsage(ctx, back, store.UsageLimit{})
		err = errors.Join(err, undo)
	}
	return err
}

func (b *Book) chargeable(w Who, provider string, requests int64, t Tokens) error {
	f := newFlaws()
	f.check(w.Tenant != "" && w.Agent != "" && w.Session == "", "caller", "only agents use models")
	f.check(validName(provider), "provider", "%q is not the name of one", clip(provider))
	f.check(requests >= 0 && requests <= 1000, "requests", "are %d", requests)
	for _, n := range []int64{t.Input, t.Output, t.MicroCost} {
		f.check(requests == 0 || n >= 0, "amount", "of a request is negative")
	}
	now := b.o.Now().UTC()
	f.check(t.Day == "" || requests == 0 && (t.Day == now.Format(dayForm) || t.Day == now.AddDate(0, 0, -1).Format(dayForm)), "day",
		"%q is not that of a charge to correct", clip(t.Day))
	return f.err()
}

// exceeded is the refusal of a request for which there is no room, with the numbers that decided: what of the day is used,
// what the request would reserve, and the limit.
func (b *Book) exceeded(now store.Usage, limit store.UsageLimit, asks store.Usage) error {
	used, wants := now.InputTokens+now.OutputTokens, asks.InputTokens+asks.OutputTokens
	var why []string
	never := false
	if limit.Tokens > 0 && wants > limit.Tokens-used {
		why = append(why, fmt.Sprintf("the request reserves %d tokens, and %d of %d a day are used", wants, used, limit.Tokens))
		never = wants > limit.Tokens
	}
	if limit.MicroCost > 0 && asks.MicroCost > limit.MicroCost-now.MicroCost {
		why = append(why, fmt.Sprintf("the request may cost %g, and %g of %g a day are used", money64(asks.MicroCost), money64(now.MicroCost), money64(limit.MicroCost)))
		never = never || asks.MicroCost > limit.MicroCost
	}
	hint := "Do not retry today: the budget is one of the day and begins anew at midnight UTC. Ask the operator if the task needs more, or ask for less at once."
	if never {
		hint = fmt.Sprintf("The budget of a whole day does not allow this request. Set max_tokens: without it %d tokens are reserved for the answer. Or ask the operator for a larger budget.",
			LongestAnswer)
	}
	message := "this agent may not use more of models today"
	if len(why) > 0 {
		message += ": " + strings.Join(why, "; ")
	}
	p := problem.New(problem.BudgetExceeded, hint, "%s", message)
	if limit.Tokens > 0 {
		p = p.With("tokens_per_day", limit.Tokens).With("tokens_used", used).With("tokens_reserved", wants)
	}
	if limit.MicroCost > 0 {
		p = p.With("cost_per_day", money64(limit.MicroCost)).With("cost_used", money64(now.MicroCost)).With("cost_reserved", money64(asks.MicroCost))
	}
	midnight := b.o.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	return p.With(problem.RetryAfter, int64(math.Ceil(midnight.Sub(b.o.Now()).Seconds())))
}

// LongestAnswer is how many tokens are reserved for an answer whose request does not bound it.
const LongestAnswer = 128 << 10

// Warning says of a budget that usual requests do not fit into it; else it is empty.
func (b Budget) Warning() string {
	if b.TokensPerDay <= 0 || b.TokensPerDay > LongestAnswer {
		return ""
	}
	return fmt.Sprintf("%d tokens a day allow no request that does not bound its answer: without max_tokens %d are reserved for it", b.TokensPerDay, LongestAnswer)
}

func money64(micro int64) float64 { return float64(micro) / 1e6 }

// microCost is an amount of money in millionths, rounded down: a budget allows no more than it says.
func microCost(money float64) int64 { return int64(money*1e6 + 1e-6) }

// models are the names that usage is kept by.
type models struct {
	mu sync.Mutex
	of map[store.UsageKey]map[string]bool // by agent and day
}

// name is the model's name, or that of all others when an agent has come up with too many.
func (m *models) name(of store.UsageKey, model string) string {
	if model == "" || !clean(model, maxPattern) {
		return otherModel
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = map[store.UsageKey]map[string]bool{}
	}
	known := m.of[of]
	if known == nil {
		if len(m.of) >= 10_000 {
			clear(m.of)
		}
		known = map[string]bool{}
		m.of[of] = known
	}
	if !known[model] && len(known) >= maxModelsOfDay {
		return otherModel
	}
	known[model] = true
	return model
}

// forget drops what is not of a day.
func (m *models) forget(today string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.of {
		if key.Day < today {
			delete(m.of, key)
		}
	}
}

// Usage lists the use of models from a day on (2006-01-02); without one, of the last 30 days. An agent sees its own.
func (b *Book) Usage(ctx context.Context, by identity.Principal, tenant, from string) ([]Usage, error) {
	of := scope{tenant: by.Among(tenant)}
	if by.Kind == identity.KindAgent {
		of.agent = by.ID
	}
	if err := b.may(ctx, by, identity.UsageRead, of); err != nil {
		return nil, err
	}
	if from == "" {
		from = b.o.Now().UTC().AddDate(0, 0, -30).Format(dayForm)
	}
	if day, err := time.Parse(dayForm, from); err != nil || day.Format(dayForm) != from {
		return nil, problem.New(problem.BadRequest, "write it as 2006-01-02", "%q is not a day", clip(from))
	}
	rows, err := b.o.Store.ListUsage(ctx, of.tenant, from)
	if err != nil {
		return nil, err
	}
	var out []Usage
	for _, r := range rows {
		// The sums are for budgets; people add up what they want to know.
		if r.Provider == "" || of.agent != "" && r.Agent != of.agent {
			continue
		}
		out = append(out, Usage{
			Tenant: r.Tenant, Agent: r.Agent, Day: r.Day, Provider: r.Provider, Model: r.Model, Requests: r.Requests,
			InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, Cost: money64(r.MicroCost),
		})
	}
	return out, nil
}
