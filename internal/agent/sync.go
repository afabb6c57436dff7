package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Sync implements Agents.
func (s *Service) Sync(ctx context.Context, by identity.Principal, r SyncRequest, progress func(Step)) (Plan, error) {
	tenant := by.TenantOr(r.Tenant)
	if err := s.may(ctx, by, identity.AgentSync, tenant); err != nil {
		return Plan{}, err
	}
	driver := orElse(r.Driver, s.o.Default)
	if driver != DriverLinux && driver != DriverDocker {
		return Plan{}, problem.New(problem.BadRequest, "the drivers are linux and docker", "%q is no driver", texts.Clip(r.Driver, 40))
	}
	file, err := inTurn(ctx, s.parsing, tenant, func() (clawbots.File, error) { return clawbots.Parse(r.Source, []byte(r.Text), r.Dir) })
	if err != nil {
		return Plan{}, err
	}
	wanted, err := only(file.Agents, r.Only)
	if err != nil {
		return Plan{}, err
	}
	told := &steps{tell: progress}
	defer told.wait() // when others may go on
	end, err := s.changes.Enter(ctx, tenant)
	if err != nil {
		return Plan{}, err
	}
	defer end()
	if !r.DryRun {
		if err := s.finishRemovals(ctx, tenant, nil); err != nil {
			return Plan{}, err
		}
	}
	w, err := s.read(ctx, by, tenant, func(name string) bool {
		return r.Adopt && slices.ContainsFunc(wanted, func(a clawbots.Agent) bool { return a.Name == name })
	})
	if err != nil {
		return Plan{}, err
	}
	tasks, err := s.plan(ctx, w, wanted, func(clawbots.Agent) string { return driver })
	if err != nil {
		return Plan{}, err
	}
	if len(r.Only) == 0 {
		tasks = append(tasks, w.leftovers(file.Agents, r.Prune, RemoveOptions{KeepState: r.KeepState})...)
	}
	plan := Plan{Steps: stepsOf(tasks), Warnings: warnings(tasks)}
	if err := agreed(plan, r.Removes); err != nil {
		return plan, err
	}
	if err := s.check(ctx, w, tasks, file, func(a clawbots.Agent) error { return s.mayHaveWorkspace(ctx, by, tenant, a) }); err != nil || r.DryRun {
		return plan, err
	}
	return s.carryOut(ctx, by, plan, tasks, told)
}

// agreed refuses a plan that removes others than somebody has agreed to: they were declared meanwhile.
func agreed(plan Plan, removes []string) error {
	m := &problem.ValidationError{Code: problem.Conflict, Hint: "look at the plan again"}
	for _, name := range plan.Removals() {
		if len(removes) > 0 && !slices.Contains(removes, name) {
			m.Add(name, "would be removed as well")
		}
	}
	return m.Err()
}

// inTurn does something when it is the turn of a tenant.
func inTurn[T any](ctx context.Context, turns *quota.Turns, tenant string, do func() (T, error)) (out T, err error) {
	leave, err := turns.Enter(ctx, tenant)
	if err != nil {
		return out, err
	}
	defer leave()
	return do()
}

// only picks agents of a file.
func only(all []clawbots.Agent, names []string) ([]clawbots.Agent, error) {
	if len(names) == 0 {
		return all, nil
	}
	if len(names) > clawbots.MaxAgents {
		return nil, problem.New(problem.BadRequest, "leave only out for all agents of the file", "only has %d agents, more than %d", len(names), clawbots.MaxAgents)
	}
	var out []clawbots.Agent
	for _, a := range all {
		if slices.Contains(names, a.Name) {
			out = append(out, a)
		}
	}
	m := &problem.ValidationError{Code: problem.NotFound}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(a clawbots.Agent) bool { return a.Name == name }) {
			m.Add(texts.Clip(name, 60), "is not declared in the file")
		}
	}
	return out, m.Err()
}

