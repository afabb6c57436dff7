package api

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/problem"
)

// ownedAgents keeps no jails: there is only whose the agents are. Who may do what with them is decided as package agent does.
type ownedAgents struct {
	authority *identity.Service

	mu     sync.Mutex
	calls  []string
	kept   map[string]jail.KeptStatus // by the agent's name
	sync   agent.SyncRequest
	log    jail.LogRequest
	remove agent.RemoveOptions
	typed  []byte
	called agent.WebhookCall

	steps  []agent.Step // of progress
	plan   agent.Plan
	fail   error
	answer agent.WebhookAnswer
	chunk  jail.LogChunk
}

func (a *ownedAgents) permit(ctx context.Context, by identity.Principal, op identity.Operation, tenant string) error {
	a.mu.Lock()
	a.calls = append(a.calls, string(op))
	a.mu.Unlock()
	return a.authority.Authorize(ctx, by, op, tenant)
}

// one is an agent that there is for somebody.
func (a *ownedAgents) one(ctx context.Context, by identity.Principal, op identity.Operation, tenant, name string) (identity.Agent, error) {
	missing := problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
	if err := a.permit(ctx, by, op, tenant); err != nil {
		if by.Hides(err) {
			return identity.Agent{}, missing
		}
		return identity.Agent{}, err
	}
	all, err := a.authority.Agents(ctx, by, tenant)
	if err != nil {
		return identity.Agent{}, missing
	}
	n := slices.IndexFunc(all, func(g identity.Agent) bool { return g.Name == name })
	if n < 0 {
		return identity.Agent{}, missing
	}
	return all[n], a.fail
}

func (a *ownedAgents) planned(progress func(agent.Step)) (agent.Plan, error) {
	if progress != nil {
		for _, s := range a.steps {
			progress(s)
		}
	}
	return a.plan, a.fail
}

func (a *ownedAgents) Sync(ctx context.Context, by identity.Principal, r agent.SyncRequest, progress func(agent.Step)) (agent.Plan, error) {
	if err := a.permit(ctx, by, identity.AgentSync, r.Tenant); err != nil {
		return agent.Plan{}, err
	}
	a.mu.Lock()
	a.sync = r
	a.mu.Unlock()
	return a.planned(progress)
}

func (a *ownedAgents) Declare(ctx context.Context, by identity.Principal, tenant string, read func() (clawbots.Agent, error), replace bool, progress func(agent.Step)) (agent.Plan, error) {
	if err := a.permit(ctx, by, identity.AgentSync, tenant); err != nil {
		return agent.Plan{}, err
	}
	one, err := read()
	if err != nil {
		return agent.Plan{}, err
	}
	a.mu.Lock()
	call := "declare " + tenant + " " + one.Name
	if replace {
		call += " instead"
	}
	a.calls = append(a.calls, call)
	a.mu.Unlock()
	return a.planned(progress)
}

func (a *ownedAgents) RemoveAgent(ctx context.Context, by identity.Principal, tenant, name string, o agent.RemoveOptions) error {
	if _, err := a.one(ctx, by, identity.AgentDelete, tenant, name); err != nil {
		return err
	}
	a.mu.Lock()
	a.remove = o
	a.mu.Unlock()
	return a.authority.DeleteAgent(ctx, by, tenant, name)
}

func (a *ownedAgents) status(g identity.Agent) agent.Status {
	out := agent.Status{ID: g.ID, Tenant: g.Tenant, Name: g.Name, CreatedAt: g.CreatedAt, RevokedAt: g.RevokedAt}
	if k, ok := a.kept[g.Name]; ok {
		out.Jail = &k
		out.Declared = &clawbots.Agent{Name: g.Name, Template: k.Spec.Template, Workspace: "/srv/x", Sharing: clawbots.Dedicated, Env: map[string]string{"MODE": canary}, TTL: time.Hour, Tools: []clawbots.Tool{},
			Limits: clawbots.Limits{Memory: 64 << 20}}
	}
	return out
}

func (a *ownedAgents) List(ctx context.Context, by identity.Principal, tenant string) ([]agent.Status, error) {
	tenant = by.TenantOr(tenant)
	if err := a.permit(ctx, by, identity.AgentList, tenant); err != nil {
		return nil, err
	}
	all, err := a.authority.Agents(ctx, by, tenant)
	out := []agent.Status{}
	for _, g := range all {
		s := a.status(g)
		if a.fail != nil {
			s.Jail, s.Unwatched = nil, s.Declared != nil
		}
		out = append(out, s)
	}
	return out, cmp.Or(a.fail, err)
}

func (a *ownedAgents) Get(ctx context.Context, by identity.Principal, tenant, name string) (agent.Status, error) {
	g, err := a.one(ctx, by, identity.AgentList, tenant, name)
	return a.status(g), err
}

