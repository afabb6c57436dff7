package browser

import (
	"context"
	"errors"
	"sync"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
)

// Secrets says in which tabs a password field has text in it, by their handles.
func (l *Live) Secrets(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if err := l.b.tabs.begin(ctx); err != nil {
		return nil, explain(err, "look for passwords")
	}
	if err := l.b.tabs.settle(ctx); err != nil {
		return nil, explain(err, "look for passwords")
	}
	frames, err := cdp.Do(ctx, l.b.conn.Browser(), target.GetTargets,
		target.GetTargetsParams{Filter: target.Filter{{Type: "iframe"}, {Exclude: true}}})
	if err != nil {
		return nil, explain(err, "look for passwords")
	}
	l.b.tabs.mu.Lock()
	tabs := append([]*record(nil), l.b.tabs.tabs...)
	l.b.tabs.mu.Unlock()
	has, errs := make([]bool, len(tabs)), make([]error, len(tabs))
	var looked sync.WaitGroup
	for i, tab := range tabs {
		looked.Go(func() {
			var p *Page
			if p, errs[i] = l.attached(ctx, tab); errs[i] == nil {
				has[i], errs[i] = p.hasSecret(ctx, frames.TargetInfos)
			}
		})
	}
	looked.Wait()
	var handles []string
	for i, tab := range tabs {
		if wake.Closed(tab.closed) {
			continue
		}
		if errors.Is(errs[i], context.DeadlineExceeded) {
			// A page that hangs does not say. It may have one.
			has[i] = true
		} else if errs[i] != nil && !refusedOrGone(errs[i]) {
			return nil, explain(errs[i], "look for passwords")
		}
		if has[i] {
			handles = append(handles, tab.handle())
		}
	}
	return handles, nil
}

// hasSecret says whether a password field of the page, in whatever frame, has text in it. others are the frames of the browser
// that are in processes of their own.
func (p *Page) hasSecret(ctx context.Context, others []*target.Info) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, inputTimeout)
	defer cancel()
	if p.crashed() {
		return false, nil // what was typed there is gone with it
	}
	s := p.seek()
	defer s.end()
	ours := make(map[protocol.FrameID]bool)
	has, err := s.secret(ctx, p.session, ours)
	if has || err != nil {
		return has, err
	}
	// A frame may be in one in another process: what is below them is found round by round.
	looked := make(map[target.ID]bool)
	for range maxFrameDepth {
		more := false
		for _, info := range others {
			if info == nil || looked[info.TargetID] || !ours[info.ParentFrameID] && string(info.ParentID) != string(p.id) {
				continue
			}
			looked[info.TargetID], more = true, true
			session, err := p.browser.Attach(ctx, info.TargetID)
			if err != nil {
				continue // it is gone
			}
			s.sessions = append(s.sessions, session)
			has, err := s.secret(ctx, session, ours)
			if has || err != nil && !refusedOrGone(err) {
				return has, err
			}
		}
		if !more {
			break
		}
	}
	return false, nil
}

// secret looks into all frames of one process's part of a page, and notes them.
func (s *seeker) secret(ctx context.Context, session cdp.Session, ours map[protocol.FrameID]bool) (bool, error) {
	tree, err := cdp.Do(ctx, session, page.GetFrameTree, protocol.Empty{})
	if err != nil {
		return false, err
	}
	frames := []*page.FrameTree{tree.FrameTree}
	for n := 0; n < len(frames) && n < maxListed; n++ {
		if frames[n] == nil || frames[n].Frame == nil {
			continue
		}
		frames = append(frames, frames[n].ChildFrames...)
		id := frames[n].Frame.ID
		ours[id] = true
		made, err := cdp.Do(ctx, session, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: id, WorldName: worldName})
		if err != nil {
			if refusedOrGone(err) {
				continue // it went away, and what was in it
			}
			return false, err
		}
		has, err := s.secretIn(ctx, session, made.ExecutionContextID)
		if err != nil && refusedOrGone(err) {
			continue
		}
		if has || err != nil {
			return has, err
		}
	}
	return false, nil
}

func (s *seeker) secretIn(ctx context.Context, session cdp.Session, world runtime.ExecutionContextID) (bool, error) {
	document, err := cdp.Do(ctx, session, runtime.Evaluate,
		runtime.EvaluateParams{Expression: "document", ContextID: world, ObjectGroup: s.group})
	if err != nil {
		return false, err
	}
	if document.Result == nil || document.Result.ObjectID == "" {
		return false, nil
	}
	var has bool
	return has, s.value(ctx, session, document.Result.ObjectID, "secret", &has)
}
