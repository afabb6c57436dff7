package browser

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	domChars    = 200_000
	maxDOMChars = 2_000_000
)

// Formats of [DOM].
const (
	domHTML = "html"
	domText = "text"
)

// Tool implements Operation.
func (DOM) Tool() string { return "dom" }

// Target implements Operation.
func (o DOM) Target() string { return bounded(o.Selector, 200) }

// Effect implements Operation.
func (DOM) Effect() Effect { return Looks }

// Validate implements Operation.
func (o DOM) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkPlace(&flaws, o.TargetID, o.Selector)
	if o.Format != "" && o.Format != domHTML && o.Format != domText {
		flaws.Add("format", "%q is neither html nor text", bounded(o.Format, 40))
	}
	if o.MaxChars < 0 || o.MaxChars > maxDOMChars {
		flaws.Add("maxChars", "%d is not between 1 and %d", o.MaxChars, maxDOMChars)
	}
	return flaws.Err()
}

// Limit implements Operation.
func (DOM) Limit() time.Duration { return inspectTimeout }

// Result implements Operation.
func (DOM) Result() any { return new(DOMResult) }

// Run implements Operation. The HTML is that of the document as it is now, without shadow roots and frames; what
// passwords are worth is replaced by [hidden].
func (o DOM) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	request := inspection{Selector: o.Selector, Format: o.Format, Chars: o.MaxChars}
	if request.Format == "" {
		request.Format = domHTML
	}
	if request.Chars == 0 {
		request.Chars = domChars
	}
	out := DOMResult{TargetID: p.handle(), Format: request.Format}
	if err := p.inspect(ctx, request, &out); err != nil {
		return nil, err
	}
	if out.URL, _, err = p.info(ctx); err != nil {
		return nil, err
	}
	return out, nil
}
