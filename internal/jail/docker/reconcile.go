//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
)

// containers lists what the engine has of the installation, whoever made it.
func (d *Driver) containers(ctx context.Context) ([]container.Summary, error) {
	list, err := d.engine.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: client.Filters{}.Add("label", labelInstallation+"="+string(d.o.Installation))})
	return list.Items, d.engineError(err)
}

// nameOf is the jail that a container is, if it is called like one.
func (d *Driver) nameOf(c container.Summary) (jail.Name, bool) {
	if len(c.Names) != 1 {
		return "", false
	}
	name, err := jail.ParseName(strings.TrimPrefix(c.Names[0], "/"), d.o.Installation)
	return name, err == nil && name.InContainer() && c.Labels[labelJail] == string(name)
}

// HostResources lists everything that the installation has in the engine and on the host for containers.
func (d *Driver) HostResources(ctx context.Context) ([]jail.HostResource, error) {
	var out []jail.HostResource
	list, err := d.containers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		if name, ok := d.nameOf(c); ok {
			out = append(out, jail.HostResource{Kind: jail.ResourceRuntimeState, Name: name, Index: -1, ID: c.ID})
		}
	}
	names, err := d.staged()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		out = append(out, jail.HostResource{Kind: jail.ResourceStaged, Name: n, Index: -1, ID: d.stagePath(n)})
	}
	d.mu.Lock()
	firewall := d.firewall
	d.mu.Unlock()
	for _, e := range d.Entries() {
		name := e.Record().Name
		out = append(out, jail.HostResource{Kind: jail.ResourceRecord, Name: name, Index: -1, ID: string(name)})
	}
	if firewall != nil {
		members, err := firewall.List(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, members...)
	}
	return out, nil
}

// Reap compares the engine with the journal and removes what should not be there. Objects without a record are left alone for
// the grace period: an engine that was killed may not have said yet that it made it.
func (d *Driver) Reap(ctx context.Context, o jail.ReapOptions) (jail.ReapReport, error) {
	report := jail.ReapReport{Findings: []jail.Finding{}}
	if !d.wanted() && d.idle() {
		return report, nil
	}
	select {
	case d.reaping <- struct{}{}:
		defer func() { <-d.reaping }()
	case <-ctx.Done():
		return report, ctx.Err()
	}
	var errs []error
	note := func(f jail.Finding, do func() error) {
		var err error
		if !o.DryRun {
			err = do()
		}
		if err != nil {
			f.Error = err.Error()
			errs = append(errs, err)
		}
		f.Removed = err == nil && !o.DryRun
		report.Findings = append(report.Findings, f)
		d.o.Log.Info("reap", "jail", f.Name, "reason", f.Reason, "removed", f.Removed, "error", f.Error)
	}
	// The engine first: a record is written before there is a container, so one without a record belongs to nobody.
	asked := d.o.Now()
	list, err := d.containers(ctx)
	if err != nil {
		return report, err
	}
	staged, err := d.staged()
	if err != nil {
		return report, err
	}
	there := map[jail.Name]container.Summary{}
	for _, c := range list {
		name, ok := d.nameOf(c)
		if !ok {
			continue // it carries our label, and not a name of ours
		}
		there[name] = c
		if _, err := d.Lookup(name); err != nil && d.o.Now().Sub(time.Unix(c.Created, 0)) >= d.o.Grace {
			f := jail.Finding{Name: name, Reason: "a container that is not in the journal",
				Resource: &jail.HostResource{Kind: jail.ResourceRuntimeState, Name: name, Index: -1, ID: c.ID}}
			note(f, func() error { return d.engineError(d.remove(ctx, name)) })
		}
	}
	for r, why := range d.Overdue() {
		note(jail.Finding{Name: r.Name, Reason: why.Text}, func() error { return d.end(ctx, r.Name, why.Cause) })
	}
	for name, why := range d.strayed(ctx, there, asked) {
		note(jail.Finding{Name: name, Reason: why}, func() error { return d.end(ctx, name, jail.CauseDestroyed) })
	}
	for _, name := range staged {
		if _, err := d.Lookup(name); err != nil {
			f := jail.Finding{Name: name, Reason: "staged folders of a container that is not in the journal",
				Resource: &jail.HostResource{Kind: jail.ResourceStaged, Name: name, Index: -1, ID: d.stagePath(name)}}
			note(f, func() error { return d.unstage(name) })
		}
	}
	errs = append(errs, d.reapMembers(ctx, note))
	report.Jails = len(d.Entries())
	return report, errors.Join(errs...)
}

