package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// An agent's jail and its state are on one machine, that of the control plane which was told of it. The others of the database know its
// identity, and leave the rest alone.

// otherNodes are the other control planes of the database; none where there can be none.
func (s *Service) otherNodes(ctx context.Context) ([]store.Node, error) {
	if s.o.Nodes == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	all, err := s.o.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask which control planes there are: %w", err)
	}
	return slices.DeleteFunc(all, func(n store.Node) bool { return n.Name == s.o.Node }), nil
}

// nodeAmong is the one of some other control planes whose machine has an agent. It is nil for an agent of this machine, and for one
// whose control plane is no longer in the database.
func (d *declaration) nodeAmong(nodes []store.Node) *store.Node {
	if d == nil {
		return nil
	}
	if at := slices.IndexFunc(nodes, func(n store.Node) bool { return n.Name == d.Node }); at >= 0 {
		return &nodes[at]
	}
	return nil
}

// otherNodeOf is the other control plane whose machine has an agent; nil as nodeAmong is.
func (s *Service) otherNodeOf(ctx context.Context, tenant, name string) (*store.Node, error) {
	nodes, err := s.otherNodes(ctx)
	if err != nil || len(nodes) == 0 {
		return nil, err
	}
	declared, err := s.declarations(ctx, tenant)
	return declared[name].nodeAmong(nodes), err
}

// requireHere is an error for an agent whose jail is on another machine.
func (s *Service) requireHere(ctx context.Context, tenant, name string) error {
	n, err := s.otherNodeOf(ctx, tenant, name)
	if err == nil && n != nil {
		err = errElsewhere(name, n)
	}
	return err
}

// NodeOf is the control plane that has an agent's jail and can be asked for it, where that is another one; else it is empty.
func (s *Service) NodeOf(ctx context.Context, tenant, name string) (string, error) {
	n, err := s.otherNodeOf(ctx, tenant, name)
	if err != nil || n == nil || adoptable(n) || n.PeerAddress == "" {
		return "", err
	}
	return n.Name, nil
}

// errElsewhere says on which machine an agent is, and how to get it here where that is possible.
func errElsewhere(name string, n *store.Node) error {
	hint := "ask that one"
	if adoptable(n) {
		hint = "start that one again; when it does not come back: clawjail agent sync --adopt " + name + ", but what it keeps on that machine stays there"
	}
	return problem.New(problem.Conflict, hint, "the agent %s is on the machine of the control plane %s", name, n.Name)
}

// adoptable says whether the agents of a control plane can be taken over: it was stopped, or is lost.
func adoptable(n *store.Node) bool { return !n.StoppedAt.IsZero() || n.Lost() }

// leaveOthers takes the agents of other machines out of what is declared in a tenant. Those that are to be adopted stay in it.
func (w *tenantState) leaveOthers(nodes []store.Node, adopt func(name string) bool) {
	w.elsewhere = map[string]*store.Node{}
	for name, d := range w.declared {
		if n := d.nodeAmong(nodes); n != nil && !(adoptable(n) && adopt(name)) {
			w.elsewhere[name] = n
			delete(w.declared, name)
		}
	}
}

// claim writes down that the agents whose jails are here are of this machine, where that is missing: earlier versions did not write it.
func (s *Service) claim(ctx context.Context, entries []store.Entry) error {
	var free []*declaration
	for _, e := range entries {
		if d := readDeclaration(e); s.o.Nodes != nil && d.Node == "" && !d.damaged {
			free = append(free, d)
		}
	}
	if len(free) == 0 {
		return nil
	}
	kept, err := s.allKept(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range free {
		if _, here := ofTenant(kept, d.entry.Tenant)[d.Agent.Name]; here {
			errs = append(errs, s.inTurn(ctx, d.entry.Tenant, func() error { return s.put(ctx, d.entry.Tenant, d) }))
		}
	}
	return errors.Join(errs...)
}
