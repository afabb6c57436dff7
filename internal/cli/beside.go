package cli

import (
	"context"

	"github.com/clawjail/clawjail/internal/gateway"
)

// Beside runs beside a control plane and with its gateway, until ctx ends; an error ends the control plane. It is where
// the service of agents and their jails is attached: nothing else admits a jail that is an agent's. The program has none
// yet, so that only the browsers of sessions are admitted.
type Beside func(ctx context.Context, exit *gateway.Gateway) error
