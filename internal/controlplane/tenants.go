package controlplane

import (
	"context"
	"log/slog"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/quota"
)

const (
	// tenantsLook is how often it is looked whether there are more or fewer tenants, and tenantsAgain how often the host daemon is
	// told although there are as many as before: it may be another one, or have bounds that are still to come down.
	tenantsLook, tenantsAgain = time.Second, 10 * time.Second
)

// tellTenants tells the host daemon how many tenants there are, until the context ends.
func tellTenants(ctx context.Context, host *hostd.Client, count func() int, log *slog.Logger) {
	look := time.NewTicker(tenantsLook)
	defer look.Stop()
	told, rest := 0, time.Duration(0)
	for {
		if n := count(); n != told || rest <= 0 {
			if _, err := host.Share(ctx, n); err == nil {
				told, rest = n, tenantsAgain
			} else if ctx.Err() == nil {
				log.Debug("tell the host daemon how many tenants there are", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			rest -= tenantsLook
		}
	}
}

// memoryOfJails looks at the memory that jails have by their limits. While there is one tenant nothing of it is refused.
func memoryOfJails(host *hostd.Client, of *identity.Service) quota.Look {
	return func(ctx context.Context) func(quota.Holder) []quota.Amount {
		n := of.Counted()
		declared, err := host.Share(ctx, n)
		if err != nil || n < 2 {
			return func(quota.Holder) []quota.Amount { return nil }
		}
		return declared.Held
	}
}
