package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
)

// A removal takes several steps in two processes. It is written down before the first of them, and the note goes last: an
// agent is whole until the note is on the disk, and from then on it goes, whatever is cut meanwhile.

// remove takes an agent away, in the reverse order of make. Ending is not held up by what cannot be recorded.
func (s *Service) remove(ctx context.Context, by identity.Principal, t *task) error {
	intent := audit.Intent{Action: string(identity.AgentSync), Tenant: t.tenant, Actor: by.Actor(), Target: t.step.Name,
		Detail: audit.NewDetail(audit.Fields{"verb": string(Remove), "keep_state": t.keep.KeepState, "remove_workspace": t.keep.RemoveWorkspace})}
	return audit.Ending(s.o.Audit, intent, func() error { return s.unmake(ctx, by, t) })
}

func (s *Service) unmake(ctx context.Context, by identity.Principal, t *task) error {
	if t.declared != nil || t.isKept {
		// An agent that is an identity alone goes in one step.
		s.noteRemoval(ctx, t)
	}
	if err := s.o.Keeper.Drop(ctx, t.tenant, t.step.Name,
		jail.DropOptions{KeepState: t.keep.KeepState, RemoveWorkspace: t.keep.RemoveWorkspace}); err != nil {
		return fmt.Errorf("end its jail: %w", err)
	}
	if t.identity.ID != "" {
		// Its rules, settings and secrets go with it, and programs that run for it end.
		if err := s.o.Identity.DeleteAgent(ctx, by, t.tenant, t.step.Name); err != nil && !isNotFound(err) {
			return err
		}
	}
	return s.forget(ctx, t.declared)
}

// noteRemoval writes down that an agent is being removed.
func (s *Service) noteRemoval(ctx context.Context, t *task) {
	d := &declaration{Removing: &t.keep}
	d.Agent.Name = t.step.Name
	if t.declared != nil {
		d.entry = t.declared.entry
		if !t.declared.damaged {
			d.Agent, d.Owns = t.declared.Agent, t.declared.Owns
		}
	}
	d.ID = t.identity.ID
	if err := s.put(ctx, t.tenant, d); err != nil {
		// A full disk must not keep an agent alive. When it is cut before it is done, it has to be asked for again.
		s.o.Log.Error("write down that an agent is removed", "tenant", t.tenant, "agent", t.step.Name, "error", err)
		return
	}
	t.declared = d
}

// halfMade says whether this control plane has made only a part of a new agent, whose caller got an error or no answer. It is
// called in the tenant's turn, in which no other call makes the agent.
func (s *Service) halfMade(d *declaration) bool { return d.Maker != "" && d.Maker == s.o.Node }

// finishRemovals goes on with the removals of a tenant that were begun and cut, and takes agents back that are half made. waits
// says until when one that failed is left alone, and is nil when it is waited for. The caller has begun a change.
func (s *Service) finishRemovals(ctx context.Context, tenant string, waits map[agentKey]time.Time) error {
	declared, err := s.declarations(ctx, tenant)
	if err != nil {
		return err
	}
	nodes, err := s.otherNodes(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(declared, func(name string, d *declaration) bool {
		return d.Removing == nil && !s.halfMade(d) || d.nodeAmong(nodes) != nil || s.o.Now().Before(waits[agentKey{tenant, name}])
	})
	if len(declared) == 0 {
		return nil
	}
	agents, err := s.byName(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		d, at := declared[name], agentKey{tenant, name}
		if is := agents[at]; is.ID != d.ID && is.ID != "" {
			// Its identity was the last to go, and the one of now is another agent's.
			errs = append(errs, s.forget(ctx, d))
			continue
		}
		keep, done := RemoveOptions{KeepState: true}, "an agent that was made by half is taken back"
		if d.Removing != nil {
			keep, done = *d.Removing, "a removal that was cut is finished"
		}
		t := &task{tenant: tenant, keep: keep, declared: d, identity: agents[at], step: Step{Tenant: tenant, Name: name, Verb: Remove}}
		if err := s.remove(ctx, self(), t); err != nil {
			if waits != nil {
				waits[at] = s.o.Now().Add(tryAgain)
			}
			errs = append(errs, fmt.Errorf("go on with the removal of %s: %w", name, err))
			continue
		}
		delete(waits, at)
		s.o.Log.Info(done, "tenant", tenant, "agent", name)
	}
	return errors.Join(errs...)
}

// goOn looks for removals that were cut, and for agents that are half made.
func (s *Service) goOn(ctx context.Context, waits map[agentKey]time.Time) error {
	entries, err := s.declared(ctx)
	if err != nil {
		return err
	}
	tenants := map[string]bool{}
	if err := s.claim(ctx, entries); err != nil {
		return err
	}
	for _, e := range entries {
		d := readDeclaration(e)
		tenants[e.Tenant] = tenants[e.Tenant] || d.Removing != nil || s.halfMade(d)
	}
	var errs []error
	for tenant, removing := range tenants {
		if removing {
			errs = append(errs, s.inTurn(ctx, tenant, func() error { return s.finishRemovals(ctx, tenant, waits) }))
		}
	}
	return errors.Join(errs...)
}

// inTurn changes something of a tenant without a request. It does not wait for long: the next look is soon.
func (s *Service) inTurn(ctx context.Context, tenant string, do func() error) error {
	soon, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	end, err := s.changes.Enter(soon, tenant)
	if err != nil {
		return ctx.Err() // somebody else changes it just now, and may be doing the same
	}
	defer end()
	return do()
}

// RemoveAgent implements Agents.
func (s *Service) RemoveAgent(ctx context.Context, by identity.Principal, tenant, name string, o RemoveOptions) error {
	tenant = by.TenantOr(tenant)
	refused := s.may(ctx, by, identity.AgentDelete, tenant)
	switch {
	case by.LacksTenant(refused): // a jail that is kept for one of it can be removed
	case refused != nil && !by.Hides(refused):
		return refused
	case refused != nil, !jailName(name):
		return noAgent(name)
	}
	end, err := s.changes.Enter(ctx, tenant)
	if err != nil {
		return err
	}
	defer end()
	t := &task{tenant: tenant, keep: o, step: Step{Tenant: tenant, Name: name, Verb: Remove}}
	agents, err := s.o.Store.ListAgents(ctx, tenant)
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	if at := slices.IndexFunc(agents, func(a identity.Agent) bool { return a.Name == name }); at >= 0 {
		t.identity = agents[at]
	}
	declared, err := s.declarations(ctx, tenant)
	if err != nil {
		return err
	}
	kept, err := s.keptOf(ctx, tenant)
	if err != nil {
		return err
	}
	t.declared = declared[name]
	nodes, err := s.otherNodes(ctx)
	if err != nil {
		return err
	}
	if n := t.declared.nodeAmong(nodes); n != nil && !n.Lost() {
		return errElsewhere(name, n)
	}
	if _, t.isKept = kept[name]; t.identity.ID == "" && t.declared == nil && !t.isKept {
		return cmp.Or(refused, noAgent(name))
	}
	err = s.remove(ctx, by, t)
	s.Look()
	return errors.Join(err, s.readServers(context.WithoutCancel(ctx)))
}
