package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
)

// keptAgents keeps agents without jails, of one tenant. What differs is found as in earnest, and every jail runs at once.
type keptAgents struct {
	agent.Agents // what no script does
	identity     *identity.Service

	mu       sync.Mutex
	declared []clawbots.Agent
	restarts map[string]int
	log      map[jail.Stream]string
	marks    map[jail.Stream][]ringlog.Mark
	typed    string
	started  []agent.Process
	removes  []string // that were agreed to
	lost     bool     // nobody knows which jails there are
}

// missingImage is one that is found to be missing when the jail is to be made.
const missingImage = "missing:1"

func (k *keptAgents) plan(file clawbots.File, r agent.SyncRequest) (plan agent.Plan) {
	step := func(a clawbots.Agent, verb agent.Verb, why ...string) {
		s := agent.Step{Tenant: "default", Name: a.Name, Verb: verb, Why: why, Driver: "linux", Source: "clawbot", Sharing: a.Sharing, Workspace: a.Workspace,
			Mode: a.WorkspaceMode, Exposes: clawbots.Exposes(a)}
		if a.Image != "" {
			s.Driver, s.Source = "docker", a.Image
		}
		plan.Steps = append(plan.Steps, s)
	}
	for _, a := range file.Agents {
		if len(r.Only) > 0 && !slices.Contains(r.Only, a.Name) {
			continue
		}
		n := slices.IndexFunc(k.declared, func(d clawbots.Agent) bool { return d.Name == a.Name })
		switch {
		case n < 0:
			step(a, agent.Create, "it is new")
		case len(clawbots.Differences(k.declared[n], a)) == 0:
			step(a, agent.Unchanged)
		default:
			step(a, agent.Change, clawbots.Differences(k.declared[n], a)...)
		}
	}
	for _, d := range k.declared {
		if len(r.Only) > 0 || slices.ContainsFunc(file.Agents, func(a clawbots.Agent) bool { return a.Name == d.Name }) {
			continue
		}
		if r.Prune {
			step(d, agent.Remove, "it is not in the file")
		} else {
			step(d, agent.Extra, "it is not in the file")
		}
	}
	return plan
}

