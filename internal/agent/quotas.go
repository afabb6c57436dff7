package agent

import (
	"context"
	"fmt"
	"maps"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/quota"
)

// maxWaits is how many questions to the host daemon may wait for an answer: it takes only so many calls of the control plane at
// a time, and sessions need some.
const maxWaits = 256

// wait counts a question to the host daemon that waits for an answer, until leave.
func (p *processes) wait(asks quota.Holder) (leave func(), err error) { return p.waits.Enter(asks) }

// Held reads once how much agents hold; the returned function gives the amounts for a holder, without those that cannot be read.
func (s *Service) Held(ctx context.Context) func(asks quota.Holder) []quota.Amount {
	all, err := s.allKept(ctx)
	volumes, volumesErr := s.o.Volumes(ctx)
	disk, diskErr := s.o.Disk()
	return func(asks quota.Holder) []quota.Amount {
		out := s.waits.Amounts(asks)
		if err != nil {
			return out
		}
		agents, state := heldBy(asks.Tenant, all, volumes)
		out = append(out, quota.Amount{Kind: quota.Agents(), Whole: int64(s.o.MaxAgents), Held: agents})
		if diskErr == nil && volumesErr == nil && s.o.Identity.Counted() > 1 { // else nothing of it is refused
			out = append(out, quota.Amount{Kind: quota.State(), Whole: disk, Held: state})
		}
		return out
	}
}

// heldBy counts jails that are kept, and what volumes may take, for a tenant: those of the jails, and those that are left of agents
// that have none any more.
func heldBy(tenant string, all []jail.KeptStatus, volumes map[string]int64) (agents, state quota.Held) {
	asks := quota.Holder{Tenant: tenant}
	left := maps.Clone(volumes)
	for _, k := range all {
		if a := k.Spec.Agent; a != nil {
			of := quota.Holder{Tenant: a.Tenant, Agent: a.Name}
			agents.Count(asks, of, 1)
			state.Count(asks, of, max(stateOf(k.Kept), volumes[a.Key()])) // a volume is never made smaller
			delete(left, a.Key())
		}
	}
	for key, size := range left {
		state.Count(asks, quota.Holder{Tenant: jail.TenantOf(key), Agent: key}, size)
	}
	return agents, state
}

// stateOf is how large the volume of an agent may become. Engines have no bound for theirs: what is declared counts all the same.
func stateOf(k jail.Kept) int64 {
	if k.Spec.Agent == nil {
		return 0
	}
	return k.Spec.Agent.State
}

// checkQuotas is an error when the tenant would hold more than its share after some tasks.
func (s *Service) checkQuotas(ctx context.Context, w *tenantState, making []*task) error {
	tenants, err := s.o.Identity.CountTenants(ctx, w.tenant)
	if err != nil {
		return err
	}
	volumes, err := s.o.Volumes(ctx)
	if err != nil {
		return fmt.Errorf("ask how large volumes are: %w", err)
	}
	agents, state := heldBy(w.tenant, w.everyone, volumes)
	more, bytes := int64(0), int64(0)
	for _, t := range making {
		before, isKept := w.kept[t.step.Name]
		if !isKept {
			more++
		}
		key := jail.Agent{Tenant: w.tenant, Name: t.step.Name}.Key()
		bytes += max(0, stateOf(t.want.kept)-max(stateOf(before.Kept), volumes[key]))
	}
	asks := quota.Holder{Tenant: w.tenant}
	if more > 0 {
		if err := quota.Divide(s.o.Quotas, int64(s.o.MaxAgents), tenants).Check(quota.Agents(), asks, agents, more); err != nil {
			return err
		}
	}
	if bytes == 0 || tenants == 1 {
		return nil // a single tenant may declare more volumes than the disk holds: no other tenant loses by it
	}
	disk, err := s.o.Disk()
	if err != nil {
		return fmt.Errorf("look at the disk of the volumes: %w", err)
	}
	state.All = 0 // what others may write is their share
	return quota.Divide(s.o.Quotas, disk, tenants).Check(quota.State(), asks, state, bytes)
}
