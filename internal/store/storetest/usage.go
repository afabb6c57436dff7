package storetest

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/store"
)

// used is an agent's use on a day, over all providers.
func used(agent, day string, requests, input, output, cost int64) store.Usage {
	return store.Usage{
		UsageKey: store.UsageKey{Tenant: "default", Agent: agent, Day: day},
		Requests: requests, InputTokens: input, OutputTokens: output, MicroCost: cost,
	}
}

func testUsage(t *testing.T, s store.Store) {
	ctx := t.Context()
	newTenant(t, s, "acme")
	newAgent(t, s, "a1", "default", "bea")
	const day1, day2 = "2031-02-28", "2031-03-01"
	charge := func(u store.Usage) store.Usage {
		t.Helper()
		now, charged, err := s.ChargeUsage(ctx, u, store.UsageLimit{})
		if err != nil || !charged {
			t.Fatalf("charge %+v: %v, %v", u, charged, err)
		}
		return now
	}
	all := used("a1", day1, 1, 10, 20, 300)
	same(t, "the first charge makes the row", charge(all), all)
	same(t, "the second adds to it", charge(used("a1", day1, 2, 3, 4, 5)), used("a1", day1, 3, 13, 24, 305))
	same(t, "one that gives back", charge(used("a1", day1, 0, -3, -30, -305)), used("a1", day1, 3, 10, 0, 0))
	same(t, "nothing", charge(used("a1", day1, 0, 0, 0, 0)), used("a1", day1, 3, 10, 0, 0))
	same(t, "a first charge that gives back", charge(used("a2", day1, -1, -1, 7, -1)), used("a2", day1, 0, 0, 7, 0))

	model := used("a1", day1, 1, 2, 3, 4)
	model.Provider, model.Model = "openai", texts()[0]
	same(t, "of a model", charge(model), model)
	other := used("a1", day1, 5, 5, 5, 5)
	other.Provider = "openai"
	same(t, "of a provider", charge(other), other)
	tenant := used("a0", day2, 1, 1, 1, 1)
	tenant.Tenant = "acme"
	same(t, "of another tenant", charge(tenant), tenant)
	next := used("a1", day2, 9, 9, 9, 9)
	same(t, "of the next day", charge(next), next)

	first := []store.Usage{used("a1", day1, 3, 10, 0, 0), other, model, used("a2", day1, 0, 0, 7, 0)}
	check(t, "all, by day, agent, provider and model", append(first[:4:4], tenant, next))(s.ListUsage(ctx, "", day1))
	check(t, "of a tenant", append(first[:4:4], next))(s.ListUsage(ctx, "default", "0001-01-01"))
	check(t, "from a day on", []store.Usage{tenant, next})(s.ListUsage(ctx, "", day2))
	check(t, "from a later day on", []store.Usage(nil))(s.ListUsage(ctx, "", "2031-03-02"))
	check(t, "of no tenant that is there", []store.Usage(nil))(s.ListUsage(ctx, "none", day1))

	must(t, s.DeleteAgent(ctx, "a1"))
	check(t, "without the agent", []store.Usage{next})(s.ListUsage(ctx, "default", day2))
	check(t, "old days", 4)(s.DeleteUsageBefore(ctx, day2))
	check(t, "old days again", 0)(s.DeleteUsageBefore(ctx, day2))
	check(t, "what is left", []store.Usage{tenant, next})(s.ListUsage(ctx, "", day1))
	lost := used("a1", day1, 1, 1, 1, 1)
	lost.Tenant = "none"
	_, _, err := s.ChargeUsage(ctx, lost, store.UsageLimit{})
	wantError(t, "no such tenant", err, store.ErrNotFound)
}

