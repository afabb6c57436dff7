package browser

import (
	"context"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// blockedByPolicy is what Chromium says of an address that its administrator has blocked.
const blockedByPolicy = "net::ERR_BLOCKED_BY_ADMINISTRATOR"

// Administered says whether a full Chromium has read what its administrator decided, by what it does: it is sent to a local
// file, in an invisible page. The error has the code jail_failed.
func (b *Browser) Administered(ctx context.Context) error {
	var said string
	err := b.withHidden(ctx, func(ctx context.Context, h *hiddenPage) error {
		result, err := cdp.Do(ctx, h.session, page.Navigate, page.NavigateParams{URL: "file:///"})
		said = result.ErrorText
		return err
	})
	if err != nil {
		return explain(err, "see what the browser may open")
	}
	if said != blockedByPolicy {
		return problem.New(problem.JailFailed, "`clawjail template verify` looks for the reason",
			"the browser does not obey its policies: it opened a local file")
	}
	return b.foremost(ctx)
}

// foremost brings the first page to the front again: a page that is behind another's window is not drawn.
func (b *Browser) foremost(ctx context.Context) error {
	pages, err := b.targets(ctx)
	if err != nil || len(pages) == 0 {
		return explain(err, "look at the pages of the browser")
	}
	_, err = cdp.Do(ctx, b.conn.Browser(), target.ActivateTarget, target.ActivateTargetParams{TargetID: pages[0].TargetID})
	return explain(err, "bring the page to the front")
}
