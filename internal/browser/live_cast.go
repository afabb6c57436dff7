package browser

import (
	"bytes"
	"context"
	"errors"
	"image/jpeg"
	"time"

	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// liveQuality is that of the JPEG frames: text is crisp at it.
	liveQuality = 70
	// maxLiveWidth and maxLiveHeight bound a frame. No window of a person's is larger, so frames are not scaled.
	maxLiveWidth, maxLiveHeight = 2560, 1600
	// liveCommand bounds a command to the browser for the live view, which takes a millisecond.
	liveCommand = 2 * time.Second
	// liveRound is the least time between two looks at what has changed: a page that renames itself all day costs little.
	liveRound = 30 * time.Millisecond
	// liveRetry is after how long a tab that could not be watched is tried again.
	liveRetry = time.Second
	// liveGlance is after how long the state is asked for anew while somebody looks: Chromium sends no event when a page
	// only changes its title.
	liveGlance = time.Second
	// stillEvery is how often a tab that the browser does not draw, because another one is in front of it, is photographed.
	stillEvery = 2 * time.Second
	// stillAfter is how long the first frame may take before the tab is photographed.
	stillAfter = time.Second
	// resizedRest is how long after a change of a page's size its screencast begins anew. Chromium now and then loses the
	// frame that it draws while a size changes, and sends none before something else changes.
	resizedRest = 200 * time.Millisecond
)

// cast is one screencast.
type cast struct {
	page  *Page
	drawn chan struct{} // holds a token when the last frame was drawn by somebody
	stop  context.CancelFunc
	done  chan struct{} // closed when it has ended
}

func (c *cast) over() bool {
	return wake.Closed(c.done)
}

// follow keeps the screencast on the current tab, and the state up to date.
func (l *Live) follow(ctx context.Context) {
	defer l.finish()
	for {
		var glance <-chan time.Time
		if _, visible := l.lookedAt(); visible {
			glance = time.After(liveGlance)
		}
		select {
		case <-l.wake:
		case <-glance:
			l.describe(ctx)
			continue
		case <-l.b.conn.Done():
			return
		case <-ctx.Done():
			return
		}
		var again <-chan time.Time
		if !l.look(ctx) {
			again = time.After(liveRetry)
		}
		l.attendAll(ctx)
		l.describe(ctx)
		select {
		case <-time.After(liveRound):
		case <-ctx.Done():
			return
		}
		if again != nil {
			select {
			case <-again:
				l.poke()
			case <-l.wake:
				l.poke()
			case <-l.b.conn.Done():
			case <-ctx.Done():
			}
		}
	}
}

// finish says why there is nothing more.
func (l *Live) finish() {
	l.mu.Lock()
	c := l.cast
	if l.ended == nil {
		l.ended = l.gone()
	}
	l.cast, l.frame = nil, nil
	l.tellLocked()
	l.mu.Unlock()
	if c != nil {
		c.stop()
		<-c.done
	}
}

// look starts, ends and moves the screencast. It is false when that has to be tried again.
func (l *Live) look(ctx context.Context) bool {
	_, visible := l.lookedAt()
	var p *Page
	var err error
	if visible {
		p, err = l.page(ctx)
	}
	l.mu.Lock()
	c := l.cast
	l.mu.Unlock()
	if c != nil && (c.page != p || c.over()) {
		c.stop()
		<-c.done
		l.mu.Lock()
		l.cast, l.frame = nil, nil
		l.mu.Unlock()
		c = nil
	}
	if p == nil || c != nil {
		return err == nil
	}
	if l.held.Load() {
		l.front(ctx, p)
	}
	casting, stop := context.WithCancel(ctx)
	c = &cast{page: p, drawn: make(chan struct{}, 1), stop: stop, done: make(chan struct{})}
	l.mu.Lock()
	l.cast = c
	l.mu.Unlock()
	l.casts.Add(1)
	l.task.Go(func() { l.run(casting, c) })
	return true
}

// page is the current tab's, attached; nil when there is no tab. It opens none and waits for none that hangs.
func (l *Live) page(ctx context.Context) (*Page, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareGrace+liveCommand)
	defer cancel()
	if err := l.b.tabs.begin(ctx); err != nil {
		return nil, err
	}
	tab := l.b.tabs.currentTab()
	if tab == nil {
		return nil, nil
	}
	return l.attached(ctx, tab)
}

// attached is the page of a tab. One that is attached already is not waited for, however little it reacts.
func (l *Live) attached(ctx context.Context, tab *record) (*Page, error) {
	if p := l.b.tabs.driven(tab); p != nil {
		return p, nil
	}
	return l.b.attach(ctx, tab)
}

// front brings a tab to the front, where the browser draws it. It is called while a person steers: viewers who only watch change no tab.
func (l *Live) front(ctx context.Context, p *Page) {
	ctx, cancel := context.WithTimeout(ctx, liveCommand)
	defer cancel()
	// A tab that is gone is not shown; its end is told by an event.
	_ = l.b.conn.Browser().Call(ctx, "Target.activateTarget", map[string]any{"targetId": p.id}, nil)
}