// testUsageLimits: each case begins with a row, or with none where before is nothing.
func testUsageLimits(t *testing.T, s store.Store) {
	ctx := t.Context()
	type sums struct{ input, output, cost int64 }
	tokens, cost := store.UsageLimit{Tokens: 100}, store.UsageLimit{MicroCost: 100}
	for i, tt := range []struct {
		name           string
		before, amount sums
		limit          store.UsageLimit
		charged        bool
	}{
		{"no limit", sums{}, sums{1e9, 1e9, 1e9}, store.UsageLimit{}, true},
		{"the first, up to the limit", sums{}, sums{60, 40, 1e9}, tokens, true},
		{"the first, beyond the limit", sums{}, sums{60, 41, 0}, tokens, false},
		{"the first, with one part given back, beyond the limit", sums{}, sums{-100, 101, 0}, tokens, false},
		{"up to the limit", sums{50, 0, 0}, sums{0, 50, 0}, tokens, true},
		{"beyond the limit", sums{50, 0, 0}, sums{0, 51, 0}, tokens, false},
		{"at the limit, and nothing more", sums{50, 50, 0}, sums{0, 0, 9}, tokens, false},
		{"below the limit, and nothing more", sums{50, 49, 0}, sums{0, 0, 9}, tokens, true},
		{"beyond the limit already", sums{500, 0, 0}, sums{1, 0, 0}, tokens, false},
		{"given back at the limit", sums{50, 50, 0}, sums{-1, 0, 0}, tokens, true},
		{"given back and still beyond the limit", sums{500, 0, 0}, sums{-200, 120, 0}, tokens, true},
		{"given back where there is nothing", sums{0, 100, 0}, sums{-10, 0, 0}, tokens, true},
		{"one part cannot go below 0, so the sum rises", sums{0, 90, 0}, sums{-100, 20, 0}, tokens, false},
		{"one part goes down as the other goes up", sums{50, 49, 0}, sums{-50, 50, 0}, tokens, true},
		{"cost, the first, up to the limit", sums{}, sums{1e9, 0, 100}, cost, true},
		{"cost, the first, beyond the limit", sums{}, sums{0, 0, 101}, cost, false},
		{"cost up to the limit", sums{1e9, 0, 1}, sums{0, 0, 99}, cost, true},
		{"cost beyond the limit", sums{0, 0, 1}, sums{0, 0, 100}, cost, false},
		{"cost at the limit", sums{0, 0, 100}, sums{5, 0, 0}, cost, false},
		{"cost given back", sums{0, 0, 200}, sums{5, 0, -1}, cost, true},
		{"tokens are given back, and cost is beyond", sums{90, 0, 90}, sums{-5, 0, 11}, store.UsageLimit{Tokens: 100, MicroCost: 100}, false},
		{"cost is given back, and tokens are beyond", sums{90, 0, 90}, sums{11, 0, -5}, store.UsageLimit{Tokens: 100, MicroCost: 100}, false},
		{"both within", sums{90, 0, 90}, sums{5, 5, 10}, store.UsageLimit{Tokens: 100, MicroCost: 100}, true},
		{"more than can be counted", sums{store.MaxUsage, 0, 0}, sums{math.MaxInt64, 0, math.MaxInt64}, store.UsageLimit{}, true},
		{"the largest limit", sums{store.MaxUsage, 0, 0}, sums{1, 0, 0}, store.UsageLimit{Tokens: math.MaxInt64}, false},
		{"the largest amount", sums{7, 0, 0}, sums{math.MaxInt64, math.MaxInt64, 0}, tokens, false},
		{"the smallest amount", sums{7, 7, 7}, sums{math.MinInt64, math.MinInt64, math.MinInt64}, tokens, true},
	} {
		agent := fmt.Sprint("agent", i)
		want := used(agent, "2031-02-03", 0, tt.before.input, tt.before.output, tt.before.cost)
		if tt.before != (sums{}) {
			check(t, tt.name+": before", want)(charge(s.ChargeUsage(ctx, want, store.UsageLimit{})))
		}
		if tt.charged {
			want.Requests = 1
			for part, n := range map[*int64]int64{&want.InputTokens: tt.amount.input, &want.OutputTokens: tt.amount.output, &want.MicroCost: tt.amount.cost} {
				*part = max(min(float64Sum(*part, n), store.MaxUsage), 0)
			}
		}
		got, charged, err := s.ChargeUsage(ctx, used(agent, "2031-02-03", 1, tt.amount.input, tt.amount.output, tt.amount.cost), tt.limit)
		if err != nil || charged != tt.charged {
			t.Errorf("%s: charged %v, %v", tt.name, charged, err)
		}
		same(t, tt.name+": what it returns", got, want)
		list, err := s.ListUsage(ctx, "", "2031-02-03")
		must(t, err)
		kept := 0
		for _, u := range list {
			if u.Agent == agent {
				kept++
				same(t, tt.name+": what is kept", u, want)
			}
		}
		if missing := tt.before == (sums{}) && !tt.charged; (kept == 0) != missing {
			t.Errorf("%s: %d rows", tt.name, kept)
		}
	}
}

