package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// fakeAgents has agents that are only described. Who may do what is decided as package agent does; beside those in all there are
// the identities of a tenant.
type fakeAgents struct {
	agent.Agents // what a test does not need panics
	authority    *identity.Service
	all          []agent.Status

	mu        sync.Mutex
	calls     []string // what was done, with whom
	typed     string
	sync      agent.SyncRequest
	declared  clawbots.Agent
	removed   agent.RemoveOptions
	request   agent.ProcessRequest
	processes []agent.Process
	events    []agent.Event // of everything
	live      chan agent.Event
	after     string
	stdout    []byte
	plan      agent.Plan
	steps     []agent.Step
	fail      error // of what changes something
	lost      error // why nobody knows which jails there are
}

// did notes a call, if the caller may.
func (f *fakeAgents) did(ctx context.Context, by identity.Principal, op identity.Operation, tenant, name string) error {
	if err := f.authority.Authorize(ctx, by, op, tenant); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%s %s/%s", op, tenant, name))
	return f.fail
}

func (f *fakeAgents) has(call string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.calls, call)
}

func (f *fakeAgents) List(ctx context.Context, by identity.Principal, tenant string) ([]agent.Status, error) {
	tenant = by.TenantOr(tenant)
	agents, err := f.authority.Agents(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	out := []agent.Status{}
	for _, s := range f.all {
		if s.Tenant == tenant {
			out = append(out, s)
		}
	}
	for _, g := range agents {
		n := slices.IndexFunc(out, func(s agent.Status) bool { return s.Name == g.Name })
		if n < 0 {
			n, out = len(out), append(out, agent.Status{Tenant: tenant, Name: g.Name})
		}
		out[n].ID, out[n].CreatedAt, out[n].RevokedAt = g.ID, g.CreatedAt, g.RevokedAt
	}
	if f.lost != nil {
		for n := range out {
			out[n].Jail, out[n].Unwatched = nil, out[n].Declared != nil
		}
	}
	return out, f.lost
}

func (f *fakeAgents) Get(ctx context.Context, by identity.Principal, tenant, name string) (agent.Status, error) {
	missing := problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
	all, err := f.List(ctx, by, tenant)
	if problem.CodeOf(err) == problem.NotFound {
		return agent.Status{}, missing
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	if err == nil {
		err = missing
	}
	return agent.Status{}, err
}

func (f *fakeAgents) Sync(ctx context.Context, by identity.Principal, r agent.SyncRequest, progress func(agent.Step)) (agent.Plan, error) {
	if err := f.did(ctx, by, identity.AgentSync, r.Tenant, fmt.Sprint(r.DryRun)); err != nil {
		return agent.Plan{}, err
	}
	if _, err := clawbots.Parse(r.Source, []byte(r.Text), r.Dir); err != nil {
		return agent.Plan{}, err
	}
	f.mu.Lock()
	f.sync = r
	f.mu.Unlock()
	plan := agent.Plan{Steps: slices.Clone(f.plan.Steps), Warnings: f.plan.Warnings}
	if !r.DryRun {
		for _, s := range f.steps {
			progress(s)
			if s.Done || s.Problem != "" {
				for n := range plan.Steps {
					if plan.Steps[n].Name == s.Name {
						plan.Steps[n] = s
					}
				}
			}
		}
	}
	return plan, nil
}

func (f *fakeAgents) Declare(ctx context.Context, by identity.Principal, tenant string, read func() (clawbots.Agent, error), _ bool, _ func(agent.Step)) (agent.Plan, error) {
	if err := f.authority.Authorize(ctx, by, identity.AgentSync, tenant); err != nil {
		return agent.Plan{}, err
	}
	a, err := read()
	if err != nil {
		return agent.Plan{}, err
	}
	if err := f.did(ctx, by, identity.AgentSync, tenant, a.Name); err != nil {
		return agent.Plan{}, err
	}
	f.declared = a
	_, _, err = f.authority.CreateAgent(ctx, by, tenant, a.Name, identity.NeverExpires)
	f.all = append(f.all, agent.Status{Tenant: tenant, Name: a.Name, Declared: &a})
	return agent.Plan{Steps: []agent.Step{{Tenant: tenant, Name: a.Name, Verb: agent.Create, Done: true}}}, err
}

func (f *fakeAgents) RemoveAgent(ctx context.Context, by identity.Principal, tenant, name string, o agent.RemoveOptions) error {
	f.removed = o
	if err := f.did(ctx, by, identity.AgentDelete, tenant, name); err != nil {
		return err
	}
	return f.authority.DeleteAgent(ctx, by, tenant, name)
}

func (f *fakeAgents) RestartAgent(ctx context.Context, by identity.Principal, tenant, name string) error {
	return f.did(ctx, by, identity.AgentRestart, tenant, name)
}

func (f *fakeAgents) RotateToken(ctx context.Context, by identity.Principal, tenant, name string, overlap time.Duration) error {
	if err := f.did(ctx, by, identity.TokenRotate, tenant, name); err != nil {
		return err
	}
	_, _, err := f.authority.RotateToken(ctx, by, tenant, name, identity.NeverExpires, overlap)
	return err
}

func (f *fakeAgents) ReadLog(ctx context.Context, by identity.Principal, r jail.LogRequest) (jail.LogChunk, error) {
	if err := f.did(ctx, by, identity.AgentLog, r.Tenant, r.Name); err != nil {
		return jail.LogChunk{}, err
	}
	if r.Stream == jail.Stderr {
		return jail.LogChunk{}, nil
	}
	from := max(0, len(f.stdout)+int(r.Offset))
	return jail.LogChunk{Data: bytes.Clone(f.stdout[from:]), Offset: int64(from), End: int64(len(f.stdout))}, nil
}

func (f *fakeAgents) Events(ctx context.Context, by identity.Principal, tenant, name, of, after string, follow bool, emit func(agent.Event) error) error {
	if _, err := f.Get(ctx, by, tenant, name); err != nil {
		return err
	}
	if err := f.did(ctx, by, identity.AgentLog, tenant, name+of); err != nil {
		return err
	}
	f.mu.Lock()
	f.after = after
	f.mu.Unlock()
	if !follow {
		for _, e := range f.events {
			if err := emit(e); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, more := <-f.live:
			if !more {
				return nil
			}
			if err := emit(e); err != nil {
				return err
			}
		}
	}
}

func (f *fakeAgents) Type(ctx context.Context, by identity.Principal, tenant, name, of string, data []byte) (int, error) {
	if err := f.did(ctx, by, identity.AgentType, tenant, name+of); err != nil {
		return 0, err
	}
	f.typed = string(data)
	return len(data), nil
}

func (f *fakeAgents) Start(ctx context.Context, by identity.Principal, tenant, name string, r agent.ProcessRequest) (agent.Process, error) {
	if err := f.did(ctx, by, identity.ProcessStart, tenant, name); err != nil {
		return agent.Process{}, err
	}
	f.request = r
	return agent.Process{ID: "pr_1", Tenant: tenant, Agent: name, Argv: r.Argv}, nil
}

func (f *fakeAgents) Processes(ctx context.Context, by identity.Principal, tenant, name string) ([]agent.Process, error) {
	if _, err := f.Get(ctx, by, tenant, name); err != nil {
		return nil, err
	}
	if err := f.authority.Authorize(ctx, by, identity.ProcessList, tenant); err != nil {
		return nil, err
	}
	out := []agent.Process{}
	for _, p := range f.processes {
		if p.Tenant == tenant && p.Agent == name {
			out = append(out, p)
		}
	}
	return out, nil
}

func (f *fakeAgents) EndProcess(ctx context.Context, by identity.Principal, tenant, name, id string) error {
	return f.did(ctx, by, identity.ProcessEnd, tenant, name+id)
}

// agentWith makes an agent with a jail that runs, and something of everything.
func (w *fixture) agentWith(tenant, name string) {
	w.t.Helper()
	if _, _, err := w.identity.CreateAgent(w.ctx, w.admin, tenant, name, 72*time.Hour); err != nil {
		w.t.Fatal(err)
	}
	now := time.Now()
	one := clawbots.Agent{Name: name, Template: "clawbot", Command: []string{"/usr/bin/python3", "/workspace/" + hostile}, Workspace: "/srv/agents/" + hostile,
		WorkspaceMode: clawbots.ReadWrite, Sharing: clawbots.Dedicated, Env: map[string]string{"LANG": "C.UTF-8", "MODE": "the value of a variable"},
		Allow: []clawbots.Rule{{Target: "example.com", Methods: []string{"GET"}}}, Webhook: true}
	kept := jail.KeptStatus{Kept: jail.Kept{Spec: jail.Spec{Template: "clawbot", Limits: jail.Limits{Memory: 512 << 20, MilliCPU: 500, Tasks: 64, Disk: 100 << 20, Files: 4096}}},
		Phase: jail.PhaseRunning, Jail: "cj-x7k2-agt-1", Addr: netip.MustParseAddr("10.86.0.7"), PID: 4242, Since: now.Add(-40 * time.Minute), Restarts: 2,
		Exit:  &jail.Exit{Code: 1, Cause: "exited", At: now.Add(-40 * time.Minute)},
		Usage: &jail.Usage{MemoryBytes: 470 << 20, MemoryPeak: 490 << 20, CPU: 90 * time.Second, Tasks: 9, DiskBytes: 12 << 20, OpenFiles: 31, Hit: []jail.LimitName{jail.LimitMemory}}}
	w.agents.all = append(w.agents.all, agent.Status{Tenant: tenant, Name: name, Declared: &one, Jail: &kept, Processes: 1})
	w.agents.processes = append(w.agents.processes,
		agent.Process{ID: "pr_a", Tenant: tenant, Agent: name, Argv: []string{"/bin/sh", "-c", "echo " + hostile}, Jail: "cj-x7k2-agt-1", StartedAt: now.Add(-5 * time.Minute), StartedBy: "admin"},
		agent.Process{ID: "pr_b", Tenant: tenant, Agent: name, Argv: []string{"/bin/false"}, Jail: "cj-x7k2-agt-2", OwnJail: true, StartedAt: now.Add(-20 * time.Minute),
			StartedBy: "admin", Exit: &jail.Exit{Code: 1, At: now.Add(-19 * time.Minute)}})
	if w.agents.events == nil {
		w.agents.events = someEvents(now)
	}
}

func someEvents(now time.Time) []agent.Event {
	asJSON := func(v any) json.RawMessage {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // it is a map of texts
		}
		return json.RawMessage(text)
	}
	return []agent.Event{
		{ID: "0-0-1", At: now.Add(-time.Minute), Type: agent.EventStarted},
		{ID: "9-0-1", At: now, Type: agent.EventText, Stream: jail.Stdout, Text: "hello from " + hostile},
		{ID: "90-0-1", At: now, Type: agent.EventJSON, Stream: jail.Stdout, Name: "tool_use", JSON: asJSON(map[string]any{"type": "tool_use", "tool": "browser_navigate", "message": "opens " + hostile, "input": map[string]string{"url": "https://example.com/"}})},
		{ID: "90-40-1", At: now, Type: agent.EventText, Stream: jail.Stderr, Text: "warning: something is slow"},
		{ID: "90-99-1", At: now, Type: agent.EventMissed, Missed: 2048},
		{ID: "120-99-1", At: now, Type: agent.EventText, Stream: jail.Stdout, Text: "long", Cut: true},
		{ID: "120-99-2", At: now, Type: agent.EventExit, Exit: &jail.Exit{Code: -1, Signal: "killed", Hit: []jail.LimitName{jail.LimitMemory}, At: now}},
	}
}
