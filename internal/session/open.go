package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Open opens a session. When ctx ends first, or anything else goes wrong, nothing of it is left when Open returns.
func (svc *Service) Open(ctx context.Context, by identity.Principal, request OpenRequest) (Session, error) {
	request.Tenant = by.TenantOr(request.Tenant)
	op := identity.SessionOpen
	if request.CredentialMode == ModeOperator {
		op = identity.SessionOpenOperator
	}
	if err := svc.Authority.AuthorizeWith(ctx, by, op, identity.Object{Tenant: request.Tenant, Agent: by.AgentID()}); err != nil {
		return Session{}, err
	}
	p, err := svc.plan(request)
	if err != nil {
		return Session{}, err
	}
	if by.AgentID() != "" {
		if err := svc.configured(p.shape.limits); err != nil {
			return Session{}, err
		}
	}
	return svc.openPlan(ctx, by, p)
}

// openPlan opens a session of somebody who may.
func (svc *Service) openPlan(ctx context.Context, by identity.Principal, p plan) (Session, error) {
	// A tenant that is made later would have sessions of strangers in it.
	tenants, err := svc.Authority.CountTenants(ctx, p.tenant)
	if err != nil {
		return Session{}, err
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	s, err := svc.register(by, p, tenants, abort)
	if err != nil {
		return Session{}, err
	}
	defer svc.tasks.Done()
	defer svc.opened(s)
	record, err := svc.open(ctx, s)
	if err == nil {
		err = svc.unlost(s)
	}
	if err == nil {
		if out, ok := svc.markReady(s); ok {
			record.End(audit.Outcome{Result: audit.OK, Session: out.ID, Jail: out.Jail})
			svc.observe(out, nil)
			svc.Log.Info("session opened", "session", out.ID, "tenant", out.Tenant, "by", out.OpenedBy, "mode", out.CredentialMode, "jail", out.Jail,
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
	svc.rollBack(s, err)
	svc.observe(Session{}, err)
	return Session{}, fmt.Errorf("open a session: %w", err)
}

func (svc *Service) observe(out Session, err error) {
	if svc.Observe != nil {
		svc.Observe(out, err)
	}
}

// open takes a session as far as ready. The record is nil when nothing was to be done.
func (svc *Service) open(ctx context.Context, s *session) (audit.Pending, error) {
	unhold, err := svc.Authority.WatchValidity(ctx, s.by.Lasting(), s.revoke)
	if err != nil {
		return nil, err
	}
	s.unhold = unhold
	record, err := svc.permit(ctx, s)
	if err != nil {
		return record, err
	}
	if err := svc.startTape(s); err != nil {
		return record, err
	}
	if err := svc.acquire(ctx, s); err != nil {
		return record, err
	}
	svc.mu.Lock()
	s.browser = s.instance.browser
	svc.mu.Unlock()
	s.browser.UseRoom(room{gate: svc.messages, holder: quota.Holder{Tenant: s.plan.tenant, Agent: s.by.AgentID()}})
	if err := svc.inject(ctx, s); err != nil {
		return record, err
	}
	return record, svc.startTakeover(ctx, s)
}

// register gives a session its place. The task that it adds is the opening's own.
func (svc *Service) register(by identity.Principal, p plan, tenants int, abort context.CancelCauseFunc) (*session, error) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if err := svc.unready(); err != nil {
		return nil, err
	}
	if err := svc.refreshing(p); err != nil {
		return nil, err
	}
	bounds := quota.Divide(svc.Quotas, int64(svc.Sessions.Max), tenants)
	asks := quota.Holder{Tenant: p.tenant, Agent: by.AgentID()}
	open, closing := svc.count(asks)
	if err := bounds.Check(quota.Sessions(), asks, open, 1); err != nil {
		return nil, err
	}
	// A session that is being removed still has its address and memory. Callers who open and close faster than this machine can
	// remove would otherwise fill it.
	if err := bounds.Check(quota.ClosingSessions(), asks, closing, 0); err != nil {
		return nil, err
	}
	s := &session{
		id: "s_" + svc.Tag + strings.ToLower(rand.Text()[len(svc.Tag):16]), by: by, plan: p, created: svc.Now(), state: StateOpening, abort: abort,
		stop: make(chan struct{}), settled: make(chan struct{}), gone: make(chan struct{}), attached: map[*attachment]struct{}{},
		lost: make(chan struct{}), touched: by.AgentID() != "", unhold: func() {}, lives: map[*Live]struct{}{}, period: newUsePeriod(), watch: newLoginWatch(),
		// An agent with DevTools clients is trusted with nothing that was there before them either.
		scripted: by.AgentID() != "" && p.access == grant.AccessCDP,
	}
	s.life, s.die = context.WithCancel(context.Background())
	if p.mode == ModeRefresh {
		s.takeover = &takeover{by: by, since: s.created, settled: true}
	}
	revoked, revoke := context.WithCancelCause(context.Background())
	s.revoked = revoked
	s.revoke = func(why error) {
		revoke(why)
		abort(errRevoked)
	}
	svc.sessions[s.id] = s
	svc.tasks.Add(1)
	return s, nil
}

// opened says that an opening is over, one way or the other. The pool does not fill while one wants a browser.
func (svc *Service) opened(s *session) {
	svc.mu.Lock()
	s.starting = false
	svc.mu.Unlock()
	svc.pool.poke()
}

// acquire gets the session a browser that answers and may reach the gateway.
func (svc *Service) acquire(ctx context.Context, s *session) error {
	svc.mu.Lock()
	s.starting = true // not before: it may have waited long for a person, or for an account
	svc.mu.Unlock()
	// A browser of the pool is taken without a question to the host daemon: it has the right key, see pool.
	svc.pool.note(s.plan.shape)
	i := svc.pool.take(s.plan.shape)
	var b jailSpec
	var err error
	if i == nil {
		if b, err = svc.jailSpecOf(ctx, s.plan.shape); err != nil {
			return err
		}
		i = svc.pool.await(ctx, b.key)
	}
	if i == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if i != nil {
		err := svc.adopt(ctx, s, i)
		if err == nil || ctx.Err() != nil {
			return err
		}
		// A browser can die in the pool at any moment; the caller did not ask for that one, so a new one is made.
		svc.Log.Warn("a warm browser could not be used", "jail", i.name(), "error", err)
		if err := svc.drop(ctx, s); err != nil {
			return err
		}
		if b, err = svc.jailSpecOf(ctx, s.plan.shape); err != nil {
			return err
		}
	}
	if i, err = svc.create(ctx, b); err != nil {
		return err
	}
	svc.attach(s, i, false)
	if err := svc.admit(s, i); err != nil {
		return err
	}
	// The browser starts while the firewall is opened for it.
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error { return svc.Driver.Admit(within, i.name()) })
	group.Go(func() error {
		err := svc.dial(within, i)
		if err == nil && s.stored != "" {
			i.browser.Prepare("", s.stored)
		}
		return err
	})
	return group.Wait()
}

// adopt gives a warm browser to a session.
func (svc *Service) adopt(ctx context.Context, s *session, i *instance) error {
	svc.attach(s, i, true)
	if s.stored != "" {
		i.browser.Prepare("", s.stored)
	}
	if err := svc.admit(s, i); err != nil {
		return err
	}
	if err := svc.Driver.Admit(ctx, i.name()); err != nil {
		return err
	}
	if i.gone() {
		return errors.New("it has ended")
	}
	return nil
}

func (svc *Service) admit(s *session, i *instance) error {
	// Only the new jail has the address. If an earlier Forget failed, connections of the earlier jail may be left in the
	// gateway: they end here, or the session is not opened.
	if err := svc.Gateway.Forget(i.addr(), ""); err != nil {
		return fmt.Errorf("end earlier connections of address %s: %w", i.addr(), err)
	}
	err := svc.Gateway.Admit(i.addr(), Caller{Jail: i.name(), Session: s.id, Tenant: s.plan.tenant, Opener: s.by.AgentID(),
		Actor: s.by.Actor(), Policy: s.policy, Confined: s.plan.mode == ModeOperator,
		Vet: func(ctx context.Context) error { return svc.vet(ctx, s) }})
	if err != nil {
		return fmt.Errorf("make %s known to the gateway: %w", i.name(), err)
	}
	return nil
}

func (svc *Service) attach(s *session, i *instance, warm bool) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	s.instance, s.warm, s.jail, s.addr = i, warm, i.name(), i.addr()
}

// drop takes its instance from a session again and ends it.
func (svc *Service) drop(ctx context.Context, s *session) error {
	svc.mu.Lock()
	i := s.instance
	s.instance, s.warm, s.jail, s.addr = nil, false, "", noAddr()
	svc.mu.Unlock()
	if i == nil {
		return nil
	}
	svc.forget(i)
	return svc.destroy(ctx, i)
}

// markReady makes a session ready, and starts watching over it. It reports false when the session was closed meanwhile.
func (svc *Service) markReady(s *session) (Session, bool) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if s.state != StateOpening {
		return Session{}, false
	}
	now := svc.Now()
	i := s.instance
	s.state, s.ready, s.used, s.expires, s.version = StateReady, now, now, now.Add(s.plan.ttl), i.browser.Version().Product
	s.timing.Total = milliseconds(now.Sub(s.created))
	if !s.warm {
		t := i.jail.Timing
		s.timing.Clone, s.timing.Attach = milliseconds(t.Clone), milliseconds(t.Attach)
		s.timing.Start, s.timing.Verify = milliseconds(t.Start), milliseconds(t.Verify)
		s.timing.Ready = milliseconds(i.answered.Sub(i.born))
	}
	svc.tasks.Go(func() { svc.watchUntilEnd(s) })
	if len(s.plan.domains) > 0 {
		svc.tasks.Go(func() { svc.lookAgain(s, i.browser) })
	}
	return svc.view(s), true
}

