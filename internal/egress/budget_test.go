package egress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func (w *fixture) budget(b Budget) {
	w.t.Helper()
	w.must(second2(w.PutSettings(w.ctx, w.admin, Settings{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Budget: b})))
}

// sum is what an agent was debited on a day.
func (w *fixture) sum(day string) (out store.Usage) {
	w.t.Helper()
	rows, err := w.db.ListUsage(w.ctx, "acme", day)
	w.must(err)
	for _, r := range rows {
		if r.Agent == w.bot.ID && r.Provider == "" && r.Day == day {
			out = r
		}
	}
	return out
}

func TestBudgetOfADay(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	charge := func(requests int64, t Tokens) error { return w.Charge(w.ctx, bot, "openai", "m", requests, t) }
	w.must(charge(1, Tokens{Input: 1_000_000})) // nobody has set one
	w.budget(Budget{TokensPerDay: 1_000_100})
	w.must(charge(1, Tokens{Input: 40, Output: 60}))
	err := charge(1, Tokens{Output: 1})
	w.wantCode("beyond the budget", err, problem.BudgetExceeded)
	if p, _ := problem.As(err); p.Details["retry_after"] != int64(12*3600) || p.Details["tokens_used"] != int64(1_000_100) || !strings.Contains(p.Hint, "Do not retry today") {
		t.Errorf("the refusal says %+v", p)
	}
	// The refusal says why: what is used, what the request reserves, and the limit.
	if p, _ := problem.As(err); !strings.Contains(p.Message, "the request reserves 1 tokens, and 1000100 of 1000100 a day are used") || p.Details["tokens_reserved"] != int64(1) {
		t.Errorf("the refusal says %+v", p)
	}
	w.must(charge(0, Tokens{Output: 500})) // it was used
	w.must(charge(0, Tokens{Output: -560}))
	w.must(charge(0, Tokens{MicroCost: math.MaxInt64})) // never refused
	w.wantCode("more than there is", charge(1, Tokens{Output: math.MaxInt64}), problem.BudgetExceeded)
	w.must(charge(1, Tokens{Output: 60}))
	w.wantCode("beyond the budget", charge(1, Tokens{Output: 1}), problem.BudgetExceeded)
	w.budget(Budget{TokensPerDay: 2_000_000})
	w.must(charge(1, Tokens{Output: 1}))
	w.clock.Forward(12 * time.Hour)
	w.budget(Budget{CostPerDay: 0.5})
	w.must(charge(1, Tokens{MicroCost: 500_000}))
	w.wantCode("beyond the budget", charge(1, Tokens{MicroCost: 1}), problem.BudgetExceeded)
	// Another agent's is its own.
	w.must(w.Charge(w.ctx, agent(w.twin), "openai", "m", 1, Tokens{MicroCost: 1}))
}

// halves is a store that does something between the day's sum and the row of a model, and may fail with the latter once.
type halves struct {
	Store
	between func()
	fails   error
}

func (h *halves) ChargeUsage(ctx context.Context, u store.Usage, limit store.UsageLimit) (store.Usage, bool, error) {
	if u.Provider != "" && h.fails != nil {
		err := h.fails
		h.fails = nil
		return store.Usage{}, false, err
	}
	now, charged, err := h.Store.ChargeUsage(ctx, u, limit)
	if u.Provider == "" {
		h.between()
	}
	return now, charged, err
}

// Nobody gives back a reservation whose caller was told that there is none.
func TestAReservationThatIsCutIsWholeOrNone(t *testing.T) {
	w := newFixture(t)
	rows := func() int {
		all, err := w.db.ListUsage(w.ctx, "acme", w.Day())
		w.must(err)
		return len(all)
	}
	ctx, leave := context.WithCancel(w.ctx)
	defer leave()
	db := &halves{Store: w.store, between: func() {}, fails: errors.New("planted")}
	b := w.another(func(o *Options) { o.Store = db })
	reserve := func() error { return b.Charge(ctx, agent(w.bot), "openai", "m", 1, Tokens{Output: 100}) }
	if err := reserve(); err == nil || w.sum(w.Day()).OutputTokens != 0 || w.sum(w.Day()).Requests != 0 {
		t.Errorf("the database fails between: %v, %+v", err, w.sum(w.Day()))
	}
	db.between = leave
	if err := reserve(); err != nil || w.sum(w.Day()).OutputTokens != 100 || rows() != 2 {
		t.Errorf("the caller leaves between: %v, %+v in %d rows", err, w.sum(w.Day()), rows())
	}
}

