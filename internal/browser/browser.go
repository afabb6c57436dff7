// Package browser is what one does with a browser: how it is started, how a page is opened, looked at and closed.
//
// A [Browser] stands on the connection of [cdp.Conn] and acts as the control plane: on the browser itself, beside any
// clients that share the pipe. What a page says (titles, addresses, dialogs) is hostile text; it is bounded here and
// only ever handed on as data.
//
// Errors are problems with a code: bad_url, bad_request, navigation_failed, timeout, browser_exited.
package browser

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	devtools "github.com/chromedp/cdproto/browser"
	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// closeTimeout bounds how long a browser may take to exit when asked; it takes 20 to 80 ms.
const closeTimeout = 5 * time.Second

// Version is what a browser says about itself.
type Version struct {
	// Product is name and version, such as "HeadlessChrome/156.0.8078.79".
	Product   string `json:"product"`
	UserAgent string `json:"user_agent"`
	Protocol  string `json:"protocol"`
}

// Browser is one browser, seen from the control plane. It is safe for use by many goroutines.
type Browser struct {
	conn    *cdp.Conn
	version Version

	opening sync.Mutex // held while the default page is looked for or made
	mu      sync.Mutex
	page    *Page
}

// Open waits for a browser's first reply, which says that it is ready. The Browser uses the connection from then on,
// and [Browser.Close] closes it; when Open fails, the connection is still the caller's.
func Open(ctx context.Context, conn *cdp.Conn) (*Browser, error) {
	version, err := cdp.Do(ctx, conn.Browser(), devtools.GetVersion, protocol.Empty{})
	if err != nil {
		return nil, explain(err, "open the browser")
	}
	return &Browser{conn: conn, version: Version{
		Product:   bounded(version.Product, maxText),
		UserAgent: bounded(version.UserAgent, maxText),
		Protocol:  bounded(version.ProtocolVersion, maxText),
	}}, nil
}

// Version is what the browser said about itself when it was opened.
func (b *Browser) Version() Version { return b.version }

// Conn is the connection, for what this package does not do.
func (b *Browser) Conn() *cdp.Conn { return b.conn }

// Done is closed when the browser is gone.
func (b *Browser) Done() <-chan struct{} { return b.conn.Done() }

// Tab is one open page.
type Tab struct {
	ID       string `json:"id"`
	URL      string `json:"url"`
	Title    string `json:"title"`
	Attached bool   `json:"attached"` // somebody controls it
}

// Tabs lists the open pages, at most a thousand.
func (b *Browser) Tabs(ctx context.Context) ([]Tab, error) {
	targets, err := b.pageTargets(ctx)
	if err != nil {
		return nil, explain(err, "list the tabs")
	}
	const most = 1000
	tabs := make([]Tab, 0, min(len(targets), most))
	for _, info := range targets[:min(len(targets), most)] {
		tabs = append(tabs, Tab{
			ID:       bounded(string(info.TargetID), maxText),
			URL:      bounded(info.URL, maxURL),
			Title:    bounded(info.Title, maxText),
			Attached: info.Attached,
		})
	}
	return tabs, nil
}

func (b *Browser) pageTargets(ctx context.Context) ([]*target.Info, error) {
	result, err := cdp.Do(ctx, b.conn.Browser(), target.GetTargets, target.GetTargetsParams{})
	if err != nil {
		return nil, err
	}
	var pages []*target.Info
	for _, info := range result.TargetInfos {
		// A prerendered page has the type too; nobody sees it.
		if info != nil && info.Type == "page" && info.Subtype == "" {
			pages = append(pages, info)
		}
	}
	return pages, nil
}

// Navigate opens an address in the default page; see [Page.Navigate].
func (b *Browser) Navigate(ctx context.Context, url string) (Result, error) {
	if _, err := CheckURL(url); err != nil {
		return Result{}, err
	}
	page, err := b.Page(ctx)
	if err != nil {
		return Result{}, err
	}
	return page.Navigate(ctx, url)
}

// Screenshot takes a picture of the default page; see [Page.Screenshot].
func (b *Browser) Screenshot(ctx context.Context, options ScreenshotOptions) ([]byte, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	page, err := b.Page(ctx)
	if err != nil {
		return nil, err
	}
	return page.Screenshot(ctx, options)
}

// Page returns the default page: the one it returned before while that is open, else the first that is open, else a
// new one.
func (b *Browser) Page(ctx context.Context) (*Page, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	b.mu.Lock()
	page := b.page
	b.mu.Unlock()
	if page != nil {
		if page.open() {
			return page, nil
		}
		page.release()
	}
	page, err := b.openDefault(ctx)
	if err != nil {
		return nil, explain(err, "open a page")
	}
	b.mu.Lock()
	b.page = page
	b.mu.Unlock()
	return page, nil
}

func (b *Browser) openDefault(ctx context.Context) (*Page, error) {
	targets, err := b.pageTargets(ctx)
	if err != nil {
		return nil, err
	}
	if len(targets) > 0 {
		return attachPage(ctx, b.conn, targets[0].TargetID)
	}
	made, err := cdp.Do(ctx, b.conn.Browser(), target.CreateTarget, target.CreateTargetParams{URL: blank})
	if err != nil {
		return nil, err
	}
	return attachPage(ctx, b.conn, made.TargetID)
}

// Close asks the browser to exit, waits until it did, and closes the connection. When the browser does not go within
// the deadline of ctx, or five seconds, the connection is closed all the same, which ends a healthy browser too; the
// error says that it had to be.
func (b *Browser) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	// It may go before it answers: what counts is that it goes.
	asked := b.conn.Call(ctx, "", devtools.Close.Method, nil, nil)
	var late error
	if asked == nil || errors.Is(asked, cdp.ErrBrowserGone) {
		select {
		case <-b.conn.Done():
		case <-ctx.Done():
			late = context.Cause(ctx)
		}
	} else if b.conn.Err() == nil {
		late = asked
	}
	closed := b.conn.Close()
	b.mu.Lock()
	page := b.page
	b.mu.Unlock()
	if page != nil {
		page.release()
	}
	if late != nil {
		return problem.Wrap(errors.Join(late, closed), problem.Timeout, "its jail ends it in any case",
			"the browser did not exit when it was asked to")
	}
	if closed != nil {
		return fmt.Errorf("close the browser's pipe: %w", closed)
	}
	return nil
}