// run carries frames from the browser to the viewers until ctx or the tab ends.
func (l *Live) run(ctx context.Context, c *cast) {
	defer l.poke()
	defer close(c.done)
	defer c.stop()
	p := c.page
	events, err := p.session.Subscribe(page.ScreencastFrame.Method, page.ScreencastVisibilityChanged.Method, page.FrameResized.Method)
	if err != nil {
		return
	}
	defer events.Close()
	defer p.quietly(page.StopScreencast.Method)
	for again := true; again; {
		again = l.start(ctx, p) && l.carry(ctx, c, events)
	}
}

// start starts the screencast, or starts it anew.
func (l *Live) start(ctx context.Context, p *Page) bool {
	ctx, cancel := context.WithTimeout(ctx, liveCommand)
	defer cancel()
	// One that does not run is stopped already.
	if err := p.session.Call(ctx, page.StopScreencast.Method, nil, nil); err != nil && ctx.Err() != nil {
		return false
	}
	quality, last := int64(liveQuality), true
	// One frame is under way at a time, so that none is stale when it arrives; the browser keeps the last one, so that a page
	// that has come to rest is shown as it is.
	_, err := cdp.Do(ctx, p.session, page.StartScreencast, page.StartScreencastParams{
		Format: page.StartScreencastFormatJpeg, Quality: &quality, MaxWidth: maxLiveWidth, MaxHeight: maxLiveHeight,
		EveryNthFrame: 1, MaxFramesInFlight: 1, SendLastFrame: &last})
	return err == nil
}

// carry reads the events of a screencast, and says whether it is to begin anew. A tab that the browser does not draw is
// photographed now and then instead.
func (l *Live) carry(ctx context.Context, c *cast, events *cdp.Subscription) (again bool) {
	still, resized := time.Now().Add(stillAfter), time.Time{}
	for {
		var event cdp.EventMessage
		var err error
		if until := earlier(still, resized); until.IsZero() {
			event, err = events.Next(ctx)
		} else {
			event, err = nextUntil(ctx, events, until)
		}
		var lost *cdp.LostError
		switch {
		case errors.Is(err, errQuiet) && !resized.IsZero() && !time.Now().Before(resized):
			return true
		case errors.Is(err, errQuiet):
			l.still(ctx, c.page)
			still = time.Now().Add(stillEvery)
			continue
		case errors.As(err, &lost):
			return false // frames that were not acknowledged are among it: the next screencast begins anew
		case err != nil:
			return false
		case event.Method == page.FrameResized.Method:
			resized = time.Now().Add(resizedRest)
			continue
		case event.Method == page.ScreencastVisibilityChanged.Method:
			var e page.EventScreencastVisibilityChanged
			if cdp.Decode(event.Params, &e) == nil {
				if still = (time.Time{}); !e.Visible {
					still = time.Now().Add(stillAfter)
				}
			}
			continue
		}
		var e page.EventScreencastFrame
		if cdp.Decode(event.Params, &e) != nil || e.Metadata == nil {
			return false
		}
		still = time.Time{}
		drawn := (<-chan struct{})(c.drawn)
		var pass <-chan time.Time
		if !l.publish(c, &Frame{JPEG: e.Data, Width: int(e.Metadata.DeviceWidth), Height: int(e.Metadata.DeviceHeight), At: l.b.now()}) {
			drawn, pass = nil, time.After(liveRound) // the frame is not shown to viewers: the next one may be a good one
		}
		select {
		case <-drawn:
		case <-pass:
		case <-c.page.gone:
			return false
		case <-ctx.Done():
			return false
		}
		acknowledging, cancel := context.WithTimeout(ctx, liveCommand)
		_, err = cdp.Do(acknowledging, c.page.session, page.ScreencastFrameAck, page.ScreencastFrameAckParams{SessionID: e.SessionID})
		cancel()
		if err != nil {
			return false
		}
	}
}

// earlier is the earlier of two times of which either may be none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// drawable says whether a frame is a picture that the browser of a viewer can draw without harm. A jailed browser that a page has
// broken into sends what it likes.
func drawable(jpegBytes []byte) bool {
	size, err := jpeg.DecodeConfig(bytes.NewReader(jpegBytes))                          // reads its head
	return err == nil && size.Width <= 2*maxLiveWidth && size.Height <= 2*maxLiveHeight // some displays have two pixels for one
}

// publish shows a frame to all viewers. It is false for one that is not drawable.
func (l *Live) publish(c *cast, frame *Frame) bool {
	if !drawable(frame.JPEG) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cast != c {
		return true
	}
	select {
	case <-c.drawn: // it was about the frame before
	default:
	}
	l.frames++
	l.frame = frame
	l.tellLocked()
	return true
}

// still shows a tab that the browser does not draw: a person's tab is brought to the front, any other is photographed.
func (l *Live) still(ctx context.Context, p *Page) {
	if l.held.Load() {
		l.front(ctx, p)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, thumbnailTimeout)
	defer cancel()
	shot, width, height, err := p.photograph(ctx, 0)
	l.mu.Lock()
	c := l.cast
	l.mu.Unlock()
	// A page that hangs has no picture.
	if err == nil && c != nil && c.page == p {
		l.publish(c, &Frame{JPEG: shot, Width: width, Height: height, At: l.b.now()})
	}
}
