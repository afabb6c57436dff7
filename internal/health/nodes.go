package health

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
)

// Node is a control plane that uses the database.
type Node struct {
	Name    string    `json:"name"`
	State   NodeState `json:"state" enum:"alive,lost,stopped"`
	Self    bool      `json:"self,omitempty" doc:"it is the one that answers"`
	Version string    `json:"version"`
	API     string    `json:"api,omitempty" doc:"where its API and its console listen"`
	Since   time.Time `json:"since" doc:"when it was started"`
	SeenAt  time.Time `json:"seen_at" doc:"when it was last heard of"`
}

// NodeState is how a control plane is doing.
type NodeState string

// The states. A node is lost that has not stopped, and of which nothing is heard.
const (
	NodeAlive   NodeState = "alive"
	NodeLost    NodeState = "lost"
	NodeStopped NodeState = "stopped"
)

// Nodes lists the control planes that use the database, and those that did in the last thirty days.
func (s *Service) Nodes(ctx context.Context, by identity.Principal) ([]Node, error) {
	if err := s.Identity.Authorize(ctx, by, identity.NodeList, ""); err != nil {
		return nil, err
	}
	if s.Database == nil {
		return nil, nil
	}
	all, err := s.Database.ListNodes(ctx)
	if err != nil {
		return nil, err
	}
	var out []Node
	for _, n := range all {
		one := Node{Name: n.Name, State: NodeAlive, Self: n.Name == s.Node, Version: n.Version, API: n.Address, Since: n.StartedAt, SeenAt: n.SeenAt}
		switch {
		case one.Self:
			one.SeenAt = n.ReadAt
		case !n.StoppedAt.IsZero():
			one.State = NodeStopped
		case n.Lost():
			one.State = NodeLost
		}
		out = append(out, one)
	}
	return out, nil
}