func (k *keptAgents) Sync(ctx context.Context, by identity.Principal, r agent.SyncRequest, progress func(agent.Step)) (agent.Plan, error) {
	file, err := clawbots.Parse(r.Source, []byte(r.Text), r.Dir)
	if err != nil {
		return agent.Plan{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	plan := k.plan(file, r)
	if r.DryRun {
		return plan, nil
	}
	k.removes = r.Removes
	return k.apply(ctx, by, plan, file, progress)
}

func (k *keptAgents) apply(ctx context.Context, by identity.Principal, plan agent.Plan, file clawbots.File, progress func(agent.Step)) (agent.Plan, error) {
	var failed error
	for n := range plan.Steps {
		s := &plan.Steps[n]
		if progress != nil {
			progress(*s)
		}
		one := func(a clawbots.Agent) bool { return a.Name == s.Name }
		switch at := slices.IndexFunc(file.Agents, one); {
		case s.Source == missingImage:
			failed = problem.New(problem.TemplateMissing, "build it", "there is no image %s", s.Source)
			s.Code, s.Problem, s.Hint = problem.TemplateMissing, failed.Error(), "build it"
		case s.Verb == agent.Remove:
			if err := k.identity.DeleteAgent(ctx, by, "default", s.Name); err != nil {
				return plan, err
			}
			k.declared = slices.DeleteFunc(k.declared, one)
		case s.Verb == agent.Create:
			if _, _, err := k.identity.CreateAgent(ctx, by, "default", s.Name, identity.NeverExpires); err != nil {
				return plan, err
			}
			k.declared = append(k.declared, file.Agents[at])
		case s.Verb == agent.Restart, s.Verb == agent.Change:
			k.declared[slices.IndexFunc(k.declared, one)] = file.Agents[at]
		}
		s.Done, s.Took = s.Problem == "", 12
		if progress != nil {
			progress(*s)
		}
	}
	return plan, failed
}

func (k *keptAgents) Declare(ctx context.Context, by identity.Principal, _ string, read func() (clawbots.Agent, error), replace bool, progress func(agent.Step)) (agent.Plan, error) {
	a, err := read()
	if err != nil {
		return agent.Plan{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !replace && slices.ContainsFunc(k.declared, func(d clawbots.Agent) bool {
		return d.Name == a.Name && !bytes.Equal(clawbots.Canonical(d), clawbots.Canonical(a))
	}) {
		return agent.Plan{}, problem.New(problem.Conflict, "say --replace", "there is an agent %s already", a.Name)
	}
	file := clawbots.File{Agents: []clawbots.Agent{a}}
	return k.apply(ctx, by, k.plan(file, agent.SyncRequest{Only: []string{a.Name}}), file, progress)
}

func (k *keptAgents) RemoveAgent(ctx context.Context, by identity.Principal, tenant, name string, _ agent.RemoveOptions) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.declared = slices.DeleteFunc(k.declared, func(a clawbots.Agent) bool { return a.Name == name })
	return k.identity.DeleteAgent(ctx, by, by.TenantOr(tenant), name)
}

func (k *keptAgents) List(ctx context.Context, by identity.Principal, tenant string) ([]agent.Status, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, err := k.identity.Agents(ctx, by, by.TenantOr(tenant))
	var out []agent.Status
	for _, g := range all {
		s := agent.Status{ID: g.ID, Tenant: g.Tenant, Name: g.Name, CreatedAt: g.CreatedAt, RevokedAt: g.RevokedAt}
		if n := slices.IndexFunc(k.declared, func(a clawbots.Agent) bool { return a.Name == g.Name }); n >= 0 {
			s.Declared = &k.declared[n]
			s.Jail = &jail.KeptStatus{Kept: jail.Kept{Spec: jail.Spec{Template: "clawbot", Limits: jail.Limits{Memory: 512 << 20, MilliCPU: 500, Tasks: 64, Disk: 100 << 20},
				Agent: &jail.Agent{State: 1 << 30}}}, Phase: jail.PhaseRunning, Jail: "aabcd00001", Since: time.Now(), Restarts: k.restarts[g.Name],
				Exit: &jail.Exit{Code: 3, Cause: jail.CauseExited}}
		}
		if k.lost {
			s.Jail, s.Unwatched = nil, s.Declared != nil
			err = problem.New(problem.HostdUnreachable, "start it", "the host daemon does not answer")
		}
		out = append(out, s)
	}
	return out, err
}

func (k *keptAgents) Get(ctx context.Context, by identity.Principal, tenant, name string) (agent.Status, error) {
	all, err := k.List(ctx, by, tenant)
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	if err == nil {
		err = problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
	}
	return agent.Status{}, err
}

func (k *keptAgents) RestartAgent(ctx context.Context, by identity.Principal, tenant, name string) error {
	s, err := k.Get(ctx, by, tenant, name)
	if err == nil && s.Jail == nil {
		err = problem.New(problem.NotFound, "declare it: clawjail agent add", "the agent %s has no jail", name)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.restarts[name]++
	return err
}

func (k *keptAgents) RotateToken(ctx context.Context, by identity.Principal, tenant, name string, overlap time.Duration) error {
	_, _, err := k.identity.RotateToken(ctx, by, tenant, name, identity.NeverExpires, overlap)
	return err
}

func (k *keptAgents) ReadLog(ctx context.Context, by identity.Principal, r jail.LogRequest) (jail.LogChunk, error) {
	if _, err := k.Get(ctx, by, r.Tenant, r.Name); err != nil {
		return jail.LogChunk{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	const first = 100 // older bytes are not kept
	text := k.log[r.Stream]
	end := int64(first + len(text))
	at := r.Offset
	if at < 0 {
		at += end
	}
	at = min(max(at, first), end)
	stop := min(end, at+7) // little at a time
	if r.Limit > 0 {
		stop = min(stop, at+int64(r.Limit)) // and seldom as much as was asked for
	}
	out := jail.LogChunk{Data: []byte(text[at-first : stop-first]), Offset: at, First: first, End: end}
	for _, m := range k.marks[r.Stream] {
		switch {
		case !r.Times || m.Offset >= stop:
		case m.Offset <= at:
			out.Marks = []ringlog.Mark{{Offset: at, At: m.At}}
		default:
			out.Marks = append(out.Marks, m)
		}
	}
	return out, nil
}

func (k *keptAgents) Type(ctx context.Context, by identity.Principal, tenant, name, _ string, data []byte) (int, error) {
	if _, err := k.Get(ctx, by, tenant, name); err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(data) > 4096 {
		k.typed += string(data[:4096])
		return 4096, problem.New(problem.Timeout, "let it read", "the agent does not read")
	}
	k.typed += string(data)
	return len(data), nil
}

func (k *keptAgents) Events(_ context.Context, _ identity.Principal, _, _, _, _ string, _ bool, emit func(agent.Event) error) error {
	for _, e := range []agent.Event{{ID: "1", Type: agent.EventStarted}, {ID: "2", Type: agent.EventJSON, Stream: jail.Stdout, Name: "hello", JSON: json.RawMessage(`{"type":"hello"}`)},
		{ID: "3", Type: agent.EventText, Stream: jail.Stderr, Text: "<\x1b>"}} {
		if err := emit(e); err != nil {
			return err
		}
	}
	return nil
}

// Exec answers what it was asked to run, and copies its stdin.
func (k *keptAgents) Exec(_ context.Context, _ identity.Principal, _, _ string, p jail.Program) (*jail.Running, error) {
	var ends [3][2]*os.File
	for n := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ends[n] = [2]*os.File{r, w}
	}
	return &jail.Running{
		Stdio: &jail.Stdio{In: ends[0][1], Out: ends[1][0], Err: ends[2][0]},
		Wait: func(context.Context) (jail.Exit, error) {
			for _, arg := range append(p.Argv, p.Env["MODE"], p.Dir) {
				if _, err := io.WriteString(ends[1][1], arg+"\n"); err != nil {
					return jail.Exit{}, err
				}
			}
			_, err := io.Copy(ends[2][1], ends[0][0])
			for _, f := range []*os.File{ends[0][0], ends[1][1], ends[2][1]} {
				_ = f.Close() // all of it was written
			}
			return jail.Exit{Code: 7, Cause: jail.CauseExited}, err
		},
		End: func() {},
	}, nil
}
