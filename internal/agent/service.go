package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/store"
)

// Options are what a Service is made from. Everything but Log is required.
type Options struct {
	// Keeper keeps jails, and Driver makes those of single programs. The host daemon's client is both.
	Keeper jail.Keeper
	Driver jail.Driver
	// Gateway is told which address is whose.
	Gateway  Gateway
	Identity *identity.Service
	Book     *egress.Book
	Store    store.Entries
	Audit    Records
	// Agents and Docker are of the configuration.
	Agents config.Agents
	Docker config.Docker
	// Default is the driver of agents that name neither template nor image: linux or docker.
	Default string
	// GatewayURL is the gateway's as jails see it.
	GatewayURL string
	// Servers are the names of the MCP servers that there are.
	Servers func(ctx context.Context) ([]string, error)
	// Dir is a folder for what programs print.
	Dir string
	Log *slog.Logger
	Now func() time.Time
}

// Gateway admits addresses. *gateway.Gateway is one.
type Gateway interface {
	Admit(addr netip.Addr, who gateway.Caller) error
	Forget(addr netip.Addr) error
}

// Records is the audit log.
type Records interface {
	Begin(ctx context.Context, in audit.Intent) (*audit.Pending, error)
	BeginEnding(in audit.Intent) *audit.Pending
}

// Service implements Agents.
type Service struct {
	o Options
	processes
}
