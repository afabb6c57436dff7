package browser

import (
	"context"
	"errors"
	"slices"
	"sync"

	protocol "github.com/chromedp/cdproto/cdp"
	interception "github.com/chromedp/cdproto/fetch"
	runtimelog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
)

// holding is what goes on while a person steers: each page, and each of its frames in another process, is attended.
type holding struct {
	ctx  context.Context
	stop context.CancelFunc
	task sync.WaitGroup

	// Live.mu guards these.
	attended map[*Page]bool
	frames   map[target.ID]bool // those in other processes
}

// runHeld runs something that belongs to the hold. It is false when no person steers any more.
func (l *Live) runHeld(run func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holding
	if h == nil {
		return false
	}
	h.task.Go(func() { run(h.ctx) })
	return true
}

// endHolding ends what goes on while a person steers.
func (l *Live) endHolding() {
	l.mu.Lock()
	h := l.holding
	l.holding = nil
	l.mu.Unlock()
	if h != nil {
		h.stop()
		h.task.Wait()
	}
}

// Hold gives the browser's own popups to a person, until LetGo: dialogs wait, file choosers wait, and sites that ask for a
// password wait. Before it, dialogs are answered as [SetDialog] says.
func (l *Live) Hold(ctx context.Context) error {
	release, err := hold(ctx, l.turn)
	if err != nil {
		return explain(err, "take the browser over")
	}
	defer release()
	if l.held.Load() {
		return nil
	}
	// A browser without a tab gets one: a person needs something to steer.
	p, err := l.b.tab(ctx, "")
	if err != nil {
		return explain(err, "take the browser over")
	}
	l.begin()
	holding := &holding{attended: make(map[*Page]bool), frames: make(map[target.ID]bool)}
	holding.ctx, holding.stop = context.WithCancel(context.Background())
	l.mu.Lock()
	if l.ended != nil {
		defer l.mu.Unlock()
		holding.stop()
		return l.ended
	}
	l.holding = holding
	l.held.Store(true)
	l.mu.Unlock()
	l.attendAll(ctx)
	l.front(ctx, p)
	l.poke()
	return nil
}

// LetGo ends Hold. Popups that wait are dismissed; keys and buttons that are down go up. Entries of the pages' logs (console,
// requests, dialogs) from the time in between are removed, and so is the history of tabs: the next user cannot read what the person
// did, nor go back to what they typed. Where a tab's history cannot be pruned, the browser stays held.
func (l *Live) LetGo(ctx context.Context) error {
	release, err := hold(ctx, l.turn)
	if err != nil {
		return explain(err, "hand the browser back")
	}
	defer release()
	if !l.held.Load() {
		return nil
	}
	l.dismiss(ctx, nil)
	l.lower(ctx)
	if err := l.prune(ctx); err != nil {
		return explain(err, "forget where the tabs have been")
	}
	l.endHolding()
	pages := l.b.tabs.pages()
	var tidied sync.WaitGroup
	for _, p := range pages {
		tidied.Go(func() { p.forgetConsole(ctx) })
	}
	tidied.Wait()
	l.held.Store(false)
	// Popups that came in between.
	l.dismiss(ctx, nil)
	l.poke()
	return nil
}

// prune leaves of every tab's history the page that it shows. An older entry has what was typed into its fields.
func (l *Live) prune(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	r := l.b.tabs
	if err := errors.Join(r.begin(ctx), r.settle(ctx)); err != nil {
		return err
	}
	r.mu.Lock()
	tabs := slices.Clone(r.tabs)
	r.mu.Unlock()
	errs := make([]error, len(tabs))
	var pruned sync.WaitGroup
	for i, tab := range tabs {
		pruned.Go(func() {
			p, err := l.attached(ctx, tab)
			if err == nil {
				err = p.prune(ctx)
			}
			if !wake.Closed(tab.closed) {
				errs[i] = err
			}
		})
	}
	pruned.Wait()
	return errors.Join(errs...)
}

