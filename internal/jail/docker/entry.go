//go:build linux

package docker

import (
	"context"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/cgroup"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// enter gives a new container its name, its address and its place in the table, already marked as being worked on.
func (d *Driver) enter(owner string, spec jail.Spec) (*jail.Entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lease, err := d.pool.Take()
	if err != nil {
		return nil, err
	}
	e, err := d.Enter(jail.Record{Owner: owner, Spec: spec, Lease: lease},
		func(n int) (jail.Name, error) { return jail.NewContainerName(d.o.Installation, n) })
	if err != nil {
		d.pool.Release(lease.Index)
	}
	return e, err
}

// Inspect reports one container with its current usage.
func (d *Driver) Inspect(_ context.Context, name jail.Name) (jail.Status, error) {
	e, err := d.Lookup(name)
	if err != nil {
		return jail.Status{}, err
	}
	r := e.Record()
	s := r.Status()
	if r.Exit == nil && r.Process.PID != 0 {
		if groups, err := cgroup.Of(r.Process); err == nil { // or it has ended
			s.Usage = groups.Usage()
		}
	}
	return s, nil
}

// Admit adds the container's address to the firewall's table.
func (d *Driver) Admit(ctx context.Context, name jail.Name) error {
	return d.AdmitBy(ctx, name, func(r jail.Record) error {
		if r.Lease.Index < 0 {
			return problem.New(problem.Conflict, "start it again", "container %s has no address", name)
		}
		return d.open(ctx, r.Lease)
	})
}

// open opens the gateway to an address.
func (d *Driver) open(ctx context.Context, l jail.Lease) error {
	_, err := d.with(ctx, func(f *linux.Firewall) error { return f.Add(ctx, jail.TableAgents, l) })
	return err
}
