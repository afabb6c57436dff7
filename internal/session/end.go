package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Close ends a session. It returns when no client reaches its browser any more and its jail reaches no host; the jail is
// removed behind it. Closing a session that is ending or has ended is no error.
func (s *Service) Close(ctx context.Context, by identity.Principal, id string) (Session, error) {
	r, err := s.permitted(ctx, by, identity.SessionClose, id)
	if err != nil {
		return Session{}, err
	}
	s.begin(r, Ended{Cause: CauseClosed, by: by.Actor()})
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view(r), nil
}

// WaitGone waits until nothing of a session that is ending is left, and returns what is then known of it.
func (s *Service) WaitGone(ctx context.Context, by identity.Principal, id string) (Session, error) {
	r, err := s.permitted(ctx, by, identity.SessionRead, id)
	if err != nil {
		return Session{}, err
	}
	select {
	case <-r.gone:
	case <-ctx.Done():
		return Session{}, problem.Wrap(context.Cause(ctx), problem.Timeout, "ask again: clawjail session show "+id,
			"the jail of session %s is still being removed", id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view(r), nil
}

// begin starts the end of a session, and reports whether it did: the first reason is the one that stays. An opening
// is told to give up, and does the rest itself; so does the keeper of a session that was ready.
func (s *Service) begin(r *session, e Ended) bool {
	s.mu.Lock()
	was := r.state
	if was != StateOpening && was != StateReady || r.ended != nil {
		s.mu.Unlock()
		return false
	}
	r.state = StateClosing
	e.At, e.Message = s.Now(), sentence(e, r.plan)
	r.ended = &e
	i, name := r.instance, r.jail
	if was == StateOpening {
		close(r.settled)
		close(r.stop)
		r.abort(closedEarly(e, r.plan))
	}
	s.mu.Unlock()
	s.Log.Info("session ends", "session", r.id, "jail", name, "cause", e.Cause)
	if was == StateOpening {
		r.die()
		return true
	}
	if err := i.hangUp(); err != nil {
		s.Log.Warn("close the pipe of a browser", "session", r.id, "jail", i.name(), "error", err)
	}
	s.forget(i)
	close(r.stop)
	r.die()
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
func (s *Service) EndPermitted(permission string, is grant.Access) int {
	s.mu.Lock()
	var with []*session
	for _, r := range s.sessions {
		if slices.Contains(r.permissions, permission) && !is.Covers(r.plan.access) {
			with = append(with, r)
		}
	}
	s.mu.Unlock()
	ended := 0
	for _, r := range with {
		if s.begin(r, Ended{Cause: CauseDisallowed}) {
			ended++
		}
	}
	return ended
}

// permissionRecheck is how often it is looked whether another process has taken a permission back, or narrowed it, and how often
// leases are given back that could not be.
const permissionRecheck = 10 * time.Second

// Look starts a check whether permissions of sessions were taken back. It does not wait for the check.
func (s *Service) Look() { s.recheck.Send() }

// keepPermissions does again and again, until the service ends, what other processes may have made necessary.
func (s *Service) keepPermissions() {
	again := time.NewTicker(permissionRecheck)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			s.releaseOld(s.background)
		case <-s.recheck:
		case <-s.background.Done():
			return
		}
		s.endDisallowed()
	}
}

// endDisallowed ends the sessions of which a permission is gone, or is not for their access any more. A database that does not answer
// ends nothing; it is asked again.
func (s *Service) endDisallowed() {
	s.mu.Lock()
	with := map[*session][]string{}
	for _, r := range s.sessions {
		if len(r.permissions) > 0 && r.state != StateClosing {
			with[r] = r.permissions
		}
	}
	s.mu.Unlock()
	for r, permissions := range with {
		ctx, cancel := context.WithTimeout(r.life, permissionRecheck)
		for _, id := range permissions {
			if stands, err := s.Accounts.Grants.PermissionStands(ctx, id, r.plan.access); err == nil && !stands {
				s.begin(r, Ended{Cause: CauseDisallowed})
			}
		}
		late := errors.Is(ctx.Err(), context.DeadlineExceeded)
		cancel()
		if late {
			return // the others would wait as long
		}
	}
}

// keep watches over a session that is ready: its time, its use and its browser. Then it removes it.
func (s *Service) keep(r *session) {
	s.mu.Lock()
	i := r.instance
	s.mu.Unlock()
	s.suspect(r) // from here on it is known when they are lost
	timer := time.NewTimer(0)
	defer timer.Stop()
	for watching := true; watching; {
		select {
		case <-r.stop:
			watching = false
		case <-r.revoked.Done():
			s.begin(r, Ended{Cause: CauseRevoked})
			<-r.stop
			watching = false
		case <-i.browser.Done():
			// The end of a session closes its pipe too, so the browser may seem to end first; begin knows.
			s.begin(r, Ended{Cause: CauseBrowserExited})
			<-r.stop
			watching = false
		case <-r.lost:
			s.begin(r, Ended{Cause: lostCause(r.plan)})
			<-r.stop
			watching = false
		case <-i.suspected:
			s.suspect(r)
		case <-timer.C:
			if cause, left := s.overdue(r); left <= 0 {
				s.begin(r, Ended{Cause: cause})
			} else {
				timer.Reset(min(left, identity.LookAgain)) // which stands still while the machine sleeps
			}
		}
	}
	s.explain(r, i)
	s.remove(r, i)
}

// overdue says how long a session has left, and what ends it then.
func (s *Service) overdue(r *session) (Cause, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	left, idle := identity.Left(r.expires, now), s.idleUntil(r).Sub(now)
	if idle < left {
		return CauseIdle, idle
	}
	return CauseExpired, left
}

// idleUntil is when a session is idle for too long, as far as can be said now. A request in flight is use, and so are a
// DevTools client that is attached, somebody who watches, and every byte through the gateway. The caller holds s.mu.
func (s *Service) idleUntil(r *session) time.Time {
	used := r.used
	if r.using > 0 || len(r.attached) > 0 || len(r.lives) > 0 {
		used = s.Now()
	}
	if last := s.Gateway.LastActivity(r.addr); last.After(used) {
		used = last
	}
	return used.Add(r.plan.idle)
}

// explain finds out what limits a session's jail has hit, what its browser printed last, and how one ended that was not closed,
// while the jail is still there to be asked.
func (s *Service) explain(r *session, i *instance) {
	defer close(r.settled)
	s.mu.Lock()
	e := *r.ended
	s.mu.Unlock()
	alone := e.Cause == CauseBrowserExited || e.Cause == lostCause(r.plan)
	if alone {
		s.explainExit(r, i, &e)
	} else {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.background), usageLimit)
		defer cancel()
		if status, err := s.Driver.Inspect(ctx, i.name()); err == nil { // it may not be told any more
			e.LimitsHit = status.Usage.Hit
		}
	}
	if alone || r.plan.mode != ModeRefresh { // in which a person has logged in
		e.Stderr = i.lines()
	}
	s.mu.Lock()
	r.ended = &e
	s.mu.Unlock()
}

// explainExit adds to e how a browser ended by itself.
func (s *Service) explainExit(r *session, i *instance, e *Ended) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.background), exitLimit)
	defer cancel()
	x, err := s.Driver.Wait(ctx, i.name())
	switch {
	case err != nil:
		s.Log.Warn("ask how a browser ended", "session", r.id, "jail", i.name(), "error", err)
		return
	case e.Cause == lostCause(r.plan):
		whyLost(e, x)
	default:
		e.Cause, e.LimitsHit, e.Signal = cause(x), x.Hit, x.Signal
		e.ExitCode = &x.Code
		e.Message = sentence(*e, r.plan)
		if e.Cause == CauseBrowserExited {
			e.Message += ": " + x.Words()
		}
	}
	s.Log.Warn("browser ended", "session", r.id, "jail", i.name(), "cause", e.Cause, "code", x.Code, "signal", x.Signal, "hit", x.Hit)
}

// noAddr is the address of what has none.
func noAddr() netip.Addr { return netip.Addr{} }
