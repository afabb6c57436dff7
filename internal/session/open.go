package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Open opens a session. When ctx ends first, or anything else goes wrong, nothing of it is left when Open returns.
func (s *Service) Open(ctx context.Context, by identity.Principal, request OpenRequest) (Session, error) {
	request.Tenant = by.TenantOr(request.Tenant)
	op := identity.SessionOpen
	if request.CredentialMode == ModeOperator {
		op = identity.SessionOpenOperator
	}
	if err := s.Authority.AuthorizeWith(ctx, by, op, identity.Object{Tenant: request.Tenant, Agent: by.AgentID()}); err != nil {
		return Session{}, err
	}
	p, err := s.plan(request)
	if err != nil {
		return Session{}, err
	}
	if by.AgentID() != "" {
		if err := s.configured(p.shape.limits); err != nil {
			return Session{}, err
		}
	}
	return s.openPlan(ctx, by, p)
}

// openPlan opens a session of somebody who may.
func (s *Service) openPlan(ctx context.Context, by identity.Principal, p plan) (Session, error) {
	// A tenant that is made later would have sessions of strangers in it.
	tenants, err := s.Authority.CountTenants(ctx, p.tenant)
	if err != nil {
		return Session{}, err
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	r, err := s.register(by, p, tenants, abort)
	if err != nil {
		return Session{}, err
	}
	defer s.tasks.Done()
	defer s.opened(r)
	record, err := s.open(ctx, r)
	if err == nil {
		err = s.unlost(r)
	}
	if err == nil {
		if out, ok := s.markReady(r); ok {
			record.End(audit.Outcome{Result: audit.OK, Session: out.ID, Jail: out.Jail})
			s.observe(out, nil)
			s.Log.Info("session opened", "session", out.ID, "tenant", out.Tenant, "by", out.OpenedBy, "mode", out.CredentialMode, "jail", out.Jail,
				"address", out.Address, "browser", out.Browser, "warm", out.Warm, "total_ms", out.Timing.Total)
			return out, nil
		}
		err = context.Cause(ctx)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // what was being done when it ended is of no use to anybody
	}
	if record != nil {
		// Before the jail is removed: the record of that is another.
		record.End(outcome(err, nil))
	}
	s.rollBack(r, err)
	s.observe(Session{}, err)
	return Session{}, fmt.Errorf("open a session: %w", err)
}

func (s *Service) observe(out Session, err error) {
	if s.Observe != nil {
		s.Observe(out, err)
	}
}

// open takes a session as far as ready. The record is nil when nothing was to be done.
func (s *Service) open(ctx context.Context, r *session) (audit.Pending, error) {
	unhold, err := s.Authority.WatchValidity(ctx, r.by.Lasting(), r.revoke)
	if err != nil {
		return nil, err
	}
	r.unhold = unhold
	record, err := s.permit(ctx, r)
	if err != nil {
		return record, err
	}
	if err := s.startTape(r); err != nil {
		return record, err
	}
	if err := s.acquire(ctx, r); err != nil {
		return record, err
	}
	s.mu.Lock()
	r.browser = r.instance.browser
	s.mu.Unlock()
	r.browser.UseRoom(room{gate: s.messages, holder: quota.Holder{Tenant: r.plan.tenant, Agent: r.by.AgentID()}})
	if err := s.inject(ctx, r); err != nil {
		return record, err
	}
	return record, s.startTakeover(ctx, r)
}

// register gives a session its place. The task that it adds is the opening's own.
func (s *Service) register(by identity.Principal, p plan, tenants int, abort context.CancelCauseFunc) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unready(); err != nil {
		return nil, err
	}
	if err := s.refreshing(p); err != nil {
		return nil, err
	}
	bounds := quota.Divide(s.Quotas, int64(s.Sessions.Max), tenants)
	asks := quota.Holder{Tenant: p.tenant, Agent: by.AgentID()}
	open, closing := s.count(asks)
	if err := bounds.Check(quota.Sessions(), asks, open, 1); err != nil {
		return nil, err
	}
	// A session that is being removed still has its address and memory. Callers who open and close faster than this machine can
	// remove would otherwise fill it.
	if err := bounds.Check(quota.ClosingSessions(), asks, closing, 0); err != nil {
		return nil, err
	}
	r := &session{
		id: "s_" + s.Tag + strings.ToLower(rand.Text()[len(s.Tag):16]), by: by, plan: p, created: s.Now(), state: StateOpening, abort: abort,
		stop: make(chan struct{}), settled: make(chan struct{}), gone: make(chan struct{}), attached: map[*attachment]struct{}{},
		lost: make(chan struct{}), touched: by.AgentID() != "", unhold: func() {}, lives: map[*Live]struct{}{}, turn: newTurn(), watch: newLoginWatch(),
		// An agent with DevTools clients is trusted with nothing that was there before them either.
		scripted: by.AgentID() != "" && p.access == grant.AccessCDP,
	}
	r.life, r.die = context.WithCancel(context.Background())
	if p.mode == ModeRefresh {
		r.grip = &takeover{by: by, since: r.created, firm: true}
	}
	revoked, revoke := context.WithCancelCause(context.Background())
	r.revoked = revoked
	r.revoke = func(why error) {
		revoke(why)
		abort(errRevoked)
	}
	s.sessions[r.id] = r
	s.tasks.Add(1)
	return r, nil
}

