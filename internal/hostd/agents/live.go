package agents

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// endLimit bounds one attempt to end a jail.
const endLimit = time.Minute

// wanted is what the goroutine sees when it looks.
type wanted struct {
	declaration
	blank, gone, adopted, doomed, rest bool

	jail jail.Name
	made uint64
	due  time.Time
	seq  uint64
}

func (a *agent) look() wanted {
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	return wanted{declaration: a.declared, blank: a.blank, gone: a.isGone(), adopted: a.adopted, doomed: a.doomed, rest: a.rest,
		jail: a.status.Jail, made: a.made, due: a.due, seq: a.seq}
}

// live does the next thing until the Keeper is closed or the agent is dropped. It never does two things at a time, so that
// one agent has one jail.
func (a *agent) live() {
	ctx := a.k.background
	defer func() { a.leaveJail() }()
	for ctx.Err() == nil {
		w := a.look()
		switch {
		case w.gone:
			return
		case w.blank:
			a.await(ctx, nil, 0)
		case !w.adopted:
			a.try(ctx, w, a.adopt)
		case w.jail != "" && (w.doomed || w.Stopped || w.Dropping != nil || w.made != w.Generation):
			a.try(ctx, w, a.end)
		case w.Dropping != nil:
			a.try(ctx, w, a.finishDrop)
		case w.Stopped:
			a.enter(w.seq, jail.PhaseStopped, time.Time{})
			a.await(ctx, nil, 0)
		case w.jail != "":
			a.enter(w.seq, jail.PhaseRunning, time.Time{})
			a.await(ctx, a.exits, 0)
		case w.rest:
			a.enter(w.seq, jail.PhaseEnded, time.Time{})
			a.await(ctx, nil, 0)
		case a.k.Now().Before(w.due):
			a.enter(w.seq, jail.PhaseWaiting, w.due)
			a.await(ctx, nil, w.due.Sub(a.k.Now()))
		default:
			a.start(ctx, w)
		}
	}
}

// try does something that is tried again after a pause.
func (a *agent) try(ctx context.Context, w wanted, do func(context.Context, wanted) error) {
	err := do(ctx, w)
	if err == nil {
		return
	}
	pause := a.fail(w, err)
	a.k.mu.Lock()
	a.trouble = true
	a.k.mu.Unlock()
	a.await(ctx, nil, pause)
}

// await waits until something else is wanted, the program has ended, or some time has passed, when it is not zero.
func (a *agent) await(ctx context.Context, exits <-chan jail.Exit, limit time.Duration) {
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-a.wake:
	case x := <-exits:
		a.ended(x)
		a.leaveJail()
	case <-over:
	case <-ctx.Done():
	}
}

// enter says that it has come to rest in a phase: what was wanted was acted upon. One that could not be made stays failed
// until it is tried again.
func (a *agent) enter(seq uint64, p jail.Phase, next time.Time) {
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.settle(seq, nil)
	if a.declared.damage != "" {
		return
	}
	if a.status.Problem != "" && (p == jail.PhaseWaiting || p == jail.PhaseEnded) {
		p = jail.PhaseFailed
	}
	if a.status.Phase == p && a.status.Next.Equal(next) {
		return
	}
	if a.status.Phase != p && (a.status.Phase != jail.PhaseStarting || p != jail.PhaseRunning) {
		a.status.Since = a.k.Now() // one that was started, or taken over, has the time of that
	}
	a.status.Phase, a.status.Next = p, next
	if p == jail.PhaseRunning || p == jail.PhaseStopped {
		a.status.Code, a.status.Problem, a.status.Hint = "", "", ""
	}
	a.k.changed()
}

// fail says that something did not work, and returns after what pause it is tried again.
func (a *agent) fail(w wanted, err error) time.Duration {
	if a.k.background.Err() != nil {
		return a.k.FirstPause
	}
	a.k.Log.Warn("keep an agent", "agent", a.key, "error", err)
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	if a.seq != w.seq && (a.declared.Generation != w.Generation || a.declared.Stopped != w.Stopped || a.declared.Dropping != w.Dropping) {
		return a.k.FirstPause // it is not wanted any more
	}
	a.pause = a.k.pauseAfter(a.pause, 0)
	a.due = a.k.Now().Add(a.pause)
	if a.declared.Restart == jail.RestartNever && a.adopted && a.status.Jail == "" && a.declared.Dropping == nil {
		a.rest = true
	}
	p, _ := problem.As(err)
	if a.status.Phase != jail.PhaseFailed {
		a.status.Since = a.k.Now()
	}
	a.status.Phase, a.status.Next = jail.PhaseFailed, a.due
	if a.rest {
		a.status.Next = time.Time{}
	}
	a.status.Code, a.status.Problem = problem.CodeOf(err), err.Error()
	if p != nil {
		a.status.Hint = p.Hint
	}
	a.trouble = false
	a.settle(a.seq, err)
	a.k.changed()
	return a.pause
}

