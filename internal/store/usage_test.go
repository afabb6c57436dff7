package store

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestUsageLimitAllows(t *testing.T) {
	type sums = [3]int64 // input, output, cost
	for _, tt := range []struct {
		name           string
		tokens, cost   int64
		before, amount sums
		want           bool
	}{
		{"no limit", 0, 0, sums{5, 5, 5}, sums{1e9, 1e9, 1e9}, true},
		{"up to the limit", 100, 0, sums{40, 10, 0}, sums{25, 25, 1e9}, true},
		{"beyond the limit", 100, 0, sums{40, 10, 0}, sums{25, 26, 0}, false},
		{"at the limit", 100, 0, sums{50, 50, 0}, sums{0, 0, 0}, false},
		{"lowered at the limit", 100, 0, sums{50, 50, 0}, sums{-1, 0, 0}, true},
		{"lowered beyond the limit", 100, 0, sums{900, 0, 0}, sums{-1, 0, 0}, true},
		{"nothing to lower", 100, 0, sums{0, 100, 0}, sums{-1, 0, 0}, true},
		{"lowered by less than the other part rises", 100, 0, sums{0, 100, 0}, sums{-5, 1, 0}, false},
		{"cost up to the limit", 0, 100, sums{0, 0, 40}, sums{1e9, 0, 60}, true},
		{"cost beyond the limit", 0, 100, sums{0, 0, 40}, sums{0, 0, 61}, false},
		{"cost at the limit", 0, 100, sums{0, 0, 100}, sums{1, 0, 0}, false},
		{"cost lowered", 0, 100, sums{0, 0, 100}, sums{1, 0, -1}, true},
		{"one of two", 100, 100, sums{0, 0, 99}, sums{1, 0, 2}, false},
		{"the other of two", 100, 100, sums{99, 0, 0}, sums{2, 0, 1}, false},
		{"no overflow", math.MaxInt64, math.MaxInt64, sums{MaxUsage, MaxUsage, MaxUsage}, sums{math.MaxInt64, math.MaxInt64, math.MaxInt64}, false},
	} {
		before := Usage{InputTokens: tt.before[0], OutputTokens: tt.before[1], MicroCost: tt.before[2]}
		amount := Usage{InputTokens: tt.amount[0], OutputTokens: tt.amount[1], MicroCost: tt.amount[2]}
		if got := (UsageLimit{Tokens: tt.tokens, MicroCost: tt.cost}).Allows(before, amount); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestUsageStaysWithinItsBounds: whatever is added, in whatever order.
func TestUsageStaysWithinItsBounds(t *testing.T) {
	property.Check(t, func(r *rapid.T) {
		number := rapid.OneOf(rapid.Int64Range(-100, 200), rapid.Int64())
		var sum Usage
		for range rapid.IntRange(1, 20).Draw(r, "charges") {
			limit := UsageLimit{Tokens: rapid.Int64Range(0, 300).Draw(r, "tokens"), MicroCost: rapid.Int64Range(0, 300).Draw(r, "money")}
			amount := Usage{
				Requests: number.Draw(r, "requests"), InputTokens: number.Draw(r, "input"), OutputTokens: number.Draw(r, "output"),
				MicroCost: number.Draw(r, "cost"),
			}
			if !limit.Allows(sum, amount) {
				continue
			}
			next := sum.Plus(amount)
			for _, n := range []int64{next.Requests, next.InputTokens, next.OutputTokens, next.MicroCost} {
				if n < 0 || n > MaxUsage {
					r.Fatalf("%+v and %+v are %+v", sum, amount, next)
				}
			}
			if limit.Tokens > 0 && next.tokens() > max(limit.Tokens, sum.tokens()) || limit.MicroCost > 0 && next.MicroCost > max(limit.MicroCost, sum.MicroCost) {
				r.Fatalf("%+v and %+v are %+v, beyond %+v", sum, amount, next, limit)
			}
			sum = next
		}
	})
}
