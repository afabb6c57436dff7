package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/recording"
)

const (
	// handOverLimit bounds a take-over and a hand-back. It is longer than a recording takes for its last pictures.
	handOverLimit = 20 * time.Second
	// undoLimit bounds giving a browser back after a take-over that did not work.
	undoLimit = 5 * time.Second
	// toolTakeOver and toolHandBack are how records and recordings name the two.
	toolTakeOver = "take_over"
	toolHandBack = "hand_back"
)

// TakeOver gives a session's browser to a person. DevTools clients are cut and requests in flight end, both with the code
// taken_over, as everything does that others ask until the browser is handed back; the recording pauses; pages in which a
// script of theirs may be are loaded anew, and what was typed there is lost. No DevTools client attaches meanwhile, not even
// one of the person. A person who has it already is a conflict, unless force: then it is the caller's.
//
// When a step of it fails, the former user has the browser again, and the error says why.
func (svc *Service) TakeOver(ctx context.Context, by identity.Principal, id string, force bool) (Session, error) {
	s, b, err := svc.ready(ctx, by, identity.SessionControl, id)
	if err != nil {
		return Session{}, err
	}
	if err := svc.notRefresh(s, by, identity.SessionControl, toolTakeOver); err != nil {
		return Session{}, err
	}
	if out, mine := svc.hasAlready(s, by); mine {
		return out, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handOverLimit,
		problem.New(problem.Timeout, "try again", "session %s could not be taken over within %s", id, handOverLimit))
	defer cancel()
	err = svc.record(ctx, s, by, identity.SessionControl, "", audit.Fields{"tool": toolTakeOver, "force": force}, func() error {
		return svc.takeOver(ctx, s, b, by, force)
	})
	if err != nil {
		return Session{}, fmt.Errorf("take over a session: %w", err)
	}
	svc.Log.Info("session taken over", "session", s.id, "by", by.Actor())
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.view(s), nil
}

// hasAlready says whether a principal has a session in hand.
func (svc *Service) hasAlready(s *session, by identity.Principal) (Session, bool) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if s.takeover.of(by) && s.takeover.firm {
		return svc.view(s), true
	}
	return Session{}, false
}

func (svc *Service) takeOver(ctx context.Context, s *session, b Browser, by identity.Principal, force bool) error {
	before, last, err := svc.seize(s, by, force)
	if err != nil {
		return err
	}
	err = svc.clear(ctx, s, last)
	if err == nil {
		err = svc.prepare(ctx, s, b, before == nil)
	}
	var step int
	if err == nil {
		step, err = svc.pauseTape(s, by)
	}
	if err != nil {
		svc.unseize(s, b, before)
		return svc.why(ctx, s, err)
	}
	svc.mu.Lock()
	s.takeover.firm, s.takeover.step = true, step
	s.used = svc.Now()
	svc.mu.Unlock()
	svc.tellOfControl(s)
	svc.resumeTape(s, before)
	return nil
}

// seize marks a session as taken over by a person. From then on no other client begins to use it, and what is under way ends.
func (svc *Service) seize(s *session, by identity.Principal, force bool) (before *takeover, last *usePeriod, err error) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	g := s.takeover
	switch {
	case s.state != StateReady:
		return nil, nil, problem.New(problem.SessionClosed, "open a new one", "session %s is ending", s.id)
	case g != nil && !g.firm:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands, from or to %s", s.id, whoHas(g)).
			With("by", g.by.Actor())
	case g != nil && !force:
		return nil, nil, problem.New(problem.Conflict, "ask them to hand it back, or take it with force", "%s has taken over session %s", whoHas(g), s.id).
			With("by", g.by.Actor())
	}
	before, last = g, s.period
	s.takeover, s.period, s.thumbnail = &takeover{by: by, since: svc.Now()}, newUsePeriod(), thumbnail{}
	last.finish(takenOver(s))
	return before, last, nil
}

// clear waits until no other client does anything with the browser: requests first, since one of them may attach a client.
func (svc *Service) clear(ctx context.Context, s *session, last *usePeriod) error {
	select {
	case <-last.idle:
	case <-s.stop:
		return svc.endedSoon(s)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	svc.mu.Lock()
	if s.state != StateReady {
		svc.mu.Unlock()
		return svc.endedSoon(s)
	}
	done := make(chan struct{})
	clients := slices.Collect(maps.Keys(s.attached))
	svc.tasks.Go(func() { // its steps have bounds of their own
		defer close(done)
		var all sync.WaitGroup
		for _, a := range clients {
			all.Go(func() { a.cut(takenOver(s)) })
		}
		all.Wait()
	})
	svc.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-s.stop:
		return svc.endedSoon(s)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (svc *Service) endedSoon(s *session) error {
	return problem.New(problem.SessionClosed, "open a new one", "session %s is ending", s.id)
}

// prepare makes a browser a person's.
func (svc *Service) prepare(ctx context.Context, s *session, b Browser, hold bool) error {
	live := b.Live()
	if hold {
		if err := live.Hold(ctx); err != nil {
			return fmt.Errorf("hold its dialogs: %w", err)
		}
	}
	svc.mu.Lock()
	scripted := s.scripted
	svc.mu.Unlock()
	if !scripted {
		return nil
	}
	if err := live.Renew(ctx); err != nil {
		return fmt.Errorf("load its pages anew: %w", err)
	}
	svc.mu.Lock()
	s.scripted = false
	svc.mu.Unlock()
	return nil
}

// unseize gives a session back to its former user after a take-over that failed.
func (svc *Service) unseize(s *session, b Browser, before *takeover) {
	if before == nil && !s.over() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(svc.background), undoLimit)
		defer cancel()
		if err := b.Live().LetGo(ctx); err != nil && !s.over() {
			svc.Log.Error("let go of a browser that could not be taken over", "session", s.id, "error", err)
		}
	}
	svc.mu.Lock()
	s.takeover = before
	svc.mu.Unlock()
	svc.tellOfControl(s)
}

