package browser

import (
	"bytes"
	"context"
	"errors"
	"image"
	"math"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// screenshotTimeout is how long a picture may take unless the caller says so, and maxScreenshotTimeout the most.
	screenshotTimeout    = 20 * time.Second
	maxScreenshotTimeout = 120 * time.Second
	// maxSide bounds width and height of a picture in pixels; Chromium itself does not draw beyond 16384.
	maxSide = 16384
	// maxArea bounds the pixels of a picture, each of which costs the browser four bytes.
	maxArea = 64 << 20
	// maxViewport bounds the size of the page's window, which costs the jail memory.
	maxViewport = 8192
	// maxPicture bounds the encoded picture in bytes.
	maxPicture = 64 << 20
)

// Types of a picture.
const (
	PNG  = "png"
	JPEG = "jpeg"
)

// Tool implements Operation.
func (Screenshot) Tool() string { return "screenshot" }

// Target implements Operation.
func (o Screenshot) Target() string { return bounded(first(o.Ref, o.Element, o.TargetID), 200) }

// Effect implements Operation.
func (Screenshot) Effect() Effect { return Looks }

// Validate implements Operation.
func (o Screenshot) Validate() error {
	if o.FullPage && (o.Ref != "" || o.Element != "") {
		return problem.New(problem.BadRequest, "leave out fullPage, or ref and element", "fullPage is not supported for element screenshots")
	}
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkPlace(&flaws, o.TargetID, o.Element)
	if o.Ref != "" && o.Element != "" {
		flaws.Add("ref", "ref and element name an element each; give one of them")
	}
	if o.Type != "" && o.Type != PNG && o.Type != JPEG {
		flaws.Add("type", "%q is neither png nor jpeg", bounded(o.Type, 40))
	}
	if o.Quality < 0 || o.Quality > 100 {
		flaws.Add("quality", "%d is not between 1 and 100", o.Quality)
	}
	if o.Quality != 0 && o.Type != JPEG {
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
	timeoutWithin(&flaws, o.TimeoutMS, minTimeout, int(maxScreenshotTimeout.Milliseconds()))
	return flaws.Err()
}

// Limit implements Operation.
func (o Screenshot) Limit() time.Duration { return limit(o.TimeoutMS, screenshotTimeout) }

// Result implements Operation.
func (Screenshot) Result() any { return new(Picture) }

// Run implements Operation. One screenshot of a tab is taken at a time. One that scrolls to an element or changes the
// window waits for what steers the tab. A picture beyond 64 MiB is a bad_request.
func (o Screenshot) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	release, err := hold(ctx, p.photographed)
	if err != nil {
		return nil, err
	}
	defer release()
	if o.Width > 0 || o.Ref != "" || o.Element != "" {
		release, err := p.hold(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	picture := Picture{OK: true, TargetID: p.handle(), ContentType: "image/png"}
	if o.Type == JPEG {
		picture.ContentType = "image/jpeg"
	}
	if err := p.capture(ctx, o, &picture); err != nil {
		return nil, err
	}
	if len(picture.Data) > maxPicture {
		return nil, problem.New(problem.BadRequest, "take a smaller one, or a jpeg",
			"the picture has %d bytes; %d are allowed", len(picture.Data), maxPicture)
	}
	if picture.URL, _, err = p.info(ctx); err != nil {
		return nil, err
	}
	if size, _, err := image.DecodeConfig(bytes.NewReader(picture.Data)); err == nil {
		picture.Width, picture.Height = size.Width, size.Height
	}
	b.media.keep(&picture)
	return picture, nil
}

func (p *Page) capture(ctx context.Context, o Screenshot, picture *Picture) error {
	if o.Width > 0 {
		restore, err := p.resizeFor(ctx, o.Width, o.Height)
		if err != nil {
			return err
		}
		defer restore()
	}
	params := page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}
	quality := int64(80)
	if o.Type == JPEG {
		if o.Quality > 0 {
			quality = int64(o.Quality)
		}
		params.Format, params.Quality = page.CaptureScreenshotFormatJpeg, &quality
	}
	var err error
	switch {
	case o.FullPage:
		params.Clip, err = p.wholePage(ctx)
	case o.Ref != "" || o.Element != "":
		params.Clip, err = p.oneElement(ctx, Where{Ref: o.Ref, Selector: o.Element})
	}
	if err != nil {
		return err
	}
	if params.Clip != nil {
		beyond := true
		params.CaptureBeyondViewport = &beyond
	}
	var labels []label
	if o.Labels {
		if labels, err = p.labels(ctx, params.Clip, picture); err != nil {
			return err
		}
	}
	result, err := cdp.Do(ctx, p.session, page.CaptureScreenshot, params)
	if err != nil {
		return err
	}
	picture.Data = result.Data
	if len(labels) > 0 && len(picture.Data) <= maxPicture {
		picture.Data, err = drawLabels(picture.Data, labels, int(quality))
	}
	return err
}

// resizeFor gives the window another size. The function restore gives it its size back.
func (p *Page) resizeFor(ctx context.Context, width, height int) (restore func(), err error) {
	before, err := p.window(ctx)
	if err != nil {
		return nil, err
	}
	override := func(ctx context.Context, width, height int64, factor float64) error {
		_, err := cdp.Do(ctx, p.session, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: width, Height: height, DeviceScaleFactor: factor})
		return err
	}
	restore = func() {
		ctx, cancel := context.WithTimeout(context.Background(), quietTimeout)
		defer cancel()
		// A failure means that the page is gone or hangs, which the next operation will say.
		if _, err := cdp.Do(ctx, p.session, emulation.ClearDeviceMetricsOverride, protocol.Empty{}); err != nil {
			return
		}
		if now, err := p.window(ctx); err == nil && now != before {
			// Somebody had resized the page before.
			_ = override(ctx, int64(before.X), int64(before.Y), 0)
		}
	}
	if err := override(ctx, int64(width), int64(height), 1); err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}

