package agent

import (
	"context"
	"fmt"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/quota"
)

// maxWaits is how many questions to the host daemon may wait for an answer: it takes only so many calls of the control plane at
// a time, and sessions need some.
const maxWaits = 256

// wait counts a question to the host daemon that waits for an answer, until leave.
func (p *processes) wait(asks quota.Holder) (leave func(), err error) { return p.waits.Enter(asks) }

// Held looks at what is held of what agents share, once for all who ask. What nobody can say is left out.
func (s *Service) Held(ctx context.Context) func(asks quota.Holder) []quota.Amount {
	all, err := s.allKept(ctx)
	disk, diskErr := s.o.Disk()
	return func(asks quota.Holder) []quota.Amount {
		out := s.waits.Amounts(asks)
		if err != nil {
			return out
		}
		agents, state := heldBy(asks.Tenant, all)
		out = append(out, quota.Amount{Kind: quota.Agents(), Whole: int64(s.o.MaxAgents), Held: agents})
		if diskErr == nil && s.o.Identity.Counted() > 1 { // else nothing of it is refused
			out = append(out, quota.Amount{Kind: quota.State(), Whole: disk, Held: state})
		}
		return out
	}
}

// heldBy counts jails that are kept, and what the volumes of those may take, for a tenant.
func heldBy(tenant string, all []jail.KeptStatus) (agents, state quota.Held) {
	asks := quota.Holder{Tenant: tenant}
	for _, k := range all {
		if a := k.Spec.Agent; a != nil {
			agents.Count(asks, quota.Holder{Tenant: a.Tenant, Agent: a.Name}, 1)
			state.Count(asks, quota.Holder{Tenant: a.Tenant, Agent: a.Name}, stateOf(k.Kept))
		}
	}
	return agents, state
}

// stateOf is how large the volume of an agent may become. Engines have no bound for theirs.
func stateOf(k jail.Kept) int64 {
	if k.Spec.Agent == nil || driverOfKept(k) != DriverLinux {
		return 0
	}
	return k.Spec.Agent.State
}

// checkQuotas is an error when the tenant would hold more than its share after some tasks.
func (s *Service) checkQuotas(ctx context.Context, w *world, making []*task) error {
	tenants, err := s.o.Identity.CountTenants(ctx, w.tenant)
	if err != nil {
		return err
	}
	agents, state := heldBy(w.tenant, w.everyone)
	more, bytes := int64(0), int64(0)
	for _, t := range making {
		before, isKept := w.kept[t.step.Name]
		if !isKept {
			more++
		}
		bytes += max(0, stateOf(t.want.kept)-stateOf(before.Kept))
	}
	asks := quota.Holder{Tenant: w.tenant}
	if more > 0 {
		if err := quota.Divide(s.o.Quotas, int64(s.o.MaxAgents), tenants).Check(quota.Agents(), asks, agents, more); err != nil {
			return err
		}
	}
	if bytes == 0 || tenants == 1 {
		return nil // volumes of one tenant may be larger together than the disk: nobody else has any
	}
	disk, err := s.o.Disk()
	if err != nil {
		return fmt.Errorf("look at the disk of the volumes: %w", err)
	}
	state.All = 0 // what others may write is their share
	return quota.Divide(s.o.Quotas, disk, tenants).Check(quota.State(), asks, state, bytes)
}
