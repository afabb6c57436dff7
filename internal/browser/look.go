package browser

import (
	"context"
	"errors"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// Address is where the current tab is now.
func (b *Browser) Address(ctx context.Context) (string, error) {
	page, err := b.Page(ctx)
	if err != nil {
		return "", err
	}
	url, _, err := page.info(ctx)
	var refused *cdp.Error
	if errors.As(err, &refused) {
		return "", nil // it was closed at this moment
	}
	return url, explain(err, "ask where the page is")
}

// Has says whether the current tab has an element that a CSS selector matches. The page's scripts do not notice and
// cannot answer for it. The code is bad_request for what is no selector.
func (b *Browser) Has(ctx context.Context, selector string) (bool, error) {
	page, err := b.Page(ctx)
	if err != nil {
		return false, err
	}
	if page.crashed() {
		return false, page.pageCrashed()
	}
	// Asking for the document makes the browser report every change of it.
	defer func() { _, _ = cdp.Do(ctx, page.session, dom.Disable, protocol.Empty{}) }() // a page that is gone reports nothing
	depth := int64(0)
	document, err := cdp.Do(ctx, page.session, dom.GetDocument, dom.GetDocumentParams{Depth: &depth})
	if err != nil {
		return false, explain(err, "look at the page")
	}
	found, err := cdp.Do(ctx, page.session, dom.QuerySelector, dom.QuerySelectorParams{NodeID: document.Root.NodeID, Selector: selector})
	var refused *cdp.Error
	if errors.As(err, &refused) {
		return false, problem.Wrap(err, problem.BadRequest, "correct the selector", "the page cannot be searched for %q", bounded(selector, 200))
	}
	if err != nil {
		return false, explain(err, "look at the page")
	}
	return found.NodeID != 0, nil
}
