// Package problem is the one error that crosses every face of clawjail.
//
// A problem has a stable code that programs compare, one sentence that people and agents read, and a hint that says
// what to do about it. The faces only translate: HTTP into RFC 9457 with the status of [Status], the command line into
// "error:" and "hint:" lines.
//
// Code, Message, Hint and Details are public: they are shown to the caller, so they never hold a
// secret, a token or a cookie value. The wrapped Err is the private half. It is for the operator's log and for
// errors.Is; a face that talks to an agent leaves it out.
//
// Codes are kept: once released, a code is neither renamed nor given another meaning.
package problem

import (
	"context"
	"errors"
	"fmt"
)

// Error is one problem.
type Error struct {
	// Code is one of the constants of this package.
	Code string
	// Message is one sentence, lower case, without a full stop, as it stands after "error: ".
	Message string
	// Hint says what to do: a corrected command, a setting, a thing to look at. It may be empty.
	Hint string
	// Err is the cause, or nil. It is not shown to agents.
	Err error
	// Details are public facts for programs, such as the host that was refused. It may be nil.
	Details map[string]any
}

// RetryAfter is the detail that says for how many seconds to wait: an int or an int64, which HTTP has as Retry-After.
const RetryAfter = "retry_after"

// Unexpected is the message for an error that is no problem. The text of that error is for the log only.
const Unexpected = "clawjail failed unexpectedly"

// New makes a problem without a cause. The message is made as by fmt.Sprintf.
func New(code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes a problem with a cause. It never returns nil, not even when err is nil: callers test err first.
func Wrap(err error, code, hint, format string, args ...any) *Error {
	e := New(code, hint, format, args...)
	e.Err = err
	return e
}

// With returns a copy of the problem with one more public detail.
func (e *Error) With(key string, value any) *Error {
	out := *e
	out.Details = make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		out.Details[k] = v
	}
	out.Details[key] = value
	return &out
}

// Error is the message followed by the cause: the text for a log.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// As finds the outermost problem in err. A [ValidationError] is found too, as one problem whose details hold the list.
func As(err error) (*Error, bool) {
	var e *Error
	if errors.As(err, &e) && e != nil {
		return e, true
	}
	return nil, false
}

// CodeOf is the code of the outermost problem in err: empty for nil, [Timeout] and [Canceled] for what a context
// returns, and [Internal] for every error without a code.
func CodeOf(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := As(err); ok {
		return e.Code
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}
