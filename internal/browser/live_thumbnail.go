package browser

import (
	"context"
	"errors"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	thumbnailWidth   = 320
	thumbnailQuality = 55
	// thumbnailTimeout bounds a thumbnail, which takes 50 ms.
	thumbnailTimeout = 3 * time.Second
)

// Thumbnail is a small JPEG of the current tab, 320 pixels wide. It does not disturb who uses the tab.
func (l *Live) Thumbnail(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, thumbnailTimeout)
	defer cancel()
	p, err := l.page(ctx)
	if err == nil && p == nil {
		err = noTab()
	}
	if err != nil {
		return nil, explain(err, "take a thumbnail")
	}
	shot, _, _, err := p.photograph(ctx, thumbnailWidth)
	return shot, explain(err, "take a thumbnail")
}

// photograph takes a JPEG of what the page's window shows, of that width or, with zero, of its own. It waits for no other
// screenshot.
func (p *Page) photograph(ctx context.Context, wide int) (shot []byte, width, height int, err error) {
	layout, err := cdp.Do(ctx, p.session, page.GetLayoutMetrics, protocol.Empty{})
	if err != nil {
		return nil, 0, 0, err
	}
	seen := layout.CSSVisualViewport
	if seen == nil || seen.ClientWidth < 1 || seen.ClientHeight < 1 {
		return nil, 0, 0, errors.New("the page has no window")
	}
	quality := int64(liveQuality)
	clip := &page.Viewport{X: seen.PageX, Y: seen.PageY, Width: seen.ClientWidth, Height: seen.ClientHeight, Scale: 1}
	if wide > 0 {
		quality, clip.Scale = thumbnailQuality, float64(wide)/seen.ClientWidth
	}
	taken, err := cdp.Do(ctx, p.session, page.CaptureScreenshot,
		page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatJpeg, Quality: &quality, Clip: clip})
	return taken.Data, int(seen.ClientWidth), int(seen.ClientHeight), err
}
