package browser

import (
	"context"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
)

// DialogWait is how long a DevTools client may take for a dialog of its page by default.
const DialogWait = 5 * time.Second

// attendance knows which pages have DevTools clients that answer dialogs by themselves. Each of these pages has an
// attendant: full Chromium lets a dialog wait for ever whose only witness has left.
type attendance struct {
	wait time.Duration

	mu        sync.Mutex
	clients   map[target.ID]int
	changed   chan struct{}                    // closed when clients changes, and replaced
	attendant map[target.ID]context.CancelFunc // ends it
	ended     bool
	life      context.Context
	stop      context.CancelFunc
	task      sync.WaitGroup
}

func newAttendance() *attendance {
	a := &attendance{wait: DialogWait, clients: make(map[target.ID]int), changed: make(chan struct{}), attendant: make(map[target.ID]context.CancelFunc)}
	a.life, a.stop = context.WithCancel(context.Background())
	return a
}

// LetDialogsWait says how long DevTools clients may take for the dialogs of their pages, before anybody attaches one.
func (b *Browser) LetDialogsWait(limit time.Duration) { b.attendance.wait = limit }

// OwnDialogs says that a DevTools client answers the dialogs of a page, until release is called. It does not wait. A dialog that the
// client does not answer in time, or leaves behind, is answered for it.
func (b *Browser) OwnDialogs(page string) (release func()) {
	a, id := b.attendance, target.ID(page)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count(id, 1)
	if a.attendant[id] == nil && !a.ended && len(a.attendant) < maxListed {
		ctx, stop := context.WithCancel(a.life)
		a.attendant[id] = stop
		a.task.Go(func() { b.attendTab(ctx, id) }) // ends with the page's last client, the page, or the browser
	}
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.count(id, -1)
	})
}

// count notes one client more, or less. a.mu is held.
func (a *attendance) count(id target.ID, by int) {
	if a.clients[id] += by; a.clients[id] <= 0 {
		delete(a.clients, id)
		if stop := a.attendant[id]; stop != nil {
			stop()
			delete(a.attendant, id)
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *attendance) end() {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.stop()
	a.task.Wait()
}

// unanswered waits for the clients of a page to answer a dialog, unless there is a hurry. It is false when the dialog was
// closed meanwhile.
func (a *attendance) unanswered(ctx context.Context, id target.ID, closed, hurry <-chan struct{}) bool {
	limit := time.NewTimer(a.wait)
	defer limit.Stop()
	for {
		a.mu.Lock()
		owned, changed := a.clients[id] > 0, a.changed
		a.mu.Unlock()
		if !owned {
			return true
		}
		select {
		case <-closed:
			return false
		case <-changed:
		case <-hurry:
			return true
		case <-limit.C:
			return true
		case <-ctx.Done():
			return true
		}
	}
}

// owned says whether a client answers the dialogs of a page.
func (a *attendance) owned(id target.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clients[id] > 0
}

// attendTab answers the dialogs of a tab that no [Page] drives: a Page answers its own.
func (b *Browser) attendTab(ctx context.Context, id target.ID) {
	// The caller's end must not leave a session behind.
	s, err := b.conn.Browser().Attach(b.attendance.life, id)
	if err != nil {
		return // the page is gone
	}
	defer func() {
		tidy, cancel := context.WithTimeout(context.Background(), quietTimeout)
		defer cancel()
		// An error means that the page is gone.
		_ = b.conn.Browser().Detach(tidy, s)
	}()
	events, err := s.Subscribe(page.JavascriptDialogOpening.Method, page.JavascriptDialogClosed.Method)
	if err != nil {
		return
	}
	defer events.Close()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	// A page that hangs takes it up by and by.
	waiting.Go(func() { _, _ = cdp.Do(ctx, s, page.Enable, page.EnableParams{}) })
	closed, leaving := make(chan struct{}), false
	for {
		event, err := events.Next(ctx)
		if _, lost := err.(*cdp.LostError); err != nil && !lost {
			if ctx.Err() == nil || leaving {
				return
			}
			// The last client has left, maybe a dialog that is not known here yet: it comes before the answer to a question.
			leaving = true
			flush, cancel := context.WithTimeout(context.Background(), quietTimeout)
			_, _ = cdp.Do(flush, s, page.GetNavigationHistory, protocol.Empty{}) // a page that is gone has no dialog
			cancel()
			continue
		}
		close(closed) // there is one dialog of a page at a time
		closed = make(chan struct{})
		var opening page.EventJavascriptDialogOpening
		if err != nil || event.Method != page.JavascriptDialogOpening.Method || cdp.Decode(event.Params, &opening) != nil || b.controlled(id) {
			continue
		}
		gone := closed
		waiting.Go(func() {
			if b.attendance.unanswered(ctx, id, gone, nil) {
				answerDialog(s, opening.Type == page.DialogTypeBeforeunload, "")
			}
		})
	}
}

// controlled says whether a page is attached for operations, and has taken up its events.
func (b *Browser) controlled(id target.ID) bool {
	b.tabs.mu.Lock()
	defer b.tabs.mu.Unlock()
	tab := b.tabs.find(id)
	if tab == nil || tab.page == nil || !tab.page.open() {
		return false
	}
	return wake.Closed(tab.page.ready)
}

// answerDialog answers whatever dialog a page shows.
func answerDialog(s cdp.Session, accept bool, text string) {
	ctx, cancel := context.WithTimeout(context.Background(), dialogTimeout)
	defer cancel()
	// An error means that the dialog is not there any more: the page went on, or another client answered.
	_, _ = cdp.Do(ctx, s, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: accept, PromptText: text})
}