// A budget that is smaller than what one request reserves is not used up: waiting does not help, and the refusal says what does.
func TestABudgetThatNoRequestFitsIntoSaysSo(t *testing.T) {
	w := newFixture(t)
	w.budget(Budget{TokensPerDay: 1000})
	charge := func(tokens int64) *problem.Error {
		p, _ := problem.As(w.Charge(w.ctx, agent(w.bot), "openai", "m", 1, Tokens{Input: 20, Output: tokens}))
		return p
	}
	p := charge(LongestAnswer)
	if p == nil || !strings.Contains(p.Message, "reserves 131092 tokens, and 0 of 1000 a day are used") || !strings.Contains(p.Hint, "max_tokens") || strings.Contains(p.Hint, "Do not retry") {
		t.Errorf("%+v", p)
	}
	if p := charge(100); p != nil {
		t.Errorf("a request that fits: %v", p)
	}
	for limit, warns := range map[int64]bool{0: false, 1000: true, LongestAnswer: true, LongestAnswer + 1: false} {
		if got := (Budget{TokensPerDay: limit}).Warning(); (got != "") != warns {
			t.Errorf("%d a day: %q", limit, got)
		}
	}
}

func TestWhatCannotBeCharged(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	for name, tt := range map[string]struct {
		who      Who
		provider string
		requests int64
		tokens   Tokens
	}{
		"session": {clean1("acme", "s_1", w.bot.ID), "p", 1, Tokens{}}, "nobody": {Who{}, "p", 1, Tokens{}}, "no provider": {bot, "", 1, Tokens{}},
		"negative": {bot, "p", 1, Tokens{Input: -1}}, "requests": {bot, "p", -1, Tokens{}},
		"day of a request": {bot, "p", 1, Tokens{Day: "2026-03-01"}}, "far day": {bot, "p", 0, Tokens{Day: "2026-02-27"}}, "no day": {bot, "p", 0, Tokens{Day: "x"}},
	} {
		w.wantCode(name, w.Charge(w.ctx, tt.who, tt.provider, "m", tt.requests, tt.tokens), problem.BadRequest)
	}
	if sum := w.sum("2026-03-01"); sum != (store.Usage{}) {
		t.Errorf("something was charged: %+v", sum)
	}
}

// A charge from before midnight is given back to its own day.
func TestCorrectionsBelongToTheDayOfTheCharge(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	day := w.Day()
	w.must(w.Charge(w.ctx, bot, "p", "m", 1, Tokens{Output: 100}))
	w.clock.Forward(12 * time.Hour)
	w.must(w.Charge(w.ctx, bot, "p", "m", 1, Tokens{Output: 100}))
	w.must(w.Charge(w.ctx, bot, "p", "m", 0, Tokens{Output: -90, Day: day}))
	if a, b := w.sum(day).OutputTokens, w.sum(w.Day()).OutputTokens; a != 10 || b != 100 {
		t.Errorf("yesterday %d, today %d", a, b)
	}
}

