package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
)

const (
	// removeLimit bounds the removal of a program's jail. The host daemon has its own bounds below it, and its reaper, or its client
	// when it is away, goes on after it.
	removeLimit = 60 * time.Second
	// learnLimit bounds how long it takes to learn how a program ended that was ended.
	learnLimit = 5 * time.Second

	actorSystem = "system"
)

// ended is why a program is ended, and the actor that ends it.
type ended struct {
	actor string
	cause jail.Cause
}

// Error implements error, so that it can be the cause of the end of a context.
func (e ended) Error() string { return "ended by " + e.actor }

// Start implements Agents.
func (s *Service) Start(ctx context.Context, by identity.Principal, tenant, name string, r ProcessRequest) (Process, error) {
	pr, err := s.launch(ctx, by, identity.ProcessStart, tenant, name, r, true)
	if err != nil {
		return Process{}, err
	}
	return s.viewOf(pr), nil
}

// Run implements Agents. The program ends with ctx.
func (s *Service) Run(ctx context.Context, by identity.Principal, tenant, name string, r ProcessRequest) (Process, *jail.Running, error) {
	pr, err := s.launch(ctx, by, identity.ProcessStart, tenant, name, r, false)
	if err != nil {
		return Process{}, nil, err
	}
	return s.viewOf(pr), s.handOver(ctx, by, pr), nil
}

// Exec implements Agents. The program ends with ctx.
func (s *Service) Exec(ctx context.Context, by identity.Principal, tenant, name string, p jail.Program) (*jail.Running, error) {
	r := ProcessRequest{Jail: &JailConfig{Name: name}, Argv: p.Argv, Env: p.Env, Dir: p.Dir, TTL: maxTTL}
	pr, err := s.launch(ctx, by, identity.AgentExec, tenant, name, r, false)
	if err != nil {
		return nil, err
	}
	return s.handOver(ctx, by, pr), nil
}

// handOver gives the stdio of a program to its caller.
func (s *Service) handOver(ctx context.Context, by identity.Principal, pr *process) *jail.Running {
	end := func() { pr.end(ended{actor: by.Actor(), cause: jail.CauseDestroyed}) }
	context.AfterFunc(ctx, end)
	return &jail.Running{
		Stdio: pr.stdio(),
		Wait: func(ctx context.Context) (jail.Exit, error) {
			select {
			case <-pr.done:
				return *s.viewOf(pr).Exit, nil
			case <-ctx.Done():
				return jail.Exit{}, ctx.Err()
			}
		},
		End: end,
	}
}

// launch starts a program, as far as it runs. On error nothing of it is left.
func (s *Service) launch(ctx context.Context, by identity.Principal, op identity.Operation, tenant, name string, r ProcessRequest, keep bool) (*process, error) {
	p := &s.processes
	a, err := s.whose(ctx, by, op, tenant, name)
	if err != nil {
		return nil, err
	}
	if !a.RevokedAt.IsZero() {
		return nil, problem.New(problem.Conflict, "restore it: clawjail agent restore "+a.Name, "the agent %s is revoked", a.Name)
	}
	left, err := s.Left(ctx, a)
	if err != nil {
		return nil, err
	}
	where, err := p.place(a, r)
	where.endWithin(left)
	if err == nil {
		err = p.mayPlace(ctx, by, where.spec)
	}
	if err != nil {
		return nil, err
	}
	p.tidy()
	pr := &process{agent: a, limit: where.ttl, done: make(chan struct{})}
	pr.ending, pr.end = context.WithCancelCause(context.Background())
	pr.view = Process{ID: processPrefix + strings.ToLower(rand.Text()[:16]), Tenant: a.Tenant, Agent: a.Name, Argv: r.Argv,
		OwnJail: !where.inAgent, StartedBy: by.Actor()}
	if keep {
		pr.dir = filepath.Join(p.with.Dir, pr.view.ID)
	}
	if err := p.enter(pr); err != nil {
		return nil, err
	}
	record, err := p.with.Audit.Begin(ctx, pr.intent(op, by.Actor(), audit.Fields{"agent_id": a.ID, "process": pr.view.ID, "program": texts.Clip(safeText([]byte(r.Argv[0])), 200),
		"arguments": len(r.Argv) - 1, "own_jail": pr.view.OwnJail}))
	if err != nil {
		p.leave(pr)
		return nil, err
	}
	if err := s.bring(ctx, pr, where); err != nil {
		record.End(audit.OutcomeOf(err, nil))
		err = errors.Join(err, s.undo(ctx, pr))
		p.leave(pr)
		return nil, fmt.Errorf("start a program for %s: %w", a.Name, err)
	}
	record.End(audit.Outcome{Result: audit.OK, Jail: string(pr.jail())})
	go func() { // owned by p.tasks, which enter added to
		defer p.tasks.Done()
		p.keep(pr)
	}()
	return pr, nil
}

// bring takes a program as far as running.
func (s *Service) bring(ctx context.Context, pr *process, where placing) (err error) {
	p := &s.processes
	// When it ends because its agent may do nothing any more, that is nobody's wish in particular.
	cut := func(error) { pr.end(ended{actor: actorSystem, cause: jail.CauseDestroyed}) }
	if pr.held, err = p.with.Identity.WatchValidity(ctx, identity.OfJail(pr.agent.ID, pr.agent.Tenant), cut); err != nil {
		return err
	}
	if pr.dir != "" {
		if err := p.openLogs(pr); err != nil {
			return err
		}
	}
	name := jail.Name("")
	if where.inAgent {
		name, err = p.enterJail(ctx, pr, where.spec.Program)
	} else {
		name, err = s.makeJail(ctx, pr, where.spec)
	}
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if pr.ending.Err() != nil {
		return problem.New(problem.Conflict, "look at what the agent may do: clawjail agent ls", "the program was ended while it was started")
	}
	pr.stdin.file = pr.stdio().In
	p.mu.Lock()
	pr.view.Jail, pr.view.StartedAt = name, p.with.Now().UTC()
	p.mu.Unlock()
	if pr.dir != "" {
		for n, from := range []*os.File{pr.stdio().Out, pr.stdio().Err} {
			pr.pumps.Go(func() { p.pump(pr, pr.logs[n], from) })
		}
	}
	return nil
}

