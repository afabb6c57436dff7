package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxLives is how many may watch one session at a time.
const maxLives = 20

var (
	errLiveClosed   = errors.New("the live view was closed")
	errTokenRevoked = problem.New(problem.Unauthorized, "ask for a new one", "the token was revoked")
)

// Sight is something new to show. One of Frame, State and Changed is set.
type Sight struct {
	Frame *browser.Frame
	State *browser.LiveState
	// Changed says that another person has control now: Control, nil when there is none. Mine says that it is this viewer's
	// principal. It is set in the first sight of all.
	Changed bool
	Control *Control
	Mine    bool
}

// Live is a viewer of a session, which may steer it while its principal has control. It ends with the session,
// with its principal's token, and with Close. Its caller holds the principal's key; see [Authority].
type Live struct {
	s      *Service
	r      *session
	by     identity.Principal
	live   LiveBrowser
	viewer LiveViewer
	record audit.Pending

	ctx    context.Context // ends with the session, or with a cause of this viewer's
	end    context.CancelCauseFunc
	inputs atomic.Int64
	closed atomic.Bool

	mu   sync.Mutex
	news bool               // another person, or none, has control now
	wake context.CancelFunc // interrupts Next for it; nil when Next does not wait
}

// Watch adds a viewer to a session. A refresh session is watched by its opener only, and any session by at most twenty.
// Watching is use of a session.
func (svc *Service) Watch(ctx context.Context, by identity.Principal, id string) (*Live, error) {
	s, b, err := svc.ready(ctx, by, identity.SessionWatch, id)
	if err != nil {
		return nil, err
	}
	if s.plan.mode == ModeRefresh && !samePerson(s.by, by) {
		return nil, svc.refuse(s, by, identity.SessionWatch, "live", problem.New(problem.Forbidden, "open one of your own",
			"only the person who opened the refresh session %s can see it", s.id))
	}
	record, err := svc.Records.Begin(ctx, svc.intent(s, by.Actor(), string(identity.SessionWatch), "", audit.Fields{"scope": string(by.Scope)}))
	if err != nil {
		return nil, err
	}
	l := &Live{s: svc, r: s, by: by, live: b.Live(), record: record, news: true}
	l.ctx, l.end = context.WithCancelCause(s.life)
	if err := l.enter(); err != nil {
		l.end(err)
		record.End(outcome(err, nil))
		return nil, err
	}
	return l, nil
}

// enter counts the viewer among the session's.
func (l *Live) enter() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch {
	case l.r.state != StateReady:
		return endingProblem(l.r.id)
	case !l.s.tokenGood(l.by):
		return errTokenRevoked
	case len(l.r.lives) >= maxLives:
		return problem.New(problem.RateLimited, "close one", "%d watch session %s, and more may not", maxLives, l.r.id)
	}
	l.viewer = l.live.Watch()
	l.r.lives[l] = struct{}{}
	context.AfterFunc(l.ctx, l.by.Ended(l.s.Now, func() { l.end(errTokenEnded) }))
	return nil
}

// Next waits for something new to show. One goroutine calls it. See [browser.Viewer.Next].
func (l *Live) Next(ctx context.Context) (Sight, error) {
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()
	for {
		if both.Err() != nil {
			return Sight{}, l.why(ctx, context.Cause(both))
		}
		if l.tookNews() {
			if sight, settled := l.control(); settled {
				return sight, nil
			}
		}
		within, wake := context.WithCancel(both)
		if !l.wakeWith(wake) {
			wake()
			continue
		}
		frame, state, err := l.viewer.Next(within)
		l.wakeWith(nil)
		woken := within.Err() != nil && both.Err() == nil
		wake()
		switch {
		case err == nil:
			return Sight{Frame: frame, State: state}, nil
		case !woken:
			return Sight{}, l.why(ctx, err)
		}
	}
}

// tookNews says, once, that who is in control has changed.
func (l *Live) tookNews() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.news
	l.news = false
	return news
}

// wakeWith says how to interrupt Next. It reports false when there are news already.
func (l *Live) wakeWith(wake context.CancelFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake = wake
	if l.news {
		l.wake = nil
		return false
	}
	return true
}