// opened says that an opening is over, one way or the other. The pool does not fill while one wants a browser.
func (s *Service) opened(r *session) {
	s.mu.Lock()
	r.starting = false
	s.mu.Unlock()
	s.pool.poke()
}

// acquire gets the session a browser that answers and may reach the gateway.
func (s *Service) acquire(ctx context.Context, r *session) error {
	s.mu.Lock()
	r.starting = true // not before: it may have waited long for a person, or for an account
	s.mu.Unlock()
	// A browser of the pool is taken without a question to the host daemon: it has the right key, see pool.
	s.pool.note(r.plan.shape)
	i := s.pool.take(r.plan.shape)
	var b jailSpec
	var err error
	if i == nil {
		if b, err = s.jailSpecOf(ctx, r.plan.shape); err != nil {
			return err
		}
		i = s.pool.await(ctx, b.key)
	}
	if i == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if i != nil {
		err := s.adopt(ctx, r, i)
		if err == nil || ctx.Err() != nil {
			return err
		}
		// A browser can die in the pool at any moment; the caller did not ask for that one, so a new one is made.
		s.Log.Warn("a warm browser could not be used", "jail", i.name(), "error", err)
		if err := s.drop(ctx, r); err != nil {
			return err
		}
		if b, err = s.jailSpecOf(ctx, r.plan.shape); err != nil {
			return err
		}
	}
	if i, err = s.create(ctx, b); err != nil {
		return err
	}
	s.attach(r, i, false)
	if err := s.admit(r, i); err != nil {
		return err
	}
	// The browser starts while the firewall is opened for it.
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Driver.Admit(within, i.name()) })
	group.Go(func() error {
		err := s.dial(within, i)
		if err == nil && r.stored != "" {
			i.browser.Prepare("", r.stored)
		}
		return err
	})
	return group.Wait()
}

// adopt gives a warm browser to a session.
func (s *Service) adopt(ctx context.Context, r *session, i *instance) error {
	s.attach(r, i, true)
	if r.stored != "" {
		i.browser.Prepare("", r.stored)
	}
	if err := s.admit(r, i); err != nil {
		return err
	}
	if err := s.Driver.Admit(ctx, i.name()); err != nil {
		return err
	}
	if i.gone() {
		return errors.New("it has ended")
	}
	return nil
}

func (s *Service) admit(r *session, i *instance) error {
	// Only the new jail has the address. If an earlier Forget failed, connections of the earlier jail may be left in the
	// gateway: they end here, or the session is not opened.
	if err := s.Gateway.Forget(i.addr(), ""); err != nil {
		return fmt.Errorf("make %s known to the gateway: %w", i.name(), err)
	}
	err := s.Gateway.Admit(i.addr(), Caller{Jail: i.name(), Session: r.id, Tenant: r.plan.tenant, Opener: r.by.AgentID(),
		Actor: r.by.Actor(), Policy: r.policy, Confined: r.plan.mode == ModeOperator,
		Vet: func(ctx context.Context) error { return s.vet(ctx, r) }})
	if err != nil {
		return fmt.Errorf("make %s known to the gateway: %w", i.name(), err)
	}
	return nil
}

func (s *Service) attach(r *session, i *instance, warm bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.instance, r.warm, r.jail, r.addr = i, warm, i.name(), i.addr()
}

