//go:build linux

package docker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// entry is one container of the journal. Its fields are guarded by Driver.mu; working is held by whoever changes the
// engine on its behalf.
type entry struct {
	rec      jail.Record
	working  chan struct{} // one token
	active   bool          // being made or torn down by this process
	ended    chan struct{} // closed when rec.Exit is set
	drained  chan struct{} // closed when what it printed was read; nil when nobody reads
	cause    jail.Cause    // why it is being ended, when it is not by itself
	watched  bool
	tornDown bool
}

func newEntry(r jail.Record) *entry {
	return &entry{rec: r, working: make(chan struct{}, 1), ended: make(chan struct{})}
}

// enter gives a new container its name, its address and its place in the table, already marked as being worked on.
func (d *Driver) enter(owner string, spec jail.Spec) (*entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lease, err := d.pool.Take()
	if err != nil {
		return nil, err
	}
	for range 100_000 {
		d.number = (d.number + 1) % 100_000
		name, err := jail.NewContainerName(d.o.Installation, d.number)
		if err != nil {
			break
		}
		if _, taken := d.jails[name]; taken {
			continue
		}
		now := d.o.Now()
		e := newEntry(jail.Record{Version: recordVersion, Name: name, State: jail.StateReserved, Owner: owner, Spec: spec,
			Lease: lease, Created: now, Deadline: now.Add(spec.Limits.WallClock)})
		e.working <- struct{}{}
		e.active = true
		d.jails[name] = e
		return e, nil
	}
	d.pool.Release(lease.Index)
	return nil, problem.New(problem.PoolExhausted, "end some containers", "every name of a container is in use")
}

// put journals a state, then takes it on.
func (d *Driver) put(ctx context.Context, e *entry, s jail.State) error {
	r := d.snapshot(e)
	r.State = s
	if err := d.o.Journal.Put(ctx, r); err != nil {
		return fmt.Errorf("journal %s as %s: %w", r.Name, s, err)
	}
	d.change(e, func(r *jail.Record) { r.State = s })
	return nil
}

func (d *Driver) acquire(ctx context.Context, e *entry) error {
	select {
	case e.working <- struct{}{}:
		d.mu.Lock()
		e.active = true
		d.mu.Unlock()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *Driver) leave(e *entry) {
	d.mu.Lock()
	e.active = false
	d.mu.Unlock()
	<-e.working
}

func (d *Driver) lookup(name jail.Name) (*entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.jails[name]
	if !ok {
		return nil, fmt.Errorf("container %.20q: %w", string(name), jail.ErrNotFound)
	}
	return e, nil
}

// running is a container whose program runs.
func (d *Driver) running(name jail.Name) (jail.Record, error) {
	e, err := d.lookup(name)
	if err != nil {
		return jail.Record{}, err
	}
	r := d.snapshot(e)
	if r.Exit != nil || r.State != jail.StateStarted && r.State != jail.StateReady {
		return jail.Record{}, problem.New(problem.Conflict, "start it first", "container %s does not run", name)
	}
	return r, nil
}

func (d *Driver) snapshot(e *entry) jail.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.rec
}

func (d *Driver) change(e *entry, f func(*jail.Record)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&e.rec)
}

func (d *Driver) setCause(e *entry, c jail.Cause) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.cause == "" {
		e.cause = c
	}
}

func status(r jail.Record) jail.Status {
	return jail.Status{Name: r.Name, State: r.State, Spec: r.Spec, Lease: r.Lease, PID: r.Process.PID,
		Created: r.Created, Deadline: r.Deadline, Exit: r.Exit}
}

// List reports every container of the journal, oldest first.
func (d *Driver) List(context.Context) ([]jail.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]jail.Status, 0, len(d.jails))
	for _, e := range d.jails {
		out = append(out, status(e.rec))
	}
	slices.SortFunc(out, func(a, b jail.Status) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// Inspect reports one container with its current usage.
func (d *Driver) Inspect(_ context.Context, name jail.Name) (jail.Status, error) {
	e, err := d.lookup(name)
	if err != nil {
		return jail.Status{}, err
	}
	r := d.snapshot(e)
	s := status(r)
	if r.Exit == nil && r.Process.PID != 0 {
		s.Usage = usage(r.Process)
	}
	return s, nil
}

// Wait blocks until the container's program has ended.
func (d *Driver) Wait(ctx context.Context, name jail.Name) (jail.Exit, error) {
	e, err := d.lookup(name)
	if err != nil {
		return jail.Exit{}, err
	}
	select {
	case <-e.ended:
		return *d.snapshot(e).Exit, nil
	case <-ctx.Done():
		return jail.Exit{}, ctx.Err()
	}
}

// Admit adds the container's address to the firewall's table.
func (d *Driver) Admit(ctx context.Context, name jail.Name) error {
	e, err := d.lookup(name)
	if err != nil {
		return err
	}
	if err := d.acquire(ctx, e); err != nil {
		return err
	}
	defer d.leave(e)
	r := d.snapshot(e)
	switch {
	case r.State == jail.StateReady:
		return nil
	case r.State != jail.StateStarted || r.Exit != nil || r.Lease.Index < 0:
		return problem.New(problem.Conflict, "start it again", "container %s is %s and cannot be admitted to the gateway", name, r.State)
	}
	if err := d.open(ctx, r.Lease); err != nil {
		return fmt.Errorf("admit container %s: %w", name, err)
	}
	return d.put(ctx, e, jail.StateReady)
}

// open opens the gateway to an address.
func (d *Driver) open(ctx context.Context, l jail.Lease) error {
	if _, err := d.prepare(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	firewall := d.firewall
	d.mu.Unlock()
	return firewall.Add(ctx, jail.TableAgents, l)
}

// pause is how long to wait before the engine is asked again.
func (d *Driver) pause(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
