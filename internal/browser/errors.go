package browser

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of text that comes from a page, in bytes.
const (
	maxText = 4 << 10
	maxURL  = 16 << 10
)

// bounded cuts text at a character's border.
func bounded(text string, maximum int) string {
	if len(text) > maximum {
		cut := maximum
		for cut > 0 && maximum-cut < utf8.UTFMax && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// explain gives an error a code. One that has a code already is left as it is.
func explain(err error, doing string) error {
	if err == nil {
		return nil
	}
	if _, ok := problem.As(err); ok {
		return err
	}
	switch {
	case errors.Is(err, cdp.ErrBrowserGone), errors.Is(err, cdp.ErrClosed), errors.Is(err, cdp.ErrProtocol),
		errors.Is(err, cdp.ErrFrameTooLarge):
		return problem.Wrap(err, problem.BrowserExited, "open a new session", "%s: the browser is gone", doing)
	case errors.Is(err, context.DeadlineExceeded):
		return problem.Wrap(err, problem.Timeout, "try again with a longer timeout", "%s: the browser took too long", doing)
	case errors.Is(err, context.Canceled):
		return problem.Wrap(err, problem.Canceled, "", "%s: the caller left", doing)
	case errors.Is(err, cdp.ErrSessionGone):
		return problem.Wrap(err, problem.Conflict, "navigate again: that opens a page when there is none", "%s: the page was closed meanwhile", doing)
	}
	return problem.Wrap(err, problem.Internal, "", "%s", doing)
}
