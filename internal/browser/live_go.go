package browser

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// goTimeout is how long an address may take to answer. The picture shows what comes of it.
	goTimeout = time.Minute
	// goPatience is how long a person's next input waits for one that goes elsewhere.
	goPatience = 1500 * time.Millisecond
)

// typedURL is what a person means by an address that they have typed: example.com is https://example.com.
func typedURL(raw string) (string, error) {
	trimmed := strings.TrimSpace(raw)
	if trimmed == "" {
		return blank, nil
	}
	if !strings.Contains(trimmed, "://") && !schemed(trimmed) {
		trimmed = "https://" + trimmed
	}
	return CheckURL(trimmed)
}

// schemed says whether an address begins with a scheme, such as about:blank and javascript:alert(1). That of
// localhost:8080 and example.com:443 is no scheme, but a host.
func schemed(address string) bool {
	scheme, rest, ok := strings.Cut(address, ":")
	if !ok || scheme == "" || strings.ContainsAny(scheme, "./?#@[") {
		return false
	}
	port, _, _ := strings.Cut(rest, "/")
	return !isNumber(port)
}

// leave goes to another page. The browser is given a moment; what takes longer goes on while the person does other things.
func (l *Live) leave(ctx context.Context, p *Page, in LiveInput) error {
	address := ""
	if in.Type == "go" {
		var err error
		if address, err = typedURL(in.URL); err != nil {
			return err
		}
	}
	// The page answers nothing while it asks something.
	l.dismiss(ctx, p)
	if in.Type == "stop" {
		ctx, cancel := context.WithTimeout(ctx, inputTimeout)
		defer cancel()
		_, err := cdp.Do(ctx, p.session, page.StopLoading, protocol.Empty{})
		return err
	}
	outcome := make(chan error, 1)
	if !l.launch(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, goTimeout)
		defer cancel()
		outcome <- l.depart(ctx, p, in.Type, address)
	}) {
		return l.gone()
	}
	wait := time.NewTimer(goPatience)
	defer wait.Stop()
	select {
	case err := <-outcome:
		return err
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// depart leaves the page's document. A page whose scripts never rest is ended first; where that does not help, the tab gets
// another page of the browser's, under the same handle.
func (l *Live) depart(ctx context.Context, p *Page, how, address string) error {
	stuck := false
	if l.asks(p) == nil && !p.reacts(ctx) {
		p.terminate()
		stuck = !p.reacts(ctx)
	}
	l.mu.Lock()
	l.hands.stuck, l.hands.astray = nil, nil
	l.mu.Unlock()
	if !stuck {
		var err error
		if stuck, err = l.exchange(ctx, p, func(ctx context.Context) error { return p.depart(ctx, how, address) }); !stuck {
			return err
		}
	}
	if how != "go" {
		url, _, err := p.info(ctx)
		if err != nil {
			return err
		}
		address = blank
		if checked, err := CheckURL(url); err == nil {
			address = checked
		}
	}
	p, err := l.b.replace(ctx, p)
	if err != nil {
		return err
	}
	return p.visit(ctx, address)
}

// exchange has a page go elsewhere, until it has another document. The page is stuck when its scripts have begun meanwhile what
// never ends: no other document can take the place of theirs then, and the browser does not let them be ended any more.
func (l *Live) exchange(ctx context.Context, p *Page, set func(ctx context.Context) error) (stuck bool, err error) {
	arrived, err := p.arrival()
	if err != nil {
		return false, err
	}
	defer arrived.events.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	var refused error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if refused = set(ctx); refused != nil {
			cancel(refused)
		}
	}()
	defer func() {
		cancel(nil)
		<-answered
	}()
	unreachable := ""
	for ended := false; ; {
		waiting, stop := context.WithTimeout(ctx, reactTimeout)
		late := arrived.wait(waiting, func(f *protocol.Frame) bool { unreachable = f.UnreachableURL; return true })
		stop()
		if late == nil || ctx.Err() != nil || !errors.Is(late, context.DeadlineExceeded) {
			<-answered
			if refused == nil && unreachable != "" { // going back, or the same page again
				refused = failed(unreachable, "the browser shows why", nil)
			}
			return false, refused
		}
		reacts := p.reacts(ctx)
		switch {
		case l.asks(p) != nil: // it waits for the person
			<-answered
			return false, refused
		case !reacts && ended:
			return true, nil
		case !reacts:
			p.terminate()
			ended = true
			continue
		}
		select {
		case <-answered: // it may be a download
			return false, refused
		default:
		}
	}
}

