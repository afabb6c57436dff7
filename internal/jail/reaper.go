package jail

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// ReapOptions say how to reap.
type ReapOptions struct {
	// DryRun reports and changes nothing.
	DryRun bool `json:"dry_run"`
}

// ReapReport says what was found where nothing should be.
type ReapReport struct {
	// Jails is how many jails there were that should be.
	Jails    int       `json:"jails"`
	Findings []Finding `json:"findings"`
}

// Finding is one jail or one thing on the host that should not be there.
type Finding struct {
	Name    Name   `json:"name,omitempty"`
	Trace   *Trace `json:"trace,omitempty"` // nil when a whole jail is meant
	Reason  string `json:"reason"`
	Removed bool   `json:"removed"`
	Error   string `json:"error,omitempty"`
}

// Reap compares the host with the journal and removes what should not be there. One runs at a time. It
// returns an error when the host could not be read, or when something could not be removed; the report is
// complete in both cases.
//
// The host is read before the journal: a record is written before anything of a jail
// exists, so a trace without a record belongs to nobody. Only names of this installation are touched.
func (l *Lifecycle) Reap(ctx context.Context, o ReapOptions) (ReapReport, error) {
	select {
	case l.reaping <- struct{}{}:
		defer func() { <-l.reaping }()
	case <-ctx.Done():
		return ReapReport{}, ctx.Err()
	}
	report := ReapReport{Findings: []Finding{}}
	traces, err := l.Traces(ctx)
	errs := []error{err}
	note := func(f Finding, err error) {
		if err != nil {
			f.Error = err.Error()
			errs = append(errs, err)
		}
		f.Removed = err == nil && !o.DryRun
		report.Findings = append(report.Findings, f)
		l.Log.Info("reap", "jail", f.Name, "reason", f.Reason, "removed", f.Removed, "error", f.Error)
	}

	stray := map[Name]*Trace{}
	var loose []Trace
	for _, t := range traces {
		switch {
		case t.Name == "":
			loose = append(loose, t)
		case t.Name.Belongs(l.Installation) && !l.knows(t.Name) && stray[t.Name] == nil:
			stray[t.Name] = &t
		}
	}
	ended := map[int]bool{} // leases whose traces were listed before their jail was ended
	for r, why := range l.overdue(&report.Jails) {
		f := Finding{Name: r.Name, Reason: why.text}
		ended[r.Lease.Index] = true
		if o.DryRun {
			note(f, nil)
			continue
		}
		note(f, l.end(ctx, r.Name, why.cause))
	}
	for name, t := range stray {
		f := Finding{Name: name, Trace: t, Reason: fmt.Sprintf("%s of a jail that is not in the journal", t.Kind)}
		if o.DryRun {
			note(f, nil)
			continue
		}
		note(f, l.adopt(ctx, name))
	}
	for _, t := range loose {
		if t.Index >= 0 && ended[t.Index] {
			continue
		}
		if f, found, err := l.reapLoose(ctx, t, o.DryRun); found {
			note(f, err)
		}
	}
	return report, errors.Join(errs...)
}

// Traces lists everything on the host that carries this installation's id, as the five parts see it.
func (l *Lifecycle) Traces(ctx context.Context) ([]Trace, error) {
	var all []Trace
	var errs []error
	lists := []func(context.Context) ([]Trace, error){
		l.Parts.Runtime.List, l.Parts.Limiter.List, l.Parts.Storage.List, l.Parts.Network.List, l.Parts.Firewall.List,
	}
	if l.Console != nil {
		lists = append(lists, l.Console.List)
	}
	for _, list := range lists {
		t, err := list(ctx)
		all = append(all, t...)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return all, fmt.Errorf("read the host: %w", err)
	}
	return all, nil
}

// EndedGrace is how long a jail is kept whose owner is gone and whose program has ended with it: long enough for an
// owner that comes back after a restart of the host daemon to ask how the program ended.
const EndedGrace = 2 * time.Second

type verdict struct {
	text  string
	cause Cause
}

// overdue yields the jails of the journal that should not be, and counts the others. What is overdue is found at once, and
// is judged again when its turn comes: ending those before it takes time, in which its owner may have come back.
func (l *Lifecycle) overdue(good *int) iter.Seq2[Record, verdict] {
	l.mu.Lock()
	defer l.mu.Unlock()
	var late []*entry
	owners := map[string]bool{}
	for _, e := range l.jails {
		owners[e.rec.Owner] = true
		if l.judge(e).text != "" {
			late = append(late, e)
		} else {
			*good++
		}
	}
	for o := range l.lost {
		if !owners[o] { // its last jail is gone, and nobody will ask for it again
			delete(l.lost, o)
		}
	}
	return func(yield func(Record, verdict) bool) {
		for _, e := range late {
			l.mu.Lock()
			r, v := e.rec, l.judge(e)
			l.mu.Unlock()
			if v.text == "" {
				*good++
			} else if !yield(r, v) {
				return
			}
		}
	}
}

