package agents

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// agent is one jail that is kept. Callers change what is wanted; the goroutine of live makes it so.
type agent struct {
	k    *Keeper
	key  string
	wake wake.Signal   // something else is wanted
	gone chan struct{} // closed when it was dropped

	changing sync.Mutex // held while what is wanted is written down; taken before tokens and Keeper.mu

	tokens  sync.Mutex // held while the token is written down and put into the jail; taken before Keeper.mu
	inJail  jail.Name  // the jail that has a token,
	inForce [sha256.Size]byte

	// The fields below are guarded by Keeper.mu.
	declared declaration
	blank    bool // nothing was ever declared of it
	status   jail.KeptStatus
	made     uint64 // generation of the jail that is there
	doomed   bool   // the jail that is there must go
	rest     bool   // it is not started by itself
	adopted  bool   // what was there when it was first looked at is known
	trouble  bool   // its Problem is that the jail could not be ended
	due      time.Time
	pause    time.Duration // before the last start
	seq      uint64        // raised with everything that is wanted
	settled  uint64        // of it, what was acted upon
	outcome  error         // of that
	news     chan struct{} // closed with the next outcome; nil when no call waits
	cancel   context.CancelFunc

	// The fields below are the goroutine's own.
	fresh    bool // it was not there when the host daemon was started
	unwatch  func()
	exits    chan jail.Exit
	watching sync.WaitGroup
}

func newAgent(k *Keeper, d declaration) *agent {
	a := &agent{k: k, key: d.Key(), wake: wake.New(), gone: make(chan struct{}), declared: d}
	a.status.Phase = jail.PhaseStarting
	if d.Stopped {
		a.status.Phase = jail.PhaseStopped
	}
	if d.damage != "" {
		a.status.Phase, a.status.Code, a.status.Problem = jail.PhaseFailed, problem.Internal, "what was declared cannot be read: "+d.damage
		a.status.Hint = "declare it again: clawjail agent sync"
	}
	a.status.Since = k.Now()
	return a
}

// declare takes a declaration on. A seq says when it was acted upon, and none that there is nothing to do; gone is returned
// when an earlier one is being dropped, and is closed when that is done.
func (a *agent) declare(kept jail.Kept, token string) (seq uint64, gone <-chan struct{}, err error) {
	a.changing.Lock()
	defer a.changing.Unlock()
	a.k.mu.Lock()
	old, blank, closed := a.declared, a.blank, a.k.closed
	stuck := a.outcome != nil && a.settled == a.seq
	a.k.mu.Unlock()
	switch {
	case closed:
		return 0, nil, errClosed()
	case old.Dropping != nil && stuck:
		return 0, nil, problem.New(problem.Conflict, "remove it once more, and see why that does not work", "the agent %s is being removed", a.key)
	case old.Dropping != nil || a.isGone():
		return 0, a.gone, nil
	}
	defer func() {
		if err != nil && blank {
			a.discard()
		}
	}()
	if err := a.needToken(kept.Spec, token); err != nil {
		return 0, nil, err
	}
	next := declaration{Kept: kept, Generation: old.Generation, Containers: old.Containers || kept.Spec.Image != ""}
	same := !blank && sameSpec(old.Spec, kept.Spec)
	if !same || old.Stopped && !kept.Stopped { // how the run before ended says nothing about this one
		next.Generation++
	}
	untouched := same && old.Restart == kept.Restart && old.Revision == kept.Revision && old.Stopped == kept.Stopped
	if !untouched {
		if err := a.k.files.declare(next); err != nil {
			return 0, nil, err
		}
	}
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.declared, a.blank = next, false
	if !same || old.Restart != kept.Restart {
		a.status.Restarts, a.status.Crashes = 0, 0
	}
	failed := a.status.Phase == jail.PhaseFailed && !kept.Stopped
	if !same || old.Stopped != kept.Stopped || failed {
		a.atOnce()
	}
	if untouched && !failed && a.status.Phase != jail.PhaseStarting {
		return 0, nil, nil
	}
	if !same || kept.Stopped {
		a.cancelStart()
	}
	return a.want(), nil, nil
}

// needToken writes the token down, or looks for the one that is there.
func (a *agent) needToken(s jail.Spec, token string) error {
	if token != "" {
		return a.setToken(a.k.background, token)
	}
	if !s.Agent.Token {
		return nil
	}
	_, err := a.k.files.token(a.key)
	if errors.Is(err, fs.ErrNotExist) {
		return problem.New(problem.BadRequest, "send one", "there is no token for the agent %s", a.key)
	}
	return err
}

// discard takes an agent away that nothing could be declared of. changing is held.
func (a *agent) discard() {
	_ = a.k.files.drop(a.key) // a token without a declaration also goes with the next start
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.leave()
	a.poke()
}