// rollBack undoes an opening, whatever there is of it, and keeps why for a while.
func (svc *Service) rollBack(s *session, why error) {
	svc.mu.Lock()
	i := s.instance
	s.state = StateClosing
	if s.ended == nil {
		s.ended = &Ended{Cause: CauseFailed, Message: publicText(why), At: svc.Now()}
		if errors.Is(why, errRevoked) {
			s.ended.Cause = CauseRevoked
			s.ended.Message = sentence(*s.ended, s.plan)
		}
		close(s.stop)
		close(s.settled)
	}
	svc.mu.Unlock()
	s.die()
	if i == nil {
		svc.Log.Warn("session not opened", "session", s.id, "error", why)
		svc.mu.Lock()
		e := *s.ended
		svc.mu.Unlock()
		if e.by != "" {
			// Somebody closed it; that there was nothing to be removed yet is no reason not to say who.
			svc.Records.BeginEnding(svc.intent(s, e.by, string(identity.SessionClose), "", audit.Fields{"cause": string(e.Cause)})).
				End(audit.Outcome{Result: audit.OK})
		}
		svc.markEnded(s, 0, nil)
		return
	}
	svc.Log.Warn("session not opened", "session", s.id, "jail", i.name(), "error", why)
	svc.forget(i)
	svc.remove(s, i)
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
