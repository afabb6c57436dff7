package browser

import (
	"context"
	"time"

	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxDialogs bounds what is kept of a page that opens one dialog after another.
	maxDialogs = 20
	// dialogTimeout bounds the answer to one dialog, which takes a millisecond.
	dialogTimeout = 5 * time.Second
	// maxPrompt bounds what is typed into a prompt, in bytes.
	maxPrompt = 10 << 10
	// armedFor is how long the answer to a dialog is kept when the caller does not say.
	armedFor = 60 * time.Second
)

// Dialog is a dialog that a page opened and that was answered for it: an alert, a question and a prompt are dismissed
// unless [SetDialog] said otherwise, and the question whether to leave the page is answered with yes. A dialog stops
// everything else in a page. While a DevTools client asks for the events of the page, its dialogs are the client's first.
type Dialog struct {
	Type     string `json:"type"` // alert, confirm, prompt or beforeunload
	Message  string `json:"message"`
	URL      string `json:"url"`
	Accepted bool   `json:"accepted,omitempty"` // it was answered with yes
}

// dialogAnswer is the answer to the next dialog.
type dialogAnswer struct {
	accept bool
	text   string
	until  time.Time
}

// Tool is "dialog".
func (SetDialog) Tool() string { return "dialog" }

// Target is the tab. The text to be typed is not in it.
func (o SetDialog) Target() string { return o.TargetID }

// Effect is Steers.
func (SetDialog) Effect() Effect { return Steers }

// Validate reports a bad timeout or text.
func (o SetDialog) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	timeoutWithin(&flaws, o.TimeoutMS, minTimeout, 120000)
	if len(o.PromptText) > maxPrompt {
		flaws.Add("promptText", "has %d bytes; %d are allowed", len(o.PromptText), maxPrompt)
	}
	return flaws.Err()
}

// Limit is ten seconds: the dialog is not waited for.
func (SetDialog) Limit() time.Duration { return listTimeout }

// Run keeps the answer. It holds for an alert, a question or a prompt; the question whether to leave a page is always
// answered with yes, because no page may keep a tab.
func (o SetDialog) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.anyTab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.armed = &dialogAnswer{accept: o.Accept, text: o.PromptText, until: b.now().Add(limit(o.TimeoutMS, armedFor))}
	p.mu.Unlock()
	return Done{OK: true, TargetID: p.handle()}, nil
}

// Result is a *Done.
func (SetDialog) Result() any { return new(Done) }

// seeDialog answers a dialog and keeps what it said.
func (p *Page) seeDialog(ctx context.Context, event cdp.EventMessage) {
	var opening page.EventJavascriptDialogOpening
	if err := cdp.Decode(event.Params, &opening); err != nil {
		answerDialog(p.session, false, "")
		return
	}
	if p.b.live.offerDialog(p, opening) {
		return
	}
	if !p.b.attendance.owned(p.id) {
		p.answerFor(opening)
		return
	}
	closed, hurry := make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.asking = &asking{closed: closed, hurry: hurry}
	p.mu.Unlock()
	p.task.Go(func() { // ends with the dialog, or with the page's release
		if p.b.attendance.unanswered(ctx, p.id, closed, hurry) {
			p.answerFor(opening)
		}
	})
}

// asking is a dialog that waits for a client of the page.
type asking struct {
	closed, hurry chan struct{}
	hurried       bool
}

// dialogClosed notes that the page shows no dialog any more.
func (p *Page) dialogClosed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking != nil {
		close(p.asking.closed)
		p.asking = nil
	}
}

// dialogWaits reports whether a dialog waits for a client. The page's scripts stand still meanwhile.
func (p *Page) dialogWaits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asking != nil
}

// hurryDialog has a dialog answered that waits for a client, and waits until it is: the page is to be left.
func (p *Page) hurryDialog(ctx context.Context) {
	p.settle(ctx)
	p.mu.Lock()
	a := p.asking
	if a != nil && !a.hurried {
		a.hurried = true
		close(a.hurry)
	}
	p.mu.Unlock()
	if a == nil {
		return
	}
	limit := time.NewTimer(reactTimeout)
	defer limit.Stop()
	select {
	case <-a.closed:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// answerFor answers a dialog that no client answers, and keeps its text.
func (p *Page) answerFor(opening page.EventJavascriptDialogOpening) {
	accept, text := p.decide(opening.Type)
	p.note(Dialog{
		Type:     bounded(string(opening.Type), 40),
		Message:  bounded(opening.Message, maxText),
		URL:      bounded(opening.URL, maxURL),
		Accepted: accept,
	})
	answerDialog(p.session, accept, text)
}

// decide takes the armed answer when there is one for a dialog of that type.
func (p *Page) decide(kind page.DialogType) (accept bool, text string) {
	if kind == page.DialogTypeBeforeunload {
		return true, ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	armed := p.armed
	p.armed = nil
	if armed == nil || p.b.now().After(armed.until) {
		return false, ""
	}
	if !armed.accept {
		return false, ""
	}
	return true, armed.text
}

func (p *Page) note(dialog Dialog) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	if len(p.dialogs) < maxDialogs {
		p.dialogs = append(p.dialogs, dialog)
	}
}

// takeDialogs returns the dialogs since the last call, the first twenty of them.
func (p *Page) takeDialogs() []Dialog {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.dialogs
	p.dialogs = nil
	return taken
}

// dialogsSeen counts the dialogs that the page has opened since it was attached. Each is counted before it is answered.
func (p *Page) dialogsSeen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}
