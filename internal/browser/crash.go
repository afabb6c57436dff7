package browser

import (
	"context"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// crash is whether the process of a page has ended. Everything else that is known of the page stays.
type crash struct {
	mu       sync.Mutex
	down, up chan struct{} // closed while the page has no process, or has one
	count    int           // crashes, ever
}

func newCrash() crash {
	up := make(chan struct{})
	close(up)
	return crash{down: make(chan struct{}), up: up}
}

// seen says that the process has ended.
func (c *crash) seen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !wake.Closed(c.down) {
		c.count, c.up = c.count+1, make(chan struct{})
		close(c.down)
	}
}

// over says that the page has a process again.
func (c *crash) over() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wake.Closed(c.down) {
		c.down = make(chan struct{})
		close(c.up)
	}
}

// happens is closed when the process ends, or has ended.
func (c *crash) happens() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

// heals is closed while the page has a process.
func (c *crash) heals() (<-chan struct{}, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up, c.count
}

// crashed says whether the page has no process: it shows nothing and answers nothing until it goes to another address.
func (p *Page) crashed() bool {
	return wake.Closed(p.crash.happens())
}

// endWhenCrashed lets go of a frame in another process when that process ends: what is asked of it is answered then, and
// would wait for ever else.
func (p *Page) endWhenCrashed(ctx context.Context, f *frame) error {
	events, err := f.session.Subscribe(inspector.TargetCrashed.Method)
	if err != nil {
		return err
	}
	p.task.Go(func() { // ends with the frame's session, or with the page's
		defer events.Close()
		if _, err := events.Next(p.life); err == nil {
			f.detach()
		}
	})
	// A frame whose process has ended already says so now.
	_, err = cdp.Do(ctx, f.session, inspector.Enable, protocol.Empty{})
	return err
}

// heal gives a page a process that had none when it was attached: it tells nothing of its documents before.
func (p *Page) heal(ctx context.Context) error {
	if wake.Closed(p.ready) {
		return nil
	}
	if !p.crashed() {
		return nil
	}
	if _, err := cdp.Do(ctx, p.session, page.Navigate, page.NavigateParams{URL: blank}); err != nil {
		return err
	}
	grace := time.NewTimer(prepareGrace)
	defer grace.Stop()
	select {
	case <-p.ready:
		return p.preparation()
	case <-grace.C:
		return nil // it is as one that hangs
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pageCrashed is what everybody gets who waits for a page whose process has ended.
func (p *Page) pageCrashed() error {
	return problem.New(problem.PageCrashed, "navigate again: the tab gets a new process then; a page that needs more memory than the jail has crashes too",
		"the process of the page in tab %s ended", p.handle()).With("targetId", p.handle())
}

// running is an operation in its course.
type running struct {
	cancel context.CancelCauseFunc
	task   sync.WaitGroup
}

type runningKey struct{}

// run begins an operation, which ends with the pages that it uses. The caller calls end.
func run(ctx context.Context) (within context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &running{cancel: cancel}
	return context.WithValue(ctx, runningKey{}, r), func() {
		cancel(nil)
		r.task.Wait()
	}
}

// use ties the operation of a context, if there is one, to a page. The code is page_crashed when the page has no process.
func (p *Page) use(ctx context.Context) error {
	r, ok := ctx.Value(runningKey{}).(*running)
	if !ok {
		return nil
	}
	if p.crashed() {
		return p.pageCrashed()
	}
	crashes := p.crash.happens()
	r.task.Go(func() { // ends with the operation
		select {
		case <-crashes:
			r.cancel(p.pageCrashed())
		case <-ctx.Done():
		}
	})
	return nil
}
