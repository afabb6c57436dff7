package browser

import (
	"context"
	"errors"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// maxDialogs bounds what is kept of a page that opens one dialog after another.
	maxDialogs = 20
	// dialogTimeout bounds the answer to one dialog, which takes a millisecond.
	dialogTimeout = 5 * time.Second
)

// Dialog is a dialog that a page opened and that was answered for it: an alert, a question and a prompt are dismissed,
// and the question whether to leave the page is answered with yes. A dialog stops everything else in a page.
type Dialog struct {
	Type    string `json:"type"` // alert, confirm, prompt or beforeunload
	Message string `json:"message"`
	URL     string `json:"url"`
}

// Page is one tab, controlled over a session of its own. One navigation and one screenshot run at a time; others wait.
type Page struct {
	session cdp.Session
	browser cdp.Session
	id      target.ID

	navigating   chan struct{} // holds a token while a navigation runs
	photographed chan struct{} // the same for a screenshot

	events *cdp.Subscription
	stop   context.CancelFunc
	task   sync.WaitGroup
	gone   chan struct{} // closed when the session has ended

	mu      sync.Mutex
	dialogs []Dialog
}

// attachPage takes control of a tab. The page answers dialogs until release is called.
func attachPage(ctx context.Context, conn *cdp.Conn, id target.ID) (*Page, error) {
	flatten := true
	attached, err := cdp.Do(ctx, conn.Browser(), target.AttachToTarget,
		target.AttachToTargetParams{TargetID: id, Flatten: &flatten})
	if err != nil {
		return nil, err
	}
	p := &Page{
		session: conn.Session(string(attached.SessionID)), browser: conn.Browser(), id: id,
		navigating: make(chan struct{}, 1), photographed: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	if err := p.prepare(ctx); err != nil {
		// ctx may be over, and the session must not stay behind.
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialogTimeout)
		defer cancel()
		_, detachErr := cdp.Do(tidy, conn.Browser(), target.DetachFromTarget,
			target.DetachFromTargetParams(attached))
		return nil, errors.Join(err, detachErr)
	}
	return p, nil
}

func (p *Page) prepare(ctx context.Context) error {
	events, err := p.session.Subscribe(page.JavascriptDialogOpening.Method)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { _, err := cdp.Do(ctx, p.session, page.Enable, page.EnableParams{}); return err },
		func() error { _, err := cdp.Do(ctx, p.session, inspector.Enable, protocol.Empty{}); return err },
		func() error {
			_, err := cdp.Do(ctx, p.session, page.SetLifecycleEventsEnabled,
				page.SetLifecycleEventsEnabledParams{Enabled: true})
			return err
		},
	} {
		if err := step(); err != nil {
			events.Close()
			return err
		}
	}
	p.events = events
	watching, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.task.Go(func() { p.watch(watching) })
	return nil
}

// ID is the tab's id, as [Browser.Tabs] lists it.
func (p *Page) ID() string { return string(p.id) }

// Session is the page's session, for what this package does not do.
func (p *Page) Session() cdp.Session { return p.session }

// open reports whether the tab is still there, as far as the browser has said.
func (p *Page) open() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// release ends the goroutine of the page. It leaves the tab as it is.
func (p *Page) release() {
	p.stop()
	p.task.Wait()
	p.events.Close()
}

// watch answers dialogs until the session or the connection ends.
func (p *Page) watch(ctx context.Context) {
	defer close(p.gone)
	for {
		event, err := p.events.Next(ctx)
		var lost *cdp.LostError
		if errors.As(err, &lost) {
			// A dialog among the lost would still be open: answering when there is none is only refused.
			p.answer(ctx, false)
			continue
		}
		if err != nil {
			return
		}
		var opening page.EventJavascriptDialogOpening
		if err := cdp.Decode(event.Params, &opening); err != nil {
			p.answer(ctx, false)
			continue
		}
		p.note(Dialog{
			Type:    bounded(string(opening.Type), 40),
			Message: bounded(opening.Message, maxText),
			URL:     bounded(opening.URL, maxURL),
		})
		p.answer(ctx, opening.Type == page.DialogTypeBeforeunload)
	}
}

func (p *Page) answer(ctx context.Context, accept bool) {
	ctx, cancel := context.WithTimeout(ctx, dialogTimeout)
	defer cancel()
	// An error means that the dialog is not there any more: the page went on, or another client answered.
	_, _ = cdp.Do(ctx, p.session, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: accept})
}

func (p *Page) note(dialog Dialog) {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// hold waits for a token and returns what gives it back.
func hold(ctx context.Context, token chan struct{}) (release func(), err error) {
	select {
	case token <- struct{}{}:
		return func() { <-token }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
