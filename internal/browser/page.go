package browser

import (
	"context"
	"errors"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	runtimelog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// prepareGrace is how long a page may take to take up its events. It takes a millisecond or two; a page whose
	// scripts never rest does not do it at all, and can still be navigated and closed.
	prepareGrace = 2 * time.Second
	// quietTimeout bounds a command that tidies up.
	quietTimeout = 500 * time.Millisecond
)

// Page is one tab, controlled over a session of its own. One steering operation and one screenshot run at a time;
// others wait. Its logs (console, requests) begin when it was attached.
type Page struct {
	b       *Browser
	session cdp.Session
	browser cdp.Session
	id      target.ID

	steering     chan struct{} // holds a token while a steering operation runs
	photographed chan struct{} // the same for a screenshot

	events *cdp.Subscription
	life   context.Context // until release is called
	stop   context.CancelFunc
	task   sync.WaitGroup
	ready  chan struct{} // closed when the page sends all its events
	gone   chan struct{} // closed when the session has ended

	crash crash

	view view // its worlds, frames and refs; see world.go

	mu       sync.Mutex
	failed   error             // why the page could not be prepared; written before ready is closed
	document uint64            // the generation
	current  protocol.LoaderID // of that document, empty when it is not known
	dialogs  []Dialog
	seen     int // dialogs, ever
	armed    *dialogAnswer
	asking   *asking // nil while no dialog waits for a client
	chooser  *fileChooser
	loading  bool // a document of the main frame is on its way
	top      protocol.FrameID
	asked    []chan struct{} // each is closed when all events that have arrived were seen
	wake     context.CancelFunc
	console  ring[ConsoleMessage]
	faults   ring[ConsoleMessage]
	requests ring[*Request]
	byID     map[string]*Request // those of requests that have not ended
}

// fileChooser is a file chooser that the page wanted to open.
type fileChooser struct {
	node int64 // of the input; zero for one that a script opened
	mode string
}

// attachPage takes control of a tab. The page answers dialogs until release is called. A page that does not react is
// attached all the same; its ready stays open then.
func attachPage(ctx context.Context, b *Browser, id target.ID) (*Page, error) {
	session, err := b.conn.Browser().Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	p := &Page{
		b: b, session: session, browser: b.conn.Browser(), id: id,
		steering: make(chan struct{}, 1), photographed: make(chan struct{}, 1),
		crash: newCrash(), ready: make(chan struct{}), gone: make(chan struct{}),
		document: b.documents.Add(1), top: protocol.FrameID(id),
		console: ring[ConsoleMessage]{limit: maxConsole, maxBytes: maxConsoleBytes},
		faults:  ring[ConsoleMessage]{limit: maxConsole, maxBytes: maxConsoleBytes},
		byID:    make(map[string]*Request),
	}
	p.requests = ring[*Request]{limit: maxRequests, maxBytes: maxRequestBytes}
	p.events, err = p.session.Subscribe(pageEvents()...)
	if err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(context.Background())
	p.life, p.stop = watching, stop
	p.task.Go(func() { p.watch(watching) })
	p.task.Go(func() { p.prepare(watching) })
	if err := p.await(ctx); err != nil {
		p.release()
		p.detach()
		return nil, err
	}
	return p, nil
}

// pageEvents are those that a page's goroutine reads.
func pageEvents() []string {
	return []string{
		page.JavascriptDialogOpening.Method, page.JavascriptDialogClosed.Method, page.FileChooserOpened.Method,
		page.FrameNavigated.Method, page.FrameStartedLoading.Method, page.FrameStoppedLoading.Method,
		inspector.TargetCrashed.Method, inspector.TargetReloadedAfterCrash.Method,
		runtime.ConsoleAPICalled.Method, runtime.ExceptionThrown.Method, runtimelog.EntryAdded.Method,
		network.RequestWillBeSent.Method, network.ResponseReceived.Method, network.LoadingFinished.Method,
		network.LoadingFailed.Method,
	}
}

