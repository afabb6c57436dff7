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
func (s *Service) TakeOver(ctx context.Context, by identity.Principal, id string, force bool) (Session, error) {
	r, b, err := s.ready(ctx, by, identity.SessionControl, id)
	if err != nil {
		return Session{}, err
	}
	if err := s.notRefresh(r, by, identity.SessionControl, toolTakeOver); err != nil {
		return Session{}, err
	}
	if out, mine := s.hasAlready(r, by); mine {
		return out, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handOverLimit,
		problem.New(problem.Timeout, "try again", "session %s could not be taken over within %s", id, handOverLimit))
	defer cancel()
	err = s.record(ctx, r, by, identity.SessionControl, "", audit.Fields{"tool": toolTakeOver, "force": force}, func() error {
		return s.takeOver(ctx, r, b, by, force)
	})
	if err != nil {
		return Session{}, fmt.Errorf("take over a session: %w", err)
	}
	s.Log.Info("session taken over", "session", r.id, "by", by.Actor())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view(r), nil
}

// hasAlready says whether a principal has a session in hand.
func (s *Service) hasAlready(r *session, by identity.Principal) (Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.grip.of(by) && r.grip.firm {
		return s.view(r), true
	}
	return Session{}, false
}

func (s *Service) takeOver(ctx context.Context, r *session, b Browser, by identity.Principal, force bool) error {
	before, last, err := s.seize(r, by, force)
	if err != nil {
		return err
	}
	err = s.clear(ctx, r, last)
	if err == nil {
		err = s.prepare(ctx, r, b, before == nil)
	}
	var step int
	if err == nil {
		step, err = s.pauseTape(r, by)
	}
	if err != nil {
		s.unseize(r, b, before)
		return s.why(ctx, r, err)
	}
	s.mu.Lock()
	r.grip.firm, r.grip.step = true, step
	r.used = s.Now()
	s.mu.Unlock()
	s.tellOfControl(r)
	s.resumeTape(r, before)
	return nil
}

// seize marks a session as taken over by a person. From then on no other client begins to use it, and what is under way ends.
func (s *Service) seize(r *session, by identity.Principal, force bool) (before *takeover, last *turn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := r.grip
	switch {
	case r.state != StateReady:
		return nil, nil, problem.New(problem.SessionClosed, "open a new one", "session %s is ending", r.id)
	case g != nil && !g.firm:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands, from or to %s", r.id, whoHas(g)).
			With("by", g.by.Actor())
	case g != nil && !force:
		return nil, nil, problem.New(problem.Conflict, "ask them to hand it back, or take it with force", "%s has taken over session %s", whoHas(g), r.id).
			With("by", g.by.Actor())
	}
	before, last = g, r.turn
	r.grip, r.turn, r.thumbnail = &takeover{by: by, since: s.Now()}, newTurn(), thumbnail{}
	last.finish(takenOver(r))
	return before, last, nil
}

// clear waits until no other client does anything with the browser: requests first, since one of them may attach a client.
func (s *Service) clear(ctx context.Context, r *session, last *turn) error {
	select {
	case <-last.idle:
	case <-r.stop:
		return s.endedSoon(r)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	if r.state != StateReady {
		s.mu.Unlock()
		return s.endedSoon(r)
	}
	done := make(chan struct{})
	clients := slices.Collect(maps.Keys(r.attached))
	s.tasks.Go(func() { // its steps have bounds of their own
		defer close(done)
		var all sync.WaitGroup
		for _, a := range clients {
			all.Go(func() { a.cut(takenOver(r)) })
		}
		all.Wait()
	})
	s.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-r.stop:
		return s.endedSoon(r)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Service) endedSoon(r *session) error {
	return problem.New(problem.SessionClosed, "open a new one", "session %s is ending", r.id)
}

// prepare makes a browser a person's.
func (s *Service) prepare(ctx context.Context, r *session, b Browser, hold bool) error {
	live := b.Live()
	if hold {
		if err := live.Hold(ctx); err != nil {
			return fmt.Errorf("hold its dialogs: %w", err)
		}
	}
	s.mu.Lock()
	scripted := r.scripted
	s.mu.Unlock()
	if !scripted {
		return nil
	}
	if err := live.Renew(ctx); err != nil {
		return fmt.Errorf("load its pages anew: %w", err)
	}
	s.mu.Lock()
	r.scripted = false
	s.mu.Unlock()
	return nil
}

// unseize gives a session back to its former user after a take-over that failed.
func (s *Service) unseize(r *session, b Browser, before *takeover) {
	if before == nil && !r.over() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.background), undoLimit)
		defer cancel()
		if err := b.Live().LetGo(ctx); err != nil && !r.over() {
			s.Log.Error("let go of a browser that could not be taken over", "session", r.id, "error", err)
		}
	}
	s.mu.Lock()
	r.grip = before
	s.mu.Unlock()
	s.tellOfControl(r)
}

