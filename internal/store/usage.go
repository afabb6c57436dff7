package store

// Plus is a sum as ChargeUsage makes it: neither below 0 nor above MaxUsage. The key is that of u.
func (u Usage) Plus(amount Usage) Usage {
	u.Requests = plus(u.Requests, amount.Requests)
	u.InputTokens = plus(u.InputTokens, amount.InputTokens)
	u.OutputTokens = plus(u.OutputTokens, amount.OutputTokens)
	u.MicroCost = plus(u.MicroCost, amount.MicroCost)
	return u
}

// Clamped is the amount with everything between -MaxUsage and MaxUsage. Every Store asks before it counts.
func (u Usage) Clamped() Usage {
	for _, n := range []*int64{&u.Requests, &u.InputTokens, &u.OutputTokens, &u.MicroCost} {
		*n = min(max(*n, -MaxUsage), MaxUsage)
	}
	return u
}

// Clamped is the limit with nothing above MaxUsage, where every sum stops. Every Store asks before it decides.
func (l UsageLimit) Clamped() UsageLimit {
	return UsageLimit{Tokens: min(l.Tokens, MaxUsage), MicroCost: min(l.MicroCost, MaxUsage)}
}

// Allows is the rule of ChargeUsage: whether an amount may be added to what was used before. Databases have the same rule
// in their own language, because it must be decided there.
//
// An amount that lowers the sum is always allowed, and so are the requests, which nothing bounds. Lowering means both that
// the amount is negative and that the sum does not rise: of tokens, one part may be held at 0 while the other one grows.
func (l UsageLimit) Allows(before, amount Usage) bool {
	l, amount = l.Clamped(), amount.Clamped()
	after := before.Plus(amount)
	return within(l.Tokens, before.tokens(), amount.tokens(), after.tokens()) &&
		within(l.MicroCost, before.MicroCost, amount.MicroCost, after.MicroCost)
}

func within(limit, before, amount, after int64) bool {
	return limit == 0 || amount < 0 && after <= before || before < limit && after <= limit
}

// tokens do not overflow, because none is more than MaxUsage.
func (u Usage) tokens() int64 { return u.InputTokens + u.OutputTokens }

// plus does not overflow, because a sum is at most MaxUsage and the amount is clamped.
func plus(sum, amount int64) int64 {
	return min(max(sum+min(max(amount, -MaxUsage), MaxUsage), 0), MaxUsage)
}
