package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
)

// An agent whose state several control planes can reach goes to another one while its own drains. A mark is written before its jail
// ends, and the name of its next control plane afterwards, so that there are never two jails. Any control plane that finds a step
// undone does it again.

// moveAgents gives the agents of this control plane away while it drains, and takes over those that were given to it. waits is until
// when an agent is left alone after a failure.
func (s *Service) moveAgents(ctx context.Context, waits map[agentKey]time.Time) error {
	if s.o.Takers == nil {
		return nil
	}
	takers, err := s.o.Takers(ctx)
	if err != nil {
		return fmt.Errorf("ask who takes agents over: %w", err)
	}
	entries, err := s.declared(ctx)
	if err != nil {
		return err
	}
	tenants := map[string]bool{}
	for _, e := range entries {
		if d := readDeclaration(e); d.Node == s.o.Node && (d.To != "" || len(takers) > 0) {
			tenants[e.Tenant] = true
		}
	}
	var errs []error
	move := s.takeOver
	if len(takers) > 0 {
		move = func(ctx context.Context, tenant string, waits map[agentKey]time.Time) error {
			return s.giveAway(ctx, tenant, takers, waits)
		}
		for tenant := range tenants { // `node drain --wait` counts the agents that are marked to leave
			errs = append(errs, s.inTurn(ctx, tenant, func() error { return s.markLeaving(ctx, tenant) }))
		}
	}
	for tenant := range tenants {
		errs = append(errs, s.inTurn(ctx, tenant, func() error { return move(ctx, tenant, waits) }))
	}
	return errors.Join(errs...)
}

// movingAgents are those of this control plane that are to go, or were given to it, but for those that wait after a failure.
func (s *Service) movingAgents(ctx context.Context, tenant string, waits map[agentKey]time.Time) (out []*declaration, err error) {
	all, err := s.declarations(ctx, tenant)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if d := all[name]; d.To != "" && s.isOwn(d) && !s.o.Now().Before(waits[agentKey{tenant, name}]) {
			out = append(out, d)
		}
	}
	return out, err
}

func (s *Service) isOwn(d *declaration) bool {
	return d.Node == s.o.Node && d.Removing == nil && !d.damaged
}

// markLeaving writes down which agents are to go. Agents that may not run stay: they have nothing to go on with elsewhere.
func (s *Service) markLeaving(ctx context.Context, tenant string) error {
	all, err := s.declarations(ctx, tenant)
	if err != nil {
		return err
	}
	kept, err := s.keptOf(ctx, tenant)
	if err != nil {
		return err
	}
	var errs []error
	for name, d := range all {
		if k, is := kept[name]; s.isOwn(d) && d.To == "" && d.Done && is && !k.Stopped {
			d.To = anywhere
			errs = append(errs, s.put(ctx, tenant, d))
		}
	}
	return errors.Join(errs...)
}

// anywhere stands for the next control plane of an agent while none is chosen yet.
const anywhere = "?"

// giveAway ends the jails of the agents that are to go, and names the control planes that have them next.
func (s *Service) giveAway(ctx context.Context, tenant string, takers []string, waits map[agentKey]time.Time) error {
	all, err := s.movingAgents(ctx, tenant, waits)
	if err != nil {
		return err
	}
	return s.forEach(tenant, waits, all, "hand over", "an agent was handed over", func(n int) error {
		d, to := all[n], takerOf(tenant, n, takers)
		intent := audit.Intent{Action: string(identity.AgentSync), Tenant: tenant, Actor: actorSelf, Target: d.Agent.Name,
			Detail: audit.NewDetail(audit.Fields{"verb": "hand over", "to": to, "agent_id": d.ID})}
		return audit.Ending(s.o.Audit, intent, func() error {
			if err := s.o.Keeper.Drop(ctx, tenant, d.Agent.Name, jail.DropOptions{KeepState: true}); err != nil {
				return err
			}
			d.Node, d.To = to, to
			return s.write(ctx, tenant, d)
		})
	})
}

// takerOf is where the agent with this number goes. Tenants with few agents do not all begin with the same taker.
func takerOf(tenant string, n int, takers []string) string {
	first := int(crc32.ChecksumIEEE([]byte(tenant)) % uint32(len(takers)))
	return takers[(first+n)%len(takers)]
}

// forEach does something for each agent, and logs those for which it went well. A failed one is left alone until tryAgain has passed.
func (s *Service) forEach(tenant string, waits map[agentKey]time.Time, all []*declaration, what, done string, do func(n int) error) error {
	failed := make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for n := range all {
		group.Go(func() error {
			failed[n] = do(n)
			return nil
		})
	}
	_ = group.Wait() // it is said below
	for n, d := range all {
		at := agentKey{tenant, d.Agent.Name}
		if failed[n] == nil {
			delete(waits, at)
			s.o.Log.Info(done, "tenant", tenant, "agent", at.name)
			continue
		}
		waits[at] = s.o.Now().Add(tryAgain)
		failed[n] = fmt.Errorf("%s %s of %s: %w", what, at.name, at.tenant, failed[n])
	}
	return errors.Join(failed...)
}

// takeOver starts the agents that were given to this control plane, and those that it had marked to go and keeps.
func (s *Service) takeOver(ctx context.Context, tenant string, waits map[agentKey]time.Time) error {
	all, err := s.movingAgents(ctx, tenant, waits)
	if err != nil || len(all) == 0 {
		return err
	}
	w, err := s.read(ctx, self(), tenant, func(string) bool { return false })
	if err != nil {
		return err
	}
	var agents []clawbots.Agent
	for _, d := range all {
		agents = append(agents, d.Agent)
	}
	tasks, err := s.plan(ctx, w, agents, func(clawbots.Agent) string { return s.o.Default })
	if err != nil {
		return err
	}
	err = s.forEach(tenant, waits, all, "take over", "an agent was taken over", func(n int) error {
		t := tasks[n]
		if t.identity.ID != all[n].ID {
			return noAgent(t.step.Name) // its removal is under way
		}
		if err := s.check(ctx, w, []*task{t}, clawbots.File{}, func(clawbots.Agent) error { return nil }); err != nil {
			return err
		}
		if t.changes() {
			return s.apply(ctx, self(), t)
		}
		all[n].To = ""
		return s.put(ctx, tenant, all[n])
	})
	return errors.Join(err, s.admit(ctx))
}

// Leaving is how many agents each control plane is giving away, by its name.
func (s *Service) Leaving(ctx context.Context) (map[string]int, error) {
	entries, err := s.declared(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, e := range entries {
		if d := readDeclaration(e); d.To != "" && d.To != d.Node {
			out[d.Node]++
		}
	}
	return out, nil
}
