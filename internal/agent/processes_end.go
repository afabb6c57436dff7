package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// waited is what became of waiting for a program.
type waited struct {
	exit jail.Exit
	err  error
}

// keep watches over a program until it has ended, by itself or not, and removes what is left of it. It is the only one that
// does.
func (p *processes) keep(pr *process) {
	wait := make(chan waited, 1)
	waiting, enough := context.WithCancel(p.background)
	defer enough()
	p.tasks.Go(func() {
		exit, err := p.await(waiting, pr)
		wait <- waited{exit, err}
	})
	timer := time.NewTimer(pr.limit)
	defer timer.Stop()
	var how *waited
	why := ended{actor: actorSystem, cause: jail.CauseExited}
	select {
	case w := <-wait:
		how = &w
	case <-pr.ending.Done():
		errors.As(context.Cause(pr.ending), &why)
	case <-timer.C:
		why.cause = jail.CauseWallClock
	}
	record := p.with.Audit.BeginEnding(pr.intent(identity.ProcessEnd, why.actor, audit.Fields{"agent_id": pr.agent.ID, "process": pr.view.ID, "cause": string(why.cause)}))
	err := p.remove(pr)
	if how == nil {
		how = p.learn(wait)
	}
	exit := p.exitOf(pr, how, why)
	record.End(audit.OutcomeOf(err, audit.Fields{"exit_code": exit.Code, "signal": exit.Signal, "ended": string(exit.Cause), "removed": err == nil}))
	if err != nil {
		p.with.Log.Error("remove a program", "process", pr.view.ID, "jail", pr.jail(), "error", err)
	}
	p.mu.Lock()
	pr.view.Exit, pr.left = &exit, err != nil && pr.own != nil
	p.mu.Unlock()
	close(pr.done)
}

// await waits for the program to end.
func (p *processes) await(ctx context.Context, pr *process) (jail.Exit, error) {
	if pr.in != nil {
		return pr.in.Wait(ctx)
	}
	return p.with.Driver.Wait(ctx, pr.own.Name)
}

// learn is how a program ended that was ended. It is known a moment later.
func (p *processes) learn(wait <-chan waited) *waited {
	timer := time.NewTimer(learnLimit)
	defer timer.Stop()
	select {
	case w := <-wait:
		return &w
	case <-timer.C:
		return &waited{err: errors.New("it was not told in time")}
	}
}

// exitOf says how a program ended, as far as it is known.
func (p *processes) exitOf(pr *process, how *waited, why ended) jail.Exit {
	exit := how.exit
	if how.err != nil {
		if !errors.Is(how.err, jail.ErrNotFound) && !errors.Is(how.err, context.Canceled) && problem.CodeOf(how.err) != problem.NotFound {
			p.with.Log.Warn("learn how a program ended", "process", pr.view.ID, "jail", pr.jail(), "error", how.err)
		}
		exit = jail.Exit{Code: -1, Cause: why.cause}
		if why.cause == jail.CauseExited {
			exit.Cause = jail.CauseOwnerLost // this control plane did not end it, and the host daemon does not know how it ended
		}
	}
	if why.cause != jail.CauseExited && exit.Cause != jail.CauseMemory {
		exit.Cause = why.cause
	}
	if exit.Cause == "" {
		exit.Cause = jail.CauseExited
	}
	// It is the end of what is told of the program, so nothing of that is after it.
	exit.At = p.with.Now().UTC()
	if !exit.At.After(pr.view.StartedAt) {
		exit.At = pr.view.StartedAt.Add(1)
	}
	return exit
}

