package peer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
)

// Node is a control plane that uses the database.
type Node struct {
	Name     string    `json:"name"`
	State    NodeState `json:"state" enum:"alive,draining,lost,stopped"`
	Self     bool      `json:"self,omitempty" doc:"it is the one that answers"`
	Version  string    `json:"version"`
	API      string    `json:"api,omitempty" doc:"where its API and its console listen"`
	Sessions *int      `json:"sessions,omitempty" doc:"how many sessions it has; missing when it cannot be asked"`
	Leaving  int       `json:"agents_leaving,omitempty" doc:"how many agents it has that others take over, because it drains"`
	Since    time.Time `json:"since" doc:"when it was started"`
	SeenAt   time.Time `json:"seen_at" doc:"when it was last heard of"`
}

// NodeState is how a control plane is doing.
type NodeState string

// The states. A node that drains opens no new sessions. One is lost that has not stopped, and of which nothing is heard.
const (
	NodeAlive    NodeState = "alive"
	NodeDraining NodeState = "draining"
	NodeLost     NodeState = "lost"
	NodeStopped  NodeState = "stopped"
)

// Nodes lists the control planes of the database, and has them open no new sessions. All fields are required.
type Nodes struct {
	// Self is the name of this control plane.
	Self  string
	Store interface {
		ListNodes(ctx context.Context) ([]store.Node, error)
		DrainNode(ctx context.Context, name string, drain bool) error
	}
	Identity interface {
		Authorize(ctx context.Context, by identity.Principal, op identity.Operation, tenant string) error
	}
	Audit audit.Records
	// Sessions are those of all control planes.
	Sessions func(ctx context.Context, by identity.Principal) ([]session.Session, error)
	// Leaving are how many agents control planes have that others take over, by their names.
	Leaving func(ctx context.Context) (map[string]int, error)
	// Changed is called when this control plane is to drain, or not any more. It returns when that is so.
	Changed func(drain bool)
}

// List lists the control planes that use the database, and those that did in the last thirty days, with how many sessions they have.
func (s *Nodes) List(ctx context.Context, by identity.Principal) ([]Node, error) {
	all, err := s.Known(ctx, by)
	if err != nil {
		return nil, err
	}
	leaving, err := s.Leaving(ctx)
	if err != nil {
		return nil, err
	}
	sessions, unknown := s.Sessions(ctx, by)
	for i := range all {
		all[i].Leaving = leaving[all[i].Name]
		if n := &all[i]; n.Self || unknown == nil && n.State != NodeLost {
			count, tag := 0, "s_"+store.NodeTag(n.Name)
			for _, session := range sessions {
				if strings.HasPrefix(session.ID, tag) {
					count++
				}
			}
			n.Sessions = &count
		}
	}
	return all, nil
}

// Known is List without their sessions, and asks no other node.
func (s *Nodes) Known(ctx context.Context, by identity.Principal) ([]Node, error) {
	if err := s.Identity.Authorize(ctx, by, identity.NodeList, ""); err != nil {
		return nil, err
	}
	rows, err := s.Store.ListNodes(ctx)
	if err != nil {
		return nil, err
	}
	var out []Node
	for _, n := range rows {
		one := Node{Name: n.Name, State: NodeAlive, Self: n.Name == s.Self, Version: n.Version, API: n.Address, Since: n.StartedAt, SeenAt: n.SeenAt}
		if one.Self {
			one.SeenAt = n.ReadAt
		}
		switch {
		case !n.StoppedAt.IsZero() && !one.Self:
			one.State = NodeStopped
		case n.Lost() && !one.Self:
			one.State = NodeLost
		case !n.DrainingAt.IsZero():
			one.State = NodeDraining
		}
		out = append(out, one)
	}
	return out, nil
}

// Drain has a control plane open no new sessions, until it is called again without drain or the control plane is started again.
// Other control planes than this one hear of it within [store.NodeAlive].
func (s *Nodes) Drain(ctx context.Context, by identity.Principal, name string, drain bool) (Node, error) {
	action := identity.NodeDrain
	if !drain {
		action = identity.NodeResume
	}
	if err := s.Identity.Authorize(ctx, by, action, ""); err != nil {
		return Node{}, err
	}
	err := audit.Do(ctx, s.Audit, audit.Intent{Action: string(action), Actor: by.Actor(), Target: name}, func() error {
		err := s.Store.DrainNode(ctx, name, drain)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
			return problem.Wrap(err, problem.NotFound, "list them: clawjail node ls", "no control plane of that name runs")
		}
		if err == nil && name == s.Self {
			s.Changed(drain)
		}
		return err
	})
	if err != nil {
		return Node{}, err
	}
	all, err := s.List(ctx, by)
	for _, n := range all {
		if n.Name == name {
			return n, err
		}
	}
	return Node{}, err
}
