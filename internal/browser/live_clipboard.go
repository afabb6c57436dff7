package browser

import (
	"context"
	"errors"
	"time"

	"github.com/chromedp/cdproto/input"

	"github.com/clawjail/clawjail/internal/problem"
)

// pastePerByte is how much longer a page may take for each byte of what is pasted: ten seconds for the largest text.
const pastePerByte = 10 * time.Second / maxLiveText

// paste gives the page a text as a paste does, where the focus is.
func (l *Live) paste(ctx context.Context, p *Page, text string) error {
	took := true // also when the page has left with it
	err := l.during(ctx, p, inputTimeout+time.Duration(len(text))*pastePerByte, func(ctx context.Context) error {
		return p.atFocus(ctx, "pasted", &took, text)
	})
	if err != nil || took {
		return err
	}
	// Documents that are not HTML have no editing of their own.
	return l.send(ctx, p, input.InsertText.Method, input.InsertTextParams{Text: text})
}

// copy is the text that is selected where the focus is, or what the page copies instead. Cutting takes it out of the page.
func (l *Live) copy(ctx context.Context, p *Page, cut bool) (text string, err error) {
	err = l.during(ctx, p, inputTimeout, func(ctx context.Context) error { return p.atFocus(ctx, "copied", &text, cut) })
	if err == nil && len(text) > maxLiveText {
		return "", problem.New(problem.BadRequest, "select less", "the selection has %d bytes; %d can be copied", len(text), maxLiveText)
	}
	return text, err
}

// atFocus calls a function of live.js with what has the focus, or else with the document. A page may leave because of it: one
// sends its form when the code is in it.
func (p *Page) atFocus(ctx context.Context, name string, result any, args ...any) error {
	s := p.seek()
	defer s.end()
	found, err := s.focused(ctx)
	if errors.Is(err, errDocumentGone) {
		return problem.Wrap(err, problem.Conflict, "try again in a moment", "the page is just being left")
	}
	if err != nil {
		return err
	}
	on := found.element
	if on == "" {
		on = found.document
	}
	if err := s.value(ctx, found.session, on, name, result, args...); !errors.Is(err, errDocumentGone) {
		return err
	}
	return nil
}