// tell says that who is in control has changed.
func (l *Live) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = true
	if l.wake != nil {
		l.wake()
	}
}

// control tells which person has control. The bool is false while a take-over or a hand-back goes on; its end is told again.
func (l *Live) control() (Sight, bool) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	t := l.r.takeover
	return Sight{Changed: true, Control: controlOf(t), Mine: t.of(l.by)}, t == nil || t.settled
}

// tellOfControl tells all viewers of a session which person has control. The caller holds no lock.
func (svc *Service) tellOfControl(s *session) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	for l := range s.lives {
		l.tell() // does not block
	}
}

// why is what somebody is told whose live view ended.
func (l *Live) why(ctx context.Context, err error) error {
	if cause := context.Cause(l.ctx); cause != nil && !l.r.over() {
		return cause
	}
	return l.s.why(ctx, l.r, err)
}

// Shown says that the last frame was drawn.
func (l *Live) Shown() { l.viewer.Shown() }

// Visible says whether the viewer shows the picture.
func (l *Live) Visible(visible bool) { l.viewer.Visible(visible) }

// Input does one thing. The code is taken_over when another is in control, and conflict when no person is. Nothing of it is
// logged or recorded but that it was one. It is use of the session.
func (l *Live) Input(ctx context.Context, in browser.LiveInput) (copied string, err error) {
	if l.ctx.Err() != nil {
		return "", l.why(ctx, context.Cause(l.ctx))
	}
	// A viewer who is not in control is told so without a word in the audit log: there may be an input every few milliseconds.
	within, done, err := l.s.steer(ctx, l.r, l.by)
	if err != nil {
		return "", err
	}
	defer done()
	if err := l.s.Authority.AuthorizeWith(ctx, l.by, identity.SessionControl, l.r.object()); err != nil {
		return "", err
	}
	l.inputs.Add(1)
	began := l.s.Now()
	if copied, err = l.live.Do(within, in); err != nil {
		return "", l.s.why(within, l.r, l.s.refused(l.r, began, err))
	}
	return copied, nil
}

// steer counts as use of a session by the person who has taken it over, until done is called.
func (svc *Service) steer(ctx context.Context, s *session, by identity.Principal) (within context.Context, done func(), err error) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	switch t := s.takeover; {
	case s.state != StateReady:
		return nil, nil, endingProblem(s.id)
	case t == nil:
		return nil, nil, problem.New(problem.Conflict, "take it over first", "session %s is not taken over", s.id)
	case !t.of(by):
		return nil, nil, problem.Wrap(errTakenOver, problem.TakenOver, "take it over with force, or wait until it is handed back", "%s has taken over session %s", whoHas(t), s.id)
	case !t.settled:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands", s.id)
	}
	return svc.occupy(ctx, s, by)
}

// occupy counts a use of a session, in its present period, and of the token that it is used with. It ends with both. The
// caller holds svc.mu; done takes it.
func (svc *Service) occupy(ctx context.Context, s *session, by identity.Principal) (within context.Context, done func(), err error) {
	periods := []*usePeriod{s.period}
	if by.SessionToken != "" {
		uses := svc.usesOf(by)
		if uses == nil {
			return nil, nil, errTokenRevoked
		}
		periods = append(periods, uses)
	}
	s.using++
	s.used = svc.Now()
	within = ctx
	var leave []func()
	for _, u := range periods {
		u.using++
		var left func()
		within, left = u.within(within)
		leave = append(leave, left)
	}
	return within, func() {
		for _, left := range leave {
			left()
		}
		svc.mu.Lock()
		defer svc.mu.Unlock()
		s.using--
		s.used = svc.Now()
		for _, u := range periods {
			u.leave()
		}
	}, nil
}

// Close ends it. It may be called twice.
func (l *Live) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.end(errLiveClosed)
	l.viewer.Close()
	l.s.mu.Lock()
	delete(l.r.lives, l)
	l.r.used = l.s.Now()
	l.s.mu.Unlock()
	l.record.End(outcome(nil, audit.Fields{"inputs": l.inputs.Load()}))
	return nil
}
