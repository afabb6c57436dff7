package egress

import (
	"fmt"
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

// ParsePrice reads a price as people write it: models and what a million tokens cost, such as gpt-4o*=2.50/10.
func ParsePrice(text string) (Price, error) {
	model, amounts, ok := strings.Cut(text, "=")
	in, after, both := strings.Cut(amounts, "/")
	input, err1 := strconv.ParseFloat(strings.TrimSpace(in), 64)
	output, err2 := strconv.ParseFloat(strings.TrimSpace(after), 64)
	model = strings.TrimSpace(model)
	if !ok || !both || model == "" || err1 != nil || err2 != nil || !money(input) || !money(output) {
		return Price{}, problem.New(problem.BadRequest, "such as gpt-4o*=2.50/10", "%q is not models and two amounts", clip(text))
	}
	return Price{Model: model, Input: input, Output: output}, nil
}

// String is the text that [ParsePrice] reads.
func (p Price) String() string { return fmt.Sprintf("%s=%g/%g", p.Model, p.Input, p.Output) }