// window is the size of the page's window with its scroll bars, in CSS pixels.
func (p *Page) window(ctx context.Context) (image.Point, error) {
	world, err := p.world(ctx)
	if err != nil {
		return image.Point{}, err
	}
	byValue := true
	answer, err := cdp.Do(ctx, p.session, runtime.Evaluate, runtime.EvaluateParams{
		Expression: "({X: innerWidth, Y: innerHeight})", ContextID: world, ReturnByValue: &byValue})
	if err != nil {
		return image.Point{}, err
	}
	var size image.Point
	if answer.Result == nil || cdp.Decode([]byte(answer.Result.Value), &size) != nil {
		return image.Point{}, errors.New("the page does not say how large its window is")
	}
	return size, nil
}

// viewport is what the page's window shows of the page, in CSS pixels.
func (p *Page) viewport(ctx context.Context) (page.LayoutViewport, error) {
	layout, err := cdp.Do(ctx, p.session, page.GetLayoutMetrics, protocol.Empty{})
	if err != nil || layout.CSSLayoutViewport == nil {
		return page.LayoutViewport{}, err
	}
	return *layout.CSSLayoutViewport, nil
}

// wholePage is the page's area, cut where Chromium stops drawing and where it would take too much memory.
func (p *Page) wholePage(ctx context.Context) (*page.Viewport, error) {
	layout, err := cdp.Do(ctx, p.session, page.GetLayoutMetrics, protocol.Empty{})
	if err != nil {
		return nil, err
	}
	clip := &page.Viewport{Width: 1, Height: 1, Scale: 1}
	if size := layout.CSSContentSize; size != nil {
		clip.Width, clip.Height = cut(size.Width, size.Height)
	}
	return clip, nil
}

// cut bounds the sides of a picture, the height last.
func cut(width, height float64) (w, h float64) {
	w = math.Min(math.Max(width, 1), maxSide)
	return w, math.Min(math.Min(math.Max(height, 1), maxSide), math.Floor(maxArea/w))
}

// oneElement scrolls to an element and returns the area of the page that it is in.
func (p *Page) oneElement(ctx context.Context, where Where) (*page.Viewport, error) {
	found, err := p.find(ctx, where)
	if err != nil {
		return nil, err
	}
	defer found.release()
	// It is refused for what has no box, which is said below.
	_, _ = cdp.Do(ctx, found.session, dom.ScrollIntoViewIfNeeded, dom.ScrollIntoViewIfNeededParams{ObjectID: found.object})
	x, y, width, height, err := found.box(ctx)
	if err != nil {
		return nil, err
	}
	if width < 1 || height < 1 {
		return nil, problem.New(problem.ActOperationFailed, "take a snapshot to see what the page shows",
			"the element %s is not visible: its size is %.0f by %.0f", where, width, height)
	}
	viewport, err := p.viewport(ctx)
	if err != nil {
		return nil, err
	}
	width, height = cut(width, height)
	return &page.Viewport{X: math.Max(x+float64(viewport.PageX), 0), Y: math.Max(y+float64(viewport.PageY), 0),
		Width: width, Height: height, Scale: 1}, nil
}
