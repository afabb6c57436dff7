package llm

import (
	"math"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
)

// What a request may use where it does not say. Both are the largest bounds of the models of today.
const (
	longestOutput  = 128 << 10 // tokens of one answer
	longestContext = 1 << 20   // tokens of input that is not in the body
	// unseenInput is what a provider adds by itself, such as its instructions for tools.
	unseenInput = 1 << 10
)

// reservation is the most that a request may use: a token has at least one byte. What the gateway cannot see, because the
// provider has it or gets it, is as long as a model can read.
func reservation(e endpoint, a ask, p egress.Provider) egress.Tokens {
	input := int64(len(a.body)) + unseenInput
	if a.unseen {
		input += longestContext
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
	return priced(p, a.model, input, output)
}

// priced puts the provider's price on a number of tokens. Prices are per million tokens, so a token costs as many
// millionths.
func priced(p egress.Provider, model string, input, output int64) egress.Tokens {
	t := egress.Tokens{Input: input, Output: output, Unpriced: true}
	for _, price := range p.Prices {
		if matches(price.Model, model) {
			t.MicroCost, t.Unpriced = micro(float64(input)*price.Input+float64(output)*price.Output), false
			break
		}
	}
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
func settle(e endpoint, c *counter, p egress.Provider, model string, reserved egress.Tokens, complete bool) (used egress.Tokens, estimated bool) {
	input, output, said := c.usage()
	if complete && said {
		return priced(p, model, input, output), false
	}
	if input == 0 {
		input = reserved.Input
	}
	if e.answers {
		output = max(output, c.guess())
	}
	if !complete {
		input, output = max(input, reserved.Input), max(output, reserved.Output)
	}
	return priced(p, model, input, output), true
}