// drop takes its instance from a session again and ends it.
func (s *Service) drop(ctx context.Context, r *session) error {
	s.mu.Lock()
	i := r.instance
	r.instance, r.warm, r.jail, r.addr = nil, false, "", noAddr()
	s.mu.Unlock()
	if i == nil {
		return nil
	}
	s.forget(i)
	return s.destroy(ctx, i)
}

// markReady makes a session ready, and starts watching over it. It reports false when the session was closed meanwhile.
func (s *Service) markReady(r *session) (Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.state != StateOpening {
		return Session{}, false
	}
	now := s.Now()
	i := r.instance
	r.state, r.ready, r.used, r.expires, r.version = StateReady, now, now, now.Add(r.plan.ttl), i.browser.Version().Product
	r.timing.Total = milliseconds(now.Sub(r.created))
	if !r.warm {
		t := i.jail.Timing
		r.timing.Clone, r.timing.Attach = milliseconds(t.Clone), milliseconds(t.Attach)
		r.timing.Start, r.timing.Verify = milliseconds(t.Start), milliseconds(t.Verify)
		r.timing.Ready = milliseconds(i.answered.Sub(i.born))
	}
	s.tasks.Go(func() { s.keep(r) })
	if len(r.plan.domains) > 0 {
		s.tasks.Go(func() { s.lookAgain(r, i.browser) })
	}
	return s.view(r), true
}

// rollBack undoes an opening, whatever there is of it, and keeps why for a while.
func (s *Service) rollBack(r *session, why error) {
	s.mu.Lock()
	i := r.instance
	r.state = StateClosing
	if r.ended == nil {
		r.ended = &Ended{Cause: CauseFailed, Message: publicText(why), At: s.Now()}
		if errors.Is(why, errRevoked) {
			r.ended.Cause = CauseRevoked
			r.ended.Message = sentence(*r.ended, r.plan)
		}
		close(r.stop)
		close(r.settled)
	}
	s.mu.Unlock()
	r.die()
	if i == nil {
		s.Log.Warn("session not opened", "session", r.id, "error", why)
		s.mu.Lock()
		e := *r.ended
		s.mu.Unlock()
		if e.by != "" {
			// Somebody closed it; that there was nothing to be removed yet is no reason not to say who.
			s.Records.BeginEnding(s.intent(r, e.by, string(identity.SessionClose), "", audit.Fields{"cause": string(e.Cause)})).
				End(audit.Outcome{Result: audit.OK})
		}
		s.bury(r, 0, nil)
		return
	}
	s.Log.Warn("session not opened", "session", r.id, "jail", i.name(), "error", why)
	s.forget(i)
	s.remove(r, i)
}

// remove removes the jail of a session that has ended, and puts that on record.
func (s *Service) remove(r *session, i *instance) {
	s.mu.Lock()
	e := *r.ended
	s.mu.Unlock()
	actor := e.by
	if actor == "" {
		actor = actorSystem
	}
	record := s.Records.BeginEnding(s.intent(r, actor, string(identity.SessionClose), "", audit.Fields{"cause": string(e.Cause)}))
	began := s.Now()
	err := s.destroy(s.background, i)
	took := s.Now().Sub(began)
	record.End(outcome(err, audit.Fields{"removed": err == nil, "took_ms": milliseconds(took)}))
	s.bury(r, took, err)
}

// publicText is the half of an error that may be shown.
func publicText(err error) string {
	if p, ok := problem.As(err); ok {
		return p.Message
	}
	switch problem.CodeOf(err) {
	case problem.Canceled:
		return "the caller left before it was open"
	case problem.Timeout:
		return "it took longer than the caller waited"
	}
	return "it could not be opened; the log of the control plane says why"
}

// bury moves a session, of which nothing is left, to those that can only be asked about.
func (s *Service) bury(r *session, took time.Duration, err error) {
	s.endTape(r)
	r.unhold()
	r.revoke(nil) // lets go of its context
	s.release(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.state = StateClosed
	if r.ended.Cause == CauseFailed {
		r.state = StateFailed
	}
	ended := *r.ended // a view may still hold the old one
	if r.instance != nil {
		ms := milliseconds(took)
		ended.Teardown = &ms
	}
	if err != nil {
		ended.TeardownError = "the jail could not be removed; the host daemon tries again"
		s.Log.Error("remove a session's jail", "session", r.id, "jail", r.jail, "error", err)
	}
	r.ended, r.instance, r.values, r.abort = &ended, nil, nil, nil
	delete(s.sessions, r.id)
	s.keepEnded(r)
	close(r.gone)
}
