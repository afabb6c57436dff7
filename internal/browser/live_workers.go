package browser

import (
	"context"
	"errors"
	"strings"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/serviceworker"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// everyOrigin is how Chromium is asked for the data of all.
	everyOrigin = "*"
	// workersTimeout is how long workers may take to end: some milliseconds, and seconds on a machine that is busy.
	workersTimeout = 20 * time.Second
	workersPoll    = 20 * time.Millisecond
	// stopTimeout is how long Chromium may take to say that it has told all service workers to stop.
	stopTimeout = 2 * time.Second
)

// endWorkers unregisters all service workers, with what they keep in caches, ends all shared workers, and waits until they are
// gone. All tabs are empty, so no page keeps a worker alive.
func (l *Live) endWorkers(ctx context.Context, tabs map[*record]*renewed) error {
	ctx, cancel := context.WithTimeout(ctx, workersTimeout)
	defer cancel()
	infos, err := cdp.Do(ctx, l.b.conn.Browser(), target.GetTargets, target.GetTargetsParams{})
	if err != nil {
		return err
	}
	contexts := make(map[target.ID]protocol.BrowserContextID)
	for _, info := range infos.TargetInfos {
		if info != nil {
			contexts[info.TargetID] = info.BrowserContextID
		}
	}
	// They are a context's, and no tab's. One of a client's that was just cut may still be there.
	done := make(map[protocol.BrowserContextID]bool)
	for _, r := range tabs {
		of, open := contexts[r.page.id]
		if !open || done[of] {
			continue
		}
		switch err := r.page.endWorkers(ctx); {
		case err == nil:
			done[of] = true
		case r.page.open():
			return err
		}
	}
	tick := time.NewTicker(workersPoll)
	defer tick.Stop()
	for {
		left, err := l.closeWorkers(ctx)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return problem.Wrap(context.Cause(ctx), problem.Conflict, "try again, or open a new session", "%d workers do not end", left)
		}
	}
}

// endWorkers unregisters and stops the service workers of the page's context, and empties its caches.
func (p *Page) endWorkers(ctx context.Context) error {
	_, err := cdp.Do(ctx, p.session, storage.ClearDataForOrigin,
		storage.ClearDataForOriginParams{Origin: everyOrigin, StorageTypes: "service_workers,cache_storage"})
	if err != nil {
		return err
	}
	// Answers of a worker or of a client's interception may be in the cache of the network, too.
	if _, err := cdp.Do(ctx, p.session, network.ClearBrowserCache, protocol.Empty{}); err != nil {
		return err
	}
	if _, err := cdp.Do(ctx, p.session, serviceworker.Enable, protocol.Empty{}); err != nil {
		return err
	}
	// Chromium sometimes never answers this: the worker that was just unregistered is gone before it has stopped. Whether one is
	// left is counted afterwards.
	stopping, cancel := context.WithTimeout(ctx, stopTimeout)
	_, err = cdp.Do(stopping, p.session, serviceworker.StopAllWorkers, protocol.Empty{})
	cancel()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	// The domain was enabled for this alone: its events are of no use.
	_, _ = cdp.Do(ctx, p.session, serviceworker.Disable, protocol.Empty{})
	return err
}

// closeWorkers ends the workers that run without a page, and counts them.
func (l *Live) closeWorkers(ctx context.Context) (left int, err error) {
	infos, err := cdp.Do(ctx, l.b.conn.Browser(), target.GetTargets, target.GetTargetsParams{
		Filter: target.Filter{{Type: "service_worker"}, {Type: "shared_worker"}, {Exclude: true}}})
	if err != nil {
		return 0, err
	}
	for _, info := range infos.TargetInfos {
		// Those of the browser's own parts are not of the web.
		if info == nil || strings.HasPrefix(info.URL, "chrome") {
			continue
		}
		left++
		// It may end by itself meanwhile.
		_, _ = cdp.Do(ctx, l.b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: info.TargetID})
	}
	return left, nil
}
