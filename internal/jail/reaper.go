package jail

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	Name     Name          `json:"name,omitempty"`
	Resource *HostResource `json:"trace,omitempty"` // nil when a whole jail is meant
	Reason   string        `json:"reason"`
	Removed  bool          `json:"removed"`
	Error    string        `json:"error,omitempty"`
}

// Reap compares the host with the journal and removes what should not be there. One runs at a time. It
// returns an error when the host could not be read, or when something could not be removed; the report is
// complete in both cases.
//
// The host is read before the journal: a record is written before anything of a jail
// exists, so a resource without a record belongs to no jail. Only names of this installation are touched.
func (l *Lifecycle) Reap(ctx context.Context, o ReapOptions) (ReapReport, error) {
	select {
	case l.reaping <- struct{}{}:
		defer func() { <-l.reaping }()
	case <-ctx.Done():
		return ReapReport{}, ctx.Err()
	}
	report := ReapReport{Findings: []Finding{}}
	resources, err := l.HostResources(ctx)
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

	stray := map[Name]*HostResource{}
	var loose []HostResource
	for _, t := range resources {
		switch {
		case t.Name == "":
			loose = append(loose, t)
		case t.Name.Belongs(l.Installation) && stray[t.Name] == nil:
			if _, err := l.Lookup(t.Name); err != nil {
				stray[t.Name] = &t
			}
		}
	}
	ended := map[int]bool{} // leases whose resources were listed before their jail was ended
	report.Jails = len(l.Entries())
	for r, why := range l.Overdue() {
		report.Jails--
		f := Finding{Name: r.Name, Reason: why.Text}
		ended[r.Lease.Index] = true
		if o.DryRun {
			note(f, nil)
			continue
		}
		note(f, l.end(ctx, r.Name, why.Cause))
	}
	for name, t := range stray {
		f := Finding{Name: name, Resource: t, Reason: fmt.Sprintf("%s of a jail that is not in the journal", t.Kind)}
		if o.DryRun {
			note(f, nil)
		} else if l.adopt(name) { // else a jail has come by that name while others were ended
			note(f, l.end(ctx, name, CauseOwnerLost))
		}
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

// HostResources lists everything on the host that carries this installation's id, as the five parts see it.
func (l *Lifecycle) HostResources(ctx context.Context) ([]HostResource, error) {
	var all []HostResource
	var errs []error
	lists := []func(context.Context) ([]HostResource, error){
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

// adopt makes an entry for resources that no record speaks of, so that they are torn down like any other jail. It is false
// when there is a jail of that name.
func (l *Lifecycle) adopt(name Name) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.jails[name]
	if !ok {
		l.add(Record{Version: recordVersion, Name: name, State: StateStopping, Lease: Lease{Index: -1}, Created: l.Now()})
	}
	return !ok
}

// reapLoose removes a thing that names no jail, when no lease covers it. The lease is held meanwhile, so that
// no new jail gets the address whose remains are being removed.
func (l *Lifecycle) reapLoose(ctx context.Context, t HostResource, dryRun bool) (Finding, bool, error) {
	if t.Index >= 0 {
		if !l.Pool.Hold(t.Index) {
			return Finding{}, false, nil
		}
		defer l.Pool.Release(t.Index)
	}
	f := Finding{Resource: &t, Reason: fmt.Sprintf("%s that belongs to no jail", t.Kind)}
	if dryRun {
		return f, true, nil
	}
	remove := l.Parts.Network.RemoveResource
	if t.Kind == ResourceTableMember {
		remove = l.Parts.Firewall.RemoveResource
	}
	return f, true, l.untilFree(ctx, func() error { return remove(ctx, t) })
}

// guard puts back what somebody else took from the firewall: first the rules, then the members that were with
// them. Without the rules a jail could reach the host's own services; without its membership, nothing at all.
func (l *Lifecycle) guard(ctx context.Context) error {
	if err := l.Parts.Firewall.Ensure(ctx); err != nil {
		return fmt.Errorf("look after the firewall: %w", err)
	}
	ready := slices.DeleteFunc(l.Entries(), func(e *Entry) bool {
		r, idle := e.Idle()
		return r.State != StateReady || !idle
	})
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
		if !listed[e.Record().Lease.Index] {
			errs = append(errs, l.restore(ctx, e))
		}
	}
	return errors.Join(errs...)
}

// restore adds a ready jail to its table again, unless it is being ended.
func (l *Lifecycle) restore(ctx context.Context, e *Entry) error {
	if err := e.Acquire(ctx); err != nil {
		return err
	}
	defer e.Leave()
	r := e.Record()
	if r.State != StateReady {
		return nil
	}
	l.Log.Warn("a jail was missing in the firewall's table", "jail", r.Name, "address", r.Lease.Addr)
	return l.Parts.Firewall.Add(ctx, r.Name.Kind().Table(), r.Lease)
}

// Run enforces wall clocks and grace periods and looks after the firewall every second, and compares the host
// with the journal now and then, until the context ends. Owners could not come back before it, however long the start took.
func (l *Lifecycle) Run(ctx context.Context) {
	l.AwaitOwners()
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
		if l.Now().Sub(scanned) >= l.ScanEvery {
			scanned = l.Now()
			if _, err := l.Reap(ctx, ReapOptions{}); err != nil && ctx.Err() == nil {
				l.Log.Error("reap", "error", err)
			}
			continue
		}
		for r, why := range l.Overdue() {
			l.Log.Info("end a jail", "jail", r.Name, "reason", why.Text)
			if err := l.end(ctx, r.Name, why.Cause); err != nil && ctx.Err() == nil {
				l.Log.Error("end a jail", "jail", r.Name, "error", err)
			}
		}
	}
}
