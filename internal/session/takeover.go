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
	return svc.changeHands(ctx, by, id, handChange{tool: toolTakeOver, verb: "take over", done: "taken over", detail: audit.Fields{"force": force}, already: svc.hasAlready,
		do: func(ctx context.Context, s *session, b Browser) error { return svc.takeOver(ctx, s, b, by, force) }})
}

// handChange is a take-over or a hand-back.
type handChange struct {
	tool, verb, done string
	detail           audit.Fields
	already          func(s *session, by identity.Principal) (Session, bool) // there is nothing to do; nil is never
	do               func(ctx context.Context, s *session, b Browser) error
}

// changeHands asks whether somebody may take a session over or hand it back, and does so within its limit and on record.
func (svc *Service) changeHands(ctx context.Context, by identity.Principal, id string, c handChange) (Session, error) {
	s, b, err := svc.ready(ctx, by, identity.SessionControl, id)
	if err != nil {
		return Session{}, err
	}
	if err := svc.notRefresh(s, by, identity.SessionControl, c.tool); err != nil {
		return Session{}, err
	}
	if c.already != nil {
		if out, yes := c.already(s, by); yes {
			return out, nil
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handOverLimit,
		problem.New(problem.Timeout, "try again", "session %s could not be %s within %s", id, c.done, handOverLimit))
	defer cancel()
	c.detail["tool"] = c.tool
	err = svc.record(ctx, s, by, identity.SessionControl, "", c.detail, func() error { return c.do(ctx, s, b) })
	if err != nil {
		return Session{}, fmt.Errorf("%s a session: %w", c.verb, err)
	}
	svc.Log.Info("session "+c.done, "session", s.id, "by", by.Actor())
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.view(s), nil
}

// hasAlready says whether a principal has a session in hand.
func (svc *Service) hasAlready(s *session, by identity.Principal) (Session, bool) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if s.takeover.of(by) && s.takeover.settled {
		return svc.view(s), true
	}
	return Session{}, false
}

func (svc *Service) takeOver(ctx context.Context, s *session, b Browser, by identity.Principal, force bool) error {
	before, last, err := svc.beginTakeOver(s, by, force)
	if err != nil {
		return err
	}
	err = svc.drainClients(ctx, s, last)
	if err == nil {
		err = svc.prepare(ctx, s, b, before == nil)
	}
	var step int
	if err == nil {
		step, err = svc.pauseTape(s, by)
	}
	if err != nil {
		svc.abortTakeOver(s, b, before)
		return svc.why(ctx, s, err)
	}
	svc.mu.Lock()
	s.takeover.settled, s.takeover.step = true, step
	s.used = svc.Now()
	svc.mu.Unlock()
	svc.tellOfControl(s)
	svc.resumeTape(s, before)
	return nil
}

// beginTakeOver marks a session as taken over by a person: no other client begins to use it any more, and what is under way is told to
// end, which last shows. The take-over is not settled yet. before is the person who had it, or nil. The caller holds no lock.
func (svc *Service) beginTakeOver(s *session, by identity.Principal, force bool) (before *takeover, last *usePeriod, err error) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	t := s.takeover
	switch {
	case s.state != StateReady:
		return nil, nil, endingProblem(s.id)
	case t != nil && !t.settled:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands, from or to %s", s.id, whoHas(t)).
			With("by", t.by.Actor())
	case t != nil && !force:
		return nil, nil, problem.New(problem.Conflict, "ask them to hand it back, or take it with force", "%s has taken over session %s", whoHas(t), s.id).
			With("by", t.by.Actor())
	}
	before, last = t, s.period
	s.takeover, s.period, s.thumbnail = &takeover{by: by, since: svc.Now()}, newUsePeriod(), thumbnail{}
	last.finish(takenOver(s))
	return before, last, nil
}

// drainClients waits until the uses of a period that is over have ended, and cuts DevTools clients then: until then a request may attach
// one. The caller holds no lock.
func (svc *Service) drainClients(ctx context.Context, s *session, last *usePeriod) error {
	select {
	case <-last.idle:
	case <-s.stop:
		return endingProblem(s.id)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	svc.mu.Lock()
	if s.state != StateReady {
		svc.mu.Unlock()
		return endingProblem(s.id)
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
		return endingProblem(s.id)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// endingProblem is what somebody gets who wants to use a session that has begun to end.
func endingProblem(id string) *problem.Error {
	return problem.New(problem.SessionClosed, "open a new one", "session %s is ending", id)
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

// abortTakeOver gives a session back to its former user after a take-over that failed. The caller holds no lock.
func (svc *Service) abortTakeOver(s *session, b Browser, before *takeover) {
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
	return svc.changeHands(ctx, by, id, handChange{tool: toolHandBack, verb: "hand back", done: "handed back", detail: audit.Fields{"anyway": anyway},
		do: func(ctx context.Context, s *session, b Browser) error { return svc.handBack(ctx, s, b, by, anyway) }})
}

func (svc *Service) handBack(ctx context.Context, s *session, b Browser, by identity.Principal, anyway bool) error {
	t, last, err := svc.beginHandBack(s, by, anyway)
	if err != nil {
		return err
	}
	// The person's input is over before the pages are searched for passwords.
	if err = svc.drainClients(ctx, s, last); err == nil && !anyway {
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
		t.settled = true
	} else {
		s.takeover, s.used = nil, svc.Now()
	}
	svc.mu.Unlock()
	svc.tellOfControl(s) // also when nothing has changed: a viewer that came meanwhile was told nothing yet
	if err != nil {
		return svc.why(ctx, s, err)
	}
	svc.resumeTape(s, t)
	return nil
}

// beginHandBack stops what a person does with a session, for it to be handed back: the take-over is not settled any more, and last shows
// when the person's uses have ended. The caller holds no lock.
func (svc *Service) beginHandBack(s *session, by identity.Principal, anyway bool) (t *takeover, last *usePeriod, err error) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	t = s.takeover
	switch {
	case s.state != StateReady:
		return nil, nil, endingProblem(s.id)
	case t == nil:
		return nil, nil, problem.New(problem.Conflict, "there is nothing to hand back", "session %s is not taken over", s.id)
	case !t.settled:
		return nil, nil, problem.New(problem.Conflict, "try again in a moment", "session %s is changing hands, from or to %s", s.id, whoHas(t))
	case !t.of(by) && !anyway:
		return nil, nil, problem.New(problem.Conflict, "ask them to hand it back, or hand it back anyway", "%s has taken over session %s", whoHas(t), s.id).
			With("by", t.by.Actor())
	}
	t.settled, last = false, s.period
	s.period = newUsePeriod()
	last.finish(problem.Wrap(errTakenOver, problem.Conflict, "take it over again", "session %s was handed back", s.id))
	return t, last, nil
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
func (svc *Service) resumeTape(s *session, t *takeover) {
	if s.tape == nil || t == nil || t.step == 0 {
		return
	}
	now := svc.Now()
	if err := s.tape.End(t.step, now, recording.Outcome{OK: true, TookMS: now.Sub(t.since).Milliseconds()}); err != nil {
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
