package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// standingEvery is how often the agents are compared with their jails, for what is revoked or restored elsewhere. The
	// gateway refuses an agent that is revoked at once; this ends its jail.
	standingEvery = 5 * time.Second
	// minAway and awayLongest are between questions to a host daemon that does not answer.
	minAway, awayLongest = 100 * time.Millisecond, 5 * time.Second
	// tryAgain is how long an agent's jail that could not be stopped or started again is left alone.
	tryAgain = 30 * time.Second
	// turnPatience is how long agents that may not run wait for somebody who changes something of their tenant.
	turnPatience = time.Second
	// pollLongest bounds one question for what is kept, which waits for a change for up to a minute.
	pollLongest = 90 * time.Second
)

// actorSelf is the actor of what clawjail does by itself, without a request.
const actorSelf = "system"

// admissions is what the gateway was told.
type admissions struct {
	one lock // admitting, which looks first and then acts, is done by one at a time

	mu       sync.Mutex // guards what follows
	admitted map[netip.Addr]admittedJail

	look wake.Signal // for a comparison of jails and agents
}

// admittedJail is whose an address is.
type admittedJail struct {
	jail   string
	tenant string
	agent  string // its id
	keyed  bool   // the address alone proves nothing
}

func newAdmissions() admissions {
	return admissions{one: newLock(), admitted: map[netip.Addr]admittedJail{}, look: wake.New()}
}

// Look starts a comparison of agents with their jails. It does not wait for that.
func (s *Service) Look() { s.admissions.look.Send() }

// Follow lets the jails of agents through the gateway, and ends those of agents that were revoked or deleted. It returns when
// ctx ends.
func (s *Service) Follow(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { s.follow(ctx, s.nextVersion) })
	running.Go(func() { s.watchStanding(ctx) })
	if s.o.Docker.Compose {
		running.Go(func() { s.follow(ctx, s.nextComposed) })
	}
	running.Wait()
	return nil
}

// follow admits what there is, whenever that changes; next waits for it.
func (s *Service) follow(ctx context.Context, next func(ctx context.Context, after uint64) (uint64, error)) {
	pause := minAway
	for version := uint64(0); ctx.Err() == nil; {
		now, err := next(ctx, version)
		if err == nil && (now != version || version == 0) {
			err = s.admit(ctx)
			s.Look()
		}
		if err == nil {
			version, pause = now, minAway
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.o.Log.Warn("the addresses of agents are not known", "error", err, "again_in", pause)
		version = 0
		if !wake.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, awayLongest)
	}
}

// nextVersion waits for a change of what is kept.
func (s *Service) nextVersion(ctx context.Context, after uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, pollLongest)
	defer cancel()
	version, _, err := s.o.Keeper.Kept(ctx, after, false)
	if err != nil {
		return 0, fmt.Errorf("ask which jails are kept: %w", err)
	}
	return version, nil
}

// nextComposed waits for a change of the containers of docker-compose.
func (s *Service) nextComposed(ctx context.Context, after uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, pollLongest)
	defer cancel()
	version, _, err := s.o.Composed(ctx, after)
	if err != nil {
		return 0, fmt.Errorf("ask which containers docker-compose has started: %w", err)
	}
	return version, nil
}

// Unknown is asked by the gateway about an address that it does not know: it may be that of a jail that has just been
// started. It says whether the address is admitted now.
func (s *Service) Unknown(ctx context.Context, addr netip.Addr) bool {
	if err := s.admit(ctx); err != nil {
		return false
	}
	s.admissions.mu.Lock()
	defer s.admissions.mu.Unlock()
	_, is := s.admissions.admitted[addr.Unmap()]
	return is
}