// remove is every end of a program: its stdin, its way out, its jail, and then what it printed is whole. Each step is done
// whatever became of those before it, and may be repeated.
func (p *processes) remove(pr *process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.background), removeLimit)
	defer cancel()
	pr.end(ended{actor: actorSystem, cause: jail.CauseExited}) // unless it has a cause already
	if pr.held != nil {
		pr.held()
	}
	var errs []error
	if pr.dir != "" {
		pr.stdin.close() // of others the caller's
	}
	if pr.own != nil {
		// Before the jail, and with it the address, is somebody else's.
		if err := p.with.Gateway.Forget(pr.own.Lease.Addr, string(pr.own.Name)); err != nil {
			errs = append(errs, fmt.Errorf("close its connections: %w", err))
		}
		if err := p.destroy(ctx, pr.own.Name); err != nil {
			errs = append(errs, fmt.Errorf("end jail %s: %w", pr.own.Name, err))
		}
	}
	if pr.in != nil {
		pr.in.End()
	}
	if pr.dir != "" {
		errs = append(errs, p.drain(pr))
	}
	return errors.Join(errs...)
}

// drain waits until what the program printed is in its logs. Its processes are gone, so nobody has the other ends of the
// pipes, unless it could not be ended.
func (p *processes) drain(pr *process) error {
	late := time.AfterFunc(learnLimit, func() { pr.stdio().Close() })
	pr.pumps.Wait()
	late.Stop()
	pr.stdio().Close()
	var errs []error
	for _, log := range pr.logs {
		if log != nil {
			errs = append(errs, log.Close())
		}
	}
	return errors.Join(errs...)
}

// undo is the end of a program that was not started.
func (s *Service) undo(_ context.Context, pr *process) error {
	p := &s.processes
	err := p.remove(pr)
	if pr.stdio() != nil {
		pr.stdio().Close()
	}
	if pr.dir != "" {
		err = errors.Join(err, os.RemoveAll(pr.dir))
	}
	return err
}

// destroy asks for the end of a jail until the host daemon is there to hear it, unless clawjail is being stopped: then that ends
// it by itself, because its owner is gone. When this gives up, the host daemon's client goes on.
func (p *processes) destroy(ctx context.Context, name jail.Name) error {
	again := func(err error) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.closing && jail.IsAway(err)
	}
	return wake.Retry(ctx, awayPause, maxAway, again, func() error { return p.with.Driver.Destroy(ctx, name) })
}

// stdin is what a program reads.
type stdin struct {
	mu   sync.Mutex // held while something is written
	file *os.File
	done bool
}

// typePatience is how long a program may take to read what is typed, when its pipe is full.
const typePatience = 5 * time.Second

// write writes as much as the program takes, and says how much that was.
func (s *stdin) write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := problem.New(problem.Conflict, "", "the program's stdin is closed")
	if s.done || s.file == nil {
		return 0, closed
	}
	// A pipe that cannot be waited for with a deadline is of no driver here.
	if err := s.file.SetWriteDeadline(time.Now().Add(typePatience)); err != nil {
		return 0, closed
	}
	n, err := s.file.Write(data)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, problem.New(problem.Timeout, "try again with the rest when the program has read", "the program took %d of %d bytes", n, len(data))
	case err != nil:
		return n, closed
	}
	return n, nil
}

// close ends it: the program reads what is there, and then that there is nothing more.
func (s *stdin) close() {
	if s.file != nil {
		_ = s.file.SetWriteDeadline(time.Now()) // a write that is under way fails
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil && !s.done {
		_ = s.file.Close() // a pipe: nothing is lost
	}
	s.done = true
}

// typeTo writes to the stdin of a program that was started with [Service.Start]. Nothing to write is the end of it.
func (s *Service) typeTo(ctx context.Context, by identity.Principal, tenant, name, id string, data []byte) (int, error) {
	a, err := s.whose(ctx, by, identity.AgentType, tenant, name)
	if err != nil {
		return 0, err
	}
	pr, err := s.processes.find(a, id)
	if err != nil {
		return 0, err
	}
	if pr.dir == "" {
		return 0, problem.New(problem.Conflict, "type where it was started", "the stdin of program %s is connected to the client that started it", id)
	}
	n := 0
	err = s.recorded(ctx, by, identity.AgentType, a, audit.Fields{"process": id, "bytes": len(data)}, func() (err error) {
		if len(data) == 0 {
			pr.stdin.close()
			return nil
		}
		n, err = pr.stdin.write(data)
		return err
	})
	return n, err
}
