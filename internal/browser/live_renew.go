package browser

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// renewTimeout bounds it all.
	renewTimeout = 45 * time.Second
	// emptyTimeout is how long a tab may take to show an empty document, before it is replaced.
	emptyTimeout = 3 * time.Second
	// arriveTimeout is how long a fresh document is waited for. One that comes later is as fresh.
	arriveTimeout = 10 * time.Second
	// maxRounds bounds how often pages may open further ones while all are emptied.
	maxRounds = 5
)

// renewed is a tab that is renewed.
type renewed struct {
	tab   *record
	page  *Page
	entry int64  // of its history
	url   string // empty when there is nothing to go back to
}

// Renew replaces every document of every tab by a fresh one of the same address, without anything that a script had put
// there: listeners, bindings, workers (service workers are unregistered). Text that was typed into pages is lost. Tabs and their handles stay.
//
// First all tabs show an empty document at the same time: no old one is left that could reach into a new one. Then each goes back
// to where it was, and loads that anew past all caches. A page that is not on the web (data: and blob: addresses) stays empty: a script
// may have made it. The pages that a tab could go forward to are lost.
func (l *Live) Renew(ctx context.Context) error {
	release, err := hold(ctx, l.turn)
	if err != nil {
		return explain(err, "renew the pages")
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	l.begin()
	l.renewing.Store(true)
	defer l.renewing.Store(false)
	l.dismiss(ctx, nil)
	return explain(l.renew(ctx), "renew the pages")
}

func (l *Live) renew(ctx context.Context) error {
	tabs := make(map[*record]*renewed)
	empty := func() error {
		for range maxRounds {
			done, err := l.emptyAll(ctx, tabs)
			if done || err != nil {
				return err
			}
		}
		return problem.New(problem.Conflict, "close tabs, and try again", "pages keep opening further pages")
	}
	if err := empty(); err != nil {
		return err
	}
	if err := l.endWorkers(ctx, tabs); err != nil {
		return err
	}
	// A worker may have opened or steered a page until its end.
	if err := empty(); err != nil {
		return err
	}
	errs := make([]error, 0, len(tabs))
	var mu sync.Mutex
	var returned sync.WaitGroup
	for _, r := range tabs {
		returned.Go(func() {
			err := l.comeBack(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	returned.Wait()
	return errors.Join(errs...)
}

// emptyAll gives every tab an empty document. It is done when all of them had one at the same time.
func (l *Live) emptyAll(ctx context.Context, known map[*record]*renewed) (done bool, err error) {
	r := l.b.tabs
	if err := r.begin(ctx); err != nil {
		return false, err
	}
	if err := r.settle(ctx); err != nil {
		return false, err
	}
	r.mu.Lock()
	tabs := slices.Clone(r.tabs)
	r.mu.Unlock()
	for tab := range known {
		if !slices.Contains(tabs, tab) {
			delete(known, tab)
		}
	}
	errs, fresh := make([]error, len(tabs)), make([]*renewed, len(tabs))
	var emptied sync.WaitGroup
	for i, tab := range tabs {
		emptied.Go(func() { fresh[i], errs[i] = l.empty(ctx, tab, known[tab]) })
	}
	emptied.Wait()
	done = true
	for i, tab := range tabs {
		if wake.Closed(tab.closed) {
			delete(known, tab)
			continue
		}
		if errs[i] != nil {
			return false, errs[i]
		}
		done = done && fresh[i] == known[tab]
		known[tab] = fresh[i]
	}
	return done, nil
}

// empty gives a tab an empty document, unless it has had one since before. It returns before itself in that case.
func (l *Live) empty(ctx context.Context, tab *record, before *renewed) (*renewed, error) {
	p, err := l.attached(ctx, tab)
	if err != nil {
		return nil, err
	}
	history, err := p.history(ctx)
	if err != nil {
		return nil, err
	}
	var now *page.NavigationEntry
	if i := history.CurrentIndex; i >= 0 && i < int64(len(history.Entries)) {
		now = history.Entries[i]
	}
	if before != nil && before.page == p && (now == nil || now.URL == blank) {
		return before, nil
	}
	out := &renewed{tab: tab, page: p}
	switch {
	case before != nil:
		// A script that is gone by now sent it elsewhere.
		out.entry, out.url = before.entry, before.url
	case now != nil && now.URL != blank && onTheWeb(now.URL):
		out.entry, out.url = now.ID, now.URL
	}
	// Scripts that never rest can be ended before the page is told to go elsewhere, and not afterwards.
	if !p.reacts(ctx) {
		p.terminate()
	}
	if err := p.visitEmpty(ctx); err == nil {
		return out, nil
	} else if ctx.Err() != nil || !p.open() {
		return nil, err
	}
	// It will not be left: the tab gets another page.
	out.entry = 0
	out.page, err = l.another(ctx, p)
	return out, err
}

// another gives a tab another page of the browser's, and waits for the end of the one before.
func (l *Live) another(ctx context.Context, p *Page) (*Page, error) {
	fresh, err := l.b.replace(ctx, p)
	if err != nil {
		return nil, err
	}
	return fresh, l.awaitEnd(ctx, p.id)
}

// onTheWeb says whether an address is one that its server answers for.
func onTheWeb(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https")
}

// visitEmpty shows an empty document, and waits until the one before is gone.
func (p *Page) visitEmpty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, emptyTimeout)
	defer cancel()
	arrived, err := p.arrival()
	if err != nil {
		return err
	}
	defer arrived.events.Close()
	var started page.NavigateResult
	err = unlessChanging(ctx, func(ctx context.Context) (err error) {
		started, err = cdp.Do(ctx, p.session, page.Navigate, page.NavigateParams{URL: blank})
		return err
	})
	if err != nil {
		return err
	}
	return arrived.wait(ctx, func(f *protocol.Frame) bool { return f.LoaderID == started.LoaderID })
}

// arrival are the documents of a page's main frame that come from now on.
type arrival struct {
	events *cdp.Subscription
	posted map[protocol.LoaderID]bool // those that were asked for with POST
}

func (p *Page) arrival() (*arrival, error) {
	events, err := p.session.Subscribe(page.FrameNavigated.Method, network.RequestWillBeSent.Method)
	return &arrival{events: events, posted: make(map[protocol.LoaderID]bool)}, err
}

// wait waits for the document that is meant.
func (a *arrival) wait(ctx context.Context, meant func(*protocol.Frame) bool) error {
	for {
		event, err := a.events.Next(ctx)
		var lost *cdp.LostError
		switch {
		case errors.As(err, &lost):
			continue
		case err != nil:
			return err
		case event.Method == network.RequestWillBeSent.Method:
			var e struct {
				LoaderID  protocol.LoaderID `json:"loaderId"`
				RequestID protocol.LoaderID `json:"requestId"`
				Request   struct {
					Method string `json:"method"`
				} `json:"request"`
			}
			if cdp.Decode(event.Params, &e) == nil && e.LoaderID == e.RequestID && e.Request.Method == "POST" && len(a.posted) < maxListed {
				a.posted[e.LoaderID] = true
			}
			continue
		}
		var e page.EventFrameNavigated
		if cdp.Decode(event.Params, &e) == nil && e.Frame != nil && e.Frame.ParentID == "" && meant(e.Frame) {
			return nil
		}
	}
}

// comeBack shows a tab's address again. It is no error when that cannot be loaded: the tab shows it.
func (l *Live) comeBack(ctx context.Context, r *renewed) error {
	if r.url == "" {
		return nil
	}
	arriving, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	arrived, err := r.page.arrival()
	if err != nil {
		return err
	}
	defer arrived.events.Close()
	if r.entry != 0 {
		_, err = cdp.Do(arriving, r.page.session, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: r.entry})
	}
	var refused *cdp.Error
	if r.entry == 0 || errors.As(err, &refused) {
		if err = r.page.visit(arriving, r.url); err == nil {
			err = arrived.wait(arriving, func(f *protocol.Frame) bool { return f.URL != blank })
		}
		return unlessGone(ctx, err)
	}
	var document protocol.LoaderID
	if err == nil {
		err = arrived.wait(arriving, func(f *protocol.Frame) bool { document = f.LoaderID; return f.URL != blank })
	}
	switch {
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		// Its server is slow. An address that is opened anew brings nothing else back, whenever it comes.
		going, cancel := context.WithTimeout(ctx, quietTimeout)
		defer cancel()
		return unlessGone(ctx, r.page.visit(going, r.url))
	case err != nil, arrived.posted[document]:
		// The data of a form is not sent again.
		return unlessGone(ctx, err)
	}
	// The history brings back what was in frames, where a script may have put it, and caches what it may have answered.
	past := true
	reload := func(ctx context.Context) error {
		_, err := cdp.Do(ctx, r.page.session, page.Reload, page.ReloadParams{IgnoreCache: &past})
		return err
	}
	if err = unlessChanging(arriving, reload); err != nil {
		return unlessGone(ctx, err)
	}
	for {
		waiting, cancel := context.WithTimeout(arriving, reactTimeout)
		err = arrived.wait(waiting, func(f *protocol.Frame) bool { return f.LoaderID != document })
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || arriving.Err() != nil {
			return unlessGone(ctx, err)
		}
		if l.asks(r.page) == nil && !r.page.reacts(arriving) {
			break // it hangs, and would stay as it is
		}
	}
	if r.page, err = l.another(ctx, r.page); err != nil {
		return err
	}
	r.entry = 0
	return l.comeBack(ctx, r)
}

// unlessGone is the error when it is the browser's end or the caller's, and not the page's.
func unlessGone(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, cdp.ErrBrowserGone), errors.Is(err, cdp.ErrClosed), ctx.Err() != nil:
		return err
	}
	return nil
}

