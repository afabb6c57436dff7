// Package browser is what one does with a browser: how it is started, how a page is opened, looked at, used and closed.
//
// A [Browser] stands on the connection of [cdp.Conn] and acts as the control plane: on the browser itself, beside any
// clients that share the pipe. Every use of it is an [Operation]; [Browser.Do] runs one. The texts of a page (titles,
// addresses, dialogs, its console) are hostile; they are bounded here and only ever handed on as data.
//
// Errors are problems with a code, such as bad_url, bad_request, tab_not_found, navigation_failed, timeout or
// browser_exited.
package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	devtools "github.com/chromedp/cdproto/browser"
	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

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
	now     func() time.Time

	tabs      *registry
	opening   chan struct{} // holds a token while the current tab is looked for or made
	documents atomic.Uint64 // counts the documents of all tabs
	folder    folder
	network   jarMark
	// attendance is about the dialogs of pages that DevTools clients drive.
	attendance *attendance
	media      media
	live       *Live
	concealed  atomic.Pointer[redact.Values] // what pages must not show; nil: nothing
	seekers    atomic.Uint64                 // counts, for the names of their handles
	emptying   chan struct{}                 // holds a token while an empty page is opened and used
	prepared   prepared
	visited    visited
}

// Open waits for a browser's first reply, which says that it is ready. The Browser uses the connection from then on,
// and [Browser.Close] closes it; when Open fails, the connection is still the caller's.
func Open(ctx context.Context, conn *cdp.Conn) (*Browser, error) {
	version, err := cdp.Do(ctx, conn.Browser(), devtools.GetVersion, protocol.Empty{})
	if err != nil {
		return nil, explain(err, "open the browser")
	}
	b := &Browser{conn: conn, now: time.Now, opening: make(chan struct{}, 1), emptying: make(chan struct{}, 1), network: jarMark{marking: make(chan struct{}, 1)},
		attendance: newAttendance(), version: Version{
			Product:   bounded(version.Product, maxText),
			UserAgent: bounded(version.UserAgent, maxText),
			Protocol:  bounded(version.ProtocolVersion, maxText),
		}}
	b.tabs = newRegistry(b)
	b.live = newLive(b)
	return b, nil
}

// Version is what the browser said about itself when it was opened.
func (b *Browser) Version() Version { return b.version }

// Conn is the connection, for what this package does not do.
func (b *Browser) Conn() *cdp.Conn { return b.conn }

// Done is closed when the browser is gone.
func (b *Browser) Done() <-chan struct{} { return b.conn.Done() }

// isTab says whether a target is a page that a client or a person may have. A full Chromium also lists the pages of its own
// window, such as the list below the address bar, and the one of our own errands is hidden.
func (b *Browser) isTab(info *target.Info) bool {
	if info.Type != "page" || b.hiddenContext(string(info.BrowserContextID)) || b.tabs.isOwn(info.TargetID) {
		return false
	}
	return !ofWindow(info.URL)
}

// ofWindow says whether an address is of a part of the browser's window.
func ofWindow(address string) bool {
	rest, ok := strings.CutPrefix(address, "chrome://")
	host, _, _ := strings.Cut(rest, "/")
	return ok && strings.HasSuffix(host, ".top-chrome")
}

// targets lists the targets that are pages, also invisible ones.
func (b *Browser) targets(ctx context.Context) ([]*target.Info, error) {
	result, err := cdp.Do(ctx, b.conn.Browser(), target.GetTargets, target.GetTargetsParams{Filter: pagesOnly()})
	if err != nil {
		return nil, err
	}
	var pages []*target.Info
	for _, info := range result.TargetInfos {
		if info != nil && b.isTab(info) {
			pages = append(pages, info)
		}
	}
	return pages, nil
}

// Navigate opens an address in the current tab; see [Page.Navigate].
func (b *Browser) Navigate(ctx context.Context, url string) (Result, error) {
	if _, err := CheckURL(url); err != nil {
		return Result{}, err
	}
	result, err := b.navigate(ctx, "", url)
	return result, explain(err, "navigate")
}

// Page returns the current tab: the one that was focused last, else the oldest, else a new one.
func (b *Browser) Page(ctx context.Context) (*Page, error) {
	page, err := b.tab(ctx, "")
	return page, explain(err, "open a page")
}

// Close asks the browser to exit, waits until it did, which takes 20 to 80 ms, and closes the connection. When the browser does
// not go before ctx ends, the connection is closed all the same, which ends a healthy browser too; the error says that it had to be.
func (b *Browser) Close(ctx context.Context) error {
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
	b.attendance.end()
	b.live.end()
	b.tabs.end()
	b.folder.task.Wait()
	b.endPrepared()
	if late != nil {
		return problem.Wrap(errors.Join(late, closed), problem.Timeout, "its jail ends it in any case",
			"the browser did not exit when it was asked to")
	}
	if closed != nil {
		return fmt.Errorf("close the browser's pipe: %w", closed)
	}
	return nil
}