// prepare switches the page's events on. All commands are sent at once: it takes the time of one.
func (p *Page) prepare(ctx context.Context) {
	none := int64(0)
	steps := []func() error{
		func() error { _, err := cdp.Do(ctx, p.session, page.Enable, page.EnableParams{}); return err },
		func() error { _, err := cdp.Do(ctx, p.session, inspector.Enable, protocol.Empty{}); return err },
		func() error {
			_, err := cdp.Do(ctx, p.session, page.SetLifecycleEventsEnabled,
				page.SetLifecycleEventsEnabledParams{Enabled: true})
			return err
		},
		func() error {
			_, err := cdp.Do(ctx, p.session, page.SetInterceptFileChooserDialog,
				page.SetInterceptFileChooserDialogParams{Enabled: true})
			return err
		},
		func() error { _, err := cdp.Do(ctx, p.session, runtime.Enable, protocol.Empty{}); return err },
		func() error { _, err := cdp.Do(ctx, p.session, runtimelog.Enable, protocol.Empty{}); return err },
		func() error {
			// Bodies are not kept.
			_, err := cdp.Do(ctx, p.session, network.Enable,
				network.EnableParams{MaxTotalBufferSize: &none, MaxResourceBufferSize: &none, MaxPostDataSize: &none})
			return err
		},
	}
	defer close(p.ready)
	for {
		_, before := p.crash.heals()
		errs := make([]error, len(steps))
		var sent sync.WaitGroup
		for i, step := range steps {
			sent.Go(func() { errs[i] = step() })
		}
		sent.Wait()
		p.mu.Lock()
		p.failed = errors.Join(errs...)
		failed := p.failed != nil
		p.mu.Unlock()
		if !failed {
			return
		}
		// A page without a process refuses all of it, once it has one again.
		p.settle(ctx)
		healed, count := p.crash.heals()
		if count == before {
			return
		}
		select {
		case <-healed:
		case <-p.gone:
			return
		case <-ctx.Done():
			return
		}
	}
}

// await waits until the page sends its events, or has had its time for it.
func (p *Page) await(ctx context.Context) error {
	if wake.Closed(p.ready) {
		return p.preparation()
	}
	grace := time.NewTimer(prepareGrace)
	defer grace.Stop()
	select {
	case <-p.ready:
		return p.preparation()
	case <-grace.C:
		return nil
	case <-p.crash.happens():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Page) preparation() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// ID is the tab's raw id, as [Browser.Tabs] lists it.
func (p *Page) ID() string { return string(p.id) }

// Session is the page's session, for what this package does not do.
func (p *Page) Session() cdp.Session { return p.session }

// handle is the tab's short name, such as t1. It is empty for a tab that is gone.
func (p *Page) handle() string { return p.b.tabs.handleOf(p.id) }

// info is where the page is and what it is called. The browser process knows both, so a page that hangs or lies in its
// scripts does not matter.
func (p *Page) info(ctx context.Context) (url, title string, err error) {
	answer, err := cdp.Do(ctx, p.browser, target.GetTargetInfo, target.GetTargetInfoParams{TargetID: p.id})
	if err != nil {
		return "", "", err
	}
	if answer.TargetInfo == nil {
		return "", "", nil
	}
	return p.b.shown(answer.TargetInfo.URL, maxURL), p.b.titled(answer.TargetInfo.Title), nil
}

// hold waits until no other steering operation runs in the tab, and keeps others out until release is called.
func (p *Page) hold(ctx context.Context) (release func(), err error) { return hold(ctx, p.steering) }

// generation grows with each new document of the main frame, and with each attachment. It is never the same for two
// documents of one browser.
func (p *Page) generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.document
}

// loader is the browser's name for the document of the main frame, empty when it is not known.
func (p *Page) loader() protocol.LoaderID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// takeFileChooser returns the file chooser that the page wanted to open last, once. It was not shown.
func (p *Page) takeFileChooser() (backendNodeID int64, mode string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.chooser
	p.chooser = nil
	if taken == nil {
		return 0, "", false
	}
	return taken.node, taken.mode, true
}

// fileChooserWaits says whether the page wanted to open a file chooser that is not taken yet.
func (p *Page) fileChooserWaits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chooser != nil
}

// open reports whether the tab is still there, as far as the browser has said.
func (p *Page) open() bool {
	return !wake.Closed(p.gone)
}

// release ends the goroutines of the page. It leaves the tab as it is.
func (p *Page) release() {
	p.stop()
	p.task.Wait()
	p.events.Close()
}

// detach gives the tab back. It is no fault when the session has ended already.
func (p *Page) detach() {
	ctx, cancel := context.WithTimeout(context.Background(), quietTimeout)
	defer cancel()
	_ = p.browser.Detach(ctx, p.session)
}