// judge says why a jail should not be; an empty text lets it live. The caller holds l.mu.
func (l *Lifecycle) judge(e *entry) verdict {
	r, now := e.rec, l.Now()
	gone, lost := l.lost[r.Owner]
	switch {
	case e.active, e.tornDown:
		return verdict{} // being made or ended right now, or gone
	case r.State != StateStarted && r.State != StateReady:
		return verdict{text: fmt.Sprintf("left in state %s by a process that is gone", r.State), cause: CauseOwnerLost}
	case now.After(r.Deadline):
		return verdict{text: "its wall clock has run out", cause: CauseWallClock}
	case lost && r.Spec.Lifetime == LifetimeOwner && now.Sub(gone) >= l.Grace:
		return verdict{text: "its owner is gone", cause: CauseOwnerLost}
	case lost && r.Exit != nil && r.Spec.Lifetime == LifetimeOwner && now.Sub(gone) >= min(EndedGrace, l.Grace):
		return verdict{text: "its owner is gone and its program has ended", cause: CauseOwnerLost}
	case r.Exit != nil && r.Spec.Lifetime == LifetimeOwner && now.Sub(r.Exit.At) >= l.Grace:
		return verdict{text: "its program has ended and nobody destroyed it", cause: CauseDestroyed}
	}
	return verdict{}
}

func (l *Lifecycle) knows(n Name) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.jails[n]
	return ok
}

// adopt makes an entry for traces that no record speaks of, and tears it down like any other jail.
func (l *Lifecycle) adopt(ctx context.Context, name Name) error {
	l.mu.Lock()
	if _, ok := l.jails[name]; !ok {
		l.jails[name] = newEntry(Record{Version: recordVersion, Name: name, State: StateStopping,
			Lease: Lease{Index: -1}, Created: l.Now()})
	}
	l.mu.Unlock()
	return l.end(ctx, name, CauseOwnerLost)
}

// reapLoose removes a thing that names no jail, when no lease covers it. The lease is held meanwhile, so that
// nobody is given the address whose remains are being removed.
func (l *Lifecycle) reapLoose(ctx context.Context, t Trace, dryRun bool) (Finding, bool, error) {
	if t.Index >= 0 {
		if !l.Pool.Hold(t.Index) {
			return Finding{}, false, nil
		}
		defer l.Pool.Release(t.Index)
	}
	f := Finding{Trace: &t, Reason: fmt.Sprintf("%s that belongs to no jail", t.Kind)}
	if dryRun {
		return f, true, nil
	}
	remove := l.Parts.Network.RemoveTrace
	if t.Kind == TraceTableMember {
		remove = l.Parts.Firewall.RemoveTrace
	}
	return f, true, l.untilFree(ctx, func() error { return remove(ctx, t) })
}

// guard puts back what somebody else took from the firewall: first the rules, then the members that were with
// them. Without the rules a jail could reach the host's own services; without its membership, nothing at all.
func (l *Lifecycle) guard(ctx context.Context) error {
	if err := l.Parts.Firewall.Ensure(ctx); err != nil {
		return fmt.Errorf("look after the firewall: %w", err)
	}
	l.mu.Lock()
	var ready []*entry
	for _, e := range l.jails {
		if e.rec.State == StateReady && !e.active {
			ready = append(ready, e)
		}
	}
	l.mu.Unlock()
	if len(ready) == 0 {
		return nil
	}
	members, err := l.Parts.Firewall.List(ctx)
	if err != nil {
		return fmt.Errorf("look after the firewall: %w", err)
	}
	listed := map[int]bool{}
	for _, t := range members {
		listed[t.Index] = true
	}
	var errs []error
	for _, e := range ready {
		if !listed[l.snapshot(e).Lease.Index] {
			errs = append(errs, l.restore(ctx, e))
		}
	}
	return errors.Join(errs...)
}

// restore adds a ready jail to its table again, unless it is being ended.
func (l *Lifecycle) restore(ctx context.Context, e *entry) error {
	if err := l.acquire(ctx, e); err != nil {
		return err
	}
	defer l.leave(e)
	r := l.snapshot(e)
	if r.State != StateReady {
		return nil
	}
	l.Log.Warn("a jail was missing in the firewall's table", "jail", r.Name, "address", r.Lease.Addr)
	return l.Parts.Firewall.Add(ctx, r.Name.Kind().Table(), r.Lease)
}

// Run enforces wall clocks and grace periods and looks after the firewall every second, and compares the host
// with the journal now and then, until the context ends. Owners could not come back before it, however long the start took.
func (l *Lifecycle) Run(ctx context.Context) {
	l.missAnew()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	scanned := l.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := l.guard(ctx); err != nil && ctx.Err() == nil {
			l.Log.Error("guard", "error", err)
		}
		var good int
		if l.Now().Sub(scanned) >= l.ScanEvery {
			scanned = l.Now()
			if _, err := l.Reap(ctx, ReapOptions{}); err != nil && ctx.Err() == nil {
				l.Log.Error("reap", "error", err)
			}
			continue
		}
		for r, why := range l.overdue(&good) {
			l.Log.Info("end a jail", "jail", r.Name, "reason", why.text)
			if err := l.end(ctx, r.Name, why.cause); err != nil && ctx.Err() == nil {
				l.Log.Error("end a jail", "jail", r.Name, "error", err)
			}
		}
	}
}
