package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/ringlog"
)

const (
	// maxProcesses bounds the programs that run at the same time, maxProcessesOfTenant those of one tenant. Ended programs are kept for
	// endedFor within the same bounds, which count those with a log here and those whose caller had their stdio apart.
	maxProcesses, maxProcessesOfTenant = 256, 64
	endedFor                           = time.Hour
	// maxProcessLog bounds what is kept of one stream of a program, whatever is kept of an agent's.
	maxProcessLog = 4 << 20

	processPrefix = "pr_"
)

// processes are the programs that run for agents. Each has one owner goroutine, which ends it; nothing else does.
type processes struct {
	with       Options
	background context.Context // ends when the service does
	stop       context.CancelFunc
	tasks      sync.WaitGroup
	waits      *quota.Gate // of questions to the host daemon that wait for an answer

	mu      sync.Mutex
	all     map[string]*process
	closing bool
}

// process is one of them. Fields that are not guarded are set before it is shared.
type process struct {
	agent identity.Agent
	own   *jail.Jail    // nil for a program in the jail of the agent
	in    *jail.Running // nil for one in a jail of its own
	logs  [2]*ringlog.Log
	dir   string // of the logs; empty when the caller has the stdio
	stdin stdin
	// pumps move what it prints into the logs.
	pumps sync.WaitGroup
	limit time.Duration

	// ending is done when the program is to end. Its cause names the actor.
	ending context.Context
	end    context.CancelCauseFunc
	// held is released when nobody need be told any more that the agent's keys are not good.
	held func()
	// done is closed when it has ended, and nothing of it is left unless left says so.
	done chan struct{}

	view Process // guarded by processes.mu, as is
	left bool    // its jail could not be removed
}

// open makes the processes ready. Files that an earlier control plane kept of its programs are removed: those ended with it.
func (p *processes) open(o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p.with, p.all = o, map[string]*process{}
	p.waits = quota.NewGate(quota.GateOptions{Kind: quota.AgentCalls(), Whole: maxWaits, Quotas: o.Quotas, Tenants: o.Identity.Counted})
	p.background, p.stop = context.WithCancel(context.Background())
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the folder for what programs print: %w", err)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return fmt.Errorf("read the folder for what programs print: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), processPrefix) {
			if err := os.RemoveAll(filepath.Join(o.Dir, e.Name())); err != nil {
				return fmt.Errorf("remove what an ended program printed: %w", err)
			}
		}
	}
	return nil
}

// close ends every program, and returns when nothing of them is left, or ctx ends. None can be started from its beginning
// on.
func (p *processes) close(ctx context.Context) error {
	if p.stop == nil {
		return nil // never opened
	}
	p.mu.Lock()
	p.closing = true
	for _, pr := range p.all {
		pr.end(ended{actor: actorSystem, cause: jail.CauseDestroyed})
	}
	p.mu.Unlock()
	gone := make(chan struct{})
	go func() { // ends with the tasks, which all have bounds
		defer close(gone)
		p.tasks.Wait()
	}()
	select {
	case <-gone:
		p.stop()
		return nil
	case <-ctx.Done():
		p.stop()
		return fmt.Errorf("end all programs: %w", context.Cause(ctx))
	}
}

// enter gives a program its place. The task that it adds is the caller's to end.
func (p *processes) enter(pr *process) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing || p.all == nil {
		return problem.New(problem.ShuttingDown, "try again when clawjail runs again", "clawjail is being stopped")
	}
	running, ofTenant := 0, 0
	for _, other := range p.all {
		if other.view.Exit == nil {
			running++
			if other.view.Tenant == pr.view.Tenant {
				ofTenant++
			}
		}
	}
	if running >= maxProcesses || ofTenant >= maxProcessesOfTenant {
		return problem.New(problem.RateLimited, "wait until one has ended, or end one",
			"%d programs run for the tenant and %d in all; no more than %d and %d may", ofTenant, running, maxProcessesOfTenant, maxProcesses)
	}
	p.all[pr.view.ID] = pr
	p.tasks.Add(1)
	return nil
}

// leave takes away a program that was never started.
func (p *processes) leave(pr *process) {
	p.mu.Lock()
	delete(p.all, pr.view.ID)
	p.mu.Unlock()
	pr.end(nil)
	close(pr.done)
	p.tasks.Done()
}

