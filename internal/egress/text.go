package egress

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// ParseAllowance reads a part of a service as people write it: methods and a path, such as GET,POST /issues/**, or a path
// alone, for all methods.
func ParseAllowance(text string) (Allowance, error) {
	words := strings.Fields(text)
	switch {
	case len(words) == 1 && strings.HasPrefix(words[0], "/"):
		return Allowance{Path: words[0]}, nil
	case len(words) == 2 && !strings.Contains(words[0], "/") && strings.HasPrefix(words[1], "/"):
		var methods []string
		for method := range strings.SplitSeq(words[0], ",") {
			if method != "" {
				methods = append(methods, strings.ToUpper(method))
			}
		}
		if len(methods) > 0 {
			return Allowance{Methods: methods, Path: words[1]}, nil
		}
	}
	return Allowance{}, problem.New(problem.BadRequest, "such as GET,POST /issues/**, or /** for everything", "%q is not methods and a path", clip(text))
}

// String is the text that [ParseAllowance] reads.
func (a Allowance) String() string {
	path := a.Path
	if path == "" {
		path = "/**"
	}
	return strings.TrimSpace(strings.Join(a.Methods, ",") + " " + path)
}

// amounts are what a price may say besides its first two, as people write it.
func (p *Price) amounts() []namedAmount {
	return []namedAmount{
		{"cache-read", &p.CacheRead}, {"cache-write", &p.CacheWrite}, {"cache-write-1h", &p.CacheWriteHour}, {"audio-input", &p.AudioInput},
		{"audio-output", &p.AudioOutput}, {"call", &p.Call}, {"priority", &p.Priority},
	}
}

type namedAmount struct {
	name   string
	amount **float64
}

// ParsePrice reads a price as people write it: models and what a million tokens cost, such as gpt-4o*=2.50/10, and behind
// it what costs otherwise, such as call=0.01.
func ParsePrice(text string) (Price, error) {
	bad := func(what string) (Price, error) {
		return Price{}, problem.New(problem.BadRequest, "such as gpt-4o*=2.50/10, or 'gpt-4o*=2.50/10 cache-read=1.25 call=0.01'", "%q is not %s",
			clip(text), what)
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return bad("models and two amounts")
	}
	model, both, _ := strings.Cut(words[0], "=")
	in, out, _ := strings.Cut(both, "/")
	input, ok1 := parseAmount(in)
	output, ok2 := parseAmount(out)
	if model == "" || !ok1 || !ok2 {
		return bad("models and two amounts")
	}
	p := Price{Model: model, Input: input, Output: output}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		at := slices.IndexFunc(p.amounts(), func(a namedAmount) bool { return a.name == name })
		amount, ok := parseAmount(value)
		if at < 0 || !ok || *p.amounts()[at].amount != nil {
			return bad("a price: " + clip(word) + " says nothing, or says it again")
		}
		*p.amounts()[at].amount = &amount
	}
	return p, nil
}

func parseAmount(text string) (float64, bool) {
	amount, err := strconv.ParseFloat(text, 64)
	return amount, err == nil && money(amount)
}

// String is the text that [ParsePrice] reads.
func (p Price) String() string {
	text := fmt.Sprintf("%s=%g/%g", p.Model, p.Input, p.Output)
	for _, a := range p.amounts() {
		if *a.amount != nil {
			text += fmt.Sprintf(" %s=%g", a.name, **a.amount)
		}
	}
	return text
}
