package controlplane

import (
	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/metrics"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// healthParts are the services that are looked at.
type healthParts struct {
	sessions *session.Service
	accounts *credential.Service
	book     *egress.Book
	agents   *agent.Service
	servers  *toolserver.Service
	counted  *metrics.Metrics
	exit     *gateway.Gateway
	gateway  string
}

func newHealth(o Options, host *hostd.Client, r *ring, c certificate, parts healthParts) (*health.Service, error) {
	out := health.Options{
		Sessions: parts.sessions, Identity: r.identity, Accounts: parts.accounts, Requests: parts.book, Agents: parts.agents, Divided: o.Config.Quotas,
		Held: []quota.Look{quota.Always(parts.sessions.Held), quota.Always(r.log.Held), quota.Always(r.identity.Held), quota.Always(parts.exit.Held), parts.agents.Held,
			quota.Always(parts.servers.Held), memoryOfJails(host, r.identity), r.vault.Held},
		Machine: health.NewWatch(host, o.Config.DataDir, o.Now, o.Log).Look,
		Audit:   r.log.Status, Checkpoints: hostd.CheckpointsPath(o.Config), Database: r.store, DatabaseKind: "postgresql",
		Gateway: parts.counted.Gateway, GatewayAt: parts.gateway, API: o.Config.Listen.String(), Version: o.Version, Node: r.node, Log: o.Log, Now: o.Now,
	}
	if o.Config.Database == "" {
		out.DatabaseKind, out.DatabaseDir = "embedded", hostd.DatabaseDir(o.Config)
	}
	if c.leaf != nil {
		out.Certificate = c.leaf.NotAfter
	}
	return health.New(out)
}