func (a *ownedAgents) RestartAgent(ctx context.Context, by identity.Principal, tenant, name string) error {
	_, err := a.one(ctx, by, identity.AgentRestart, tenant, name)
	return err
}

func (a *ownedAgents) RotateToken(ctx context.Context, by identity.Principal, tenant, name string, overlap time.Duration) error {
	if _, err := a.one(ctx, by, identity.TokenRotate, tenant, name); err != nil {
		return err
	}
	_, _, err := a.authority.RotateToken(ctx, by, tenant, name, identity.NeverExpires, overlap)
	return err
}

func (a *ownedAgents) ReadLog(ctx context.Context, by identity.Principal, r jail.LogRequest) (jail.LogChunk, error) {
	if _, err := a.one(ctx, by, identity.AgentLog, r.Tenant, r.Name); err != nil {
		return jail.LogChunk{}, err
	}
	a.mu.Lock()
	a.log = r
	a.mu.Unlock()
	if r.Wait > 0 && len(a.chunk.Data) == 0 {
		<-ctx.Done()
		return jail.LogChunk{}, context.Cause(ctx)
	}
	return a.chunk, nil
}

func (a *ownedAgents) Type(ctx context.Context, by identity.Principal, tenant, name, _ string, data []byte) (int, error) {
	if _, err := a.one(ctx, by, identity.AgentType, tenant, name); err != nil {
		return min(2, len(data)), err
	}
	a.typed = data
	return len(data), nil
}

func (a *ownedAgents) Webhook(ctx context.Context, by identity.Principal, tenant, name string, c agent.WebhookCall) (agent.WebhookAnswer, error) {
	if _, err := a.one(ctx, by, identity.AgentWebhook, tenant, name); err != nil {
		return agent.WebhookAnswer{}, err
	}
	a.called = c
	if a.answer.Status == 0 {
		return agent.WebhookAnswer{Status: 200, ContentType: "text/plain", Body: []byte("done")}, nil
	}
	return a.answer, nil
}

func (a *ownedAgents) Events(ctx context.Context, by identity.Principal, tenant, name, _, _ string, _ bool, emit func(agent.Event) error) error {
	if _, err := a.one(ctx, by, identity.AgentLog, by.TenantOr(tenant), name); err != nil {
		return err
	}
	return emit(agent.Event{ID: "1", Type: agent.EventText, Text: "hello"})
}

func (a *ownedAgents) Exec(ctx context.Context, by identity.Principal, tenant, name string, _ jail.Program) (*jail.Running, error) {
	_, err := a.one(ctx, by, identity.AgentExec, by.TenantOr(tenant), name)
	return nil, err
}

func (a *ownedAgents) Start(ctx context.Context, by identity.Principal, tenant, name string, _ agent.ProcessRequest) (agent.Process, error) {
	g, err := a.one(ctx, by, identity.ProcessStart, by.TenantOr(tenant), name)
	return agent.Process{ID: "pr_1", Tenant: g.Tenant, Agent: name}, err
}

func (a *ownedAgents) Run(ctx context.Context, by identity.Principal, tenant, name string, r agent.ProcessRequest) (agent.Process, *jail.Running, error) {
	p, err := a.Start(ctx, by, tenant, name, r)
	return p, nil, err
}

func (a *ownedAgents) Processes(ctx context.Context, by identity.Principal, tenant, name string) ([]agent.Process, error) {
	_, err := a.one(ctx, by, identity.ProcessList, by.TenantOr(tenant), name)
	return nil, err
}

func (a *ownedAgents) EndProcess(ctx context.Context, by identity.Principal, tenant, name, _ string) error {
	_, err := a.one(ctx, by, identity.ProcessEnd, by.TenantOr(tenant), name)
	return err
}

// ownedServers are MCP servers that do not run, of which there is one.
type ownedServers struct{ authority *identity.Service }

func (s ownedServers) List(ctx context.Context, by identity.Principal, tenant string) ([]mcpserver.Status, error) {
	return nil, s.authority.AuthorizeWith(ctx, by, identity.ServerList, identity.Object{Tenant: by.TenantOr(tenant)})
}

func (s ownedServers) change(ctx context.Context, by identity.Principal) error {
	return s.authority.AuthorizeWith(ctx, by, identity.ServerChange, identity.Object{})
}

func (s ownedServers) Add(ctx context.Context, by identity.Principal, server config.MCPServer) (mcpserver.Status, error) {
	return mcpserver.Status{MCPServer: server}, s.change(ctx, by)
}

func (s ownedServers) Remove(ctx context.Context, by identity.Principal, _ string) error {
	return s.change(ctx, by)
}

func (s ownedServers) Test(ctx context.Context, by identity.Principal, tenant, name string) (mcpserver.Report, error) {
	return mcpserver.Report{Name: name}, s.authority.AuthorizeWith(ctx, by, identity.ServerChange, identity.Object{Tenant: by.TenantOr(tenant)})
}
