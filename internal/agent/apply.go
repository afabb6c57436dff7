package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// apply does what is to be done with one agent. The order is such that whatever step is the last one that is done, the
// next sync finds the rest: the declaration says that something was begun before anything is, and is marked as done when
// everything is, or taken back when the agent is new; nothing is allowed before the agent's own rules and settings are there;
// and a token that never came to its jail is replaced, and ends no other.
func (s *Service) apply(ctx context.Context, by identity.Principal, t *task) error {
	if t.step.Verb == Remove {
		return s.remove(ctx, by, t)
	}
	intent := audit.Intent{Action: string(identity.AgentSync), Tenant: t.tenant, Actor: by.Actor(), Target: t.step.Name,
		Detail: audit.NewDetail(audit.Fields{"verb": string(t.step.Verb), "driver": t.step.Driver, "source": t.step.Source, "workspace": texts.Clip(t.step.Workspace, 500),
			"workspace_mode": string(t.step.Mode), "sharing": string(t.step.Sharing)})}
	return audit.Do(ctx, s.o.Audit, intent, func() error { return s.make(ctx, by, t) })
}

// make makes an agent what it is declared to be.
func (s *Service) make(ctx context.Context, by identity.Principal, t *task) error {
	a := t.want.agent
	d := &declaration{Agent: a, ID: t.identity.ID, Owns: partsOf(a)}
	if t.declared != nil {
		d.entry, d.To, d.Owns = t.declared.entry, t.declared.To, union(t.declared.Owns, d.Owns)
	} else if d.ID == "" && !t.isKept {
		d.Maker = s.o.Node
	}
	if d.ID == "" {
		d.ID = identity.NewAgentID()
	}
	if err := s.put(ctx, t.tenant, d); err != nil {
		return err
	}
	token := ""
	if t.identity.ID == "" {
		key, made, err := s.o.Identity.CreateAgentAs(ctx, by, d.ID, t.tenant, a.Name, orElse(a.TTL, identity.NeverExpires))
		if err != nil {
			return err
		}
		token, t.identity = key.Reveal(), made
	}
	if err := s.applyRules(ctx, by, t.tenant, t.identity.ID, t.rules); err != nil {
		return err
	}
	if t.settings != nil {
		set := *t.settings
		set.Tenant, set.Agent = t.tenant, t.identity.ID
		if _, err := s.o.Book.DeclareSettings(ctx, by, set); err != nil {
			return fmt.Errorf("set its settings: %w", err)
		}
	}
	if err := s.applyAccounts(ctx, by, t.tenant, t.identity.ID, t.accounts); err != nil {
		return err
	}
	var err error
	if token == "" && t.rotate {
		err = s.o.Identity.ReplaceToken(ctx, by, t.tenant, a.Name, s.rest(a.TTL, t.identity), identity.DefaultOverlap,
			func(key identity.Key) error { return s.start(ctx, t, key.Reveal()) })
	} else {
		err = s.start(ctx, t, token)
	}
	if err != nil {
		return err
	}
	d.Maker, d.To, d.Owns, d.Done = "", "", partsOf(a), true
	return s.put(ctx, t.tenant, d)
}

// rest is how long a token is good that an agent gets now.
func (s *Service) rest(ttl time.Duration, a store.Agent) time.Duration {
	if ttl == 0 {
		return identity.NeverExpires
	}
	return a.CreatedAt.Add(ttl).Sub(s.o.Now())
}

// Left is how long something may run for an agent: for what is left of the time for which it is declared, and a week at most. When
// that is over, the code is conflict.
func (s *Service) Left(ctx context.Context, a identity.Agent) (time.Duration, error) {
	all, err := s.declarations(ctx, a.Tenant)
	if err != nil {
		return 0, err
	}
	d := all[a.Name]
	if d == nil || d.damaged || d.Agent.TTL == 0 {
		return maxTTL, nil
	}
	left := s.rest(d.Agent.TTL, a)
	if left <= 0 {
		return 0, isOver(a)
	}
	return min(left, maxTTL), nil
}

// MoreTime says how an agent whose time is over is started again.
func MoreTime(tenant, name string) string {
	return "declare a longer ttl, which counts from when it was made: clawjail agent add " + name + identity.InTenant(tenant) + " --ttl TIME --replace, or in its file"
}

func isOver(a identity.Agent) error {
	return problem.New(problem.Conflict, MoreTime(a.Tenant, a.Name), "the time of the agent %s is over", a.Name)
}

// start gives the keeper what is declared, and the jail its token.
func (s *Service) start(ctx context.Context, t *task, token string) error {
	kept := t.want.kept
	kept.Stopped = t.idle
	switch {
	case t.deliver && (t.isKept || !t.idle):
		if err := s.o.Keeper.Keep(ctx, kept, token); err != nil {
			return err
		}
		return nil
	case token != "" && t.isKept:
		if err := s.o.Keeper.SetToken(ctx, t.tenant, t.step.Name, token); err != nil {
			return fmt.Errorf("give it its token: %w", err)
		}
	}
	if t.retry {
		return s.o.Keeper.RestartKept(ctx, t.tenant, t.step.Name)
	}
	return nil
}

func isNotFound(err error) bool {
	return errors.Is(err, store.ErrNotFound) || problem.CodeOf(err) == problem.NotFound
}