// HandBack ends a takeover. While a password field has text in it the code is conflict, unless anyway: the agent could read
// it afterwards. The code is conflict as well for a session that another person has taken over, unless anyway.
func (svc *Service) HandBack(ctx context.Context, by identity.Principal, id string, anyway bool) (Session, error) {
	s, b, err := svc.ready(ctx, by, identity.SessionControl, id)
	if err != nil {
		return Session{}, err
	}
	if err := svc.notRefresh(s, by, identity.SessionControl, toolHandBack); err != nil {
		return Session{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handOverLimit,
		problem.New(problem.Timeout, "try again", "session %s could not be handed back within %s", id, handOverLimit))
	defer cancel()
	err = svc.record(ctx, s, by, identity.SessionControl, "", audit.Fields{"tool": toolHandBack, "anyway": anyway}, func() error {
		return svc.handBack(ctx, s, b, by, anyway)
	})
	if err != nil {
		return Session{}, fmt.Errorf("hand back a session: %w", err)
	}
	svc.Log.Info("session handed back", "session", s.id, "by", by.Actor())
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.view(s), nil
}

func (svc *Service) handBack(ctx context.Context, s *session, b Browser, by identity.Principal, anyway bool) error {
	g, last, err := svc.loosen(s, by, anyway)
	if err != nil {
		return err
	}
	// The person's input is over before the pages are searched for passwords.
	if err = svc.clear(ctx, s, last); err == nil && !anyway {
		err = svc.noSecrets(ctx, s, b)
	}
	if err == nil {
		// Once begun it is completed, also when its caller leaves: half of it would leave dialogs that wait for no person.
		letting, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverLimit)
		defer cancel()
		if err = b.Live().LetGo(letting); err != nil {
			err = fmt.Errorf("let go of its dialogs: %w", err)
		}
	}
	svc.mu.Lock()
	if err != nil {
		g.firm = true
	} else {
		s.takeover, s.used = nil, svc.Now()
	}
	svc.mu.Unlock()
	svc.tellOfControl(s) // also when nothing has changed: a viewer that came meanwhile was told nothing yet
	if err != nil {
		return svc.why(ctx, s, err)
	}
	svc.resumeTape(s, g)
	return nil
}

// loosen stops what a person does with a session, for it to be handed back.
func (svc *Service) loosen(s *session, by identity.Principal, anyway bool) (g *takeover, last *usePeriod, err error) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	g = s.takeover
	switch {
	case s.state != StateReady:
		return nil, nil, svc.endedSoon(s)
	case g == nil:
		return nil, nil, problem.New(problem.Conflict, "there is nothing to hand back", "session %s is not taken over", s.id)
	case !g.firm:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands, from or to %s", s.id, whoHas(g))
	case !g.of(by) && !anyway:
		return nil, nil, problem.New(problem.Conflict, "ask them to hand it back, or hand it back anyway", "%s has taken over session %s", whoHas(g), s.id).
			With("by", g.by.Actor())
	}
	g.firm, last = false, s.period
	s.period = newUsePeriod()
	last.finish(problem.Wrap(errTakenOver, problem.Conflict, "take it over again", "session %s was handed back", s.id))
	return g, last, nil
}

// noSecrets refuses while a password is in a page.
func (svc *Service) noSecrets(ctx context.Context, s *session, b Browser) error {
	tabs, err := b.Live().Secrets(ctx)
	if err != nil {
		return fmt.Errorf("look for passwords: %w", err)
	}
	if len(tabs) == 0 {
		return nil
	}
	return problem.New(problem.Conflict, "send or empty the field, or hand it back anyway",
		"tab %s has a password in a field, which the previous client of session %s could read", strings.Join(tabs, ", "), s.id).With("tabs", tabs)
}

// pauseTape writes down who takes a session over. Nothing else is recorded until resumeTape.
func (svc *Service) pauseTape(s *session, by identity.Principal) (step int, err error) {
	if s.tape == nil {
		return 0, nil
	}
	step, err = s.tape.BeginAlways(recording.Step{At: svc.Now(), Actor: by.Actor(), Tool: toolTakeOver})
	if err != nil && s.plan.record != RecordAudit {
		svc.Log.Warn("record a take-over", "session", s.id, "error", err) // this recording is a convenience
		return 0, nil
	}
	return step, err
}

// resumeTape writes down when a take-over ended.
func (svc *Service) resumeTape(s *session, g *takeover) {
	if s.tape == nil || g == nil || g.step == 0 {
		return
	}
	now := svc.Now()
	if err := s.tape.End(g.step, now, recording.Outcome{OK: true, TookMS: now.Sub(g.since).Milliseconds()}); err != nil {
		svc.Log.Error("record the end of a take-over", "session", s.id, "error", err)
	}
}

// ready is the browser of a session that is ready, for somebody who may do an operation. It is no use of the session.
func (svc *Service) ready(ctx context.Context, by identity.Principal, op identity.Operation, id string) (*session, Browser, error) {
	s, err := svc.permitted(ctx, by, op, id)
	if err != nil {
		return nil, nil, err
	}
	svc.mu.Lock()
	state, i := s.state, s.instance
	svc.mu.Unlock()
	switch state {
	case StateOpening:
		return nil, nil, problem.New(problem.Conflict, "wait until it is ready", "session %s is still being opened", id)
	case StateReady:
		return s, i.browser, nil
	}
	return nil, nil, svc.endedProblem(s)
}
