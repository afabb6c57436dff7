package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// maxTypedAtOnce bounds what is typed to a jail at once, in bytes.
const maxTypedAtOnce = 1 << 20

// List implements Agents.
func (s *Service) List(ctx context.Context, by identity.Principal, tenant string) ([]Status, error) {
	tenant = by.TenantOr(tenant)
	agents, err := s.o.Identity.Agents(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	return s.statuses(ctx, tenant, agents, "", false)
}

// Get implements Agents.
func (s *Service) Get(ctx context.Context, by identity.Principal, tenant, name string) (Status, error) {
	tenant = by.TenantOr(tenant)
	agents, err := s.o.Identity.Agents(ctx, by, tenant)
	if by.Hides(err) {
		return Status{}, noAgent(name)
	}
	if err != nil {
		return Status{}, err
	}
	leave, err := s.wait(quota.Holder{Tenant: tenant, Agent: by.AgentID()})
	if err != nil {
		return Status{}, err
	}
	defer leave()
	all, err := s.statuses(ctx, tenant, agents, name, true)
	if err != nil {
		return Status{}, err
	}
	if len(all) == 0 {
		return Status{}, noAgent(name)
	}
	return all[0], nil
}

// statuses are those of all agents of a tenant, or of one, by name. Agents half made, or half removed, are among them. The statuses are
// there with an error, too, when it is not known which jails are kept.
func (s *Service) statuses(ctx context.Context, tenant string, agents []store.Agent, name string, usage bool) ([]Status, error) {
	declared, err := s.declarations(ctx, tenant)
	if err != nil {
		return nil, err
	}
	nodes, err := s.otherNodes(ctx)
	if err != nil {
		return nil, err
	}
	_, all, unknown := s.o.Keeper.Kept(ctx, 0, usage)
	if unknown != nil {
		unknown = fmt.Errorf("ask which jails are kept: %w", unknown)
	}
	out := map[string]*Status{}
	of := func(n string) *Status {
		if out[n] == nil {
			out[n] = &Status{Tenant: tenant, Name: n}
		}
		return out[n]
	}
	for _, a := range agents {
		st := of(a.Name)
		st.ID, st.CreatedAt, st.RevokedAt, st.Processes = a.ID, a.CreatedAt, a.RevokedAt, s.running(a.ID)
	}
	for n, d := range declared {
		st := of(n)
		st.Declared, st.Unwatched, st.Unfinished = &d.Agent, unknown != nil, !d.Done
		if st.ID == "" {
			st.CreatedAt = d.entry.CreatedAt
		}
		st.Over = timeIsOver(d.Agent, st.CreatedAt, s.o.Now())
		if at := d.nodeAmong(nodes); at != nil {
			st.Node, st.Unwatched = at.Name, false
		}
	}
	for i := range all {
		if a := all[i].Spec.Agent; a != nil && a.Tenant == tenant {
			of(a.Name).Jail = &all[i]
		}
	}
	var list []Status
	for _, n := range slices.Sorted(maps.Keys(out)) {
		if name == "" || n == name {
			list = append(list, *out[n])
		}
	}
	return list, unknown
}

// RestartAgent implements Agents.
func (s *Service) RestartAgent(ctx context.Context, by identity.Principal, tenant, name string) error {
	a, err := s.whose(ctx, by, identity.AgentRestart, tenant, name)
	if err != nil {
		return err
	}
	end, err := s.changes.Enter(ctx, a.Tenant)
	if err != nil {
		return err
	}
	defer end()
	kept, err := s.keptOf(ctx, a.Tenant)
	if err != nil {
		return err
	}
	k, is := kept[a.Name]
	switch {
	case !is:
		return noJail(a)
	case !a.RevokedAt.IsZero():
		return problem.New(problem.Conflict, "restore it first: clawjail agent restore "+a.Name, "the agent %s is revoked", a.Name)
	case k.Stopped:
		if _, err := s.Left(ctx, a); err != nil {
			return err
		}
		return problem.New(problem.Conflict, "declare it again: clawjail agent add "+a.Name+" --replace; for one of a file: clawjail agent sync", "the jail of %s is stopped", a.Name)
	}
	return s.recorded(ctx, by, identity.AgentRestart, a, nil, func() error { return s.o.Keeper.RestartKept(ctx, a.Tenant, a.Name) })
}

// RotateToken implements Agents.
func (s *Service) RotateToken(ctx context.Context, by identity.Principal, tenant, name string, overlap time.Duration) error {
	a, err := s.whose(ctx, by, identity.TokenRotate, tenant, name)
	if err != nil {
		return err
	}
	end, err := s.changes.Enter(ctx, a.Tenant)
	if err != nil {
		return err
	}
	defer end()
	kept, err := s.keptOf(ctx, a.Tenant)
	if err != nil {
		return err
	}
	if _, is := kept[a.Name]; !is {
		return noJail(a) // there is no jail to put the new token into
	}
	declared, err := s.declarations(ctx, a.Tenant)
	if err != nil {
		return err
	}
	life := identity.NeverExpires
	if d := declared[a.Name]; d != nil {
		if life = s.rest(d.Agent.TTL, a); life != identity.NeverExpires && life < time.Second {
			return isOver(a)
		}
	}
	return s.o.Identity.ReplaceToken(ctx, by, a.Tenant, a.Name, life, overlap, func(key identity.Key) error {
		if err := s.o.Keeper.SetToken(ctx, a.Tenant, a.Name, key.Reveal()); err != nil {
			return problem.Wrap(err, problem.CodeOf(err), "rotate again; its old tokens stay valid until that works, or: clawjail agent revoke "+a.Name+identity.InTenant(a.Tenant),
				"the jail of %s could not be given its new token", a.Name)
		}
		return nil
	})
}

// ReadLog implements Agents.
func (s *Service) ReadLog(ctx context.Context, by identity.Principal, r jail.LogRequest) (jail.LogChunk, error) {
	a, err := s.whose(ctx, by, identity.AgentLog, r.Tenant, r.Name)
	if err != nil {
		return jail.LogChunk{}, err
	}
	r.Tenant, r.Name = a.Tenant, a.Name
	if r.Wait > 0 {
		leave, err := s.wait(quota.Holder{Tenant: a.Tenant, Agent: by.AgentID()})
		if err != nil {
			return jail.LogChunk{}, err
		}
		defer leave()
	}
	return s.o.Keeper.ReadLog(ctx, r)
}

// Type implements Agents.
func (s *Service) Type(ctx context.Context, by identity.Principal, tenant, name, of string, data []byte) (int, error) {
	if len(data) > maxTypedAtOnce {
		return 0, problem.New(problem.TooLarge, "send it in pieces", "%d bytes are more than %d, which is what can be typed at once", len(data), maxTypedAtOnce)
	}
	if of != "" {
		return s.typeTo(ctx, by, tenant, name, of, data)
	}
	a, err := s.whose(ctx, by, identity.AgentType, tenant, name)
	if err != nil {
		return 0, err
	}
	leave, err := s.wait(quota.Holder{Tenant: a.Tenant, Agent: by.AgentID()})
	if err != nil {
		return 0, err
	}
	defer leave()
	n := 0
	err = s.recorded(ctx, by, identity.AgentType, a, audit.Fields{"bytes": len(data)}, func() (err error) {
		n, err = s.o.Keeper.Type(ctx, a.Tenant, a.Name, data)
		return err
	})
	return n, err
}

// recorded does something with an agent between its intent and its outcome.
func (s *Service) recorded(ctx context.Context, by identity.Principal, op identity.Operation, a identity.Agent, fields audit.Fields, do func() error) error {
	if fields == nil {
		fields = audit.Fields{}
	}
	fields["agent_id"] = a.ID
	return audit.Do(ctx, s.o.Audit, audit.Intent{Action: string(op), Tenant: a.Tenant, Actor: by.Actor(), Target: a.Name, Detail: audit.NewDetail(fields)}, do)
}