// tidy forgets programs that ended long ago, or before too many others.
func (p *processes) tidy() {
	now := p.with.Now()
	p.mu.Lock()
	var over []*process
	for _, pr := range p.all {
		if pr.view.Exit != nil && wake.Closed(pr.done) {
			over = append(over, pr)
		}
	}
	slices.SortFunc(over, func(a, b *process) int { return b.view.Exit.At.Compare(a.view.Exit.At) })
	seen := map[string]int{} // by tenant, and in all, of those that have their output here and of the others
	var gone []*process
	for _, pr := range over {
		kind := " " + strconv.FormatBool(pr.dir != "")
		seen[pr.view.Tenant+kind]++
		seen[kind]++
		if seen[kind] > maxProcesses || seen[pr.view.Tenant+kind] > maxProcessesOfTenant || now.Sub(pr.view.Exit.At) > endedFor {
			delete(p.all, pr.view.ID)
			gone = append(gone, pr)
		}
	}
	p.mu.Unlock()
	for _, pr := range gone {
		if pr.dir == "" {
			continue
		}
		if err := os.RemoveAll(pr.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.with.Log.Warn("remove what a program printed", "process", pr.view.ID, "error", err)
		}
	}
}

// viewOf is a program as it is now.
func (p *processes) viewOf(pr *process) Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return pr.view
}

// Processes implements Agents.
func (s *Service) Processes(ctx context.Context, by identity.Principal, tenant, name string) ([]Process, error) {
	a, err := s.whose(ctx, by, identity.ProcessList, tenant, name)
	if err != nil {
		return nil, err
	}
	s.tidy()
	s.processes.mu.Lock()
	defer s.processes.mu.Unlock()
	out := []Process{}
	for _, pr := range s.processes.all {
		if pr.agent.ID == a.ID && pr.view.Jail != "" {
			out = append(out, pr.view)
		}
	}
	slices.SortFunc(out, func(a, b Process) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID)) })
	return out, nil
}

// EndProcess implements Agents. It returns when nothing of the program is left.
func (s *Service) EndProcess(ctx context.Context, by identity.Principal, tenant, name, id string) error {
	a, err := s.whose(ctx, by, identity.ProcessEnd, tenant, name)
	if err != nil {
		return err
	}
	pr, err := s.processes.find(a, id)
	if err != nil {
		return err
	}
	pr.end(ended{actor: by.Actor(), cause: jail.CauseDestroyed})
	select {
	case <-pr.done:
		return s.processes.removed(ctx, pr)
	case <-ctx.Done():
		return problem.Wrap(context.Cause(ctx), problem.Timeout, "look again: clawjail agent ps "+a.Name, "program %s is still being ended", id)
	}
}

// removed asks once more for the end of a jail that could not be removed when its program ended.
func (p *processes) removed(ctx context.Context, pr *process) error {
	p.mu.Lock()
	left := pr.left
	p.mu.Unlock()
	if !left {
		return nil
	}
	if err := p.with.Driver.Destroy(ctx, pr.own.Name); err != nil {
		return problem.Wrap(err, problem.CodeOf(err), "ask again, or look at the host daemon: clawjail status", "the jail of program %s could not be removed yet", pr.view.ID)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pr.left = false
	return nil
}

// find finds a program of an agent.
func (p *processes) find(a identity.Agent, id string) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr := p.all[id]; pr != nil && pr.agent.ID == a.ID && pr.view.Jail != "" {
		return pr, nil
	}
	return nil, problem.New(problem.NotFound, "clawjail agent ps "+a.Name+" lists those that run, or ended within the last hour",
		"the agent %s has no program %q", a.Name, texts.Clip(id, 40))
}

// running counts the programs of an agent that have not ended.
func (p *processes) running(agent string) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pr := range p.all {
		if pr.agent.ID == agent && pr.view.Exit == nil {
			count++
		}
	}
	return count
}

// whose is the agent that somebody may do something for.
func (s *Service) whose(ctx context.Context, by identity.Principal, op identity.Operation, tenant, name string) (identity.Agent, error) {
	tenant = by.TenantOr(tenant)
	if err := s.processes.with.Identity.Authorize(ctx, by, op, tenant); err != nil {
		if by.Hides(err) {
			return identity.Agent{}, noAgent(name)
		}
		return identity.Agent{}, err
	}
	all, err := s.processes.with.Identity.Agents(ctx, by, tenant)
	if err != nil {
		return identity.Agent{}, err
	}
	for _, a := range all {
		if a.Name == name && a.Tenant == tenant {
			return a, s.requireHere(ctx, tenant, name)
		}
	}
	return identity.Agent{}, noAgent(name)
}