// admit tells the gateway whose addresses are whose, as it is now.
func (s *Service) admit(ctx context.Context) error {
	if err := s.admissions.one.lock(ctx); err != nil {
		return err
	}
	defer s.admissions.one.unlock()
	_, kept, err := s.o.Keeper.Kept(ctx, 0, false)
	if err != nil {
		return fmt.Errorf("ask which jails are kept: %w", err)
	}
	agents, err := s.byName(ctx)
	if err != nil {
		return err
	}
	are := map[netip.Addr]admittedJail{}
	for _, k := range kept {
		own := k.Spec.Agent
		if own == nil || !k.Addr.IsValid() || k.Jail == "" {
			continue
		}
		a, is := agents[agentKey{own.Tenant, own.Name}]
		if is && a.RevokedAt.IsZero() {
			are[k.Addr.Unmap()] = admittedJail{jail: string(k.Jail), tenant: own.Tenant, agent: a.ID}
		}
	}
	var composed []jail.Composed
	if s.o.Docker.Compose {
		if _, composed, err = s.o.Composed(ctx, 0); err != nil {
			return fmt.Errorf("ask which containers docker-compose has started: %w", err)
		}
	}
	for _, c := range composed {
		a, is := agents[agentKey{c.Tenant, c.Agent}]
		if _, taken := are[c.Addr.Unmap()]; is && a.RevokedAt.IsZero() && !taken {
			are[c.Addr.Unmap()] = admittedJail{jail: "compose-" + short(c.ID), tenant: c.Tenant, agent: a.ID, keyed: true}
		}
	}
	var errs []error
	for addr, was := range s.admittedJails() {
		if are[addr] == was {
			continue
		}
		if err := s.o.Gateway.Forget(addr, was.jail); err != nil {
			// The address stays in the list and is tried again. Until then no other jail is admitted there.
			errs = append(errs, fmt.Errorf("end what %s has open: %w", was.jail, err))
			continue
		}
		s.setAdmitted(addr, admittedJail{})
	}
	there := s.admittedJails()
	for addr, who := range are {
		if _, taken := there[addr]; taken {
			continue
		}
		err := s.o.Gateway.Admit(addr, gateway.Caller{Jail: who.jail, Tenant: who.tenant, Agent: who.agent, Actor: "agent:" + who.agent, Policy: policy.Only(),
			Keyed: who.keyed})
		if err != nil {
			errs = append(errs, fmt.Errorf("let %s through: %w", who.jail, err))
			continue
		}
		s.setAdmitted(addr, who)
	}
	return errors.Join(errs...)
}

// short is the part of an engine's number that people are shown.
func short(id string) string { return id[:min(len(id), 12)] }

// admittedJails are a copy of what the gateway was told.
func (s *Service) admittedJails() map[netip.Addr]admittedJail {
	s.admissions.mu.Lock()
	defer s.admissions.mu.Unlock()
	out := make(map[netip.Addr]admittedJail, len(s.admissions.admitted))
	for addr, who := range s.admissions.admitted {
		out[addr] = who
	}
	return out
}

func (s *Service) setAdmitted(addr netip.Addr, who admittedJail) {
	s.admissions.mu.Lock()
	defer s.admissions.mu.Unlock()
	if who == (admittedJail{}) {
		delete(s.admissions.admitted, addr)
		return
	}
	s.admissions.admitted[addr] = who
}

// agentKey names an agent of a tenant.
type agentKey struct{ tenant, name string }

