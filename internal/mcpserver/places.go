package mcpserver

import (
	"context"

	"github.com/clawjail/clawjail/internal/quota"
)

// Held is how many servers run: of all, and of a tenant.
func (s *Service) Held(asks quota.Holder) []quota.Amount { return s.running.Amounts(asks) }

// enterPlace finds a place for one more server of a tenant, until leave. When there is none, an idle one is ended for it:
// the one that was called least lately, of the same tenant if there is one.
func (s *Service) enterPlace(ctx context.Context, tenant string) (leave func(), err error) {
	for {
		leave, err := s.running.Enter(quota.Holder{Tenant: tenant})
		if err == nil {
			return leave, nil
		}
		gone := s.makeRoom(tenant)
		if gone == nil {
			return nil, err
		}
		select {
		case <-gone:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// makeRoom ends an idle server, and returns a channel that is closed when its place is free; nil when there is none. One that is
// ending anyway will do. Servers of other tenants are ended only where these leave no room, and not the tenant's own share.
func (s *Service) makeRoom(tenant string) (gone <-chan struct{}) {
	full := false
	for _, a := range s.Held(quota.Holder{Tenant: tenant}) {
		full = full || a.Held.All >= a.Whole
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, own := range []bool{true, false} {
		if !own && !full {
			break
		}
		for r, of := range s.runs {
			if r.ending && (of == tenant) == own {
				return r.gone
			}
		}
		if i := s.idlest(func(of string) bool { return (of == tenant) == own }); i != nil {
			r := i.run
			i.run, r.ending = nil, true // no call gets it any more
			close(r.unwanted)
			return r.gone
		}
	}
	return nil
}

// idlest is the instance of some tenants that runs and was not called for longest. The lock is held.
func (s *Service) idlest(some func(tenant string) bool) *instance {
	var out *instance
	for _, i := range s.instances {
		if i.run != nil && i.calls == 0 && some(i.key.tenant) && (out == nil || i.lastUsed.Before(out.lastUsed)) {
			out = i
		}
	}
	return out
}