// depart has the page go elsewhere.
func (p *Page) depart(ctx context.Context, how, address string) error {
	switch how {
	case "go":
		return p.visit(ctx, address)
	case "reload":
		_, err := cdp.Do(ctx, p.session, page.Reload, page.ReloadParams{})
		return err
	}
	history, err := p.history(ctx)
	if err != nil {
		return err
	}
	index := history.CurrentIndex + 1
	if how == "back" {
		index = history.CurrentIndex - 1
	}
	if index < 0 || index >= int64(len(history.Entries)) {
		return problem.New(problem.BadRequest, "", "there is no page %s from here", how)
	}
	_, err = cdp.Do(ctx, p.session, page.NavigateToHistoryEntry,
		page.NavigateToHistoryEntryParams{EntryID: history.Entries[index].ID})
	return err
}

// visit opens an address, and waits until its server has answered and not until it is loaded.
func (p *Page) visit(ctx context.Context, address string) error {
	events, err := p.session.Subscribe(page.FrameNavigated.Method, page.FrameStoppedLoading.Method)
	if err != nil {
		return err
	}
	defer events.Close()
	started, err := cdp.Do(ctx, p.session, page.Navigate, page.NavigateParams{URL: address})
	var refused *cdp.Error
	switch {
	case errors.As(err, &refused):
		return failed(address, refused.Message, err)
	case err != nil:
		return err
	case started.ErrorText != "" && !started.IsDownload && started.ErrorText != "net::ERR_ABORTED":
		watch := loading{frame: started.FrameID, wanted: started.LoaderID, loader: started.LoaderID}
		return failed(cmp.Or(watch.arrive(ctx, events, p.b.now), address), started.ErrorText, nil)
	}
	return nil
}

// doTab selects, opens and closes tabs.
func (l *Live) doTab(ctx context.Context, in LiveInput) error {
	ctx, cancel := context.WithTimeout(ctx, closeTabTimeout)
	defer cancel()
	if in.Type == "open" {
		return l.openTab(ctx, in.URL)
	}
	tab, err := l.b.record(ctx, in.Tab)
	if err != nil {
		return err
	}
	if in.Type == "tab" {
		if err := l.b.activate(ctx, tab); err != nil {
			return err
		}
		l.keepSize(ctx)
		return nil
	}
	l.b.tabs.mu.Lock()
	p := tab.page
	l.b.tabs.mu.Unlock()
	if p != nil {
		l.dismiss(ctx, p)
	}
	return l.b.closeTab(ctx, tab)
}

func (l *Live) openTab(ctx context.Context, raw string) error {
	address, err := typedURL(raw)
	if err != nil {
		return err
	}
	if l.b.tabs.count() >= l.b.tabs.limit {
		return problem.New(problem.Conflict, "close some of them first", "%d tabs are open, and no more may be", l.b.tabs.limit)
	}
	tab, err := l.b.create(ctx)
	if err != nil {
		return err
	}
	p, err := l.b.attach(ctx, tab)
	if err != nil {
		return err
	}
	if err := l.b.activate(ctx, tab); err != nil {
		return err
	}
	l.keepSize(ctx)
	if l.held.Load() {
		l.attendPage(ctx, p)
	}
	if address == blank {
		return nil
	}
	return l.leave(ctx, p, LiveInput{Type: "go", URL: address})
}

// resize gives the current tab's window another size, and every tab that the person looks at from then on.
func (l *Live) resize(ctx context.Context, p *Page, width, height int) error {
	l.mu.Lock()
	l.hands.window = [2]int{width, height}
	l.mu.Unlock()
	return l.fit(ctx, p)
}

// keepSize gives the current tab the size that a person has chosen. A tab that hangs keeps its own.
func (l *Live) keepSize(ctx context.Context) {
	if p, err := l.page(ctx); err == nil && p != nil {
		_ = l.fit(ctx, p)
	}
}

// fit gives a page's window the size that a person has chosen. The window itself stays: a resize is undone without a trace, and
// one of the agent's is there again afterwards.
func (l *Live) fit(ctx context.Context, p *Page) error {
	l.mu.Lock()
	size := l.hands.window
	_, resized := l.hands.resized[p]
	l.mu.Unlock()
	if size == ([2]int{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, inputTimeout)
	defer cancel()
	if resized {
		_, err := cdp.Do(ctx, p.session, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: int64(size[0]), Height: int64(size[1]), DeviceScaleFactor: 1})
		return err
	}
	restore, err := p.resizeFor(ctx, size[0], size[1])
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hands.resized == nil {
		l.hands.resized = make(map[*Page]func())
	}
	l.hands.resized[p] = restore
	return nil
}