// leave takes it out of the listing. Keeper.mu is held.
func (a *agent) leave() {
	if a.k.agents[a.key] == a {
		delete(a.k.agents, a.key)
	}
	if !a.isGone() {
		close(a.gone)
	}
	a.k.changed()
}

func (a *agent) isGone() bool {
	return wake.Closed(a.gone)
}

// drop says that it is to go. One that is gone already is errUnknown.
func (a *agent) drop(o jail.DropOptions) (uint64, error) {
	a.changing.Lock()
	defer a.changing.Unlock()
	if a.isGone() {
		return 0, errUnknown
	}
	a.k.mu.Lock()
	next := a.declared
	a.k.mu.Unlock()
	next.Dropping = &o
	if err := a.k.files.declare(next); err != nil {
		// A full disk must not keep a jail alive. When the host daemon is killed before it is done, it has to be asked again.
		a.k.Log.Error("write down that an agent is dropped", "agent", a.key, "error", err)
	}
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.declared = next
	a.cancelStart()
	return a.want(), nil
}

// restart says that a new jail is wanted.
func (a *agent) restart() (uint64, error) {
	a.changing.Lock()
	defer a.changing.Unlock()
	a.k.mu.Lock()
	next := a.declared
	a.k.mu.Unlock()
	if next.Stopped || next.Dropping != nil {
		return 0, problem.New(problem.Conflict, "start it, or declare it again", "the agent %s is stopped", a.key)
	}
	next.Generation++
	if err := a.k.files.declare(next); err != nil {
		return 0, err
	}
	a.k.mu.Lock()
	defer a.k.mu.Unlock()
	a.declared = next
	a.atOnce()
	a.cancelStart()
	return a.want(), nil
}

// want raises what is wanted and wakes the goroutine. Keeper.mu is held, as for the two that follow.
func (a *agent) want() uint64 {
	a.seq++
	a.k.changed()
	a.poke()
	return a.seq
}

// atOnce forgets what kept it from being started.
func (a *agent) atOnce() { a.rest, a.due, a.pause, a.status.Crashes = false, time.Time{}, 0, 0 }

func (a *agent) cancelStart() {
	if a.cancel != nil {
		a.cancel()
	}
}

func (a *agent) poke() { a.wake.Send() }

// settledAt waits until a change was acted upon, and says what came of it.
func (a *agent) settledAt(ctx context.Context, seq uint64) error {
	for {
		a.k.mu.Lock()
		if a.settled >= seq {
			err := a.outcome
			a.k.mu.Unlock()
			return err
		}
		if a.news == nil {
			a.news = make(chan struct{})
		}
		news := a.news
		a.k.mu.Unlock()
		select {
		case <-news:
		case <-a.k.background.Done():
			return errClosed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// settle says what came of what was wanted. Keeper.mu is held.
func (a *agent) settle(seq uint64, outcome error) {
	if a.settled >= seq {
		return
	}
	a.settled, a.outcome = seq, outcome
	if a.news != nil {
		close(a.news)
		a.news = nil
	}
}

// setToken writes the token down, and puts it into the jail that runs.
func (a *agent) setToken(ctx context.Context, token string) error {
	a.tokens.Lock()
	defer a.tokens.Unlock()
	if err := a.k.files.setToken(a.key, token); err != nil {
		return err
	}
	a.k.mu.Lock()
	name, needed := a.status.Jail, a.declared.Spec.Agent.Token
	a.k.mu.Unlock()
	if name == "" || !needed {
		return nil
	}
	return a.putToken(ctx, name, []byte(token))
}

// putToken puts the token into a jail. tokens is held. A jail that has ended meanwhile needs none.
func (a *agent) putToken(ctx context.Context, name jail.Name, token []byte) error {
	m, err := a.k.Maker(ctx, name.InContainer())
	if err != nil {
		return err
	}
	if err := m.Token(ctx, name, token); err != nil {
		if errors.Is(err, jail.ErrNotFound) {
			return nil
		}
		return err
	}
	a.inJail, a.inForce = name, sha256.Sum256(token)
	return nil
}

func (a *agent) hasToken() (bool, error) {
	a.tokens.Lock()
	defer a.tokens.Unlock()
	token, err := a.k.files.token(a.key)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	a.k.mu.Lock()
	name, needed := a.status.Jail, a.declared.Spec.Agent.Token
	a.k.mu.Unlock()
	if name == "" || !needed {
		return true, nil
	}
	return a.inJail == name && a.inForce == sha256.Sum256(token), nil
}

// report is how it stands. Keeper.mu is held.
func (a *agent) report() jail.KeptStatus {
	s := a.status
	s.Kept = a.declared.Kept
	s.Spec.HomeFiles = nil // a listing does not need them
	return s
}
