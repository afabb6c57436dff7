package controlplane

import (
	"context"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/task"
)

func (p *plane) makeSessions(context.Context) (err error) {
	p.sessions, err = session.New(session.Options{
		Driver: p.host, Gateway: &p.gateway, Templates: installed{p.host, p.Config.Kubernetes.On()}, Connect: session.Dialer(p.Config.Sessions.DialogWait),
		Sessions: p.Config.Sessions, Quotas: p.Config.Quotas, Limits: p.Config.Limits, WarmPool: p.Config.WarmPool,
		Proxy: p.proxy(), Policy: p.gateway.clean, ExtraCA: p.authorities, Unsandboxed: p.info.Unsandboxed,
		Authority: p.identity, Records: p.audit,
		Accounts:   session.Accounts{Grants: p.grants, Vault: p.vault, Leases: p.store, Node: p.node, Logins: p.Config.Logins, Ask: p.book.AskForAccount},
		Tag:        store.NodeTag(p.node),
		Recordings: p.own("sessions"),
		Observe:    func(s session.Session, err error) { p.metrics.Opened(problem.CodeOf(err), s.Warm, s.Timing) },
		Pace:       p.pace,
		Log:        p.Log, Now: p.Now,
	})
	return err
}

// pace measures how slow this machine is now.
func (p *plane) pace(ctx context.Context) pace.Pace { return pace.Measure(ctx, p.Now) }

// proxy is the gateway as jails of this machine see it.
func (p *plane) proxy() string { return "http://" + p.gatewayListener.Addr().String() }

// lateAccounts are accounts that are opened after the parts that use them, but before any request is served.
type lateAccounts struct{ *credential.Service }

func (p *plane) makeAccounts(context.Context) (err error) {
	p.accounts.Service, err = credential.New(credential.Options{Vault: p.vault, Grants: p.grants, Keyring: p.keyring, Identity: p.identity,
		Audit: p.audit, Sessions: p.sessions, Now: p.Now, Log: p.Log})
	return err
}

// makeTasks makes what reaches goals: with the models of the gateway, as agents outside of all jails have them.
func (p *plane) makeTasks(context.Context) (err error) {
	p.tasks, err = task.New(task.Options{Sessions: p.sessions, Identity: p.identity, Models: p.agentRoutes.models, Left: p.agents.Left, Views: p.view, Audit: p.audit, Log: p.Log})
	return err
}

// browsers are sessions as MCP sees them: those of this control plane, and a list of all. There is no host browser here: that one is
// the desktop user's.
type browsers struct{ knownSessions }

// List implements mcp.Backend.
func (b browsers) List(ctx context.Context, by identity.Principal) ([]session.Session, error) {
	if by.Kind == identity.KindAgent { // it calls from its jail, where nothing is forwarded
		return b.Service.List(ctx, by, "", false)
	}
	return b.knownSessions.List(ctx, by, "", false)
}

// Drive implements mcp.Backend.
func (b browsers) Drive(ctx context.Context, by identity.Principal, t mcp.Target, op browser.Operation) (any, error) {
	if t.Host {
		return nil, problem.New(problem.Unsupported, "use the target session; `clawjail mcp` on a desktop has the host browser", "there is no host browser here")
	}
	return b.Service.Drive(ctx, by, t.Session, op)
}

// Host implements mcp.Backend.
func (browsers) Host() bool { return false }
