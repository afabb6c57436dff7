package controlplane

import (
	"fmt"
	"net/http"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
	"github.com/clawjail/clawjail/internal/toolserver"
)

// consoleParts are the services that a console shows.
type consoleParts struct {
	sessions *session.Service
	accounts *credential.Service
	book     *egress.Book
	agents   *agent.Service
	servers  *toolserver.Service
	goals    *task.Service
	health   *health.Service
}

// newConsole makes the web console, or none where the configuration has none.
func newConsole(o Options, r *ring, parts consoleParts) (http.Handler, error) {
	if !o.Config.Console.Enabled {
		return nil, nil
	}
	c, err := console.New(console.Options{
		Sessions: parts.sessions, Identity: r.identity, Credentials: parts.accounts, Egress: parts.book, Agents: parts.agents, Servers: parts.servers, Tasks: parts.goals,
		Audit: r.log, Rows: r.store, Verify: r.verify(hostd.CheckpointsPath(o.Config)), SignIn: r.signin,
		Health: parts.health, Config: o.Config, BehindProxy: o.Config.BehindProxy, Version: o.Version,
		Log: o.Log, Now: o.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("make the console: %w", err)
	}
	return c, nil
}