// idle says whether nothing of an earlier process is on the host, as far as that can be seen without the engine.
func (d *Driver) idle() bool {
	names, err := d.staged()
	return err == nil && len(names) == 0
}

// reapMembers removes addresses from the firewall's table that no container has.
func (d *Driver) reapMembers(ctx context.Context, note func(jail.Finding, func() error)) error {
	d.mu.Lock()
	firewall, pool := d.firewall, d.pool
	d.mu.Unlock()
	if firewall == nil {
		return nil
	}
	members, err := firewall.List(ctx)
	if err != nil {
		return err
	}
	for _, t := range members {
		if d.composed.has(t) {
			continue
		}
		if t.Index >= 0 {
			if !pool.Hold(t.Index) {
				continue // somebody has it
			}
			defer pool.Release(t.Index)
		}
		note(jail.Finding{Resource: &t, Reason: "an address in the firewall's table that belongs to no container"},
			func() error { return firewall.RemoveResource(ctx, t) })
	}
	return nil
}

// strayed lists the containers that somebody has changed behind the driver's back. One that was removed is not among
// them: its end is seen like any other. Of one that has ended since the engine was asked, the answer says nothing.
func (d *Driver) strayed(ctx context.Context, there map[jail.Name]container.Summary, asked time.Time) map[jail.Name]string {
	d.mu.Lock()
	n := d.network
	d.mu.Unlock()
	out := map[jail.Name]string{}
	for _, e := range d.Entries() {
		r, idle := e.Idle()
		c, ok := there[r.Name]
		if !ok || !idle || r.State != jail.StateStarted && r.State != jail.StateReady {
			continue
		}
		if r.Exit != nil {
			if c.State == container.StateRunning && !r.Exit.At.After(asked) {
				out[r.Name] = "somebody started it again, and nobody has looked at it"
			}
			continue
		}
		if c.NetworkSettings != nil && n.name != "" {
			for name := range c.NetworkSettings.Networks {
				if name != n.name {
					out[r.Name] = fmt.Sprintf("somebody connected it to the network %.40q", name)
				}
			}
		}
		if out[r.Name] != "" || c.State != container.StateRunning {
			continue
		}
		// Its limits can be changed while it runs, and so can its mounts by who is root.
		diff, err := Differences(ctx, r.Process, ProfileFor(r.Spec, r.Lease), r.Lease)
		if err == nil && len(diff) > 0 {
			out[r.Name] = "it is not confined any more as declared: " + strings.Join(diff, "; ")
		}
	}
	return out
}

// endExecutions ends the programs beside a container's first process that an earlier process of ours started: their
// stdio has no reader any more.
func (d *Driver) endExecutions(r jail.Record) error {
	left, err := fences(r.Process)
	for _, f := range left {
		err = errors.Join(err, d.sweep(f))
	}
	return err
}

// Uninstall removes every container, volume and network of the installation, and its rules.
func (d *Driver) Uninstall(ctx context.Context) error {
	list, err := d.containers(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if name, ok := d.nameOf(c); ok {
			if _, err := d.Lookup(name); err == nil {
				errs = append(errs, d.Destroy(ctx, name))
			} else {
				errs = append(errs, d.remove(ctx, name))
			}
		}
	}
	volumes, err := d.engine.VolumeList(ctx, client.VolumeListOptions{
		Filters: client.Filters{}.Add("label", labelInstallation+"="+string(d.o.Installation))})
	if err != nil {
		return errors.Join(append(errs, d.engineError(err))...)
	}
	for _, v := range volumes.Items {
		if _, err := d.engine.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(slices.Clone(errs)...); err != nil {
		return err
	}
	return d.RemoveNetwork(ctx)
}
