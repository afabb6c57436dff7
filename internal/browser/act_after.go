package browser

import (
	"context"
	"errors"
	"slices"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
)

// departure watches, from before an action, whether the tab leaves for another document.
type departure struct {
	page   *Page
	events *cdp.Subscription
	frame  protocol.FrameID
	phase  departurePhase
	// download says that a navigation came to no document, as one does that becomes a download.
	download bool
}

// downloadGrace is how long a download may take to be told of.
const downloadGrace = 500 * time.Millisecond

type departurePhase int

const (
	staying  departurePhase = iota
	leaving                 // a navigation has begun, and may still come to nothing
	arriving                // another document is there, and is being parsed
	arrived
)

func watchDeparture(p *Page) (*departure, error) {
	events, err := p.session.Subscribe(page.FrameRequestedNavigation.Method, page.FrameStartedNavigating.Method,
		page.FrameStoppedLoading.Method, page.FrameNavigated.Method, page.NavigatedWithinDocument.Method,
		page.DomContentEventFired.Method, inspector.TargetCrashed.Method)
	if err != nil {
		return nil, err
	}
	// The frame of a tab has the tab's id.
	return &departure{page: p, events: events, frame: protocol.FrameID(p.id)}, nil
}

func (d *departure) close() { d.events.Close() }

// settle waits for the grace, and when a navigation has begun by its end, until the new document is parsed. It reports
// whether a document was still on its way when the time of ctx was up; that is no error, because some never arrive.
func (d *departure) settle(ctx context.Context, grace time.Duration) (loading bool) {
	soon, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	loading = d.follow(ctx, soon)
	if d.phase == staying && ctx.Err() == nil && grace > 0 && !d.page.dialogWaits() {
		// On a busy machine the page may have had no processor meanwhile. When it has answered twice, its timers of the
		// grace have run: the first answer may come before them, and what is asked after it may not.
		answers := 0
		for answers < 2 && d.page.reacts(ctx) {
			answers++
		}
		if answers == 2 {
			loading = d.follow(ctx, soon)
		}
	}
	return loading
}

// follow reads events until the new document is parsed, or until soon is over and none is on its way.
func (d *departure) follow(ctx, soon context.Context) (loading bool) {
	for d.phase != arrived {
		until := ctx
		if d.phase == staying {
			until = soon
		}
		event, err := d.events.Next(until) // after the end of until, those that have arrived already
		var lost *cdp.LostError
		if errors.As(err, &lost) {
			continue
		}
		if err != nil {
			return d.phase != staying && ctx.Err() != nil
		}
		d.see(event)
	}
	return false
}

// see follows one event. One that cannot be read is passed over: nothing depends on it but the wait.
func (d *departure) see(event cdp.EventMessage) {
	var e struct {
		FrameID protocol.FrameID `json:"frameId"`
		Frame   struct {
			ID protocol.FrameID `json:"id"`
		} `json:"frame"`
		NavigationType string `json:"navigationType"`
		Disposition    string `json:"disposition"`
	}
	if cdp.Decode(event.Params, &e) != nil {
		return
	}
	own := e.FrameID == d.frame
	switch event.Method {
	case page.FrameRequestedNavigation.Method:
		d.download = d.download || e.Disposition == "download"
		if own && e.Disposition == "currentTab" && d.phase == staying {
			d.phase = leaving
		}
	case page.FrameStartedNavigating.Method:
		if own && e.NavigationType != "sameDocument" && e.NavigationType != "historySameDocument" {
			d.phase = leaving
		}
	case page.NavigatedWithinDocument.Method, page.FrameStoppedLoading.Method:
		// Another part of the same document, a download, or a server that answered that there is nothing to show.
		if own && d.phase == leaving {
			d.phase = arrived
			d.download = event.Method == page.FrameStoppedLoading.Method
		}
	case page.FrameNavigated.Method:
		if e.Frame.ID == d.frame {
			d.phase = arriving
		}
	case page.DomContentEventFired.Method:
		if d.phase == arriving {
			d.phase = arrived
		}
	case inspector.TargetCrashed.Method:
		d.phase = arrived
	}
}

// downloads are the files that pages have begun to download, in no more number than a folder may have.
func (f *folder) downloads() []*stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.files)
}

// begunSince are the downloads that are not among those known before.
func (f *folder) begunSince(known []*stored) []File {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begunSinceLocked(known)
}

// awaitDownload waits a moment for the browser to tell of a download that the page has begun.
func (f *folder) awaitDownload(ctx context.Context, known []*stored) {
	f.mu.Lock()
	kept := f.path != ""
	f.mu.Unlock()
	if !kept {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, downloadGrace)
	defer cancel()
	// When none comes, there was none: a server may as well answer that there is nothing to show.
	_ = f.wait(ctx, func() bool { return len(f.begunSinceLocked(known)) > 0 })
}

func (f *folder) begunSinceLocked(known []*stored) []File {
	var begun []File
	for _, file := range f.files {
		if file.Kind == download && !slices.Contains(known, file) {
			begun = append(begun, file.File)
		}
	}
	return begun
}
