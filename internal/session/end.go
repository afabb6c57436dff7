package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Close ends a session. It returns when no client reaches its browser any more and its jail reaches no host; the jail is
// removed behind it. Closing a session that is ending or has ended is no error.
func (svc *Service) Close(ctx context.Context, by identity.Principal, id string) (Session, error) {
	s, err := svc.permitted(ctx, by, identity.SessionClose, id)
	if err != nil {
		return Session{}, err
	}
	svc.startClosing(s, Ended{Cause: CauseClosed, by: by.Actor()})
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.view(s), nil
}

// WaitGone waits until nothing of a session that is ending is left, and returns what is then known of it.
func (svc *Service) WaitGone(ctx context.Context, by identity.Principal, id string) (Session, error) {
	s, err := svc.permitted(ctx, by, identity.SessionRead, id)
	if err != nil {
		return Session{}, err
	}
	select {
	case <-s.gone:
	case <-ctx.Done():
		return Session{}, problem.Wrap(context.Cause(ctx), problem.Timeout, "ask again: clawjail session show "+id,
			"the jail of session %s is still being removed", id)
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.view(s), nil
}

// startClosing starts the end of a session, and reports whether it did: the first reason is the one that stays. An opening
// is told to give up, and does the rest itself; so does watchUntilEnd for a session that was ready.
func (svc *Service) startClosing(s *session, e Ended) bool {
	svc.mu.Lock()
	was := s.state
	if was != StateOpening && was != StateReady || s.ended != nil {
		svc.mu.Unlock()
		return false
	}
	s.state = StateClosing
	e.At, e.Message = svc.Now(), sentence(e, s.plan)
	s.ended = &e
	i, name := s.instance, s.jail
	if was == StateOpening {
		close(s.settled)
		close(s.stop)
		s.abort(closedEarly(e, s.plan))
	}
	svc.mu.Unlock()
	svc.Log.Info("session ends", "session", s.id, "jail", name, "cause", e.Cause)
	if was == StateOpening {
		s.die()
		return true
	}
	if err := i.hangUp(); err != nil {
		svc.Log.Warn("close the pipe of a browser", "session", s.id, "jail", i.name(), "error", err)
	}
	svc.forget(i)
	close(s.stop)
	s.die()
	return true
}

// closedEarly is what the caller is told whose session ended before it was open.
func closedEarly(e Ended, p plan) error {
	if e.Cause == CauseDisallowed {
		return grant.NotAllowed(strings.Join(p.domains, ", "), "%s", e.Message)
	}
	return problem.New(problem.SessionClosed, "open a new one", "the session was closed before it was open")
}

// EndPermitted ends the sessions that were opened with a permission and have an access that it is not for, also those that
// are still being opened, and says how many they were: all of them, when the access is empty. The caller has changed it or
// taken it back before, so that no further one is opened.
func (svc *Service) EndPermitted(permission string, is grant.Access) int {
	svc.mu.Lock()
	var with []*session
	for _, s := range svc.sessions {
		if slices.Contains(s.permissions, permission) && !is.Covers(s.plan.access) {
			with = append(with, s)
		}
	}
	svc.mu.Unlock()
	ended := 0
	for _, s := range with {
		if svc.startClosing(s, Ended{Cause: CauseDisallowed}) {
			ended++
		}
	}
	return ended
}

// permissionRecheck is how often it is looked whether another process has taken a permission back, or narrowed it, and how often
// leases are given back that could not be.
const permissionRecheck = 10 * time.Second

// Look starts a check whether permissions of sessions were taken back. It does not wait for the check.
func (svc *Service) Look() { svc.recheck.Send() }

// recheckPermissions does again and again, until the service ends, what other processes may have made necessary.
func (svc *Service) recheckPermissions() {
	again := time.NewTicker(permissionRecheck)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			svc.releaseOld(svc.background)
		case <-svc.recheck:
		case <-svc.background.Done():
			return
		}
		svc.endDisallowed()
	}
}

// endDisallowed ends the sessions of which a permission is gone, or is not for their access any more. A database that does not answer
// ends nothing; it is asked again.
func (svc *Service) endDisallowed() {
	svc.mu.Lock()
	with := map[*session][]string{}
	for _, s := range svc.sessions {
		if len(s.permissions) > 0 && s.state != StateClosing {
			with[s] = s.permissions
		}
	}
	svc.mu.Unlock()
	for s, permissions := range with {
		ctx, cancel := context.WithTimeout(s.life, permissionRecheck)
		for _, id := range permissions {
			if stands, err := svc.Accounts.Grants.PermissionStands(ctx, id, s.plan.access); err == nil && !stands {
				svc.startClosing(s, Ended{Cause: CauseDisallowed})
			}
		}
		late := errors.Is(ctx.Err(), context.DeadlineExceeded)
		cancel()
		if late {
			return // the others would wait as long
		}
	}
}

