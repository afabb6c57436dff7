package browser

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Operation is one thing that a client does with a browser, such as [Navigate] or [Act]. It is what every way in (HTTP,
// MCP, the command line) makes out of its request, and what a jailed session and the host browser run alike. Its JSON
// is the control contract: field names, bounds and fixed sentences are those that clients of that contract know.
type Operation interface {
	// Tool is its name, in records and in addresses: "navigate", "act".
	Tool() string
	// Target is what it is about, for a record: an address, a selector, the name of a file. It may be empty. It never has
	// what was typed.
	Target() string
	// Effect is the most that it does.
	Effect() Effect
	// Validate reports everything that is wrong, with the code bad_request or one of the act_ codes.
	Validate() error
	// Limit is how long Run may take: what the caller wants, within the bounds of the operation, or its default.
	Limit() time.Duration
	// Run does it. The browser may be used by others at the same time.
	Run(ctx context.Context, b *Browser) (any, error)
	// Result is a pointer to the zero value of what Run returns, for decoding it.
	Result() any
}

// Effect is what an operation does, in rising order. The services decide who may do which.
type Effect int

// The effects.
const (
	// Looks leaves the browser as it is.
	Looks Effect = iota + 1
	// Steers opens, clicks, types and closes.
	Steers
	// Evaluates runs the caller's own JavaScript in a page.
	Evaluates
)

// String is the effect's name.
func (e Effect) String() string {
	switch e {
	case Looks:
		return "look"
	case Steers:
		return "steer"
	case Evaluates:
		return "evaluate"
	}
	return "unknown"
}

// Do runs an operation: validated, within its limit, with an error that has a code.
func (b *Browser) Do(ctx context.Context, op Operation) (any, error) {
	if err := op.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, op.Limit())
	defer cancel()
	ctx, end := run(ctx)
	defer end()
	out, err := op.Run(ctx, b)
	if cause := context.Cause(ctx); err != nil && problem.CodeOf(cause) == problem.PageCrashed {
		return nil, cause // whatever it was waiting for
	}
	if err != nil {
		return nil, explain(err, op.Tool())
	}
	return out, nil
}

// limit is the timeout that a caller chose, in milliseconds, or what holds when that is zero.
func limit(milliseconds int, fallback time.Duration) time.Duration {
	if milliseconds == 0 {
		return fallback
	}
	return time.Duration(milliseconds) * time.Millisecond
}

// timeoutWithin reports a timeout beyond its bounds, in milliseconds. Zero is none.
func timeoutWithin(flaws *problem.ValidationError, milliseconds, minimum, maximum int) {
	if milliseconds != 0 && (milliseconds < minimum || milliseconds > maximum) {
		flaws.Add("timeoutMs", "%d is not between %d and %d", milliseconds, minimum, maximum)
	}
}