// start makes the jail.
func (a *agent) start(ctx context.Context, w wanted) {
	a.setPhase(jail.PhaseStarting)
	turn := a.k.starts.Wait(w.Spec.Tenant())
	defer turn.Leave()
	select {
	case <-turn.Come:
	case <-a.wake:
		return
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.k.StartLimit)
	defer cancel()
	a.k.mu.Lock()
	stale := a.declared.Generation != w.Generation || a.declared.Stopped || a.declared.Dropping != nil
	if !stale {
		a.cancel = cancel
	}
	a.k.mu.Unlock()
	if stale {
		return
	}
	st, err := a.make(ctx, w)
	a.k.mu.Lock()
	a.cancel = nil
	if err != nil {
		a.doomed = a.status.Jail != ""
		a.k.mu.Unlock()
		a.fail(w, err)
		return
	}
	a.status.PID, a.status.Since = st.PID, a.k.Now()
	a.k.mu.Unlock()
	a.watch(st.Name)
	a.k.Log.Info("agent is started", "agent", a.key, "jail", st.Name, "address", st.Lease.Addr)
}

func (a *agent) setPhase(p jail.Phase) {
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	if a.status.Phase != p {
		a.status.Phase, a.status.Since, a.status.Next = p, a.k.Now(), time.Time{}
		a.k.changed()
	}
}

// make makes a jail, gives it its token before its program begins, and opens the gateway to it.
func (a *agent) make(ctx context.Context, w wanted) (jail.Status, error) {
	if err := a.k.Room(); err != nil {
		return jail.Status{}, err
	}
	m, err := a.k.Maker(ctx, w.Spec.Image != "")
	if err != nil {
		return jail.Status{}, err
	}
	j, err := m.CreateFor(ctx, "", w.Spec, func(ctx context.Context, j *jail.Jail) error { return a.deliver(ctx, w, m, j) })
	if err != nil {
		return jail.Status{}, err
	}
	j.Stdio.Close() // there is none
	admitErr := m.Admit(ctx, j.Name)
	st := jail.Status{Name: j.Name, Lease: j.Lease}
	seen, err := m.Inspect(ctx, j.Name)
	if err == nil {
		st.PID = seen.PID
	}
	if admitErr != nil && (err != nil || seen.Exit == nil) { // one that has ended already was made, and Wait says how it ended
		return jail.Status{}, admitErr
	}
	return st, nil
}

// deliver is called when a jail was seen to be confined. From here on it is known whose it is.
func (a *agent) deliver(ctx context.Context, w wanted, m jail.Maker, j *jail.Jail) error {
	a.tokens.Lock()
	defer a.tokens.Unlock()
	a.claim(w.Generation, j.Name, j.Lease.Addr)
	if !w.Spec.Agent.Token {
		return nil
	}
	token, err := a.k.files.token(a.key)
	if errors.Is(err, fs.ErrNotExist) {
		return problem.New(problem.Conflict, "issue a new token: clawjail agent sync does", "there is no token for the agent %s", a.key)
	}
	if err != nil {
		return err
	}
	return a.putToken(ctx, j.Name, token)
}

// claim says which jail is that of the agent.
func (a *agent) claim(generation uint64, name jail.Name, addr netip.Addr) {
	a.k.mu.Lock()
	a.status.Jail, a.status.Addr, a.status.PID, a.made, a.doomed = name, addr, 0, generation, false
	r := run{Jail: name, Generation: generation, Boot: a.k.Boot, Restarts: a.status.Restarts, Crashes: a.status.Crashes}
	a.k.changed()
	a.k.mu.Unlock()
	a.record(r)
}

// record writes down which jail it has. When that cannot be written, the next host daemon makes a new one.
func (a *agent) record(r run) {
	if err := a.k.files.setRunning(a.key, r); err != nil {
		a.k.Log.Error("write down which jail an agent has", "agent", a.key, "jail", r.Jail, "error", err)
	}
}

