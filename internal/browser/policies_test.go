package browser

import (
	"context"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
)

// TestABrowserOutlivesAHiddenPageWithAnError waits longer than Chromium does before it looks for what is left of a context.
func TestABrowserOutlivesAHiddenPageWithAnError(t *testing.T) {
	t.Parallel()
	_, pages := newFileSite(t)
	b := openOwn(t, Full, newGateway(t, pages).URL)
	useFolder(t, b)
	err := b.withHidden(within(t, 20*time.Second), func(ctx context.Context, h *hiddenPage) error {
		result, err := cdp.Do(ctx, h.session, page.Navigate, page.NavigateParams{URL: "http://127.0.0.1:1"})
		if result.ErrorText == "" {
			t.Error("the hidden page has no error")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-time.After(70 * time.Second):
	case <-b.conn.Done():
		t.Fatal("the browser ended")
	}
	goTo(t, b, "/page")
}
