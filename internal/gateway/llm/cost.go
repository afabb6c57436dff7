package llm

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
)

// Bounds of a request that names none. Both are the largest bounds of the models of today.
const (
	maxOutput  = egress.LongestAnswer
	maxContext = 1 << 20 // tokens of input that is not in the body
	// unseenInput is what a provider adds by itself, such as its instructions for tools.
	unseenInput = 1 << 10
)

// amounts are what a request uses, by what has a price of its own.
type amounts struct {
	input, cacheRead, cacheWrite, cacheWriteHour, audioInput int64
	output, audioOutput                                      int64
	// calls are uses of the provider's tools.
	calls int64
	// priority: the request used the provider's priority tier.
	priority bool
}

// assumedCalls is how many provider-side tool calls are reserved when a request allows them.
const assumedCalls = 16

// reservation is the most that a request may use: a token has at least one byte. Input outside the body, which the provider has
// or gets, counts as a full context window.
func reservation(e endpoint, a ask, p egress.Provider) egress.Tokens {
	u := amounts{priority: a.wants.priority}
	input := int64(len(a.body)) + unseenInput
	if a.wants.unseen {
		input += maxContext
	}
	if a.wants.tools {
		u.calls = assumedCalls
	}
	var output int64
	if e.answers {
		output = maxOutput
		if a.output > 0 {
			output = a.output
		}
		output = min(output, maxTokens)
		if a.choices > maxTokens/max(output, 1) {
			output = maxTokens
		} else {
			output *= max(a.choices, 1)
		}
	}
	// Price all input and all output at the dearest kind that the request may use.
	dearest := priced(p, a.model, u)
	for _, in := range []struct {
		asked bool
		into  *int64
	}{{true, &u.input}, {a.wants.cache, &u.cacheWrite}, {a.wants.cacheHour, &u.cacheWriteHour}, {a.wants.audioInput, &u.audioInput}} {
		for _, out := range []struct {
			asked bool
			into  *int64
		}{{true, &u.output}, {a.wants.audioOutput, &u.audioOutput}} {
			if !in.asked || !out.asked {
				continue
			}
			*in.into, *out.into = input, output
			one := priced(p, a.model, u)
			one.MicroCost = max(one.MicroCost, dearest.MicroCost)
			one.Unpriced = cmp.Or(dearest.Unpriced, one.Unpriced)
			dearest = one
			*in.into, *out.into = 0, 0
		}
	}
	return dearest
}

// With Anthropic's wire a write to a cache costs a multiple of the price of input.
const (
	cacheWriteTimes     = 1.25
	cacheWriteHourTimes = 2
)

// priced adds the provider's cost to what is used. Prices are per million tokens, so a token costs as many millionths.
func priced(p egress.Provider, model string, u amounts) egress.Tokens {
	t := egress.Tokens{
		Input:  min(u.input+u.cacheRead+u.cacheWrite+u.cacheWriteHour+u.audioInput, maxTokens),
		Output: min(u.output+u.audioOutput, maxTokens), Unpriced: "MODEL=INPUT/OUTPUT",
	}
	at := slices.IndexFunc(p.Prices, func(price egress.Price) bool { return matches(price.Model, model) })
	if at < 0 {
		return t
	}
	price := p.Prices[at]
	t.Unpriced = ""
	write, hour := price.Input, price.Input
	if p.Wire == egress.WireAnthropic {
		write, hour = cacheWriteTimes*price.Input, cacheWriteHourTimes*price.Input
	}
	orDefault := func(own *float64, fallback float64) float64 {
		if own != nil {
			return *own
		}
		return fallback
	}
	// required is for uses whose price has no default: a missing one is reported in Unpriced, and fallback is charged.
	required := func(used bool, own *float64, name string, fallback float64) float64 {
		if used && own == nil {
			t.Unpriced = cmp.Or(t.Unpriced, name)
		}
		return orDefault(own, fallback)
	}
	cost := float64(u.input)*price.Input + float64(u.output)*price.Output + float64(u.cacheRead)*orDefault(price.CacheRead, price.Input) +
		float64(u.cacheWrite)*orDefault(price.CacheWrite, write) + float64(u.cacheWriteHour)*orDefault(price.CacheWriteHour, hour) +
		float64(u.audioInput)*required(u.audioInput > 0, price.AudioInput, "audio-input=AMOUNT", price.Input) +
		float64(u.audioOutput)*required(u.audioOutput > 0, price.AudioOutput, "audio-output=AMOUNT", price.Output)
	if u.priority {
		cost *= required(true, price.Priority, "priority=TIMES", 1)
	}
	t.MicroCost = micro(cost + 1e6*float64(u.calls)*required(u.calls > 0, price.Call, "call=AMOUNT", 0))
	return t
}

// maxMicroCost bounds the cost of one request.
const maxMicroCost = 1_000_000_000_000

// micro rounds up. A cost that makes no sense becomes the highest, not zero.
func micro(cost float64) int64 {
	if math.IsNaN(cost) || cost < 0 || cost > maxMicroCost {
		return maxMicroCost
	}
	return int64(math.Ceil(cost))
}

// matches compares a model with a pattern in which * stands for any text.
func matches(pattern, model string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(model, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// difference is what has to be debited in addition to a reservation.
func difference(used, reserved egress.Tokens) egress.Tokens {
	return egress.Tokens{
		Input: used.Input - reserved.Input, Output: used.Output - reserved.Output, MicroCost: used.MicroCost - reserved.MicroCost, Day: reserved.Day,
	}
}

// settle says what an answer used: exactly, when it says so and is complete, otherwise as a guess. complete is false
// when one of the sides left before the end, and the upstream may bill for more than was seen.
func settle(e endpoint, c *counter, p egress.Provider, a ask, reserved egress.Tokens, complete bool) (used egress.Tokens, estimated bool) {
	u, said := c.usage()
	u.priority = u.priority || a.wants.priority
	if a.wants.tools && e.path == pathChat {
		u.calls = max(u.calls, 1) // nothing in the answer says how often
	}
	if complete && said {
		return priced(p, a.model, u), false
	}
	t := priced(p, a.model, u)
	if t.Input == 0 {
		u.input = reserved.Input
	}
	if e.answers {
		u.output = max(u.output, c.guess()-u.audioOutput)
	}
	if !complete {
		t = priced(p, a.model, u) // with what was guessed
		u.input, u.output = u.input+max(0, reserved.Input-t.Input), u.output+max(0, reserved.Output-t.Output)
		t = priced(p, a.model, u)
		t.MicroCost = max(t.MicroCost, reserved.MicroCost)
		return t, true
	}
	return priced(p, a.model, u), true
}