// Declare implements Agents.
func (s *Service) Declare(ctx context.Context, by identity.Principal, tenant string, read func() (clawbots.Agent, error), replace bool, progress func(Step)) (Plan, error) {
	tenant = by.TenantOr(tenant)
	if err := s.may(ctx, by, identity.AgentSync, tenant); err != nil {
		return Plan{}, err
	}
	a, err := inTurn(ctx, s.parsing, tenant, read)
	if err != nil {
		return Plan{}, err
	}
	told := &steps{tell: progress}
	defer told.wait() // when others may go on
	end, err := s.changes.Enter(ctx, tenant)
	if err != nil {
		return Plan{}, err
	}
	defer end()
	if err := s.finishRemovals(ctx, tenant, nil); err != nil {
		return Plan{}, err
	}
	w, err := s.read(ctx, by, tenant, func(string) bool { return false })
	if err != nil {
		return Plan{}, err
	}
	before := make([]clawbots.Agent, 0, len(w.declared)+1)
	for _, d := range w.declared {
		if d.Agent.Name != a.Name && !d.damaged {
			before = append(before, d.Agent)
		}
	}
	slices.SortFunc(before, func(a, b clawbots.Agent) int { return strings.Compare(a.Name, b.Name) })
	all, err := clawbots.Together(slices.Insert(before, 0, a)...)
	if err != nil {
		return Plan{}, err
	}
	if d := w.declared[a.Name]; d != nil && !replace && (d.damaged || !bytes.Equal(clawbots.Canonical(d.Agent), clawbots.Canonical(all[0]))) {
		return Plan{}, problem.New(problem.Conflict, "look at it: clawjail agent show "+a.Name+"; to replace it, which ends what it runs: --replace, or replace in a request",
			"there is an agent %s already, and it is declared otherwise", a.Name)
	}
	// An agent that shares the folder of the new one from now on sees more than before, and takes part.
	wanted := slices.DeleteFunc(all, func(other clawbots.Agent) bool {
		return other.Name != a.Name && other.Sharing == w.declared[other.Name].Agent.Sharing
	})
	tasks, err := s.plan(ctx, w, wanted, func(of clawbots.Agent) string {
		if k, is := w.kept[of.Name]; is {
			return driverOfKept(k.Kept)
		}
		return s.o.Default
	})
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{Steps: stepsOf(tasks), Warnings: warnings(tasks)}
	if err := s.check(ctx, w, tasks, clawbots.File{}, func(a clawbots.Agent) error { return s.mayHaveWorkspace(ctx, by, tenant, a) }); err != nil {
		return plan, err
	}
	return s.carryOut(ctx, by, plan, tasks, told)
}

func stepsOf(tasks []*task) []Step {
	out := make([]Step, len(tasks))
	for i, t := range tasks {
		out[i] = t.step
	}
	return out
}

// warnings are about agents that stay although nothing declares them any more, and see folders of those that are declared.
func warnings(tasks []*task) (out []string) {
	for _, t := range tasks {
		if t.want == nil {
			continue
		}
		if text := (egress.Budget{TokensPerDay: t.want.agent.LLM.TokensPerDay}).Warning(); text != "" {
			out = append(out, t.step.Name+": "+text)
		}
	}
	for _, extra := range tasks {
		if extra.step.Verb != Extra || extra.step.Workspace == "" {
			continue
		}
		for _, t := range tasks {
			if t.want == nil || t.step.Workspace == "" {
				continue
			}
			if within(t.step.Workspace, extra.step.Workspace) || within(extra.step.Workspace, t.step.Workspace) {
				out = append(out, fmt.Sprintf("%s is not declared any more and still has %s, which overlaps the workspace of %s", extra.step.Name,
					extra.step.Workspace, t.step.Name))
			}
		}
	}
	const limit = 50
	return out[:min(len(out), limit)]
}

func within(inner, outer string) bool { return inner == outer || strings.HasPrefix(inner, outer+"/") }

// carryOut does what is planned: first what is removed, which makes room, then the rest.
func (s *Service) carryOut(ctx context.Context, by identity.Principal, plan Plan, tasks []*task, told *steps) (Plan, error) {
	var mu sync.Mutex // guards plan
	failed := make([]error, len(tasks))
	tell := func(i int, step Step) {
		mu.Lock()
		defer mu.Unlock()
		plan.Steps[i] = step
		told.add(step)
	}
	changed := false
	for _, removing := range []bool{true, false} {
		var group errgroup.Group
		group.SetLimit(atOnce)
		for i, t := range tasks {
			if !t.changes() || (t.step.Verb == Remove) != removing {
				continue
			}
			changed = true
			group.Go(func() error {
				step := t.step
				if err := ctx.Err(); err != nil {
					failed[i] = fmt.Errorf("%s: %w", t.step.Name, err)
					step.fail(err)
					tell(i, step)
					return nil
				}
				tell(i, step)
				begun := time.Now() // how long it takes is no matter of the clock that decides
				err := s.apply(ctx, by, t)
				step.Took = time.Since(begun).Milliseconds()
				if err != nil {
					failed[i] = fmt.Errorf("%s: %w", t.step.Name, err)
					step.fail(err)
				} else {
					step.Done = true
				}
				tell(i, step)
				return nil
			})
		}
		// A failure is told with its step; one agent does not keep the others from being made.
		_ = group.Wait()
	}
	if changed {
		failed = append(failed, s.readServers(context.WithoutCancel(ctx)))
		s.Look()
	}
	return plan, errors.Join(failed...)
}

// fail says in a step why it could not be done.
func (s *Step) fail(err error) {
	s.Code, s.Problem = problem.CodeOf(err), err.Error()
	if p, ok := problem.As(err); ok {
		s.Problem, s.Hint = p.Message, p.Hint
	}
}