// byName are all agents.
func (s *Service) byName(ctx context.Context) (map[agentKey]store.Agent, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	all, err := s.o.Store.ListAgents(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	out := make(map[agentKey]store.Agent, len(all))
	for _, a := range all {
		out[agentKey{a.Tenant, a.Name}] = a
	}
	return out, nil
}

// watchStanding compares agents and jails, now and then and when somebody knocks.
func (s *Service) watchStanding(ctx context.Context) {
	every := time.NewTicker(standingEvery)
	defer every.Stop()
	waits := map[agentKey]time.Time{}
	for {
		if err := errors.Join(s.goOn(ctx, waits), s.moveAgents(ctx, waits), s.stand(ctx, waits), s.readServers(ctx)); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("agents could not be compared with their jails", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		case <-s.admissions.look:
		}
	}
}

// stand stops the jails of agents that may not run, and starts those that may again. waits says until when a jail that did
// not obey is left alone.
func (s *Service) stand(ctx context.Context, waits map[agentKey]time.Time) error {
	// At first while others change things: mostly nothing is to be done, and a sync may take its time.
	todo, err := s.outOfStanding(ctx, waits)
	if err != nil || len(todo) == 0 {
		return err
	}
	tenants := map[string]bool{}
	for _, t := range todo {
		tenants[t.tenant] = true
	}
	var errs []error
	for tenant := range tenants {
		errs = append(errs, s.inTurn(ctx, tenant, func() error { return s.standOf(ctx, tenant, waits) }))
	}
	errs = append(errs, s.admit(ctx))
	return errors.Join(errs...)
}

// standOf is stand for the agents of one tenant, in whose turn no other call changes them.
func (s *Service) standOf(ctx context.Context, tenant string, waits map[agentKey]time.Time) error {
	// The work is determined again here, so that it is still current when it is done.
	todo, err := s.outOfStanding(ctx, waits)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range todo {
		if t.tenant != tenant {
			continue
		}
		at := agentKey{t.tenant, t.step.Name}
		if err := s.setRunning(ctx, t); err != nil {
			waits[at] = s.o.Now().Add(tryAgain)
			errs = append(errs, fmt.Errorf("%s: %w", t.step.Name, err))
			continue
		}
		delete(waits, at)
	}
	return errors.Join(errs...)
}

// outOfStanding are the agents whose jail runs and may not, or may run and is stopped.
func (s *Service) outOfStanding(ctx context.Context, waits map[agentKey]time.Time) ([]*task, error) {
	_, kept, err := s.o.Keeper.Kept(ctx, 0, false)
	if err != nil {
		return nil, fmt.Errorf("ask which jails are kept: %w", err)
	}
	agents, err := s.byName(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := s.otherNodes(ctx)
	if err != nil {
		return nil, err
	}
	byTenant := map[string]map[string]*declaration{}
	now := s.o.Now()
	var out []*task
	for _, k := range kept {
		own := k.Spec.Agent
		if own == nil || now.Before(waits[agentKey{own.Tenant, own.Name}]) {
			continue
		}
		if byTenant[own.Tenant] == nil {
			if byTenant[own.Tenant], err = s.declarations(ctx, own.Tenant); err != nil {
				return nil, err
			}
		}
		a, is := agents[agentKey{own.Tenant, own.Name}]
		d := byTenant[own.Tenant][own.Name]
		adopted := d.nodeAmong(nodes) != nil // by another one, which has its state of now, also while it is away
		idle := !is || !a.RevokedAt.IsZero() || adopted || d != nil && !d.damaged && timeIsOver(d.Agent, a.CreatedAt, now)
		// A declaration that was begun and not finished is for the next sync to start.
		if idle == k.Stopped || k.Stopped && (d == nil || d.damaged || !d.Done) {
			continue
		}
		t := &task{tenant: own.Tenant, identity: a, declared: d, kept: k, isKept: true, idle: idle}
		t.step.Name = own.Name
		out = append(out, t)
	}
	return out, nil
}

// setRunning stops the jail of an agent, or starts it again.
func (s *Service) setRunning(ctx context.Context, t *task) error {
	in := audit.Intent{Action: string(identity.AgentRestart), Tenant: t.tenant, Actor: actorSelf, Target: t.step.Name,
		Detail: audit.NewDetail(audit.Fields{"stopped": t.idle, "agent_id": t.identity.ID})}
	if t.idle {
		kept := t.kept.Kept
		kept.Stopped = true
		return audit.Ending(s.o.Audit, in, func() error { return s.o.Keeper.Keep(ctx, kept, "") })
	}
	// It is started as it is declared, and not as the keeper shows it, which may leave out what is long.
	from, err := s.surfacesOf(ctx, self(), t.tenant)
	if err != nil {
		return err
	}
	want, err := s.want(t.tenant, t.identity.ID, t.declared.Agent, driverOfKept(t.kept.Kept), from)
	if err != nil {
		return err
	}
	return audit.Do(ctx, s.o.Audit, in, func() error {
		err := s.o.Keeper.Keep(ctx, want.kept, "")
		if problem.CodeOf(err) == problem.NotFound {
			err = fmt.Errorf("sync its file again: %w", err)
		}
		return err
	})
}

// self looks at what there is of all tenants, and goes on with removals that somebody who might has begun. It changes nothing
// else that package identity or egress keeps.
func self() identity.Principal {
	return identity.Principal{Kind: identity.KindAdmin, ID: actorSelf, Role: identity.RoleAdmin}
}