// float64Sum is a sum of int64 that does not overflow, and is exact where it is not beyond every bound.
func float64Sum(a, b int64) int64 {
	if sum := float64(a) + float64(b); math.Abs(sum) > store.MaxUsage {
		return int64(math.Copysign(store.MaxUsage, sum))
	}
	return a + b
}

// charge is for check: a charge that is refused is an error here.
func charge(u store.Usage, charged bool, err error) (store.Usage, error) {
	if err == nil && !charged {
		err = fmt.Errorf("it is refused at %+v", u)
	}
	return u, err
}

func testUsageRace(t *testing.T, s store.Store) { usageRace(t, []store.Store{s}) }

func testUsageRaceOfTwoNodes(t *testing.T, d Database) {
	usageRace(t, []store.Store{open(t, d), open(t, d)})
}

// usageRace: however many charge at the same moment, what was charged is within the limit, is what the row says, and
// leaves no room for any that was refused. With settling, nothing is beyond the limit at any moment.
func usageRace(t *testing.T, nodes []store.Store) {
	ctx := t.Context()
	runs := 0
	rapid.Check(t, func(r *rapid.T) {
		runs++
		agent := fmt.Sprint("agent", runs)
		amounts := make([]store.Usage, 64)
		part := rapid.Int64Range(0, 30)
		for i := range amounts {
			amounts[i] = used(agent, "2031-02-03", 1, part.Draw(r, "input"), part.Draw(r, "output"), part.Draw(r, "cost"))
		}
		limit := store.UsageLimit{Tokens: rapid.Int64Range(1, 200).Draw(r, "tokens"), MicroCost: rapid.Int64Range(1, 200).Draw(r, "money")}
		settling := rapid.Bool().Draw(r, "settling")
		won := make([]bool, len(amounts))
		race(len(amounts), func(i int) {
			s := nodes[i%len(nodes)]
			now, charged, err := s.ChargeUsage(ctx, amounts[i], limit)
			if err != nil {
				t.Error(err)
			}
			if now.InputTokens+now.OutputTokens > limit.Tokens || now.MicroCost > limit.MicroCost {
				t.Errorf("the row is %+v, and the limit %+v", now, limit)
			}
			if won[i] = charged; charged && settling {
				back := store.Usage{UsageKey: amounts[i].UsageKey, InputTokens: -amounts[i].InputTokens / 2, MicroCost: -amounts[i].MicroCost}
				if _, charged, err := s.ChargeUsage(ctx, back, store.UsageLimit{}); err != nil || !charged {
					t.Errorf("settling is refused: %v, %v", charged, err)
				}
			}
		})
		want := store.Usage{UsageKey: amounts[0].UsageKey}
		for i, a := range amounts {
			if won[i] && settling {
				a.InputTokens, a.MicroCost = a.InputTokens-a.InputTokens/2, 0
			}
			if won[i] {
				want.Requests++
				want.InputTokens += a.InputTokens
				want.OutputTokens += a.OutputTokens
				want.MicroCost += a.MicroCost
			}
		}
		got, _, err := nodes[0].ChargeUsage(ctx, store.Usage{UsageKey: want.UsageKey}, store.UsageLimit{})
		if err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			r.Fatalf("the sum of what was charged (-want +got):\n%s", diff)
		}
		for i, a := range amounts {
			tokens := got.InputTokens + got.OutputTokens
			room := tokens < limit.Tokens && tokens+a.InputTokens+a.OutputTokens <= limit.Tokens &&
				got.MicroCost < limit.MicroCost && got.MicroCost+a.MicroCost <= limit.MicroCost
			if !settling && !won[i] && room {
				r.Fatalf("%+v was refused, and there is room for it: %+v of %+v", a, got, limit)
			}
		}
	})
}

