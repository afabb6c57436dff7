package browser

import (
	"context"
	"math"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// screenshotTimeout is how long a picture may take when the caller sets no deadline.
	screenshotTimeout = 20 * time.Second
	// maxSide bounds width and height of a picture in pixels; Chromium itself does not draw beyond 16384.
	maxSide = 16384
	// maxViewport bounds the size of the page's window, which costs the jail memory.
	maxViewport = 8192
	// maxPicture bounds the encoded picture in bytes.
	maxPicture = 64 << 20
)

// Formats of a picture.
const (
	PNG  = "png"
	JPEG = "jpeg"
)

// ScreenshotOptions says what picture to take. The zero value is a PNG of what the page's window shows.
type ScreenshotOptions struct {
	// Format is "png" or "jpeg"; empty is "png".
	Format string `json:"format,omitempty"`
	// Quality is 1 to 100, for JPEG only; zero is 80.
	Quality int `json:"quality,omitempty"`
	// FullPage takes the whole page instead of what is in view, down to 16384 pixels.
	FullPage bool `json:"full_page,omitempty"`
	// Width and Height give the window another size for the picture, both or neither, at most 8192 pixels.
	Width  int `json:"width,omitempty"`
	Height int `json:"height,omitempty"`
}

// Validate reports everything that is wrong, with the code bad_request.
func (o ScreenshotOptions) Validate() error {
	flaws := problem.Many{Code: problem.BadRequest}
	if o.Format != "" && o.Format != PNG && o.Format != JPEG {
		flaws.Add("format", "%q is neither png nor jpeg", bounded(o.Format, 40))
	}
	if o.Quality < 0 || o.Quality > 100 {
		flaws.Add("quality", "%d is not between 1 and 100", o.Quality)
	}
	if o.Quality != 0 && o.Format != JPEG {
		flaws.Add("quality", "only a jpeg has one")
	}
	for _, side := range []struct {
		name  string
		value int
	}{{"width", o.Width}, {"height", o.Height}} {
		if side.value < 0 || side.value > maxViewport {
			flaws.Add(side.name, "%d is not between 1 and %d", side.value, maxViewport)
		}
	}
	if (o.Width == 0) != (o.Height == 0) {
		flaws.Add("width", "width and height are given together")
	}
	return flaws.Err()
}

// Screenshot takes a picture of the page. The error's code is bad_request, timeout or browser_exited. A
// picture beyond 64 MB is a bad_request.
func (p *Page) Screenshot(ctx context.Context, options ScreenshotOptions) ([]byte, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, screenshotTimeout)
		defer cancel()
	}
	release, err := hold(ctx, p.photographed)
	if err != nil {
		return nil, explain(err, "take a screenshot")
	}
	defer release()
	picture, err := p.capture(ctx, options)
	if err != nil {
		return nil, explain(err, "take a screenshot")
	}
	if len(picture) > maxPicture {
		return nil, problem.New(problem.BadRequest, "take a smaller one, or a jpeg",
			"take a screenshot: the picture has %d bytes; %d are allowed", len(picture), maxPicture)
	}
	return picture, nil
}

func (p *Page) capture(ctx context.Context, options ScreenshotOptions) ([]byte, error) {
	if options.Width > 0 {
		_, err := cdp.Do(ctx, p.session, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: int64(options.Width), Height: int64(options.Height), DeviceScaleFactor: 1})
		if err != nil {
			return nil, err
		}
		defer p.quietly(emulation.ClearDeviceMetricsOverride.Method)
	}
	params := page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}
	if options.Format == JPEG {
		quality := int64(80)
		if options.Quality > 0 {
			quality = int64(options.Quality)
		}
		params.Format, params.Quality = page.CaptureScreenshotFormatJpeg, &quality
	}
	if options.FullPage {
		clip, err := p.wholePage(ctx)
		if err != nil {
			return nil, err
		}
		beyond := true
		params.Clip, params.CaptureBeyondViewport = clip, &beyond
	}
	result, err := cdp.Do(ctx, p.session, page.CaptureScreenshot, params)
	return result.Data, err
}

// wholePage is the page's area, cut where Chromium stops drawing.
func (p *Page) wholePage(ctx context.Context) (*page.Viewport, error) {
	layout, err := cdp.Do(ctx, p.session, page.GetLayoutMetrics, protocol.Empty{})
	if err != nil {
		return nil, err
	}
	clip := &page.Viewport{Width: 1, Height: 1, Scale: 1}
	if size := layout.CSSContentSize; size != nil {
		clip.Width = math.Min(math.Max(size.Width, 1), maxSide)
		clip.Height = math.Min(math.Max(size.Height, 1), maxSide)
	}
	return clip, nil
}