// makeJail starts a program in a jail of its own, which may reach what its agent may, or nothing when it is not admitted.
func (s *Service) makeJail(ctx context.Context, pr *process, spec jail.Spec) (jail.Name, error) {
	p := &s.processes
	err := s.furnish(ctx, pr.agent, &spec)
	if err != nil {
		return "", err
	}
	forget := func() error { return nil }
	pr.own, err = p.with.Driver.CreateWith(ctx, spec, func(name jail.Name, lease jail.Lease) error {
		if !spec.Admit {
			return nil
		}
		err := p.admit(pr.agent, name, lease)
		if err == nil {
			forget = func() error { return p.with.Gateway.Forget(lease.Addr, string(name)) }
		}
		return err
	})
	if err != nil {
		return "", errors.Join(err, forget())
	}
	return pr.own.Name, nil
}

// admit makes the gateway know whose the jail of a program is.
func (p *processes) admit(a identity.Agent, name jail.Name, lease jail.Lease) error {
	// Only the new jail has the address: what is left of an earlier one ends here, or keeps this one out.
	if err := p.with.Gateway.Forget(lease.Addr, ""); err != nil {
		return fmt.Errorf("end earlier connections of address %s: %w", lease.Addr, err)
	}
	err := p.with.Gateway.Admit(lease.Addr, gateway.Caller{Jail: string(name), Tenant: a.Tenant, Agent: a.ID, Actor: "agent:" + a.ID, Policy: policy.Only()})
	if err != nil {
		return fmt.Errorf("make %s known to the gateway: %w", name, err)
	}
	return nil
}

// enterJail starts a program in the jail of its agent.
func (p *processes) enterJail(ctx context.Context, pr *process, program jail.Program) (jail.Name, error) {
	status, err := p.kept(ctx, pr.agent)
	if err != nil {
		return "", err
	}
	if status.Phase != jail.PhaseRunning || status.Jail == "" {
		return "", problem.New(problem.Conflict, "start it: clawjail agent restart "+pr.agent.Name+"; or leave the jail out for a new one",
			"the jail of %s does not run: it is %s", pr.agent.Name, status.Phase)
	}
	program.Inherit(status.Spec.Program.Env, status.Spec.Program.Without)
	if program.Dir == "" {
		program.Dir = status.Spec.Program.Dir
	}
	if err := program.Validate(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(pr.ending, cancel)()
	if pr.in, err = p.with.Keeper.ExecIn(ctx, status.Jail, program); err != nil {
		return "", err
	}
	return status.Jail, nil
}

// kept is the jail of an agent.
func (p *processes) kept(ctx context.Context, a identity.Agent) (jail.KeptStatus, error) {
	_, all, err := p.with.Keeper.Kept(ctx, 0, false)
	if err != nil {
		return jail.KeptStatus{}, err
	}
	for _, k := range all {
		if own := k.Spec.Agent; own != nil && own.Tenant == a.Tenant && own.Name == a.Name {
			return k, nil
		}
	}
	return jail.KeptStatus{}, noJail(a)
}

func noJail(a identity.Agent) error {
	return problem.New(problem.NotFound, "declare it: clawjail agent add "+a.Name+", or in clawbots.yml", "the agent %s has no jail", a.Name)
}

// openLogs makes the files for what a program prints.
func (p *processes) openLogs(pr *process) error {
	if err := os.Mkdir(pr.dir, 0o700); err != nil {
		return fmt.Errorf("make the folder for what a program prints: %w", err)
	}
	for n := range pr.logs {
		log, err := ringlog.Open(filepath.Join(pr.dir, string(streamOf(n))), ringlog.Options{Keep: min(maxProcessLog, int64(p.with.Agents.Log))})
		if err != nil {
			return err
		}
		pr.logs[n] = log
	}
	return nil
}

// pump moves what a program prints into its log until all ends of the pipe are closed.
func (p *processes) pump(pr *process, to *ringlog.Log, from *os.File) {
	err := to.Drain(from)
	if !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		p.with.Log.Warn("keep what a program prints", "process", pr.view.ID, "error", err)
	}
}

// stdio is the caller's end of a program's pipes, nil when there are none.
func (pr *process) stdio() *jail.Stdio {
	switch {
	case pr.own != nil:
		return pr.own.Stdio
	case pr.in != nil:
		return pr.in.Stdio
	}
	return nil
}

// jail is where it runs.
func (pr *process) jail() jail.Name {
	if pr.own != nil {
		return pr.own.Name
	}
	return pr.view.Jail
}

// intent is the beginning of what is done with a program. The program's arguments stay out: there may be secrets in them.
func (pr *process) intent(op identity.Operation, actor string, fields audit.Fields) audit.Intent {
	return audit.Intent{Action: string(op), Tenant: pr.agent.Tenant, Actor: actor, Jail: string(pr.jail()), Target: pr.agent.Name, Detail: audit.NewDetail(fields)}
}