func testInvalidUsage(t *testing.T, s store.Store) {
	ctx := t.Context()
	for what, change := range map[string]func(*store.Usage, *store.UsageLimit){
		"no tenant":                  func(u *store.Usage, _ *store.UsageLimit) { u.Tenant = "" },
		"no agent":                   func(u *store.Usage, _ *store.UsageLimit) { u.Agent = "" },
		"no day":                     func(u *store.Usage, _ *store.UsageLimit) { u.Day = "" },
		"a day that is none":         func(u *store.Usage, _ *store.UsageLimit) { u.Day = "2031-02-29" },
		"a day in other words":       func(u *store.Usage, _ *store.UsageLimit) { u.Day = "2031-2-3" },
		"a day with a time":          func(u *store.Usage, _ *store.UsageLimit) { u.Day = "2031-02-03T00:00:00Z" },
		"a model without a provider": func(u *store.Usage, _ *store.UsageLimit) { u.Model = "m" },
		"a model of bad text":        func(u *store.Usage, _ *store.UsageLimit) { u.Provider, u.Model = "p", "\xff" },
		"a long model": func(u *store.Usage, _ *store.UsageLimit) {
			u.Provider, u.Model = "p", strings.Repeat("m", store.LongestName+1)
		},
		"a limit below 0":             func(_ *store.Usage, l *store.UsageLimit) { l.Tokens = -1 },
		"a limit of the cost below 0": func(_ *store.Usage, l *store.UsageLimit) { l.MicroCost = -1 },
	} {
		u, l := used("a1", "2031-02-03", 1, 1, 1, 1), store.UsageLimit{}
		change(&u, &l)
		if _, charged, err := s.ChargeUsage(ctx, u, l); charged {
			t.Errorf("%s is charged", what)
		} else {
			wantError(t, what, err, store.ErrInvalid)
		}
	}
	long := used(strings.Repeat("a", store.LongestName), "2031-02-03", 1, 1, 1, 1)
	// Not of one letter, because databases compress what they can.
	long.Provider, long.Model = strings.Repeat(string(hash("p")), 16), strings.Repeat(string(hash("m")), 16)
	long.Provider, long.Model = fmt.Sprintf("%x", long.Provider)[:store.LongestName], fmt.Sprintf("%x", long.Model)[:store.LongestName]
	check(t, "the longest key", long)(charge(s.ChargeUsage(ctx, long, store.UsageLimit{})))
	for _, day := range []string{"", "today", "2031-02-03 ", "2031-13-01"} {
		_, err := s.ListUsage(ctx, "", day)
		wantError(t, "list from "+day, err, store.ErrInvalid)
		_, err = s.DeleteUsageBefore(ctx, day)
		wantError(t, "remove before "+day, err, store.ErrInvalid)
	}
	_, err := s.ListUsage(ctx, "\xff", "2031-02-03")
	wantError(t, "list a tenant of bad text", err, store.ErrInvalid)
	check(t, "what is there", []store.Usage{long})(s.ListUsage(ctx, "", "0001-01-01"))
}