// watchUntilEnd watches over a session that is ready: its time, its use and its browser. Then it removes it.
func (svc *Service) watchUntilEnd(s *session) {
	svc.mu.Lock()
	i := s.instance
	svc.mu.Unlock()
	svc.suspect(s) // from here on it is known when they are lost
	timer := time.NewTimer(0)
	defer timer.Stop()
	for watching := true; watching; {
		select {
		case <-s.stop:
			watching = false
		case <-s.revoked.Done():
			svc.startClosing(s, Ended{Cause: CauseRevoked})
			<-s.stop
			watching = false
		case <-i.browser.Done():
			// The end of a session closes its pipe too, so the browser may seem to end first; startClosing knows.
			svc.startClosing(s, Ended{Cause: CauseBrowserExited})
			<-s.stop
			watching = false
		case <-s.lost:
			svc.startClosing(s, Ended{Cause: lostCause(s.plan)})
			<-s.stop
			watching = false
		case <-i.suspected:
			svc.suspect(s)
		case <-timer.C:
			if cause, left := svc.overdue(s); left <= 0 {
				svc.startClosing(s, Ended{Cause: cause})
			} else {
				timer.Reset(min(left, identity.LookAgain)) // which stands still while the machine sleeps
			}
		}
	}
	svc.explain(s, i)
	svc.remove(s, i)
}

// remove removes the jail of a session that has ended, and puts that on record.
func (svc *Service) remove(s *session, i *instance) {
	svc.mu.Lock()
	e := *s.ended
	svc.mu.Unlock()
	actor := e.by
	if actor == "" {
		actor = actorSystem
	}
	record := svc.Records.BeginEnding(svc.intent(s, actor, string(identity.SessionClose), "", audit.Fields{"cause": string(e.Cause)}))
	began := svc.Now()
	err := svc.destroy(svc.background, i)
	took := svc.Now().Sub(began)
	record.End(outcome(err, audit.Fields{"removed": err == nil, "took_ms": milliseconds(took)}))
	svc.markEnded(s, took, err)
}

// markEnded moves a session, of which nothing is left, to those that can only be asked about.
func (svc *Service) markEnded(s *session, took time.Duration, err error) {
	svc.endTape(s)
	s.unhold()
	s.revoke(nil) // lets go of its context
	svc.release(s)
	svc.mu.Lock()
	defer svc.mu.Unlock()
	s.state = StateClosed
	if s.ended.Cause == CauseFailed {
		s.state = StateFailed
	}
	ended := *s.ended // a view may still hold the old one
	if s.instance != nil {
		ms := milliseconds(took)
		ended.Teardown = &ms
	}
	if err != nil {
		ended.TeardownError = "the jail could not be removed; the host daemon tries again"
		svc.Log.Error("remove a session's jail", "session", s.id, "jail", s.jail, "error", err)
	}
	s.ended, s.instance, s.values, s.abort = &ended, nil, nil, nil
	delete(svc.sessions, s.id)
	svc.keepEnded(s)
	close(s.gone)
}

// overdue says how long a session has left, and what ends it then.
func (svc *Service) overdue(s *session) (Cause, time.Duration) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	now := svc.Now()
	left, idle := identity.Left(s.expires, now), svc.idleUntil(s).Sub(now)
	if idle < left {
		return CauseIdle, idle
	}
	return CauseExpired, left
}

// idleUntil is when a session is idle for too long, as far as can be said now. A request in flight is use, and so are a
// DevTools client that is attached, somebody who watches, and every byte through the gateway. The caller holds svc.mu.
func (svc *Service) idleUntil(s *session) time.Time {
	used := s.used
	if s.using > 0 || len(s.attached) > 0 || len(s.lives) > 0 {
		used = svc.Now()
	}
	if last := svc.Gateway.LastActivity(s.addr); last.After(used) {
		used = last
	}
	return used.Add(s.plan.idle)
}

// explain finds out what limits a session's jail has hit, what its browser printed last, and how one ended that was not closed,
// while the jail is still there to be asked.
func (svc *Service) explain(s *session, i *instance) {
	defer close(s.settled)
	svc.mu.Lock()
	e := *s.ended
	svc.mu.Unlock()
	alone := e.Cause == CauseBrowserExited || e.Cause == lostCause(s.plan)
	if alone {
		svc.explainExit(s, i, &e)
	} else {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(svc.background), usageLimit)
		defer cancel()
		if status, err := svc.Driver.Inspect(ctx, i.name()); err == nil { // it may not be told any more
			e.LimitsHit = status.Usage.Hit
		}
	}
	if alone || s.plan.mode != ModeRefresh { // in which a person has logged in
		e.Stderr = i.lines()
	}
	svc.mu.Lock()
	s.ended = &e
	svc.mu.Unlock()
}

// explainExit adds to e how a browser ended by itself.
func (svc *Service) explainExit(s *session, i *instance, e *Ended) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(svc.background), exitLimit)
	defer cancel()
	x, err := svc.Driver.Wait(ctx, i.name())
	switch {
	case err != nil:
		svc.Log.Warn("ask how a browser ended", "session", s.id, "jail", i.name(), "error", err)
		return
	case e.Cause == lostCause(s.plan):
		whyLost(e, x)
	default:
		e.Cause, e.LimitsHit, e.Signal = cause(x), x.Hit, x.Signal
		e.ExitCode = &x.Code
		e.Message = sentence(*e, s.plan)
		if e.Cause == CauseBrowserExited {
			e.Message += ": " + x.Words()
		}
	}
	svc.Log.Warn("browser ended", "session", s.id, "jail", i.name(), "cause", e.Cause, "code", x.Code, "signal", x.Signal, "hit", x.Hit)
}

// noAddr is the address of what has none.
func noAddr() netip.Addr { return netip.Addr{} }