func (p *Page) prune(ctx context.Context) error {
	return unlessChanging(ctx, func(ctx context.Context) error {
		history, err := cdp.Do(ctx, p.session, page.GetNavigationHistory, protocol.Empty{})
		if err != nil || len(history.Entries) <= 1 {
			return err
		}
		_, err = cdp.Do(ctx, p.session, page.ResetNavigationHistory, protocol.Empty{})
		var refused *cdp.Error
		if errors.As(err, &refused) {
			// On its way back or forward it forgets nothing.
			_, stopped := cdp.Do(ctx, p.session, page.StopLoading, protocol.Empty{})
			err = errors.Join(err, stopped)
		}
		return err
	})
}

// forgetConsole makes the page's process forget what was written to its console, so that the next client that attaches does not get it, and
// waits until all events that the page has sent until now have arrived and were dropped.
func (p *Page) forgetConsole(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietTimeout)
	defer cancel()
	// A page that hangs says nothing, either.
	_, _ = cdp.Do(ctx, p.session, runtimelog.Clear, protocol.Empty{})
	_, _ = cdp.Do(ctx, p.session, runtime.DiscardConsoleEntries, protocol.Empty{})
	p.settle(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chooser = nil
}

// pages are those that are attached.
func (r *registry) pages() []*Page {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pages []*Page
	for _, tab := range r.tabs {
		if tab.page != nil && tab.page.open() {
			pages = append(pages, tab.page)
		}
	}
	return pages
}

// attendAll attends all tabs while a person steers, as many as can be attached.
func (l *Live) attendAll(ctx context.Context) {
	if !l.held.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, prepareGrace+liveCommand)
	defer cancel()
	r := l.b.tabs
	if r.settle(ctx) != nil {
		return
	}
	r.mu.Lock()
	tabs := append([]*record(nil), r.tabs...)
	r.mu.Unlock()
	if extra := len(tabs) - r.attached; extra > 0 {
		tabs = tabs[extra:]
	}
	var ready sync.WaitGroup
	for _, tab := range tabs {
		ready.Go(func() {
			// A tab that closes meanwhile needs no attendance.
			if p, err := l.attached(ctx, tab); err == nil {
				l.attendPage(ctx, p)
			}
		})
	}
	ready.Wait()
}

// attendPage begins to attend a page, and waits until it is attended.
func (l *Live) attendPage(ctx context.Context, p *Page) {
	l.mu.Lock()
	holding := l.holding
	if holding == nil || holding.attended[p] {
		l.mu.Unlock()
		return
	}
	holding.attended[p] = true
	ready := make(chan struct{})
	holding.task.Go(func() { l.attend(holding, p, p.session, ready) })
	l.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
	}
}

// attend reads what a page, or a frame in another process, asks a person for, until the hold or the session ends.
func (l *Live) attend(h *holding, p *Page, s cdp.Session, ready chan<- struct{}) {
	events, err := s.Subscribe(interception.RequestPaused.Method, interception.AuthRequired.Method, target.AttachedToTarget.Method,
		page.FileChooserOpened.Method)
	if err != nil {
		close(ready)
		return
	}
	defer events.Close()
	h.task.Go(func() {
		defer close(ready)
		l.prepareToAttend(h.ctx, p, s)
	})
	for {
		event, err := events.Next(h.ctx)
		var lost *cdp.LostError
		switch {
		case errors.As(err, &lost):
			// Requests among the lost would wait forever: beginning anew lets them go.
			l.disattend(s)
			h.task.Go(func() { l.prepareToAttend(h.ctx, p, s) })
			continue
		case err != nil:
			l.disattend(s)
			return
		}
		l.attendTo(h, p, s, event)
	}
}