// watch reads the page's events until the session or the connection ends.
func (p *Page) watch(ctx context.Context) {
	defer close(p.gone)
	defer p.b.live.forget(p)
	var waiting context.Context
	for {
		if waiting == nil || waiting.Err() != nil {
			waiting = p.interruptible(ctx)
		}
		event, err := p.events.Next(waiting)
		var lost *cdp.LostError
		switch {
		case err == nil:
			event.Params = p.b.clean(event.Params)
			p.see(ctx, event)
		case errors.As(err, &lost):
			p.lost(lost.Noise)
		case ctx.Err() == nil && errors.Is(err, context.Canceled):
			p.answer()
		default:
			p.answer()
			p.interrupt()
			return
		}
	}
}

// interruptible is a context that [Page.settle] ends.
func (p *Page) interruptible(ctx context.Context) context.Context {
	waiting, wake := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake = wake
	if len(p.asked) > 0 {
		wake()
	}
	return waiting
}

func (p *Page) interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wake != nil {
		p.wake()
	}
}

// answer tells those who asked that everything was seen.
func (p *Page) answer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seen := range p.asked {
		close(seen)
	}
	p.asked = nil
}

// settle waits until every event of the page that has arrived until now was seen.
func (p *Page) settle(ctx context.Context) {
	seen := make(chan struct{})
	p.mu.Lock()
	p.asked = append(p.asked, seen)
	p.mu.Unlock()
	p.interrupt()
	select {
	case <-seen:
	case <-p.gone:
	case <-ctx.Done():
	}
}

// lost is called after a gap in the events. Noise is what the page says beside, and nothing that happens to it.
func (p *Page) lost(noise bool) {
	p.mu.Lock()
	p.console.cut, p.faults.cut = true, true
	if noise {
		p.mu.Unlock()
		return
	}
	p.requests.cut = true
	// A new document may be among what was lost.
	p.document, p.current = p.b.documents.Add(1), ""
	p.mu.Unlock()
	// A dialog among the lost would still be open: answering when there is none is only refused.
	p.dialogClosed()
	answerDialog(p.session, false, "")
}

// see takes one event. An event that cannot be decoded is of no use and no harm: the browser itself is trusted with its form.
func (p *Page) see(ctx context.Context, event cdp.EventMessage) {
	switch event.Method {
	case page.JavascriptDialogOpening.Method:
		p.seeDialog(ctx, event)
	case page.FileChooserOpened.Method:
		var e page.EventFileChooserOpened
		if cdp.Decode(event.Params, &e) == nil && !p.b.live.offerFiles(p, p.session, e) {
			p.mu.Lock()
			p.chooser = &fileChooser{node: int64(e.BackendNodeID), mode: bounded(string(e.Mode), 40)}
			p.mu.Unlock()
		}
	case page.FrameNavigated.Method:
		var e struct {
			Frame struct {
				ID       protocol.FrameID  `json:"id"`
				ParentID protocol.FrameID  `json:"parentId"`
				LoaderID protocol.LoaderID `json:"loaderId"`
				URL      string            `json:"url"`
			} `json:"frame"`
		}
		err := cdp.Decode(event.Params, &e)
		if err == nil {
			p.b.visits(e.Frame.URL, e.Frame.ParentID != "")
		}
		if err == nil && e.Frame.ParentID == "" {
			p.mu.Lock()
			p.document, p.current, p.chooser = p.b.documents.Add(1), e.Frame.LoaderID, nil
			p.top = e.Frame.ID
			p.mu.Unlock()
			p.b.live.left(p)
		}
	case page.FrameStartedLoading.Method:
		p.seeLoading(event, true)
	case page.FrameStoppedLoading.Method:
		p.seeLoading(event, false)
	case inspector.TargetCrashed.Method:
		p.crash.seen()
		p.b.live.poke()
	case inspector.TargetReloadedAfterCrash.Method:
		p.crash.over()
		p.b.live.poke()
	case page.JavascriptDialogClosed.Method:
		p.dialogClosed()
		p.b.live.dialogClosed(p)
	default:
		p.log(event)
	}
}

// seeLoading keeps whether the main frame loads.
func (p *Page) seeLoading(event cdp.EventMessage, loading bool) {
	var e page.EventFrameStartedLoading
	if cdp.Decode(event.Params, &e) != nil {
		return
	}
	p.mu.Lock()
	changed := e.FrameID == p.top && p.loading != loading
	if changed {
		p.loading = loading
	}
	p.mu.Unlock()
	if changed {
		p.b.live.poke()
	}
}

// quietly sends a command that tidies up: its failure means that the page is gone, which the next one will say.
func (p *Page) quietly(method string) {
	ctx, cancel := context.WithTimeout(context.Background(), quietTimeout)
	defer cancel()
	_ = p.session.Call(ctx, method, nil, nil)
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
