package cli

import (
	"context"

	"github.com/clawjail/clawjail/internal/gateway"
)

// Beside runs beside a control plane and with its gateway, until ctx ends; an error ends the control plane. The program has
// none; a test's control plane admits jails of its own with one.
type Beside func(ctx context.Context, exit *gateway.Gateway) error