// watch waits for the end of the program.
func (a *agent) watch(name jail.Name) {
	a.leaveJail()
	ctx, cancel := context.WithCancel(a.k.background)
	exits := make(chan jail.Exit, 1)
	a.exits, a.unwatch = exits, cancel
	a.watching.Go(func() {
		for ctx.Err() == nil {
			m, err := a.k.Maker(ctx, name.InContainer())
			var x jail.Exit
			if err == nil {
				x, err = m.Wait(ctx, name)
			}
			if errors.Is(err, jail.ErrNotFound) { // somebody else has removed it
				x, err = jail.Exit{Code: -1, Cause: jail.CauseDestroyed, At: a.k.Now()}, nil
			}
			if err == nil {
				exits <- x
				return
			}
			again := time.NewTimer(a.k.FirstPause)
			select {
			case <-again.C:
			case <-ctx.Done():
				again.Stop()
			}
		}
	})
}

func (a *agent) leaveJail() {
	if a.unwatch != nil {
		a.unwatch()
		a.watching.Wait()
		a.unwatch, a.exits = nil, nil
	}
}

// ended decides what follows the end of a program. The jail itself is ended next. The end of a program that is not wanted
// any more says nothing about the one that is.
func (a *agent) ended(x jail.Exit) {
	a.k.mu.Lock()
	a.noteExit(x)
	a.doomed = true
	switch {
	case a.made != a.declared.Generation:
	case startsAgain(a.declared.Restart, x, a.declared.Spec.Limits):
		ran := max(a.k.Now().Sub(a.status.Since), 0)
		a.pause = a.k.pauseAfter(a.pause, ran)
		a.due = a.k.Now().Add(a.pause)
		a.status.Restarts++
		if a.status.Crashes++; ran >= a.k.Steady {
			a.status.Crashes = 0
		}
	default:
		a.rest, a.status.Crashes = true, 0
	}
	r := run{Jail: a.status.Jail, Generation: a.made, Boot: a.k.Boot, Restarts: a.status.Restarts, Crashes: a.status.Crashes, Exit: &x}
	a.k.mu.Unlock()
	a.record(r)
}

// noteExit keeps how a run ended. Keeper.mu is held.
func (a *agent) noteExit(x jail.Exit) {
	a.status.Exit = &x
	a.k.changed()
}

// end ends the jail that is there.
func (a *agent) end(ctx context.Context, w wanted) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	m, err := a.k.Maker(ctx, w.jail.InContainer())
	if err != nil {
		return err
	}
	if err := m.Destroy(ctx, w.jail); err != nil {
		return err
	}
	if a.exits != nil { // how it ended is known in a moment, when anybody knows
		patience := time.NewTimer(200 * time.Millisecond)
		select {
		case x := <-a.exits:
			a.k.mu.Lock()
			a.noteExit(x)
			a.k.mu.Unlock()
		case <-patience.C:
		}
		patience.Stop()
	}
	a.leaveJail()
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.status.Jail, a.status.Addr, a.status.PID, a.doomed = "", netip.Addr{}, 0, false
	if a.trouble {
		a.trouble, a.status.Code, a.status.Problem, a.status.Hint = false, "", "", ""
	}
	a.k.changed()
	return nil
}

// finishDrop removes what is left of an agent that has no jail any more.
func (a *agent) finishDrop(ctx context.Context, w wanted) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	id := jail.Agent{Tenant: w.Spec.Agent.Tenant, Name: w.Spec.Agent.Name}
	if !w.Dropping.KeepLog {
		if err := a.k.Console.RemoveLog(ctx, id); err != nil {
			return err
		}
	}
	if w.Dropping.RemoveWorkspace {
		if err := a.k.RemoveMade(ctx, id, w.Spec.Mounts); err != nil {
			return fmt.Errorf("remove its workspace: %w", err)
		}
	}
	switch {
	case !w.Dropping.KeepState:
		containers, err := a.k.files.remains(a.key)
		if err != nil {
			return err
		}
		if err := a.k.removeState(ctx, id, containers || w.Containers); err != nil {
			return err
		}
		if err := a.k.files.forget(a.key); err != nil {
			return err
		}
	case w.Containers:
		if err := a.k.files.remember(a.key, w.Spec.Agent.State); err != nil {
			return err
		}
	}
	return a.forgotten(w)
}

// forgotten ends an agent of which nothing is left. When something else was wanted of it meanwhile, that is done first.
func (a *agent) forgotten(w wanted) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	if a.look().seq != w.seq {
		return nil
	}
	if err := a.k.files.drop(a.key); err != nil {
		return err
	}
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.settle(w.seq, nil)
	a.leave()
	return nil
}
