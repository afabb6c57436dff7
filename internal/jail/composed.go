package jail

import (
	"net/netip"

	"github.com/clawjail/clawjail/internal/problem"
)

// Composed is a container that somebody else has started for an agent on the network of agents' containers, such as
// docker-compose. Its confinement was not looked at, and its labels prove nothing: the gateway wants the agent's token.
type Composed struct {
	// ID is the engine's.
	ID     string     `json:"id"`
	Tenant string     `json:"tenant"`
	Agent  string     `json:"agent"` // its name
	Addr   netip.Addr `json:"addr"`
}

// ErrComposed says that the network of agents' containers stays, because it has containers of somebody else's. None of them
// reaches the gateway any more.
var ErrComposed error = problem.New(problem.Conflict, "take them down with `docker-compose down`, or end them",
	"there are containers of docker-compose on the network of agents' containers")