// awaitEnd waits until a target is gone, with all that ran in it.
func (l *Live) awaitEnd(ctx context.Context, id target.ID) error {
	const often = 10
	tick := time.NewTicker(closeAgain / often)
	defer tick.Stop()
	for n := 1; ; n++ {
		infos, err := cdp.Do(ctx, l.b.conn.Browser(), target.GetTargets, target.GetTargetsParams{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(infos.TargetInfos, func(info *target.Info) bool { return info != nil && info.TargetID == id }) {
			return nil
		}
		// A page that is changing to another one at that moment forgets that it is to close. One that hangs is closed without
		// being asked half a second after the last time that it was told to.
		if n%often == 0 {
			_, _ = cdp.Do(ctx, l.b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: id})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// history is the tab's.
func (p *Page) history(ctx context.Context) (history page.GetNavigationHistoryResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, liveCommand)
	defer cancel()
	err = unlessChanging(ctx, func(ctx context.Context) (err error) {
		history, err = cdp.Do(ctx, p.session, page.GetNavigationHistory, protocol.Empty{})
		return err
	})
	return history, err
}

// unlessChanging asks the browser again while it refuses: a tab whose documents are changing places takes nothing for a moment.
func unlessChanging(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(workersPoll)
	defer tick.Stop()
	for {
		err := ask(ctx)
		var refused *cdp.Error
		if !errors.As(err, &refused) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
