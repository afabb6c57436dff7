package agent

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/quota"
)

// source is the jail of an agent or, where of is the id of one, a program of its.
func (s *Service) source(ctx context.Context, by identity.Principal, tenant, name, of string) (source, error) {
	a, err := s.whose(ctx, by, identity.AgentLog, tenant, name)
	if err != nil {
		return nil, err
	}
	if of != "" {
		pr, err := s.processes.find(a, of)
		if err != nil {
			return nil, err
		}
		return processSource{&s.processes, pr}, nil
	}
	if _, err := s.processes.kept(ctx, a); err != nil {
		return nil, err
	}
	return keptSource{&s.processes, a}, nil
}

// keptSource is the jail of an agent. Its log goes on over all of its restarts.
type keptSource struct {
	p     *processes
	agent identity.Agent
}

func (k keptSource) read(ctx context.Context, stream jail.Stream, offset int64, limit int, wait time.Duration) (jail.LogChunk, error) {
	if wait > 0 {
		leave, err := k.p.wait(quota.Holder{Tenant: k.agent.Tenant})
		if err != nil {
			return jail.LogChunk{}, err
		}
		defer leave()
	}
	return k.p.with.Keeper.ReadLog(ctx, jail.LogRequest{Tenant: k.agent.Tenant, Name: k.agent.Name, Stream: stream, Offset: offset, Limit: limit, Wait: wait,
		Times: true})
}

func (k keptSource) state(ctx context.Context, after uint64) (runState, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+pollWait)
	defer cancel()
	leave, err := k.p.wait(quota.Holder{Tenant: k.agent.Tenant})
	if err != nil {
		return runState{}, err
	}
	defer leave()
	version, all, err := k.p.with.Keeper.Kept(ctx, after, false)
	if err != nil {
		return runState{}, err
	}
	for _, s := range all {
		own := s.Spec.Agent
		if own == nil || own.Tenant != k.agent.Tenant || own.Name != k.agent.Name {
			continue
		}
		l := runState{version: version, running: s.Phase == jail.PhaseRunning, exit: s.Exit}
		if l.running {
			l.began = s.Since
		}
		return l, nil
	}
	if version == after {
		return runState{version: version}, nil // nothing has changed
	}
	return runState{}, noJail(k.agent)
}

// processSource is a program.
type processSource struct {
	p  *processes
	pr *process
}

func (s processSource) read(ctx context.Context, stream jail.Stream, offset int64, limit int, wait time.Duration) (jail.LogChunk, error) {
	log := s.pr.logs[0]
	if stream == jail.Stderr {
		log = s.pr.logs[1]
	}
	if log != nil {
		c, err := log.Read(ctx, offset, limit, wait)
		return jail.LogChunk{Data: c.Data, Offset: c.Offset, First: c.First, End: c.End, Marks: log.Marks(c)}, err
	}
	if wait > 0 { // the caller that started it reads its lines
		s.wait(ctx, wait)
	}
	return jail.LogChunk{}, ctx.Err()
}

func (s processSource) wait(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.pr.done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Versions of the state of a program.
const (
	programRuns  = 1
	programEnded = 2
)

func (s processSource) state(ctx context.Context, after uint64) (runState, error) {
	if after == programRuns {
		s.wait(ctx, pollWait)
	}
	if err := ctx.Err(); err != nil {
		return runState{}, err
	}
	v := s.p.viewOf(s.pr)
	// The exit counts when nothing of the program is left: its output is whole then.
	if v.Exit != nil && wake.Closed(s.pr.done) {
		return runState{version: programEnded, began: v.StartedAt, exit: v.Exit, over: true}, nil
	}
	return runState{version: programRuns, running: true, began: v.StartedAt}, nil
}
