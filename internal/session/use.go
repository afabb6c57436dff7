package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what a caller may wait for.
const (
	DefaultTimeout = 30 * time.Second
	MaxTimeout     = 5 * time.Minute
)

// settleLimit bounds how long a request that failed with its browser waits to hear why. It is longer than exitLimit.
const settleLimit = exitLimit + time.Second

// Navigate loads a page and waits for it. A zero timeout is DefaultTimeout. One navigation runs at a time.
func (s *Service) Navigate(ctx context.Context, by identity.Principal, id, url string, timeout time.Duration) (browser.Result, error) {
	ctx, cancel, err := bound(ctx, timeout, "the page did not load")
	if err != nil {
		return browser.Result{}, err
	}
	defer cancel()
	r, b, done, err := s.use(ctx, by, identity.SessionUse, id)
	if err != nil {
		return browser.Result{}, err
	}
	defer done()
	select {
	case r.page <- struct{}{}:
		defer func() { <-r.page }()
	case <-r.stop:
		return browser.Result{}, s.why(ctx, r, errors.New("navigate"))
	case <-ctx.Done():
		return browser.Result{}, fmt.Errorf("wait for another navigation: %w", context.Cause(ctx))
	}
	var result browser.Result
	err = s.record(ctx, r, by, identity.SessionUse, url, audit.Fields{"tool": "navigate"}, func() error {
		if result, err = b.Navigate(ctx, url); err != nil {
			return s.why(ctx, r, fmt.Errorf("navigate: %w", err))
		}
		return nil
	})
	if !r.over() {
		s.look(ctx, r, b) // also after an error: a page that loads slowly may ask to log in
	}
	return result, err
}

// Screenshot takes a picture of the page. With the record transient it is also kept until the session ends.
func (s *Service) Screenshot(ctx context.Context, by identity.Principal, id string, o browser.ScreenshotOptions, timeout time.Duration) ([]byte, error) {
	ctx, cancel, err := bound(ctx, timeout, "the screenshot was not taken")
	if err != nil {
		return nil, err
	}
	defer cancel()
	r, b, done, err := s.use(ctx, by, identity.SessionUse, id)
	if err != nil {
		return nil, err
	}
	defer done()
	var picture []byte
	err = s.record(ctx, r, by, identity.SessionUse, "", audit.Fields{"tool": "screenshot"}, func() error {
		if picture, err = b.Screenshot(ctx, o); err != nil {
			return s.why(ctx, r, fmt.Errorf("take a screenshot: %w", err))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.look(ctx, r, b)
	if r.plan.record == RecordTransient {
		s.keepShot(r, string(o.Format), picture)
	}
	return picture, nil
}

// Recorded returns a screenshot that was kept, and its format. The code is not_found when it is not, or not any more.
func (s *Service) Recorded(ctx context.Context, by identity.Principal, id string, number int) ([]byte, string, error) {
	r, err := s.permitted(ctx, by, identity.SessionRecording, id)
	if err != nil {
		return nil, "", err
	}
	var shot Shot
	s.mu.Lock()
	for _, kept := range r.shots {
		if kept.Number == number {
			shot = kept
		}
	}
	s.mu.Unlock()
	missing := problem.New(problem.NotFound, "the last "+fmt.Sprint(shotsMost)+" are kept, until the session ends: clawjail session show "+id,
		"session %s has no screenshot %d", id, number)
	if shot.Number == 0 {
		return nil, "", missing
	}
	data, err := s.shots.read(id, shot)
	if err != nil {
		missing.Err = err
		return nil, "", missing
	}
	return data, shot.Format, nil
}

// bound puts a bound on a request.
func bound(ctx context.Context, timeout time.Duration, what string) (context.Context, context.CancelFunc, error) {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	if timeout < 0 || timeout > MaxTimeout {
		return nil, nil, problem.New(problem.BadRequest, "leave it out for "+DefaultTimeout.String(),
			"a timeout of %s is not between 1ms and %s", timeout, MaxTimeout)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		problem.New(problem.Timeout, "give it more time, or look at the page with a screenshot", "%s within %s", what, timeout))
	return ctx, cancel, nil
}

// use is the browser of a session that is ready, for somebody who may have it, until done is called.
func (s *Service) use(ctx context.Context, by identity.Principal, op identity.Operation, id string) (r *session, b Browser, done func(), err error) {
	if r, err = s.permitted(ctx, by, op, id); err != nil {
		return nil, nil, nil, err
	}
	s.mu.Lock()
	switch {
	case r.state == StateOpening:
		s.mu.Unlock()
		return nil, nil, nil, problem.New(problem.Conflict, "wait until it is ready", "session %s is still being opened", id)
	case r.state != StateReady:
		s.mu.Unlock()
		return nil, nil, nil, s.endedProblem(r)
	}
	defer s.mu.Unlock()
	r.using++
	r.used = s.Now()
	r.touched = r.touched || agentOf(by) != ""
	return r, r.instance.browser, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.using--
		r.used = s.Now()
	}, nil
}

// why turns the failure of a request into what its caller can act on: when the session has ended meanwhile, that is
// the reason, whatever the browser's connection said.
func (s *Service) why(ctx context.Context, r *session, err error) error {
	// The pipe of a browser that ended is noticed by several at the same moment.
	s.mu.Lock()
	i := r.instance
	s.mu.Unlock()
	if i == nil || r.over() || i.gone() {
		limit := time.NewTimer(settleLimit)
		defer limit.Stop()
		select {
		case <-r.settled:
			return s.endedProblem(r)
		case <-limit.C:
		case <-ctx.Done():
		}
		return problem.Wrap(err, problem.SessionClosed, "open a new one", "session %s is ending", r.id)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// over says whether a session has begun to end.
func (r *session) over() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}