// HandBack ends a takeover. While a password field has text in it the code is conflict, unless anyway: the agent could read
// it afterwards. The code is conflict as well for a session that another person has taken over, unless anyway.
func (s *Service) HandBack(ctx context.Context, by identity.Principal, id string, anyway bool) (Session, error) {
	r, b, err := s.ready(ctx, by, identity.SessionControl, id)
	if err != nil {
		return Session{}, err
	}
	if err := s.notRefresh(r, by, identity.SessionControl, toolHandBack); err != nil {
		return Session{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handOverLimit,
		problem.New(problem.Timeout, "try again", "session %s could not be handed back within %s", id, handOverLimit))
	defer cancel()
	err = s.record(ctx, r, by, identity.SessionControl, "", audit.Fields{"tool": toolHandBack, "anyway": anyway}, func() error {
		return s.handBack(ctx, r, b, by, anyway)
	})
	if err != nil {
		return Session{}, fmt.Errorf("hand back a session: %w", err)
	}
	s.Log.Info("session handed back", "session", r.id, "by", by.Actor())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view(r), nil
}

func (s *Service) handBack(ctx context.Context, r *session, b Browser, by identity.Principal, anyway bool) error {
	g, last, err := s.loosen(r, by, anyway)
	if err != nil {
		return err
	}
	// The person's input is over before the pages are searched for passwords.
	if err = s.clear(ctx, r, last); err == nil && !anyway {
		err = s.noSecrets(ctx, r, b)
	}
	if err == nil {
		// Once begun it is completed, also when its caller leaves: half of it would leave dialogs that wait for no person.
		letting, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverLimit)
		defer cancel()
		if err = b.Live().LetGo(letting); err != nil {
			err = fmt.Errorf("let go of its dialogs: %w", err)
		}
	}
	s.mu.Lock()
	if err != nil {
		g.firm = true
	} else {
		r.grip, r.used = nil, s.Now()
	}
	s.mu.Unlock()
	s.tellOfControl(r) // also when nothing has changed: a viewer that came meanwhile was told nothing yet
	if err != nil {
		return s.why(ctx, r, err)
	}
	s.resumeTape(r, g)
	return nil
}

// loosen stops what a person does with a session, for it to be handed back.
func (s *Service) loosen(r *session, by identity.Principal, anyway bool) (g *takeover, last *turn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g = r.grip
	switch {
	case r.state != StateReady:
		return nil, nil, s.endedSoon(r)
	case g == nil:
		return nil, nil, problem.New(problem.Conflict, "there is nothing to hand back", "session %s is not taken over", r.id)
	case !g.firm:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands, from or to %s", r.id, whoHas(g))
	case !g.of(by) && !anyway:
		return nil, nil, problem.New(problem.Conflict, "ask them to hand it back, or hand it back anyway", "%s has taken over session %s", whoHas(g), r.id).
			With("by", g.by.Actor())
	}
	g.firm, last = false, r.turn
	r.turn = newTurn()
	last.finish(problem.Wrap(errTurn, problem.Conflict, "take it over again", "session %s was handed back", r.id))
	return g, last, nil
}

// noSecrets refuses while a password is in a page.
func (s *Service) noSecrets(ctx context.Context, r *session, b Browser) error {
	tabs, err := b.Live().Secrets(ctx)
	if err != nil {
		return fmt.Errorf("look for passwords: %w", err)
	}
	if len(tabs) == 0 {
		return nil
	}
	return problem.New(problem.Conflict, "send or empty the field, or hand it back anyway",
		"tab %s has a password in a field, which the previous client of session %s could read", strings.Join(tabs, ", "), r.id).With("tabs", tabs)
}

// pauseTape writes down who takes a session over. Nothing else is recorded until resumeTape.
func (s *Service) pauseTape(r *session, by identity.Principal) (step int, err error) {
	if r.tape == nil {
		return 0, nil
	}
	step, err = r.tape.BeginAlways(recording.Step{At: s.Now(), Actor: by.Actor(), Tool: toolTakeOver})
	if err != nil && r.plan.record != RecordAudit {
		s.Log.Warn("record a take-over", "session", r.id, "error", err) // this recording is a convenience
		return 0, nil
	}
	return step, err
}

// resumeTape writes down when a take-over ended.
func (s *Service) resumeTape(r *session, g *takeover) {
	if r.tape == nil || g == nil || g.step == 0 {
		return
	}
	now := s.Now()
	if err := r.tape.End(g.step, now, recording.Outcome{OK: true, TookMS: now.Sub(g.since).Milliseconds()}); err != nil {
		s.Log.Error("record the end of a take-over", "session", r.id, "error", err)
	}
}

// ready is the browser of a session that is ready, for somebody who may do an operation. It is no use of the session.
func (s *Service) ready(ctx context.Context, by identity.Principal, op identity.Operation, id string) (*session, Browser, error) {
	r, err := s.permitted(ctx, by, op, id)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	state, i := r.state, r.instance
	s.mu.Unlock()
	switch state {
	case StateOpening:
		return nil, nil, problem.New(problem.Conflict, "wait until it is ready", "session %s is still being opened", id)
	case StateReady:
		return r, i.browser, nil
	}
	return nil, nil, s.endedProblem(r)
}
