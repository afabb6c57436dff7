package hostd

import (
	"context"
	"errors"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// wireError is an error as it crosses the socket: what is public of it, and its whole text for the log of the
// control plane.
type wireError struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Hint    string         `json:"hint,omitzero"`
	Details map[string]any `json:"details,omitzero"`
	Text    string         `json:"text"`
}

// maxErrorText keeps a joined error of many parts readable.
const maxErrorText = 16 << 10

func toWire(err error) *wireError {
	text := clipText(err.Error(), maxErrorText)
	w := &wireError{Code: problem.CodeOf(err), Message: text, Text: text}
	if p, ok := problem.As(err); ok {
		w.Message, w.Hint, w.Details = clipText(p.Message, maxErrorText), p.Hint, p.Details
	}
	if errors.Is(err, jail.ErrNotFound) {
		w.Code = problem.NotFound
	}
	return w
}

func clipText(s string, limit int) string { return strings.ToValidUTF8(texts.Clip(s, limit), "?") }

// remoteError is an error that the host daemon answered with. Its text is the host daemon's; problem.As finds
// the public half in it, and errors.Is the sentinels of package jail and context.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }

func fromWire(w *wireError) error {
	e := &remoteError{text: w.Text}
	public := &problem.Error{Code: w.Code, Message: w.Message, Hint: w.Hint, Details: w.Details}
	switch w.Code {
	case problem.NotFound:
		public.Err = jail.ErrNotFound
	case problem.Timeout:
		public.Err = context.DeadlineExceeded
	case problem.Canceled:
		public.Err = context.Canceled
	}
	e.is = []error{public}
	return e
}