func TestUsageIsListedByModelAndItsNamesAreBounded(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	for i := range maxModelsOfDay + 5 {
		w.must(w.Charge(w.ctx, bot, "p", fmt.Sprintf("m%d", i), 1, Tokens{Input: 1, MicroCost: 250_000}))
	}
	w.must(w.Charge(w.ctx, bot, "p", "m0\n", 1, Tokens{Input: 1}))
	w.must(w.Charge(w.ctx, agent(w.twin), "p", "m0", 1, Tokens{Input: 1}))
	list, err := w.Usage(w.ctx, w.bot, "", "")
	w.must(err)
	others := int64(0)
	for _, u := range list {
		if u.Agent != w.bot.ID || u.Provider != "p" {
			t.Errorf("the agent sees %+v", u)
		}
		if u.Model == otherModel {
			others = u.Requests
		} else if u.Cost != 0.25 {
			t.Errorf("%+v", u)
		}
	}
	if len(list) != maxModelsOfDay+1 || others != 6 {
		t.Errorf("%d rows, %d of other models", len(list), others)
	}
	if all, err := w.Usage(w.ctx, w.operator, "", w.Day()); err != nil || len(all) != len(list)+1 {
		t.Errorf("the operator sees %d rows: %v", len(all), err)
	}
	if none, err := w.Usage(w.ctx, w.stranger, "", ""); err != nil || len(none) != 0 {
		t.Errorf("a stranger sees %d rows: %v", len(none), err)
	}
	for _, from := range []string{"yesterday", "2026-13-01", "2026-1-1", "' OR 1"} {
		_, err := w.Usage(w.ctx, w.operator, "", from)
		w.wantCode(from, err, problem.BadRequest)
	}
	w.clock.Forward((keepUsage + 1) * 24 * time.Hour)
	w.must(w.Tidy(w.ctx))
	if rows, err := w.db.ListUsage(w.ctx, "", "2000-01-01"); err != nil || len(rows) != 0 {
		t.Errorf("%d old rows are left: %v", len(rows), err)
	}
}

// With estimates that are not below what is used, a budget is never passed; with others by no more than what is under
// way.
func TestBudgetsHoldWhateverHappensAtOnce(t *testing.T) {
	w := newFixture(t)
	bot := agent(w.bot)
	other := w.another()
	property.Check(t, func(t *rapid.T) {
		w.clock.Forward(24 * time.Hour)
		limit := rapid.Int64Range(1, 2000).Draw(t, "limit")
		w.budget(Budget{TokensPerDay: limit})
		w.must(other.load(w.ctx))
		over := rapid.Bool().Draw(t, "estimates are too low")
		type request struct{ estimate, actual int64 }
		requests := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) request {
			r := request{estimate: rapid.Int64Range(1, 300).Draw(t, "estimate")}
			minimum, maximum := int64(0), r.estimate
			if over {
				maximum = 600
			}
			r.actual = rapid.Int64Range(minimum, maximum).Draw(t, "actual")
			return r
		}), 1, 24).Draw(t, "requests")
		const workers = 4
		var mu sync.Mutex
		var all sync.WaitGroup
		used, excess, worst := int64(0), make([]int64, workers), int64(0)
		for n := range workers {
			all.Go(func() {
				b := []*Book{w.Book, other}[n%2]
				for i := n; i < len(requests); i += workers {
					r := requests[i]
					err := b.Charge(w.ctx, bot, "p", "m", 1, Tokens{Input: r.estimate})
					if problem.CodeOf(err) == problem.BudgetExceeded {
						continue
					}
					if err != nil {
						t.Errorf("charge: %v", err)
						return
					}
					if err := b.Charge(w.ctx, bot, "p", "m", 0, Tokens{Input: r.actual - r.estimate}); err != nil {
						t.Errorf("correct: %v", err)
					}
					mu.Lock()
					used += r.actual
					excess[n] = max(excess[n], r.actual-r.estimate)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for _, e := range excess {
			worst += max(e, 0)
		}
		sum := w.sum(w.Day()).InputTokens
		if sum != used {
			t.Fatalf("debited %d, used %d", sum, used)
		}
		if sum > limit+worst {
			t.Fatalf("debited %d of %d with %d under way", sum, limit, worst)
		}
	})
}

func TestAModelWithoutAPriceIsNotFreeUnderABudgetInMoney(t *testing.T) {
	w := newFixture(t)
	unpriced := func(requests int64) error {
		return w.Charge(w.ctx, agent(w.bot), "p", "m", requests, Tokens{Input: 1, Unpriced: "MODEL=INPUT/OUTPUT"})
	}
	w.must(unpriced(1)) // nobody has set a budget
	w.budget(Budget{TokensPerDay: 1000})
	w.must(unpriced(1))
	w.budget(Budget{CostPerDay: 1})
	w.wantCode("a budget in money", unpriced(1), problem.PriceUnknown)
	w.must(unpriced(0)) // what was used was used
	w.must(w.Charge(w.ctx, agent(w.bot), "p", "m", 1, Tokens{Input: 1}))
}
