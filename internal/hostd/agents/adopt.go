package agents

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// adopt takes over the jail that an earlier host daemon has started, when it is the one that is wanted, and ends whatever
// else there is of the agent.
func (a *agent) adopt(ctx context.Context, w wanted) error {
	there, err := a.k.jailsOf(ctx, w.declaration, a.fresh)
	if err != nil {
		return err
	}
	last := a.k.files.running(a.key)
	current := last.Generation == w.Generation && last.Boot == a.k.Boot
	adoptable := current && !w.Stopped && w.Dropping == nil
	var mine *jail.Status
	var errs []error
	for i, st := range there {
		if adoptable && mine == nil && st.Name == last.Jail && (st.State == jail.StateStarted || st.State == jail.StateReady) {
			mine = &there[i]
			continue
		}
		a.k.Log.Warn("end a jail that is not wanted", "agent", a.key, "jail", st.Name, "state", st.State)
		errs = append(errs, a.k.destroy(ctx, st.Name))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	a.k.mu.Lock()
	a.adopted = true
	stale := a.declared.Generation != w.Generation
	if mine != nil { // in the same moment: of an agent that was adopted, sweep ends every jail but this one
		a.status.Jail, a.status.Addr, a.status.PID, a.status.Since, a.made = mine.Name, mine.Lease.Addr, mine.PID, mine.Created, last.Generation
		a.k.changed()
	}
	if current && !stale {
		a.status.Restarts, a.status.Crashes, a.status.Exit = last.Restarts, last.Crashes, last.Exit
	}
	if mine == nil && adoptable && !stale && last.Exit != nil && !startsAgain(w.Restart, *last.Exit, w.Spec.Limits) {
		a.rest = true // it has ended since the host was started, and stays so
	}
	a.k.mu.Unlock()
	if mine != nil {
		a.takeOver(ctx, w, *mine)
	}
	return nil
}

// takeOver goes on with a jail that runs.
func (a *agent) takeOver(ctx context.Context, w wanted, st jail.Status) {
	a.watch(st.Name)
	if st.Exit != nil {
		return // its program has ended, which Wait says
	}
	m, err := a.k.Maker(ctx, st.Name.InContainer())
	if err == nil {
		err = m.Admit(ctx, st.Name) // it may have been started and not yet admitted
	}
	if err != nil {
		a.k.Log.Warn("take a jail over", "agent", a.key, "jail", st.Name, "error", err)
		a.k.mu.Lock()
		a.doomed = true
		a.k.mu.Unlock()
		return
	}
	if w.Spec.Agent.Token {
		a.tokens.Lock()
		defer a.tokens.Unlock()
		token, err := a.k.files.token(a.key)
		if err == nil { // it may have been replaced and not yet put there
			err = a.putToken(ctx, st.Name, token)
		}
		if err != nil {
			a.k.Log.Warn("put the token of an agent into its jail", "agent", a.key, "jail", st.Name, "error", err)
		}
	}
	a.k.Log.Info("agent runs on", "agent", a.key, "jail", st.Name)
}

// jailsOf lists the jails of an agent. Those that were there at the start are listed once for all agents.
func (k *Keeper) jailsOf(ctx context.Context, d declaration, fresh bool) (out []jail.Status, err error) {
	k.finding.Lock()
	defer k.finding.Unlock()
	for _, containers := range []bool{false, true} {
		if containers && !d.Containers {
			continue
		}
		all := k.found[containers]
		if all == nil || fresh {
			if all, err = k.listKept(ctx, containers); err != nil {
				return nil, err
			}
			if !fresh {
				k.found[containers] = all
			}
		}
		out = append(out, all[d.Key()]...)
	}
	return out, nil
}

// listKept lists the jails that are kept, by the keys of their agents.
func (k *Keeper) listKept(ctx context.Context, containers bool) (map[string][]jail.Status, error) {
	m, err := k.Maker(ctx, containers)
	if err != nil {
		return nil, err
	}
	all, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	kept := map[string][]jail.Status{}
	for _, st := range all {
		if st.Spec.Lifetime == jail.LifetimeKeep && st.Spec.Agent != nil && st.Name.InContainer() == containers {
			key := st.Spec.Agent.Key()
			kept[key] = append(kept[key], st)
		}
	}
	return kept, nil
}

func (k *Keeper) destroy(ctx context.Context, name jail.Name) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	m, err := k.Maker(ctx, name.InContainer())
	if err != nil {
		return err
	}
	return m.Destroy(ctx, name)
}

// sweep ends undeclared jails, now and then.
func (k *Keeper) sweep() {
	tick := time.NewTicker(k.SweepEvery)
	defer tick.Stop()
	for {
		for _, containers := range []bool{false, true} {
			if containers && !k.Containers() {
				continue
			}
			if err := k.sweepOne(k.background, containers); err != nil && k.background.Err() == nil {
				k.Log.Error("look for jails that nobody declared", "containers", containers, "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-k.background.Done():
			return
		}
	}
}

// sweepOne ends the stray jails of a driver. A jail that cannot be ended is logged, and tried again with the next sweep.
func (k *Keeper) sweepOne(ctx context.Context, containers bool) error {
	kept, err := k.listKept(ctx, containers)
	if err != nil {
		return err
	}
	var stray []jail.Name
	k.mu.Lock()
	for key, all := range kept {
		for _, st := range all {
			if k.isStray(key, st) {
				stray = append(stray, st.Name)
			}
		}
	}
	k.mu.Unlock()
	eachOf(stray, func(n *jail.Name) {
		k.Log.Warn("end a jail that nobody declared", "jail", *n)
		if err := k.destroy(ctx, *n); err != nil {
			k.Log.Error("end a jail that nobody declared", "jail", *n, "error", err)
		}
	})
	return nil
}

// isStray says whether a jail that was listed a moment ago belongs to no agent. One of an agent was claimed before it came into these states, and
// is looked for here after it was listed. k.mu is held.
func (k *Keeper) isStray(key string, st jail.Status) bool {
	if st.State != jail.StateStarted && st.State != jail.StateReady {
		return false
	}
	a := k.agents[key]
	if a == nil {
		return true
	}
	return a.adopted && a.status.Jail != st.Name
}
