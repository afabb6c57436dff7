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
	longestOutput  = egress.LongestAnswer
	longestContext = 1 << 20 // tokens of input that is not in the body
	// unseenInput is what a provider adds by itself, such as its instructions for tools.
	unseenInput = 1 << 10
)

// amounts are what a request uses, by what has a price of its own.
type amounts struct {
	input, cacheRead, cacheWrite, cacheWriteHour, audioInput int64
	output, audioOutput                                      int64
	// calls are uses of the provider's tools.
	calls int64
	// before says that the request went before others.
	before bool
}

// callsUnsaid is how many uses of the provider's tools a request is taken to make that may.
const callsUnsaid = 16

// reservation is the most that a request may use: a token has at least one byte. Input that the gateway cannot see, because the
// provider has it or gets it, is as long as a model can read.
func reservation(e endpoint, a ask, p egress.Provider) egress.Tokens {
	u := amounts{before: a.wants.before}
	input := int64(len(a.body)) + unseenInput
	if a.wants.unseen {
		input += longestContext
	}
	if a.wants.tools {
		u.calls = callsUnsaid
	}
	var output int64
	if e.answers {
		output = longestOutput
		if a.output > 0 {
			output = a.output
		}
		output = min(output, mostTokens)
		if a.choices > mostTokens/max(output, 1) {
			output = mostTokens
		} else {
			output *= max(a.choices, 1)
		}
	}
	// All of it is taken for what costs the most of what is asked for.
	most := priced(p, a.model, u)
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
			one.MicroCost = max(one.MicroCost, most.MicroCost)
			one.Unpriced = cmp.Or(most.Unpriced, one.Unpriced)
			most = one
			*in.into, *out.into = 0, 0
		}
	}
	return most
}

// How many times the price of input a write to a cache costs with Anthropic's wire.
const (
	cacheWriteTimes     = 1.25
	cacheWriteHourTimes = 2
)

// priced puts the provider's price on what is used. Prices are per million tokens, so a token costs as many millionths.
func priced(p egress.Provider, model string, u amounts) egress.Tokens {
	t := egress.Tokens{
		Input:  min(u.input+u.cacheRead+u.cacheWrite+u.cacheWriteHour+u.audioInput, mostTokens),
		Output: min(u.output+u.audioOutput, mostTokens), Unpriced: "MODEL=INPUT/OUTPUT",
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
	usual := func(said *float64, otherwise float64) float64 {
		if said != nil {
			return *said
		}
		return otherwise
	}
	// A use without a usual price is named in Unpriced, and counts at the price given here.
	needed := func(used bool, said *float64, name string, otherwise float64) float64 {
		if used && said == nil {
			t.Unpriced = cmp.Or(t.Unpriced, name)
		}
		return usual(said, otherwise)
	}
	cost := float64(u.input)*price.Input + float64(u.output)*price.Output + float64(u.cacheRead)*usual(price.CacheRead, price.Input) +
		float64(u.cacheWrite)*usual(price.CacheWrite, write) + float64(u.cacheWriteHour)*usual(price.CacheWriteHour, hour) +
		float64(u.audioInput)*needed(u.audioInput > 0, price.AudioInput, "audio-input=AMOUNT", price.Input) +
		float64(u.audioOutput)*needed(u.audioOutput > 0, price.AudioOutput, "audio-output=AMOUNT", price.Output)
	if u.before {
		cost *= needed(true, price.Priority, "priority=TIMES", 1)
	}
	t.MicroCost = micro(cost + 1e6*float64(u.calls)*needed(u.calls > 0, price.Call, "call=AMOUNT", 0))
	return t
}

// mostMicroCost bounds the cost of one request.
const mostMicroCost = 1_000_000_000_000

// micro rounds up. A price that makes no sense is the highest there is, not none.
func micro(cost float64) int64 {
	if math.IsNaN(cost) || cost < 0 || cost > mostMicroCost {
		return mostMicroCost
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

// difference is what has to be debited besides a reservation.
func difference(used, reserved egress.Tokens) egress.Tokens {
	return egress.Tokens{
		Input: used.Input - reserved.Input, Output: used.Output - reserved.Output, MicroCost: used.MicroCost - reserved.MicroCost, Day: reserved.Day,
	}
}

// settle says what an answer used: exactly, when it says so and is complete, otherwise as a guess. complete is false
// when one of the sides left before the end, and the upstream may bill for more than was seen.
func settle(e endpoint, c *counter, p egress.Provider, a ask, reserved egress.Tokens, complete bool) (used egress.Tokens, estimated bool) {
	u, said := c.usage()
	u.before = u.before || a.wants.before
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
