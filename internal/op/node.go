package op

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
)

// Nodes is the answer to a listing.
type Nodes struct {
	Nodes []health.Node `json:"nodes" nullable:"false"`
}

// ListNodes lists the control planes that use one database.
func ListNodes() Op[None, Nodes] {
	return Op[None, Nodes]{Method: http.MethodGet, Path: "/v1/nodes", ID: "list-nodes", Summary: "List the control planes that use the database", Right: identity.NodeList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Long: "Lists the control planes that use the same database, with those of the last 30 days that have stopped or are lost. " +
			"One is lost when it was not heard of for 7.5 seconds and had not stopped."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (Nodes, error) {
			all, err := s.Health.Nodes(ctx, by)
			return Nodes{all}, err
		},
		View: func(all Nodes) []Block {
			return []Block{table(all.Nodes, []any{"NODE", "STATE", "VERSION", "API", "SINCE", "SEEN"}, func(n health.Node) []any {
				name := n.Name
				if n.Self {
					name += " (this one)"
				}
				return []any{name, n.State, n.Version, n.API, n.Since, n.SeenAt}
			})}
		}}
}