// prepareToAttend switches on what is attended. Requests pause for the sake of those that ask for a password; all go on at once.
func (l *Live) prepareToAttend(ctx context.Context, p *Page, s cdp.Session) {
	ctx, cancel := context.WithTimeout(ctx, liveCommand)
	defer cancel()
	yes := true
	all := []func(){
		func() {
			_, _ = cdp.Do(ctx, s, interception.Enable, interception.EnableParams{HandleAuthRequests: &yes,
				Patterns: []*interception.RequestPattern{{URLPattern: "*"}}})
		},
		func() {
			_, _ = cdp.Do(ctx, s, target.SetAutoAttach, target.SetAutoAttachParams{AutoAttach: true, Flatten: &yes,
				Filter: target.Filter{{Type: "iframe"}, {Exclude: true}}})
		},
	}
	if s != p.session {
		all = append(all, func() {
			_, _ = cdp.Do(ctx, s, page.Enable, page.EnableParams{})
			_, _ = cdp.Do(ctx, s, page.SetInterceptFileChooserDialog, page.SetInterceptFileChooserDialogParams{Enabled: true})
		})
	}
	// An error means that the page is gone, or hangs: it asks for nothing then.
	var sent sync.WaitGroup
	for _, step := range all {
		sent.Go(step)
	}
	sent.Wait()
}

// disattend switches it off. Requests that wait go on.
func (l *Live) disattend(s cdp.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), quietTimeout)
	defer cancel()
	yes := true
	_, _ = cdp.Do(ctx, s, interception.Disable, protocol.Empty{})
	_, _ = cdp.Do(ctx, s, target.SetAutoAttach, target.SetAutoAttachParams{Flatten: &yes})
}

// attendTo takes one event.
func (l *Live) attendTo(h *holding, p *Page, s cdp.Session, event cdp.EventMessage) {
	switch event.Method {
	case interception.RequestPaused.Method:
		var e struct {
			RequestID interception.RequestID `json:"requestId"`
		}
		if cdp.Decode(event.Params, &e) == nil {
			ctx, cancel := context.WithTimeout(h.ctx, liveCommand)
			defer cancel()
			// An error means that the request is gone.
			_, _ = cdp.Do(ctx, s, interception.ContinueRequest, interception.ContinueRequestParams{RequestID: e.RequestID})
		}
	case interception.AuthRequired.Method:
		var e struct {
			RequestID interception.RequestID     `json:"requestId"`
			Challenge interception.AuthChallenge `json:"authChallenge"`
		}
		if cdp.Decode(event.Params, &e) != nil {
			return
		}
		asked := &popup{page: p, session: s, request: e.RequestID, Popup: Popup{Kind: PopupAuth,
			Message: l.b.shown(e.Challenge.Realm, maxText), Origin: bounded(e.Challenge.Origin, maxLiveURL)}}
		if !l.offer(asked) {
			ctx, cancel := context.WithTimeout(h.ctx, liveCommand)
			defer cancel()
			_ = l.settlePopup(ctx, asked, LiveInput{}, nil)
		}
	case page.FileChooserOpened.Method:
		var e page.EventFileChooserOpened
		if s != p.session && cdp.Decode(event.Params, &e) == nil {
			l.offerFiles(p, s, e)
		}
	case target.AttachedToTarget.Method:
		var e struct {
			SessionID target.SessionID `json:"sessionId"`
			Info      struct {
				ID   target.ID `json:"targetId"`
				Type string    `json:"type"`
			} `json:"targetInfo"`
		}
		if cdp.Decode(event.Params, &e) == nil && e.Info.Type == "iframe" {
			l.attendFrame(h, p, e.Info.ID, l.b.conn.Session(string(e.SessionID)))
		}
	}
}

// attendFrame attends a frame in another process, once however often it is attached.
func (l *Live) attendFrame(h *holding, p *Page, id target.ID, s cdp.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.frames[id] || len(h.frames) >= maxListed {
		return
	}
	h.frames[id] = true
	h.task.Go(func() {
		l.attend(h, p, s, make(chan struct{}))
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(h.frames, id)
	})
}
